"""Oracle `golden`: are the tokens and logprobs those of the request alone, without a cache?

The margin rule: at each position the emitted token's golden margin is held against epsilon, the most that rounding
was measured to move a margin. Above it the engine diverged; below it, where golden would have chosen another token,
the position is a numeric tie. An exact model has no ties.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvfence.reference_impl.golden import Verification

# Logprobs near zero are differences of numbers of the size of logits, rounded in float32 on both sides.
FLOOR = 1e-4  # nats


@dataclass(frozen=True)
class Tolerance:
    """What rounding may do to one request's output."""

    epsilon: float  # logits, on the distance between any two tokens' logits
    exact: bool  # golden's own tokens are demanded

    def logprob(self, logprob: float) -> float:
        """How far (nats) a token's logprob may be from golden's `logprob`.

        If no distance to the token's logit moves by more than epsilon, its odds move by at most a factor of
        e^epsilon, and log p to log(p + (1 - p) e^epsilon).
        """
        if self.epsilon > 50.0:
            return math.inf
        return math.log1p(-math.expm1(min(logprob, 0.0)) * math.expm1(self.epsilon)) + FLOOR


@dataclass(frozen=True)
class Divergence:
    """First output position (0-based) that rounding does not explain, and what gave it away."""

    step: int
    by: str  # "margin" or "logprob"
    size: float  # logits or nats


@dataclass(frozen=True)
class GoldenEvidence:
    """What golden says of one output."""

    divergence: Divergence | None
    ties: tuple[int, ...]  # positions of numeric ties before any divergence

    @property
    def overflowed(self) -> bool:
        """Whether what diverged is no number, which no tolerance could explain."""
        return self.divergence is not None and math.isnan(self.divergence.size)


def examine(
    output: Sequence[int], logprobs: Sequence[float] | None, verification: Verification, tolerance: Tolerance
) -> GoldenEvidence:
    """Hold an output against golden's verification of it, position by position up to the first divergence."""
    allowed = 0.0 if tolerance.exact else tolerance.epsilon
    ties: list[int] = []
    for step, token in enumerate(output):
        margin = verification.margins[step]
        # Written so that NaN, from a golden or an engine that overflowed, is a divergence.
        if not margin <= allowed:
            return GoldenEvidence(Divergence(step, "margin", margin), tuple(ties))
        if token != verification.choices[step]:
            ties.append(step)
        if logprobs is not None:
            golden = verification.logprobs[step]
            if not abs(logprobs[step] - golden) <= tolerance.logprob(golden):
                return GoldenEvidence(Divergence(step, "logprob", abs(logprobs[step] - golden)), tuple(ties))
    return GoldenEvidence(None, tuple(ties))
