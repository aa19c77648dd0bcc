"""What vLLM shows of itself, and that a fault in it is seen."""

# ruff: noqa: F401, F811 - fixtures are imported

from importlib.util import find_spec

import eager
import numpy as np
import pytest
from vllm_engines import (
    DEVICE,
    OBSERVE,
    PROMPTS,
    N,
    assert_answers,
    conforms,
    engine,
    finish,
    opened,
    requests,
)

from kvfence.adapters.api import EngineFaultError, Request, Support
from kvfence.adapters.observation import Observed
from kvfence.conformance import noise
from kvfence.conformance.plan import Plan
from kvfence.conformance.settings import Settings
from kvfence.conformance.suite import Suite
from kvfence.prompts import alphabet
from kvfence.prompts.mirror import Part, write_adapter, write_weights
from kvfence.reference_impl.golden import Golden
from kvfence.reports.outcome import Outcome

if find_spec("vllm") is None:
    pytest.skip("vllm is not installed: `make engine-vllm` builds its environment", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("calls", ["batch", "serial"])
def test_kv_attention_and_logprobs_are_those_of_a_plain_forward(opened, random_folder, calls):
    engine = opened(random_folder, observe=OBSERVE)
    golden, path = Golden.load(random_folder.path), str(random_folder.path)
    batches = [requests()] if calls == "batch" else [[request] for request in requests()]
    completions = [completion for batch in batches for completion in engine.generate(batch)]
    assert sum(c.cached_tokens for c in completions) == 128
    seen = conforms(engine, requests(), completions)
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        expected = golden.verify(prompt, completion.tokens)
        assert max(expected.margins) < 1e-4
        assert completion.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
        assert [best[0][0] for best in completion.top_logprobs] == list(completion.tokens)
        _, keys, values = eager.forward(path, (*prompt, *completion.tokens[:-1]))
        np.testing.assert_allclose(seen.kv[completion.id].keys, keys, atol=1e-5)
        np.testing.assert_allclose(seen.kv[completion.id].values, values, atol=1e-5)
        eager.assert_attention(seen.attention[completion.id], path, prompt, completion.tokens)
    assert engine.observe() == Observed()


def test_observing_changes_no_bit(opened, random_folder):
    plain, seen = (opened(random_folder, observe=what).generate(requests()) for what in ((), OBSERVE))
    assert plain == seen


def test_kv_in_half_precision_are_read_as_they_are(opened, canary_folder):
    """Where the layout of keys depends on the dtype, it is learned anew."""
    engine = opened(canary_folder, dtype="bfloat16", observe=("kv",))
    golden = Golden.load(canary_folder.path, "bfloat16")
    (completion,) = engine.generate(requests(50)[:1])
    kv = engine.observe().kv["0"]
    expected = golden.kv((*PROMPTS[0], *completion.tokens))[..., : kv.keys.shape[2], :]
    # Processors round the last of bfloat16's eight digits otherwise, and some the one before.
    np.testing.assert_allclose(np.stack([kv.keys, kv.values]), expected, rtol=2**-6, atol=0.01)


def test_another_block_in_a_table_is_seen_by_attention(engine):
    from vllm_faulty import AT, exchange_block

    runner = engine.core.runner
    build = runner._build_attention_metadata
    sent = [Request("0", PROMPTS[0], N), Request("3", PROMPTS[3], N)]
    right = engine.generate(sent)
    clean = engine.observe()
    engine.reset_cache()
    exchange_block(engine)
    try:
        engine.generate(sent)
    finally:
        runner._build_attention_metadata = build
    seen = engine.observe()
    assert_answers({c.id: c for c in right})
    np.testing.assert_array_equal(clean.attention["3"].rows, seen.attention["3"].rows)
    moved = np.abs(clean.attention["0"].rows - seen.attention["0"].rows).max((1, 2, 3))
    assert moved[: AT - 1].max() == 0
    assert moved[AT - 1] > 0.1


def test_other_weights_make_other_kv_and_find_nothing_old(engine, canary_folder, random_folder, tmp_path):
    """A mirror of the canary answers the same, with all values negated."""
    write_weights(canary_folder.path, Part.VALUES, tmp_path / "mirror")
    session = engine.session()
    session.submit(requests(30)[0])
    session.step()
    engine.load_weights(str(tmp_path / "mirror"))
    assert_answers(finish(session), 30)
    mirrored = engine.observe().kv["0"]
    with pytest.raises(EngineFaultError, match="not of the shapes of this model's"):
        engine.load_weights(str(random_folder.path))
    engine.load_weights(str(canary_folder.path))
    (completion,) = engine.generate(requests(30)[:1])
    assert completion.cached_tokens == 0
    own = engine.observe().kv["0"]
    assert np.abs(own.values).max() > 0.1
    np.testing.assert_allclose(mirrored.values, -own.values, atol=1e-4)
    np.testing.assert_allclose(mirrored.keys, own.keys, atol=1e-4)


def test_adapters_where_it_is_opened_for_them(opened, canary_folder, tmp_path):
    arguments = {"enable_lora": "true", "max_lora_rank": "256", "max_loras": "2"}
    engine = opened(canary_folder, observe=("events", "kv"), engine_args=arguments)
    assert engine.capabilities["adapters"].state is Support.SUPPORTED
    for part in (Part.KEYS, Part.VALUES):
        write_adapter(canary_folder.path, part, tmp_path / str(part))

    def ask(adapter):
        sent = Request("0", PROMPTS[0], N, adapter=adapter)
        (completion,) = engine.generate([sent])
        assert completion.tokens == alphabet.answer(PROMPTS[0], N)
        return completion.cached_tokens, engine.observe().kv["0"]

    engine.load_adapter("a", str(tmp_path / str(Part.KEYS)))
    asked = [ask(adapter) for adapter in (None, "a", "a", None)]
    assert [hits for hits, _ in asked] == [0, 0, 64, 64]
    np.testing.assert_allclose(asked[1][1].keys, -asked[0][1].keys, atol=1e-4)
    np.testing.assert_allclose(asked[1][1].values, asked[0][1].values, atol=1e-4)
    # Another one of the same name finds nothing of the first.
    engine.load_adapter("a", str(tmp_path / str(Part.VALUES)))
    hits, kv = ask("a")
    assert hits == 0
    np.testing.assert_allclose(kv.values, -asked[0][1].values, atol=1e-4)
    with pytest.raises(EngineFaultError, match="vLLM cannot load adapter b"):
        engine.load_adapter("b", str(tmp_path / "nowhere"))
    session = engine.session()
    session.submit(Request("0", PROMPTS[0], N, adapter="a"))
    with pytest.raises(EngineFaultError, match="requests run with adapter a"):
        engine.load_adapter("a", str(tmp_path / str(Part.KEYS)))
    session.close()


@pytest.mark.parametrize(
    ("fault", "case", "oracles"),
    [
        ("salt", "key.salts-float32", {"blocks", "side"}),
        ("table", "batch.strangers-float32", {"attention"}),
    ],
)
def test_the_suite_sees_a_planted_fault(tmp_path, monkeypatch, fault, case, oracles):
    record = examine(tmp_path, monkeypatch, "vllm_faulty:open_engine", case, {"fault": fault})
    assert record.outcome is Outcome.VIOLATES
    assert oracles <= {oracle for finding in record.findings for oracle in finding.oracles}


@pytest.mark.skipif(DEVICE != "cpu", reason="vLLM's kernels for a GPU leave rows without an adapter out")
def test_rows_without_an_adapter_are_computed_with_their_neighbours(tmp_path, monkeypatch):
    """vllm-project/vllm#48421; what has an adapter is rounded more, and no violation."""
    arguments = {"enable_lora": "true", "max_lora_rank": "256"}
    record = examine(tmp_path / "alone", monkeypatch, "vllm", "key.adapters-float32", arguments)
    assert record.outcome is Outcome.CONFORMS, record.reason
    record = examine(tmp_path / "beside", monkeypatch, "vllm", "key.adapters-in-a-batch-float32", arguments)
    assert [finding.victim for finding in record.findings] == ["A1", "A4"]
    assert {finding.explanation.fault_class for finding in record.findings} == {"KEY-LORA"}


def examine(folder, monkeypatch, engine, case, arguments):
    """What comes of a case in a process of its own, as users run it."""
    monkeypatch.setattr(noise, "EXACT_POSITIONS", 300)
    settings = Settings(
        engine,
        "canary",
        "scenarios",
        folder,
        cases=(case,),
        engine_args=arguments,
        device=DEVICE,
        deadline=1000.0,  # it starts within seconds, but not on a busy machine
    )
    plan = Plan(settings)
    with Suite(settings, plan, "run") as suite:
        (record,) = map(suite.examine, plan.cases)
    return record
