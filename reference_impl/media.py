"""Media: items of a prompt that are no tokens, such as images, as embeddings where their placeholder tokens stand.

What an encoder would make of an item is drawn from its content instead: for one content it is always the same, for two
it differs.
"""

import random
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from kvfence.reference_impl.key import Media


def in_order(media: Iterable[Media]) -> tuple[Media, ...]:
    """Media by position: those of a prompt are the same in whatever order they were given."""
    return tuple(sorted(media, key=lambda item: item.position))


def unfit(media: Sequence[Media], length: int, turn: bool) -> str | None:
    """Why these cannot be the media of a prompt of so many tokens, or of a conversation's turn; or None."""
    positions = [item.position for item in media]
    if media and turn:
        return "a conversation takes no media"
    if len(set(positions)) < len(positions):
        return "two of its media items stand at one position"
    outside = next((position for position in positions if not 0 <= position < length), None)
    return None if outside is None else f"a media item stands at position {outside} of a prompt of {length} tokens"


def embed(embedding: Any, ids: Tensor, media: Iterable[tuple[int, str]]) -> Tensor:
    """Embeddings [1, N, hidden] of tokens [1, N], with those of media, by index of N and content, in their places."""
    rows: Tensor = embedding(ids)
    for index, content in media:
        rows[0, index] = item(embedding, content)
    return rows


def item(embedding: Any, content: str) -> Tensor:
    """The embedding [hidden] of a content: some token's, its elements shuffled.

    So it has the scale of the model's own, and is the same bit for bit on every machine.
    """
    rng = random.Random(content)
    token = torch.tensor(rng.randrange(embedding.num_embeddings), device=embedding.weight.device)
    row: Tensor = embedding(token)
    return row[rng.sample(range(len(row)), len(row))]
