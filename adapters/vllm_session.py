"""A session of vLLM: requests come and go between its forward passes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvfence.adapters.api import Completion, EngineFaultError, RefusedError, Request
from kvfence.adapters.collected import CollectedSession
from kvfence.adapters.hf_model import TOP, first_line
from kvfence.adapters.vllm_core import Core

IDLE_PASSES = 8  # in which nobody can run before a session gives up


@dataclass
class Live:
    """A request that has not ended, and its answer up to now."""

    request: Request
    theirs: str  # vLLM's name of it
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    best: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    cached: int | None = None

    def add(self, output: Any) -> tuple[int, ...]:
        """Take what a pass has brought; its tokens."""
        (part,) = output.outputs
        # One that was put back comes again with its output in its prompt; only its first coming counts.
        if self.cached is None:
            self.cached = output.num_cached_tokens
        new = tuple(part.token_ids)
        self.tokens += new
        for token, told in zip(new, part.logprobs or (), strict=True):
            pairs = [(int(other), float(one.logprob)) for other, one in told.items()]
            self.logprobs.append(float(told[token].logprob))
            # Sorting keeps the emitted token before its equals.
            self.best.append(tuple(sorted(pairs, key=lambda pair: -pair[1])[:TOP]))
        return new

    def completion(self) -> Completion:
        """The whole answer."""
        return Completion(
            self.request.id, tuple(self.tokens), tuple(self.logprobs), tuple(self.best), max(self.cached or 0, 0)
        )


class VLLMSession(CollectedSession):
    """vLLM, driven step by step. A request still in prefill takes part in a step with no tokens."""

    def __init__(self, core: Core, adapters: Mapping[str, Any]) -> None:
        super().__init__()
        self._core, self._adapters = core, adapters
        self._live: dict[str, Live] = {}
        self._broken = False

    def submit(self, request: Request) -> None:
        """Hand a request over. Raises RefusedError if its id is in use, or it is more than the engine can hold."""
        if request.id in self._live:
            raise RefusedError(f"request {request.id} is running already")
        stored = len(request.prompt) + request.max_tokens - 1
        if stored > self._core.capacity:
            raise RefusedError(f"request {request.id} needs {stored} tokens of KV; the pool has {self._core.capacity}")
        # vLLM would take it and cut its answer short.
        if stored >= self._core.context:
            raise RefusedError(f"request {request.id} has {stored + 1} tokens; the engine takes {self._core.context}")
        if request.adapter is not None and request.adapter not in self._adapters:
            raise RefusedError(f"request {request.id} asks for adapter {request.adapter}, which is not loaded")
        lora = self._adapters[request.adapter] if request.adapter is not None else None
        try:
            theirs = self._core.add(request, lora)
        except Exception as error:  # of classes of its own
            raise RefusedError(f"request {request.id} was not accepted: {first_line(error)}") from error
        self._live[request.id] = Live(request, theirs)

    def step(self) -> Mapping[str, tuple[int, ...]]:
        for _ in range(IDLE_PASSES):
            if not self._live:
                return {}
            try:
                outputs = self._core.step()
            except Exception as error:
                self._broken = True
                raise EngineFaultError(f"vLLM broke off: {first_line(error)}") from error
            emitted = self._receive(outputs)
            if self._core.scheduled:
                ran = (self._core.ours[theirs] for theirs in self._core.scheduled)
                return {id: emitted.get(id, ()) for id in ran}
        raise EngineFaultError(f"nobody ran in {IDLE_PASSES} passes; left are the requests {', '.join(self._live)}")

    def cancel(self, id: str) -> None:
        """Withdraw a request. One that has ended is not touched: its completion stays."""
        live = self._live.pop(id, None)
        if live is not None and not self._core.withdraw(live.theirs):
            raise EngineFaultError(f"request {id} was cancelled and its blocks are still held")

    def close(self) -> None:
        self.closed = True
        for id in list(self._live):
            self.cancel(id)
        if self._broken:  # blocks are found from the moment they are handed out, and these were never written
            self._core.forget()

    def _receive(self, outputs: Sequence[Any]) -> dict[str, tuple[int, ...]]:
        """Tokens that came out of a pass, by request; what ended with it is put aside."""
        emitted = {}
        for output in outputs:
            live = self._live.get(output.request_id)
            if live is None:
                raise EngineFaultError(f"a result came for {output.request_id}, which is not running")
            emitted[live.request.id] = live.add(output)
            if output.finished:
                del self._live[live.request.id]
                if (reason := output.outputs[0].finish_reason) == "length":
                    self.done.append(live.completion())
                else:
                    self.failed[live.request.id] = f"it ended by {reason}"
        return emitted
