from itertools import pairwise

import pytest
import slot_pool
import torch
from pool import COMMON, FIRST, PARTNER, PROMPTS, SHORT, STRANGER, N, answers, harmed, of, opened
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM

from kvfence.adapters.api import EngineConfig, EngineFaultError, EngineStartError, UnsupportedConfigError
from kvfence.adapters.observation import Action
from kvfence.prompts import alphabet
from kvfence.reference_impl.golden import Golden


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("sharing", [False, True])
def test_without_a_fault_every_mode_is_golden_on_the_canary(canary_folder, dtype, sharing):
    engine = opened(canary_folder, dtype=dtype, sharing=sharing)
    assert harmed(engine, PROMPTS) == [False] * 4
    # Now slots are used and prefixes published.
    assert harmed(engine, PROMPTS[::-1], "serial") == [False] * 4


@pytest.mark.parametrize("sharing", [False, True])
def test_logprobs_are_goldens_up_to_rounding(random_folder, sharing):
    golden = Golden.load(random_folder.path)
    for prompt, completion in zip(PROMPTS, answers(opened(random_folder, sharing=sharing), PROMPTS), strict=True):
        expected = golden.verify(prompt, completion.tokens)
        assert completion.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
        assert expected.margins == pytest.approx([0] * N, abs=1e-3)
        emitted = zip(completion.tokens, completion.logprobs, strict=True)
        assert [best[0] for best in completion.top_logprobs] == list(emitted)
        assert all(a[1] >= b[1] for best in completion.top_logprobs for a, b in pairwise(best))


def test_a_model_with_learned_positions_and_no_grouped_heads(tmp_path):
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=600, n_positions=128)).save_pretrained(
        tmp_path
    )
    golden = Golden.load(tmp_path)
    engine = slot_pool.open_engine(str(tmp_path), EngineConfig(max_concurrency=2, sharing=True))
    prompts = [tuple(range(40)), (*range(35), *range(50, 70))]
    for prompt, completion in zip(prompts, answers(engine, prompts), strict=True):
        expected = golden.verify(prompt, completion.tokens)
        assert completion.logprobs == pytest.approx(expected.logprobs, abs=1e-3)


def test_sharing_takes_the_longest_whole_blocks_but_never_the_last_token(canary_folder):
    assert [c.cached_tokens for c in answers(opened(canary_folder), PROMPTS, "serial")] == [0, 0, 0, 0]
    for calls in ("serial", "batch"):
        engine = opened(canary_folder, sharing=True)
        assert [c.cached_tokens for c in answers(engine, PROMPTS, calls)] == [0, 32, 0, 0]
        assert [c.cached_tokens for c in answers(engine, [FIRST, FIRST[:48], FIRST[:49]], calls, n=1)] == [48, 32, 48]


def test_a_full_prefix_table_forgets(canary_folder):
    engine = opened(canary_folder, sharing=True, pool_size=len(FIRST) + len(STRANGER))
    assert [c.cached_tokens for c in answers(engine, [FIRST, STRANGER, FIRST], "serial")] == [0, 0, 48]
    engine = opened(canary_folder, sharing=True, pool_size=len(FIRST) + len(STRANGER) - 1)
    assert [c.cached_tokens for c in answers(engine, [FIRST, STRANGER, FIRST], "serial")] == [0, 0, 0]


def test_a_slot_in_use_is_not_handed_out(canary_folder):
    pool = opened(canary_folder)._pool
    assert [pool.acquire(2), pool.acquire(1)] == [[0, 1], [2]]
    pool.release(1)
    assert pool.acquire(2) == [1, 3]


def test_more_requests_than_slots_wait(canary_folder):
    engine = opened(canary_folder, max_concurrency=3, observe=("events",))
    assert harmed(engine, PROMPTS) == [False] * 4
    freed = of(engine.observe().events, Action.FREE)
    assert [(event.request, event.slot) for event in freed] == [("0", 0), ("1", 1), ("2", 2), ("3", 0)]


def test_reset_forgets_prefixes_and_lengths(canary_folder):
    engine = opened(canary_folder, sharing=True)
    hits = [answers(engine, [FIRST])[0].cached_tokens for _ in range(2)]
    engine.reset_cache()
    assert [*hits, answers(engine, [FIRST])[0].cached_tokens] == [0, 48, 0]
    for reset in (False, True):
        engine = opened(canary_folder, "length")
        assert harmed(engine, [FIRST]) == [False]
        if reset:
            engine.reset_cache()
        assert harmed(engine, [PARTNER]) == [not reset]


def test_a_prefix_outlives_what_later_requests_write_to_its_publishers_slot(canary_folder):
    engine = opened(canary_folder, sharing=True, observe=("events",))
    assert harmed(engine, [FIRST, STRANGER, FIRST], "serial") == [False] * 3
    events = engine.observe().events
    assert {event.slot for event in of(events, Action.WRITE)} == {0}
    assert [(event.request, event.length) for event in of(events, Action.REUSE)] == [("2", 48)]


def test_length_harms_the_next_request_on_a_slot_and_never_the_first(canary_folder):
    prompts = (FIRST, PARTNER, SHORT)
    assert harmed(opened(canary_folder), prompts, "serial") == [False, False, False]
    assert harmed(opened(canary_folder, "length"), prompts, "serial") == [False, True, True]
    # In a batch each has a slot of its own, where the next batch meets it.
    other = alphabet.prompt_tokens((*COMMON, *range(260, 268)), start=35)
    for fault, expected in (("none", False), ("length", True)):
        engine = opened(canary_folder, fault)
        assert harmed(engine, (FIRST, PARTNER, FIRST)) == [False, False, False]
        assert harmed(engine, (PARTNER, other, PARTNER)) == [expected] * 3


def test_a_slot_too_small_is_an_error_only_if_the_request_itself_does_not_fit(canary_folder, monkeypatch):
    monkeypatch.setattr(slot_pool, "CAPACITY", len(PARTNER) + N - 1)
    with pytest.raises(EngineFaultError, match=r"^request 0 needs 77 tokens; a slot has 76$"):
        answers(opened(canary_folder), [PARTNER], n=N + 1)
    assert len(PARTNER) + N - 1 == 76
    # What a stale length leaves no room for begins anew, and so is right.
    assert harmed(opened(canary_folder, "length"), [FIRST, PARTNER, STRANGER], "serial") == [False, False, False]


@pytest.mark.parametrize("calls", ["serial", "batch"])
def test_collision_harms_those_whose_prefix_is_not_the_published_one(canary_folder, calls):
    same = alphabet.prompt_tokens((*COMMON, *range(200, 208)), start=5)
    prompts = (FIRST, same, STRANGER, SHORT)
    assert harmed(opened(canary_folder, "collision", sharing=True), prompts, calls) == [False, False, True, False]
    assert harmed(opened(canary_folder, "collision"), prompts, calls) == [False, False, False, False]
    assert harmed(opened(canary_folder, sharing=True), prompts, calls) == [False, False, False, False]


def test_writers_harm_in_a_batch_and_never_one_by_one(canary_folder):
    equal = alphabet.prompt_tokens(range(600, 648))
    longer = alphabet.prompt_tokens(range(600, 660), start=40)
    # Of two as long, the one that writes last reads its own; a longer one loses its end to the shorter one's output.
    for second, too in ((equal, False), (longer, True)):
        prompts, expected = [STRANGER, second, SHORT], [True, too, False]
        engine = opened(canary_folder, "writers")
        assert harmed(engine, prompts, "serial") == [False, False, False]
        assert harmed(engine, prompts) == expected
        assert harmed(engine, prompts, "serial") == [False, False, False]
        assert harmed(opened(canary_folder), prompts) == [False, False, False]


def test_what_cannot_be_opened(canary_folder, tmp_path):
    with pytest.raises(EngineStartError, match=r"^slot_pool has no fault x; it has none, length, collision, writers$"):
        opened(canary_folder, "x")
    with pytest.raises(EngineStartError, match=r"^slot_pool has no engine argument fautl; it has fault$"):
        slot_pool.open_engine(str(canary_folder.path), EngineConfig(engine_args={"fautl": "length"}))
    with pytest.raises(UnsupportedConfigError, match="no dtype int8; it has float32"):
        opened(canary_folder, dtype="int8")
    with pytest.raises(EngineStartError, match=r"cannot load .* as a causal LM"):
        slot_pool.open_engine(str(tmp_path), EngineConfig())


def test_a_model_with_a_sliding_window_is_refused(tmp_path):
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    for window in (None, 8):
        config = MistralConfig(vocab_size=64, num_key_value_heads=1, sliding_window=window, **sizes)
        MistralForCausalLM(config).save_pretrained(tmp_path / str(window))
    assert len(answers(slot_pool.open_engine(str(tmp_path / "None"), EngineConfig()), [(1, 2, 3)])[0].tokens) == N
    with pytest.raises(UnsupportedConfigError, match="sliding window"):
        slot_pool.open_engine(str(tmp_path / "8"), EngineConfig())
