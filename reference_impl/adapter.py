"""Adapters: weight deltas that some requests run with; LoRA (Hu et al., ICLR 2022) keeps the same in factors."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from kvfence.reference_impl.key import AdapterId
from kvfence.reference_impl.sequence import Sequence


class Adapters:
    """The deltas that are loaded for a model, by name."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._ids: dict[str, AdapterId] = {}
        self._deltas: dict[AdapterId, dict[str, Tensor]] = {}
        self._loads: Counter[str] = Counter()  # of each name, those that were unloaded among them

    def unfit(self, deltas: Mapping[str, Tensor]) -> str | None:
        """Why these cannot be added to the model's parameters, by name, or None."""
        own = dict(self._model.named_parameters())
        for name, delta in deltas.items():
            if name not in own:
                return f"{type(self._model).__name__} has no parameter {name}"
            if own[name].shape != delta.shape:
                return f"the delta of {name} is {list(delta.shape)}, the parameter {list(own[name].shape)}"
        return None

    def unknown(self, name: str | None) -> str | None:
        """Why no request can run with an adapter, or None."""
        return None if name is None or name in self._ids else f"there is no adapter {name}"

    def used(self, name: str, sequences: Iterable[Sequence]) -> str | None:
        """Why the deltas of a name cannot go: a request runs with them; or None."""
        users = [
            sequence.id for sequence in sequences if name in self._ids and sequence.namespace.adapter == self._ids[name]
        ]
        return f"it is in use by request {users[0]}" if users else None

    def load(self, name: str, deltas: Mapping[str, Tensor]) -> AdapterId:
        """Load deltas, in the place of those of that name: another version, since K/V of the last one may be cached."""
        self.unload(name)
        self._loads[name] += 1
        adapter = self._ids[name] = AdapterId(name, self._loads[name])
        self._deltas[adapter] = {key: delta.to(self._model.get_parameter(key)) for key, delta in deltas.items()}
        return adapter

    def unload(self, name: str) -> None:
        """Forget the deltas of a name, if there are any."""
        if adapter := self._ids.pop(name, None):
            del self._deltas[adapter]

    def id(self, name: str | None) -> AdapterId | None:
        """What is loaded under a name now."""
        return self._ids.get(name) if name is not None else None

    @contextmanager
    def applied(self, adapter: AdapterId | None) -> Iterator[None]:
        """Have an adapter added to the model's parameters while this is open; they are put aside, not written to."""
        own: list[tuple[Any, Tensor]] = []
        try:
            for name, delta in self._deltas[adapter].items() if adapter else ():
                parameter = self._model.get_parameter(name)
                own.append((parameter, parameter.data))
                parameter.data = parameter.data + delta
            yield
        finally:
            for parameter, data in own:
                parameter.data = data
