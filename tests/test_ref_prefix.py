"""Prefix sharing: who may use whose K/V, which of them go first, and that nothing stale or foreign is ever used."""

import pytest
from roads import MODELS, asked, assert_empty, assert_golden, audited, count, evict_idle, finish, step_until, words
from tiny_models import tiny

from kvfence.prompts import alphabet
from kvfence.reference_impl.engine import ReferenceEngine
from kvfence.reference_impl.golden import Golden
from kvfence.reference_impl.key import Namespace
from kvfence.reference_impl.remote import RemoteStore
from kvfence.reference_impl.scheduler import Preemption
from kvfence.reference_impl.sequence import Status
from kvfence.reference_impl.settings import Parts, Settings
from kvfence.reference_impl.trace import Kind

PREFIX = words(15)  # with BOS 4 blocks of 4
DEPTHS = pytest.mark.parametrize("depth", [0, 1])
NAMES = pytest.mark.parametrize("name", MODELS)


@NAMES
@DEPTHS
@pytest.mark.parametrize("budget", [7, 512])
def test_in_a_batch_the_others_wait_for_the_one_that_computes(name, depth, budget):
    engine = audited(name, depth=depth, token_budget=budget)
    prompts = {str(i): asked(20 + i, i, PREFIX) for i in range(3)}
    prompts["stranger"] = [alphabet.EOS, *asked(9, 7)[1:]]
    sequences = {id: engine.submit(id, prompt, 12) for id, prompt in prompts.items()}
    step_until(engine, lambda: sequences["0"].written >= 16)
    # Whoever shares nothing does not wait.
    assert budget < 512 or sequences["stranger"].admitted == 0
    assert (sequences["1"].admitted, sequences["2"].admitted) == (None, None)
    finish(engine)
    assert [sequence.cached for sequence in sequences.values()] == [0, 16, 16, 0]
    assert engine.metrics.hits == 2
    assert engine.metrics.computed == sum(map(len, prompts.values())) - 2 * 16 + 4 * 11
    assert_golden(name, sequences.values())
    assert_empty(engine)


@NAMES
@DEPTHS
@pytest.mark.parametrize("common", range(1, 14))
def test_as_many_tokens_are_shared_as_are_the_same(name, depth, common):
    engine = audited(name, depth=depth)
    prompt = asked(20, 1)
    engine.submit("first", prompt, 8)
    finish(engine)
    other = [*prompt[:common], *(word for word in words(40, 5) if word not in prompt)][:20]
    other += [alphabet.ASK, alphabet.WORDS + other[1 if common == 1 else 2]]
    sequence = engine.submit("second", other, 12)
    finish(engine)
    assert sequence.cached == common
    # What is shared of a block in part is copied before it is written to.
    assert count(engine)[Kind.COPY] == (common % 4 > 0)
    again = engine.submit("first again", prompt, 8)
    finish(engine)
    assert again.cached == len(prompt) - 1
    assert_golden(name, [sequence, again])
    assert_empty(engine)


@DEPTHS
@pytest.mark.parametrize("n", [5, 6, 13])
def test_a_prompt_that_is_wholly_cached_computes_its_last_token(n, depth):
    engine = audited(depth=depth)
    prompt = asked(n)  # 8, 9 and 16 tokens
    for i in range(3):
        computed = engine.metrics.computed
        sequence = engine.submit(str(i), prompt, 10)
        finish(engine)
        assert sequence.cached == (len(prompt) - 1 if i else 0)
        assert engine.metrics.computed - computed == (1 if i else len(prompt)) + 9
        assert_golden("canary", [sequence])
    assert_empty(engine)


def test_generated_tokens_are_found_too():
    engine = audited()
    prompt = asked(9)
    first = engine.submit("first", prompt, 10)
    finish(engine)
    longer = [*prompt, *first.output]
    sequence = engine.submit("second", longer, 6)
    finish(engine)
    assert sequence.cached == len(longer) - 1
    assert [*first.output, *sequence.output] == list(alphabet.answer(prompt, 16))


@NAMES
@DEPTHS
def test_tenants_never_share(name, depth):
    engine = audited(name, depth=depth)
    prompt = asked(20, 1, PREFIX)
    cached, sequences = {}, []
    for turn in range(2):
        for salt in (None, "a", "b", ""):
            sequence = engine.submit(f"{salt!r} {turn}", prompt, 12, salt=salt)
            cached[sequence.id] = sequence
            sequences.append(sequence)
        finish(engine)
    assert [sequence.cached for sequence in sequences] == [0] * 4 + [len(prompt) - 1] * 4
    assert engine.scheduler.preempted == 0
    assert_golden(name, sequences)
    tags = engine.tags
    for namespace, tokens, block in engine.cache.tree.entries():
        owners = [tags.owner(slot) for slot in range(block * 4, block * 4 + (len(tokens) - 1) % 4 + 1)]
        assert {owner.tenant for owner in owners} == {namespace.salt}
    assert_empty(engine)


def test_without_sharing_nothing_is_found():
    engine = audited(sharing=False)
    sequences = [engine.submit(str(i), asked(20, 1, PREFIX), 12) for i in range(3)]
    finish(engine)
    assert (engine.metrics.cached_tokens, engine.pool.cached, list(engine.cache.tree.entries())) == (0, 0, [])
    assert_golden("canary", sequences)
    assert_empty(engine)


@DEPTHS
def test_what_was_not_used_for_longest_is_evicted_and_the_end_of_it_first(depth):
    engine = audited(blocks=21, depth=depth)
    prompts = {id: [*asked(13, i)[1:], 9] for i, id in enumerate("abc")}  # 16 tokens, nothing in common

    def run(id, name, n=2):
        sequence = engine.submit(name, prompts[id], n)
        finish(engine)
        return sequence.cached

    assert [run(id, id) for id in "abc"] == [0, 0, 0]
    # Of its 5 blocks the last, which holds an output token, is not asked for.
    assert run("a", "a again") == 15
    free = len(engine.pool.free)
    engine.submit("other", asked(4 * (free + 4) - 3, 7), 1)
    finish(engine)
    known = {id: engine.cache.tree.match(Namespace(), prompt)[1] for id, prompt in prompts.items()}
    assert known == {"a": 16, "b": 8, "c": 16}
    assert count(engine)[Kind.EVICT] == 4
    sequence = engine.submit("b again", prompts["b"], 2)
    finish(engine)
    assert sequence.cached == 8
    assert_golden("canary", [sequence])
    assert_empty(engine)


@NAMES
@DEPTHS
@pytest.mark.parametrize("how", Preemption)
def test_under_pressure_blocks_are_evicted_and_nobody_reads_what_came_after(name, depth, how):
    engine = audited(name, blocks=24, depth=depth, preemption=how, token_budget=32)
    prefixes = [words(7, seed) for seed in range(3)]
    sequences = []
    for i in range(14):
        sequences.append(engine.submit(str(i), asked(10 + i % 4, i, prefixes[i * i % 3]), 12))
        for _ in range(i % 3 + 1):
            engine.step()
    finish(engine)
    seen = count(engine)
    assert seen[Kind.EVICT] > 20
    assert engine.metrics.hits >= 4
    assert engine.scheduler.preempted > 0
    assert_golden(name, sequences)
    assert_empty(engine)


@DEPTHS
def test_after_a_reset_nothing_is_found_and_who_runs_goes_on(depth):
    engine = audited(depth=depth)
    prompt = asked(20, 1, PREFIX)
    engine.submit("first", prompt, 4)
    finish(engine)
    sharing = engine.submit("sharing", asked(18, 2, PREFIX), 20)
    step_until(engine, lambda: sharing.emitted > 2)
    assert sharing.cached == 16
    engine.reset_cache()
    assert engine.pool.cached == 0
    assert engine.cache.tree.match(Namespace(), prompt) == ([], 0)
    done = finish(engine)
    assert_golden("canary", done.values())
    assert_empty(engine)


class Keeping(RemoteStore):
    """Does not forget when it should."""

    def clear(self):
        pass


@DEPTHS
@pytest.mark.parametrize("store", [RemoteStore, Keeping])
def test_after_new_weights_nothing_old_is_used(depth, store):
    models = [tiny("llama", 2, seed=seed, vocab_size=alphabet.VOCAB_SIZE) for seed in (0, 1, 0)]
    old, new, model = Golden(models[0]), Golden(models[1]), models[2]
    settings = Settings(65, 4, depth=depth, remote=64, transfer_steps=9, tags=True, audit=True)
    engine = ReferenceEngine(model, settings, Parts(remote=store))
    prompt = asked(20, 1, PREFIX)
    engine.submit("first", prompt, 4)
    finish(engine)
    decoding = engine.submit("decoding", asked(18, 2, PREFIX), 20)
    swapped = engine.submit("swapped", asked(18, 3, PREFIX), 20)
    beside = engine.submit("beside", asked(18, 6, PREFIX), 20)
    step_until(engine, lambda: beside.emitted > 2)
    engine.preempt("swapped", Preemption.SWAP)
    [child] = engine.fork("decoding", [9])
    sequences = [decoding, beside, swapped, child, engine.submit("waiting", prompt, 20)]
    assert [sequence.cached for sequence in sequences] == [16, 16, 16, 0, 0]
    assert child.table.blocks
    told = {sequence.id: len(sequence.tokens) for sequence in sequences}
    engine.settle()
    model.load_state_dict(models[1].state_dict())
    engine.new_weights()
    assert (engine.epoch, engine.pool.used, engine.pool.cached) == (1, 0, 0)
    assert list(engine.scheduler.waiting) == sequences
    finish(engine)
    sequences.append(engine.submit("after", prompt, 20))
    assert sequences[-1].status is Status.WAITING
    finish(engine)
    assert sequences[-1].cached == len(prompt) - 1
    for sequence in sequences:
        n = told.get(sequence.id, len(prompt))
        context, rest = sequence.tokens[:n], sequence.tokens[n:]
        assert max(new.verify(context, rest).margins) < 1e-4
        # The positive control: the old weights would have said something else.
        assert max(old.verify(context, rest).margins) > 1
    assert_empty(engine)


@DEPTHS
@pytest.mark.parametrize("store", [RemoteStore, Keeping])
def test_after_new_weights_nothing_old_is_fetched(depth, store):
    models = [tiny("llama", 2, seed=seed, vocab_size=alphabet.VOCAB_SIZE) for seed in (1, 0)]
    new, model = Golden(models[0]), models[1]
    settings = Settings(65, 4, depth=depth, remote=64, transfer_steps=9, tags=True, audit=True)
    engine = ReferenceEngine(model, settings, Parts(remote=store))
    prompt = asked(20, 1, PREFIX)
    engine.submit("first", prompt, 4)
    finish(engine)
    evict_idle(engine)
    fetching = engine.submit("fetching", prompt, 20)
    assert fetching.status is Status.FETCHING
    model.load_state_dict(models[0].state_dict())
    engine.new_weights()
    assert (fetching.status, fetching.table.blocks) == (Status.WAITING, [])
    finish(engine)
    evict_idle(engine)
    again = engine.submit("again", prompt, 20)
    assert again.status is Status.FETCHING
    finish(engine)
    assert (fetching.preemptions, again.cached) == (0, 20)
    for sequence in (fetching, again):
        assert max(new.verify(prompt, sequence.output).margins) < 1e-4
