"""Clauses that tell a fact to people."""

from collections.abc import Sequence

OF = {
    "salt": "another salt",
    "adapter": "another adapter",
    "media": "other media",
    "weights": "other weights",
    "token": "other tokens",
}
CLAUSES = {
    **{f"first:key:{what}": f"it found K/V of {of} by a key" for what, of in OF.items()},
    **{f"first:fork:{what}": f"as a fork or next turn it took K/V of {of}" for what, of in OF.items()},
    **{f"side:{what}": f"it was served what {of} had computed" for what, of in OF.items()},
    "side:nobody": "more of its prompt was cached than anybody had sent",
    "side:one-more": "one token more",
    "first:key:unwritten": "it found K/V that nobody had written yet",
    "first:key:leftover": "it found what was never there for its tokens",
    "first:key:abandoned": "it found K/V that nobody wrote, and nobody will",
    "first:key:tail": "it found one token more than was written",
    "first:key:withdrawn": "it found what could be found no more",
    "first:key:position": "it found K/V of another position",
    "first:key:beyond": "it found more than was published",
    "first:key:overwritten": "what it found had been overwritten",
    "first:overlap:padding": "padding was written over what it relies on",
    "first:overlap:fetched": "a transfer was written over what it relies on",
    "first:overlap:freed": "who had let go of its slot wrote there",
    "first:overlap:shared": "who shares its slot wrote there",
    "first:overlap:handed": "its slot was handed to another, who wrote there",
    "first:overlap:stray": "who never had its slot wrote there",
    "first:owner": "its slot was handed to another",
    "first:free:used": "a slot that had been let go of was used on",
    "first:free:parked": "it let go of a slot that it did not have, and went on later",
    "first:free": "a slot was let go of by who did not have it",
    "first:table": "it wrote to a slot that was not its own any more",
    "first:length": "it began behind what another had left",
    "case:owner": "a slot was handed to two",
    "case:free": "a slot was let go of twice",
    "case:table": "somebody wrote to a slot that was not his any more",
    "kv:imprecise": "its K/V are nearly right",
    "kv:stored": "its K/V are wrong by themselves",
    "kv:derived": "its K/V were computed from what it read wrongly",
    "kv:turned": "in layer 0 its K are wrong and its V are right",
    "kv:own": "they are its own, of another position",
    "kv:foreign": "they are another request's",
    "kv:adapter": "they are of another request's adapter",
    "kv:earlier": "left from before the case",
    "kv:left": "they are of who had the slot before",
    "kv:nobody": "they are nobody's",
    "kv:cells": "of some layers, heads or parts only",
    "kv:whole": "as a whole",
    "kv:scaled": "they are what they should be but for a factor",
    "got:write": "it had computed them",
    "got:all": "and so is all that came that way",
    "got:some": "as are parts of the blocks that came that way",
    "got:meanwhile": "whose K/V were written while they were on their way",
    "got:reuse:fetch": "they had come to the pool from another store",
    "got:copy": "they had been copied",
    "got:nothing": "nothing in the log has brought them there",
    "got:fetch": "they came from another store",
    "got:restore": "they came back from the host",
    "got:lost": "it had let go of its K/V and went on",
    "read:wrong": "its own K/V in the cache are right",
    "read:attention": "and attended to otherwise than they should be",
    "read:beyond": "it read behind its own end",
    "case:restored": "requests had come back from the host",
    "out:no-number": "it has logprobs that are no numbers",
    "out:foreign": "it spells another request's words",
    "with:hit": "it was served from the cache",
    "with:fork": "it is a fork",
    "with:restore": "it had come back from the host",
    "with:copy": "a block was copied for it",
    "with:fetch": "what it found came from another store",
    "with:again": "it had been taken out and was taken up again",
    "with:rewrites": "it wrote some positions twice",
    "takes:before": "it takes what came before the case",
    "with:window": "the model has a sliding window",
    "solo:left": "runs of one request at a time leave golden, too",
    "with:no-sharing": "nothing is shared",
}
PROBED = {"fails": "{} fails", "holds": "{} holds", "only": "of the probes only those of {} fail"}


def _clause(fact: str) -> str:
    group, _, what = fact.partition(":")
    return PROBED[group].format(what) if group in PROBED else CLAUSES[fact]


def told(facts: Sequence[str]) -> str:
    """Facts in one sentence's worth of clauses."""
    return ", ".join(map(_clause, facts))
