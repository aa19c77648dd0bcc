"""A slot pool that says it shows its attention and its log, and shows less than that, or otherwise than it is.

`shows` is the engine argument; the private methods say what there is. `fault` is the pool's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import slot_pool

from kvfence.adapters.api import Capability, Completion, Engine, EngineConfig, Request, Support
from kvfence.adapters.observation import Attention, Observed


class ShyEngine(Engine):
    name = "shy"
    version = "1"
    block_size = slot_pool.BLOCK

    def __init__(self, pool: slot_pool.SlotEngine, shows: str) -> None:
        self._pool, self._shows = pool, shows

    @property
    def capabilities(self) -> Mapping[str, Capability]:
        undeclared = {"attention": Capability(Support.UNSUPPORTED), "events": Capability(Support.UNKNOWN)}
        return {**self._pool.capabilities, **(undeclared if self._shows == "undeclared" else {})}

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return self._pool.generate(requests)

    def reset_cache(self) -> None:
        self._pool.reset_cache()

    def observe(self) -> Observed:
        return getattr(self, "_" + self._shows.replace("-", "_"))(self._pool.observe())

    def _all(self, seen):
        return seen

    def _nothing(self, seen):
        return Observed()

    _undeclared = _nothing

    def _no_attention_of_b(self, seen):
        return replace(seen, attention={id: a for id, a in seen.attention.items() if "/B" not in id})

    def _no_attention_alone(self, seen):
        return replace(seen, attention={id: a for id, a in seen.attention.items() if not id.startswith("noise/")})

    def _no_attention_sometimes(self, seen):
        return replace(seen, attention={id: a for id, a in seen.attention.items() if id != "noise/2"})

    def _no_events_of_b(self, seen):
        return replace(seen, events=tuple(event for event in seen.events if "/B" not in event.request))

    def _no_events(self, seen):
        return replace(seen, events=())

    def _other_attention_alone(self, seen):
        return replace(seen, attention={i: _one_farther(a) if "noise/" in i else a for i, a in seen.attention.items()})

    def _other_attention_every_second_time(self, seen):
        odd = {f"noise/{i}" for i in range(2, 1000, 2)}
        return replace(seen, attention={i: _one_farther(a) if i in odd else a for i, a in seen.attention.items()})

    def _a_layer_more(self, seen):
        return replace(seen, attention={i: _more(a) if "/B" in i else a for i, a in seen.attention.items()})

    def _a_stale_length_alone(self, seen):
        events = (replace(e, start=e.start + 7) if e.request.startswith("noise/") else e for e in seen.events)
        return replace(seen, events=tuple(events))


def _one_farther(attention: Attention) -> Attention:
    return replace(attention, rows=np.roll(attention.rows, 1, axis=-1))


def _more(attention: Attention) -> Attention:
    parts = (attention.rows, attention.maximum, attention.entropy, attention.top)
    return Attention(*(np.concatenate([part, part[:, :1]], axis=1) for part in parts))


def open_engine(model: str, config: EngineConfig) -> ShyEngine:
    arguments = dict(config.engine_args)
    shows = arguments.pop("shows", "all")
    return ShyEngine(slot_pool.open_engine(model, replace(config, engine_args=arguments)), shows)
