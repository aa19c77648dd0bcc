"""Beam search by forks, held against beam search by full recomputation."""

from itertools import product

import pytest
from roads import asked, assert_empty, assert_golden, audited, events
from roads import golden as golden_on
from tiny_models import tiny

from kvfence.prompts import alphabet
from kvfence.reference_impl.beam import beam_search
from kvfence.reference_impl.engine import EngineError, ReferenceEngine
from kvfence.reference_impl.golden import Golden
from kvfence.reference_impl.scheduler import Preemption
from kvfence.reference_impl.settings import Settings
from kvfence.reference_impl.trace import Kind

NOISE = 1e-4  # nats by which a beam's sum may differ in float32
WIDTH, N = 4, 10
PROMPT = list(range(5, 28))
SHAPES = {
    "random-like": ("llama", None, {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 8}),
    "smollm2-like": ("llama", None, {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3,
                                     "head_dim": 8, "num_hidden_layers": 3, "tie_word_embeddings": True}),
    "qwen2": ("qwen2", 2, {}),
    "mistral": ("mistral", 2, {"sliding_window": 12}),
    "gemma": ("gemma", 1, {}),
    "gpt2": ("gpt2", None, {}),
}  # fmt: skip
WAYS = {
    "plain": {},
    "one step ahead": {"depth": 1},
    "fewer places than beams": {"max_concurrency": 2},
    "one place": {"max_concurrency": 1, "depth": 1},
    "little room": {"blocks": 11},
    "little room, swapping": {"blocks": 11, "preemption": Preemption.SWAP, "depth": 1},
    "nothing shared": {"sharing": False},
    "guessing": {"draft": 3},
    "small chunks": {"token_budget": 3},
}


@pytest.fixture(scope="module", params=SHAPES)
def models(request):
    """A model for the engine, and golden's."""
    family, kv_heads, config = SHAPES[request.param]
    return tiny(family, kv_heads, **config), Golden(tiny(family, kv_heads, **config))


@pytest.fixture(scope="module")
def llama():
    return tiny("llama", 2), Golden(tiny("llama", 2))


def opened(model, **settings) -> ReferenceEngine:
    small = {"blocks": 129, "block_size": 4, "logprobs": 2 * WIDTH, "trace": True, "tags": True, "audit": True}
    return ReferenceEngine(model, Settings(**small | settings))


def assert_same(beams, expected):
    """The same beams; two whose sums are as near as rounding may change places."""
    assert len(beams) == len(expected)
    sums = [logprob for _, logprob in expected]
    assert [beam.logprob for beam in beams] == pytest.approx(sums, abs=NOISE)
    for i, beam in enumerate(beams):
        near = [tokens for tokens, logprob in expected if abs(logprob - sums[i]) <= 2 * NOISE]
        assert beam.tokens in near


@pytest.mark.parametrize("width", [1, 2, WIDTH])
def test_beams_are_goldens(models, width):
    model, golden = models
    assert_same(beam_search(opened(model), PROMPT, width, N), golden.beams(PROMPT, width, N))


@pytest.mark.parametrize("way", WAYS)
def test_beams_are_the_same_however_the_engine_runs(llama, way):
    model, golden = llama
    engine = opened(model, **WAYS[way])
    assert_same(beam_search(engine, PROMPT, WIDTH, N), golden.beams(PROMPT, WIDTH, N))
    preempted = engine.metrics.preemptions > 0
    assert preempted == (way in ("fewer places than beams", "one place", "little room", "little room, swapping"))
    assert_empty(engine)


def test_one_beam_is_greedy(llama):
    model, golden = llama
    assert [beam.tokens for beam in beam_search(opened(model), PROMPT, 1, N)] == [golden.generate(PROMPT, N)]


def test_best_beam_of_the_canary_is_its_answer():
    engine = audited(logprobs=2 * WIDTH)
    prompt = asked(12)
    beams = beam_search(engine, prompt, WIDTH, N)
    assert beams[0].tokens == alphabet.answer(prompt, N)
    # The others are all as unlikely: which of them a search finds is a matter of rounding.
    sums = [logprob for _, logprob in golden_on("canary").beams(prompt, WIDTH, N)]
    assert [beam.logprob for beam in beams] == pytest.approx(sums, abs=NOISE)
    assert_empty(engine)


def test_golden_beams_are_the_best_of_all_outputs():
    """As wide as there are beginnings, a search leaves nothing out."""
    golden = Golden(tiny("llama", 2, vocab_size=6))
    prompt = [1, 2, 3, 4, 5, 0]
    every = {output: sum(golden.verify(prompt, output).logprobs) for output in product(range(6), repeat=3)}
    best = sorted(every, key=every.__getitem__, reverse=True)[:36]
    beams = golden.beams(prompt, 36, 3)
    assert [tokens for tokens, _ in beams] == best
    assert [logprob for _, logprob in beams] == pytest.approx([every[output] for output in best], abs=NOISE)


def test_beams_share_the_blocks_of_what_they_have_in_common(llama):
    """By their forks alone, where requests share nothing."""
    engine = opened(llama[0], sharing=False)
    beam_search(engine, PROMPT, WIDTH, N)
    size = engine.settings.block_size
    common, own = len(PROMPT) // size, -(-(len(PROMPT) + N - 1) // size)
    assert own < max(step.used for step in engine.metrics.steps) <= common + WIDTH * (own - common) < WIDTH * own
    copies = events(engine, Kind.COPY)
    assert copies
    assert all(copy.length < size for copy in copies), "a full block is never copied"
    assert_empty(engine)


@pytest.mark.parametrize("way", ["plain", "one step ahead", "little room"])
def test_a_stop_token_ends_a_beam(llama, way):
    model, golden = llama
    stop = golden.beams(PROMPT, WIDTH, N)[1][0][N // 2]
    expected = golden.beams(PROMPT, WIDTH, N, stop)
    assert {len(tokens) < N for tokens, _ in expected} == {True, False}
    assert all(stop not in tokens[:-1] for tokens, _ in expected)
    engine = opened(model, **WAYS[way])
    assert_same(beam_search(engine, PROMPT, WIDTH, N, stop), expected)
    assert_empty(engine)


@pytest.mark.parametrize("blocks", [65, 24])
def test_other_requests_go_on_meanwhile(blocks):
    """Some that share the beams' prompt, some that do not; where blocks are few they take them from each other."""
    engine = audited("random", blocks=blocks, logprobs=2 * WIDTH, max_concurrency=6)
    prompt = asked(20)
    others = [engine.submit(f"other {i}", asked(20, seed=i // 2), 30) for i in range(4)]
    assert_same(beam_search(engine, prompt, WIDTH, N), golden_on("random").beams(prompt, WIDTH, N))
    assert any(other.output for other in others)
    assert (engine.metrics.preemptions > 0) == (blocks == 24)
    while engine.sequences:
        engine.step()
    assert [len(other.output) for other in others] == [30] * 4
    assert_golden("random", others)
    assert_empty(engine)


def test_what_a_search_cannot_be_had_of(llama):
    engine = opened(llama[0], logprobs=2 * WIDTH - 1)
    with pytest.raises(EngineError, match="beams of width 4 need the logprobs of 8 tokens"):
        beam_search(engine, PROMPT, WIDTH, N)
    assert beam_search(engine, PROMPT, WIDTH - 1, N)
    with pytest.raises(EngineError, match="the pool has"):
        beam_search(engine, PROMPT, 1, 1000)
    assert_empty(engine)


def test_a_search_that_fails_leaves_nothing_behind(llama, monkeypatch):
    engine = opened(llama[0], max_concurrency=2)  # two of the beams are in the step that fails, two are not
    run, runs = engine.worker.run, []

    def failing(rows):
        runs.append(rows)
        if len(runs) == 3:
            raise RuntimeError("out of memory")
        return run(rows)

    monkeypatch.setattr(engine.worker, "run", failing)
    with pytest.raises(EngineError, match=r"beam beam\.\d ended early: out of memory"):
        beam_search(engine, PROMPT, WIDTH, N)
    assert_empty(engine)
    assert beam_search(engine, PROMPT, WIDTH, N)
