"""Times: whether the first token comes earlier where another tenant has sent the prefix."""

from kvfence.conformance.oracles.side import SAMPLES
from kvfence.conformance.scenarios.cast import Cast, scenario

ARMS = ("same", "other", "fresh")


@scenario("side.first-token", apart=True)
def first_token(cast: Cast) -> None:
    """A fresh prefix each time: sent by one tenant, then asked for by the same and by another, beside one unsent."""
    before = None
    for i in range(SAMPLES):
        prefix = cast.prefix(10)
        before = cast.ask(f"sends{i}", prefix, after=before, n=1, salt="x")
        # By turns, so that what drifts hits all arms alike.
        for arm in (*ARMS[i % 3 :], *ARMS[: i % 3]):
            name, salt = f"{arm}{i}", "x" if arm == "same" else "y"
            before = cast.ask(name, prefix if arm != "fresh" else cast.prefix(10), after=before, n=1, salt=salt)
    cast.arms = {arm: tuple(f"{arm}{i}" for i in range(SAMPLES)) for arm in ARMS}
