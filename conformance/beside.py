"""Beside: what K/V depend on that is not among the tokens, and such as schedules are drawn with."""

from typing import NamedTuple

from kvfence.adapters.api import Media


class Beside(NamedTuple):
    """What K/V of a request depend on beside its tokens."""

    salt: str | None = None
    adapter: str | None = None
    media: tuple[Media, ...] = ()


NOBODY = Beside()
TENANTS = (NOBODY, NOBODY, Beside("x"), Beside("y"))
DOMAINS = (
    NOBODY,
    Beside("x"),
    Beside("y"),
    Beside("a"),
    Beside(adapter="a"),
    Beside(adapter="b"),
    Beside(media=(Media(4, "cat"),)),
    Beside(media=(Media(4, "dog"),)),
    Beside(media=(Media(5, "cat"),)),
    Beside(media=(Media(4, "ab"), Media(5, "c"))),
    Beside(media=(Media(4, "a"), Media(5, "bc"))),
    Beside(media=(Media(4, "f" * 64 + "0"),)),
    Beside(media=(Media(4, "f" * 64 + "1"),)),
)
