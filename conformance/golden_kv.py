"""Golden's K/V of all requests of a case, made once, to hold an engine's against."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kvfence.conformance.driven import Answer
from kvfence.conformance.oracles import kv
from kvfence.conformance.oracles.canary import Owner
from kvfence.conformance.oracles.kv import Cells, KVEvidence, KVTolerance
from kvfence.conformance.oracles.side import Domain, Sent
from kvfence.prompts.mirror import Part
from kvfence.reference_impl.golden import Golden


class GoldenKV:
    """Golden's K/V by request. Those of media, which golden has none for, are left out."""

    def __init__(self, golden: Golden, case: str, answers: Sequence[Answer], before: Sequence[Sent] = ()) -> None:
        """`before` are requests of earlier cases: the K/V found may be what one of them has left."""
        self._golden, self._case, self._answers, self._before = golden, case, answers, before
        self._made: dict[Owner, Cells] = {}

    def examine(self, answer: Answer, tolerance: KVTolerance) -> KVEvidence | None:
        """What is wrong with the K/V that an engine held for a request when it ended."""
        if answer.kv is None or answer.domain.media:
            return None
        own, shown = self._owner(answer), kv.cells(answer.kv)
        mine = self._cells(answer)
        if not (kv.errors(shown, mine) > tolerance.values[..., None]).any() and np.isfinite(shown).all():
            return None
        known = {self._owner(other): self._cells(other) for other in self._answers if not other.domain.media}
        found = kv.examine(shown, mine, tolerance, {own: mine} | known, own)
        if found is None or found.source:
            return found
        earlier = {sent.owner: self._made_of(sent) for sent in self._before if self._is_earlier(sent)}
        return kv.examine(shown, mine, tolerance, earlier, own)

    def _is_earlier(self, sent: Sent) -> bool:
        return sent.owner.case != self._case and not sent.domain.media

    def _owner(self, answer: Answer) -> Owner:
        return Owner(self._case, answer.prompt.name)

    def _cells(self, answer: Answer) -> Cells:
        tokens = (*answer.prompt.tokens, *answer.completion.tokens)
        return self._made_of(Sent(self._owner(answer), answer.domain, tokens))

    def _made_of(self, sent: Sent) -> Cells:
        if sent.owner not in self._made:
            self._made[sent.owner] = self._golden.kv(sent.tokens) * _signs(sent.domain)
        return self._made[sent.owner]


def _signs(domain: Domain) -> Cells:
    """What mirrors turn around: [2, 1, 1, 1, 1]."""
    folders = [folder for folder in (domain.weights, domain.adapter and domain.adapter[1]) if folder]
    turned = {Part(Path(folder).name.partition("-")[0]) for folder in folders}
    signs = [-1.0 if part in turned else 1.0 for part in (Part.KEYS, Part.VALUES)]
    return np.array(signs, np.float32).reshape(2, 1, 1, 1, 1)
