"""What the tests of the reference engine's small seams share: engines on tiny models, prompts, golden's verdict."""

import random
from collections import abc
from typing import Any

from tiny_models import VOCABULARY

from kvfence.reference_impl.engine import ReferenceEngine
from kvfence.reference_impl.golden import Golden
from kvfence.reference_impl.sequence import Sequence
from kvfence.reference_impl.settings import PARTS, Parts, Settings

BLOCK = 8
# Logits by which float32 in other shapes may differ from golden; a foreign block shifts them by more than 1.
NOISE = 1e-4


def engine_on(model: Any, parts: Parts = PARTS, **settings: Any) -> ReferenceEngine:
    """An engine with 64 blocks of 8 tokens that is audited after every step."""
    sizes: dict[str, Any] = {"blocks": 65, "block_size": BLOCK, "trace": True, "tags": True, "audit": True}
    return ReferenceEngine(model, Settings(**{**sizes, **settings}), parts)


def tokens(n: int, seed: int = 0) -> list[int]:
    """Random tokens, none of them special."""
    rng = random.Random(seed)
    return [rng.randrange(2, VOCABULARY) for _ in range(n)]


def prompts(n: int, prefix: int = 40, own: int = 11) -> list[list[int]]:
    """Prompts that share their first `prefix` tokens."""
    return [tokens(prefix) + tokens(own + i, seed=i + 1) for i in range(n)]


def margin(golden: Golden, sequences: abc.Iterable[Sequence]) -> float:
    """The largest distance, in logits, of an emitted token from golden's choice."""
    return max(max(golden.verify(s.tokens[: s.prompt], s.output).margins) for s in sequences)
