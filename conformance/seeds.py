"""Seeds of the search: what is known of public reports whose cause nobody has found."""

from collections.abc import Callable

from kvfence.conformance.scenarios.cast import Cast
from kvfence.conformance.scenarios.scenario import ROOMY, SMALL, TIGHT, Setup


def cancel_and_retry(cast: Cast) -> None:
    """A request withdrawn and sent again at once, beside one that has nothing to do with it."""
    prompt = cast.write("P", cast.prefix(2), share=0.5)
    cast.ask("goes", prompt, n=30)
    cast.ask("stranger", cast.prefix(2), n=30)
    cast.cancel("goes", at=("goes", 4))
    cast.ask("retry", prompt, n=30)


def one_block(cast: Cast) -> None:
    """A prefix of one block and no more, by two requests and then by a third."""
    prefix = cast.prefix(1)
    cast.ask("A", prefix, n=20)
    cast.ask("B", prefix, n=20)
    cast.ask("C", cast.write("C", prefix, share=0.9), after="A", n=20)


def full_pool(cast: Cast) -> None:
    """Two requests that together need just as many blocks as there are."""
    cast.ask("A", cast.prefix(1, 7), n=18)
    cast.ask("B", cast.prefix(1, 8), n=18)
    cast.ask("C", cast.prefix(1, 7), after="A", n=18)


SEEDS: dict[str, tuple[Setup, Callable[[Cast], None]]] = {
    "search.cancel-and-retry": (TIGHT, cancel_and_retry),
    "search.one-block": (ROOMY, one_block),
    "search.full-pool": (SMALL, full_pool),
}
