"""What output tokens attended to, and how much of it was another's: against golden, and against the cache itself."""

import numpy as np
import pytest
import torch
from roads import asked, audited, finish, golden, step_until, words
from tiny_models import WINDOW, tiny
from transformers import AttentionInterface

from kvfence.prompts import alphabet
from kvfence.reference_impl.attention import summarise
from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.engine import ReferenceEngine
from kvfence.reference_impl.footprint import Footprint
from kvfence.reference_impl.golden import Golden
from kvfence.reference_impl.key import Namespace
from kvfence.reference_impl.observer import Observer
from kvfence.reference_impl.paged import NAME, Group, paged_attention
from kvfence.reference_impl.radix import PrefixTree
from kvfence.reference_impl.sequence import BlockTable, Row, Sequence
from kvfence.reference_impl.settings import PARTS, Parts, Settings
from kvfence.reference_impl.tags import OwnerTags

SIZE = 4
PREFIX = words(12)


def observing(model="random", parts=PARTS, **settings):
    if model != "mistral":
        return audited(model, parts, attention=True, **{"audit": False, **settings})
    kept = {"blocks": 65, "block_size": SIZE, "tags": True, "attention": True}
    return ReferenceEngine(mistral(), Settings(**kept, **settings), parts)


def mistral():
    return tiny("mistral", 2, vocab_size=alphabet.VOCAB_SIZE)


def expected(model, sequence):
    """Golden's summaries of a sequence's output steps, (rows, maximum, entropy, top) of each layer."""
    layers = []

    def visit(layer, probabilities):
        n = probabilities.shape[-1]
        layers.append(summarise(probabilities, torch.arange(n - probabilities.shape[-2], n)))

    judge = Golden(mistral()) if model == "mistral" else golden(model)
    judge.verify(sequence.tokens[: sequence.prompt], sequence.output, visit)
    return layers


CLEAN = [
    ("canary", {}),
    ("random", {}),
    ("random", {"depth": 1, "blocks": 24}),
    ("random", {"token_budget": 5, "buckets": (4,)}),
    ("mistral", {}),
]


@pytest.mark.parametrize(("model", "settings"), CLEAN)
def test_attention_is_goldens_and_nothing_of_it_is_foreign(model, settings):
    engine = observing(model, **settings)
    for i in range(4):
        engine.submit(str(i), asked(14 if i else 4, i, PREFIX if i else ()), 30)
    done = finish(engine)
    assert len(done) == 4
    if "blocks" in settings:
        assert engine.metrics.preemptions
    for sequence in done.values():
        assert len(sequence.attention) == len(sequence.output) == 30
        assert all((one.foreign == 0).all() for one in sequence.attention)
        for layer, (rows, maximum, entropy, top) in enumerate(expected(model, sequence)):
            for step, one in enumerate(sequence.attention):
                bins = one.rows.shape[-1]
                assert bins == sequence.prompt + step
                np.testing.assert_allclose(one.rows[layer], rows[:, step, :bins], atol=1e-5)
                np.testing.assert_allclose(one.maximum[layer], maximum[:, step], atol=1e-5)
                np.testing.assert_allclose(one.entropy[layer], entropy[:, step], atol=1e-4)
                assert one.top.shape == (*one.maximum.shape, top.shape[-1])
                nearest = one.top[layer, :, :1]  # a bin is one key yet
                assert (np.take_along_axis(one.rows[layer], nearest, -1)[:, 0] == one.maximum[layer]).all()


@pytest.mark.parametrize("stop", [None, 4, 5, 6])
def test_what_rejected_guesses_attended_to_is_dropped(stop):
    plain, guessing = observing(), observing(draft=3)
    plain.submit("a", asked(14), 20)
    known = finish(plain)["a"]

    def guess(sequence):  # right once, then wrong twice
        right, *wrong = known.output[len(sequence.output) :][:3]
        return (right, *(token + 1 for token in wrong))

    guessing.scheduler._draft = guess
    guessing.submit("a", asked(14), 20, stop=[] if stop is None else [known.output[stop]])
    found = finish(guessing)["a"]
    assert (len(found.output), found.finish) == ((20, "length") if stop is None else (stop + 1, "stop"))
    assert found.output == known.output[: len(found.output)]
    assert guessing.metrics.accepted > 1
    assert guessing.metrics.rejected > 2
    assert len(found.attention) == len(found.output)
    for one, other in zip(found.attention, known.attention, strict=False):
        assert one.foreign.max() == 0
        n = other.rows.shape[-1]
        np.testing.assert_allclose(one.rows[..., :n], other.rows, atol=1e-5)
        assert not one.rows[..., n:].any()


def test_a_fork_has_its_parents_attention_up_to_the_forced_token():
    engine = observing()
    engine.submit("a", asked(14), 8)
    step_until(engine, lambda: len(engine.sequences["a"].output) == 3)
    engine.fork("a", [7, 8])
    done = finish(engine)
    assert all(len(sequence.attention) == 8 for sequence in done.values())
    parent, child, other = (np.stack([one.maximum for one in done[id].attention]) for id in ("a", "a.0", "a.1"))
    assert (parent[:3] == child[:3]).all()
    assert (parent[3] != child[3]).any()
    assert (child[3] != other[3]).any()


def test_nothing_is_kept_where_attention_is_not_asked_for():
    engine = audited("random")
    engine.submit("a", asked(14), 2)
    assert finish(engine)["a"].attention == []


def probabilities(engine, sequence):
    """A second implementation: step, with one sequence in the batch; attention [layers, heads, keys] of its query.

    From the queries that the model asks with, and the keys that the cache holds in the blocks of the table.
    """
    asked_with = []

    def catch(module, query, *rest, scaling, **more):
        asked_with.append(query[0, :, 0] * scaling)
        return paged_attention(module, query, *rest, scaling=scaling, **more)

    keys = sequence.length
    AttentionInterface.register(NAME, catch)
    try:
        engine.step()
    finally:
        AttentionInterface.register(NAME, paged_attention)
    blocks, layers = torch.tensor([sequence.table.blocks]), []
    for layer, query in enumerate(asked_with):
        key = engine.storage.gather(layer, blocks)[0][0, :keys]
        key = key.repeat_interleave(len(query) // key.shape[1], dim=1)
        layers.append(torch.einsum("hd,thd->ht", query, key).softmax(-1))
    return torch.stack(layers).numpy()


@pytest.mark.parametrize(("model", "entry"), [*(("random", entry) for entry in range(4)), ("canary", 1)])
def test_foreign_mass_is_what_falls_on_anothers_block(model, entry):
    engine = observing(model)
    engine.submit("other", asked(17, 1), 1)
    finish(engine)
    others = [block for _, _, block in engine.cache.tree.entries()]
    engine.submit("a", asked(17), 12)
    step_until(engine, lambda: len(engine.sequences["a"].output) == 2)
    sequence = engine.sequences["a"]
    assert sequence.attention[-1].foreign.max() == 0
    sequence.table.blocks[entry] = others[-1 - entry]
    mass = probabilities(engine, sequence)
    np.testing.assert_allclose(
        sequence.attention[-1].foreign, mass[..., entry * SIZE : (entry + 1) * SIZE].sum(-1), atol=1e-5
    )
    assert sequence.attention[-1].foreign.max() > 1e-3
    np.testing.assert_allclose(sequence.attention[-1].whose["other"], sequence.attention[-1].foreign, rtol=1e-6)
    assert sequence.attention[-2].whose == {}
    # The rows tell the same mass by distance, whosever it is.
    np.testing.assert_allclose(sequence.attention[-1].rows, mass[..., ::-1], atol=1e-5)


def test_a_block_that_was_shared_is_not_foreign_and_one_of_another_tenant_is():
    class ForgetsTheSalt(PrefixTree):
        def match(self, namespace, tokens):
            return super().match(Namespace(), tokens)

    engine = observing(parts=Parts(tree=ForgetsTheSalt))
    for id, salt in (("a", None), ("b", None), ("c", "tenant")):
        engine.submit(id, asked(14, 1, PREFIX), 1, salt=salt)
        engine.step()
    done = {sequence.id: sequence for sequence in engine.finished()}
    assert done["b"].cached == done["c"].cached == 16
    b, c = done["b"].attention[0], done["c"].attention[0]
    assert b.foreign.max() == 0
    np.testing.assert_allclose(c.foreign, c.rows[..., -16:].sum(-1), atol=1e-6)
    assert c.foreign.min() > 1e-3
    np.testing.assert_array_equal(b.rows, c.rows)


@pytest.mark.parametrize(("entry", "seen"), [(0, False), (1, False), (2, True)])
def test_what_is_behind_the_window_is_not_looked_at(entry, seen):
    class KeepsAll(KVCache):
        def leave_window(self, sequence, first):
            pass

    engine = observing("mistral", Parts(cache=KeepsAll))
    engine.submit("other", asked(17, 1), 1)
    finish(engine)
    others = [block for _, _, block in engine.cache.tree.entries()]
    engine.submit("a", asked(WINDOW + 2 * SIZE - 4), 12)
    engine.step()
    sequence = engine.sequences["a"]
    assert sequence.written - WINDOW + 1 == 2 * SIZE
    sequence.table.blocks[entry] = others[0]
    engine.step()
    assert (sequence.attention[-1].foreign.max() > 0) == seen


def test_a_query_owns_no_key_behind_it():
    """A row of 6 tokens, the last 3 looked at, in a table of 8 keys that are all seen alike; key 2 is another's."""
    tags = OwnerTags(4 * SIZE, SIZE)
    sequence = Sequence("a", list(range(10, 16)), 6, 1, Namespace(), BlockTable(SIZE))
    row = Row(sequence, 0, 6, (1, 2), 3)
    group = Group(0, torch.tensor([[1, 2]]), torch.arange(6)[None], 8)
    lineage = np.array(tags.lineages.after(Namespace(), sequence.tokens))
    one = Footprint(row, group, 0, tags.slots([1, 2])[:6], tags.slots([1, 2]), np.arange(6), lineage)
    one.tag(tags)
    tags.write(np.array([SIZE + 2]), "b", 2, [12], Namespace(), [99])
    observer = Observer([one], tags)
    for layer in range(2):
        observer(layer, group, torch.full((1, 5, 6, 8), 1 / 8))
    attended = observer.attended(row)
    assert [one.foreign.shape for one in attended] == [(2, 5)] * 3
    assert [one.foreign[1, 4] * 8 for one in attended] == [1 + 4, 1 + 3, 1 + 2]
    # The keys behind the queries are of the row itself, guessed, and of nobody; none of them is seen by a real pass.
    assert [{name: mass[1, 4] * 8 for name, mass in one.whose.items()} for one in attended] == [
        {"a": 2, "b": 1, "": 2},
        {"a": 1, "b": 1, "": 2},
        {"a": 0, "b": 1, "": 2},
    ]
