"""Padded buckets on the reference engine: rows of padding change no output and write to the scratch block only."""

import pytest
import torch
from roads import assert_empty, finish
from seams import BLOCK, NOISE, engine_on, margin, prompts, tokens
from tiny_models import tiny

from kvfence.reference_impl.golden import Golden
from kvfence.reference_impl.pool import SCRATCH
from kvfence.reference_impl.runner import Runner
from kvfence.reference_impl.settings import PARTS, Parts

LENGTH = 12


@pytest.fixture(scope="module")
def model():
    return tiny("llama", 2)


@pytest.fixture(scope="module")
def golden():
    return Golden(tiny("llama", 2))


class Watched(Runner):
    """Notes each batch before it runs."""

    def compute(self, packed):
        if packed.rows:
            self.seen = [*getattr(self, "seen", []), packed]
        return super().compute(packed)


WATCHED = Parts(runner=Watched)


def outputs(model, buckets, parts=PARTS, n=5, **settings):
    engine = engine_on(model, parts, buckets=buckets, **settings)
    for i, prompt in enumerate(prompts(n)):
        engine.submit(str(i), prompt, LENGTH - i)
    done = finish(engine)
    assert_empty(engine)
    return engine, done


def padding(packed):
    """For each group the number of its queries that are no row's."""
    pairs = zip(packed.batch.groups, packed.members, strict=True)
    return [(group.shape[0] - len(members), group.shape[1], len(members)) for group, members in pairs]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("buckets", [(8,), (1, 2, 4, 8), (3,), (4, 64)])
def test_outputs_are_what_they_are_without(model, golden, buckets, depth):
    plain, expected = outputs(model, (), depth=depth)
    engine, done = outputs(model, buckets, depth=depth)
    assert {id: s.output for id, s in done.items()} == {id: s.output for id, s in expected.items()}
    assert margin(golden, done.values()) <= NOISE
    assert len(engine.metrics.steps) == len(plain.metrics.steps)


def test_decoding_rows_are_padded_to_the_next_bucket_and_no_others(model):
    engine, _ = outputs(model, (2, 4), WATCHED, sharing=False, token_budget=40)
    seen = [place for packed in engine.runner.seen for place in padding(packed)]
    assert {(rows, missing) for missing, queries, rows in seen if queries == 1} >= {(1, 1), (2, 0), (3, 1), (4, 0)}
    assert {missing for missing, queries, _ in seen if queries > 1} == {0}
    for missing, queries, rows in seen:
        bucket = next((size for size in (2, 4) if size >= rows), rows)
        assert missing == (bucket - rows if queries == 1 else 0)


def test_a_bucket_smaller_than_the_batch_is_harmless(model):
    engine, _ = outputs(model, (1, 3), WATCHED, sharing=False)
    wide = [place for packed in engine.runner.seen for place in padding(packed) if place[1] == 1 and place[2] > 3]
    assert wide
    assert {missing for missing, _, _ in wide} == {0}


def test_padding_writes_to_the_scratch_block_only(model):
    engine = engine_on(model, WATCHED, buckets=(8,))
    for i, prompt in enumerate(prompts(3)):
        engine.submit(str(i), prompt, LENGTH)
    padded = 0
    while engine.sequences:
        before = engine.storage.kv.clone()
        engine.runner.seen = []
        engine.step()
        for packed in engine.runner.seen:
            slots = packed.batch.slots.tolist()
            own = {
                row.blocks[at // BLOCK] * BLOCK + at % BLOCK for row in packed.rows for at in range(row.start, row.stop)
            }
            padded += len(slots) - len(own)
            changed = (engine.storage.kv != before).any(dim=(0, 1, 4, 5)).flatten().nonzero().flatten().tolist()
            assert {slot for slot in changed if slot >= BLOCK} <= own
            assert {slot for slot in slots if slot not in own} <= set(range(BLOCK))
    assert padded > 5 * LENGTH
    assert engine.storage.kv[:, :, SCRATCH].any()
    assert not engine.storage.kv[:, :, SCRATCH, 1:].any()


def test_what_scratch_holds_is_not_read(model):
    """Shorter tables are filled up with the scratch block, which anything may be in."""
    _, expected = outputs(model, (4,))
    engine = engine_on(model, buckets=(4,))
    for i, prompt in enumerate(prompts(5)):
        engine.submit(str(i), prompt, LENGTH - i)
    engine.submit("short", tokens(3), LENGTH)
    while engine.sequences:
        engine.storage.kv[:, :, SCRATCH] = 1e4 * torch.randn(engine.storage.kv[:, :, SCRATCH].shape)
        engine.step()
    done = {sequence.id: sequence.output for sequence in engine.finished()}
    assert {id: done[id] for id in expected} == {id: s.output for id, s in expected.items()}
