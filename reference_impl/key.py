"""The key of cached K/V: what they depend on beside the tokens, each part of a type of its own.

Parts of one untyped tuple could stand for each other: a salt "x" and an adapter "x" would share K/V.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AdapterId:
    """A weight delta by name, and how often that name was loaded: a reload is another adapter."""

    name: str
    version: int


@dataclass(frozen=True, slots=True)
class Media:
    """A media item: where its placeholder token stands, and what it shows."""

    position: int
    content: str


@dataclass(frozen=True, slots=True)
class Namespace:
    """Requests share K/V only within one namespace."""

    salt: str | None = None  # of a tenant
    adapter: AdapterId | None = None
    media: tuple[Media, ...] = ()
    epoch: int = 0  # of the weights
