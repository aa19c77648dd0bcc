"""The proof that the suite can fail, and that it goes on when an engine does not."""

import threading
from pathlib import Path

import pytest
from tiny_models import tiny

from kvfence.conformance import noise
from kvfence.conformance.case import Case
from kvfence.conformance.plan import Plan
from kvfence.conformance.settings import Settings, UsageError
from kvfence.conformance.suite import Suite
from kvfence.conformance.trial import Trial
from kvfence.prompts import alphabet, canary
from kvfence.reports import html
from kvfence.reports.outcome import Outcome, exit_code
from kvfence.reports.records import read

POOL, ROGUE = "slot_pool:open_engine", "rogue_engine:open_engine"
BROKEN = {"fault": "length"}


@pytest.fixture(autouse=True)
def short_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    # Ten thousand positions for each of these short runs would take most of their time.
    monkeypatch.setattr(noise, "EXACT_POSITIONS", 300)


def run(tmp_path: Path, engine: str, *patterns: str, **options):
    """Run cases of the quick profile; their records by case id."""
    options.setdefault("model", "canary")
    settings = Settings(engine=engine, report=tmp_path, cases=patterns, **options)
    plan = Plan(settings)
    with Suite(settings, plan, "run") as suite:
        records = {case.id: suite.examine(case) for case in plan.cases}
        suite.finish(exit_code(suite.outcomes))
    return records


def only(records):
    (record,) = records.values()
    return record


def test_the_slot_pool_without_a_fault_conforms(tmp_path):
    records = run(tmp_path, POOL, "*-block+1-*-c2-float32", engine_args={"fault": "none"})
    assert {id: record.reason for id, record in records.items() if record.outcome is not Outcome.CONFORMS} == {}
    assert len(records) == 6


def test_a_slot_whose_length_is_not_reset_leaks_the_request_before(tmp_path):
    record = only(run(tmp_path, POOL, "serial-canary-block+1-partner-c2-float32", engine_args=BROKEN, watch=()))
    assert record.outcome is Outcome.VIOLATES
    # A0 came first and found the slot empty.
    (finding,) = record.findings
    assert (finding.victim, finding.source, finding.source_case) == ("B0", "A0", record.case)
    assert finding.oracles == ("golden",)
    # The prefix they share ends before output token 16; there the first words of both passphrases are mixed.
    assert finding.first_step == 16
    secrets = {request.request: request.secret.split() for request in record.requests}
    assert secrets["A0"][0] in finding.source_how
    assert secrets["B0"][0] in finding.source_how
    # What golden says instead, from its own continuation.
    trace = finding.trace
    assert trace.expected_texts[:16] == trace.texts[:16]
    assert trace.expected_texts[16].lower() == secrets["B0"][0]
    assert trace.margins[:16] == (0.0,) * 16
    assert trace.margins[16] > 15
    assert trace.owners[16] == "A0"


def test_of_two_requests_on_one_slot_the_first_answers_with_the_words_of_the_other(tmp_path):
    case = "independent-canary-block+1-partner-c2-float32"
    record = only(run(tmp_path, POOL, case, engine_args={"fault": "writers"}))
    (finding,) = record.findings
    assert (finding.victim, finding.source) == ("A0", "B0")
    secret = next(request.secret for request in record.requests if request.request == "B0")
    assert " ".join(finding.spellings[0].words).startswith(secret)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_logprob_gives_a_leak_away_in_any_dtype(tmp_path, dtype):
    record = only(run(tmp_path, POOL, f"serial-canary-block+1-partner-c2-{dtype}", engine_args=BROKEN))
    assert [(finding.victim, finding.first_step) for finding in record.findings] == [("B0", 16)]


def test_a_leak_from_an_earlier_case_names_that_case_and_how_to_repeat_both(tmp_path):
    first, second = "serial-canary-system-prompt-partner-c2-float32", "serial-canary-system-prompt-stranger-c2-float32"
    record = run(tmp_path, POOL, first, second, engine_args=BROKEN)[second]
    assert first in {finding.source_case for finding in record.findings}
    assert f"--case {first} --case {second}" in record.reproduce


@pytest.mark.parametrize(("model", "dtypes", "n"), [("canary", (), 9), ("random", ("float32",), 3)])
def test_hf_is_what_it_is(tmp_path, monkeypatch, model, dtypes, n):
    monkeypatch.setattr(noise, "POSITIONS", 1_000)
    records = run(tmp_path, "hf", "*-block+1-mixed-c8-*", model=model, dtypes=dtypes)
    assert [(id, r.reason) for id, r in records.items() if r.outcome is not Outcome.CONFORMS] == []
    assert len(records) == n
    assert all(record.cached_tokens > 100 for id, record in records.items() if id.startswith("shared"))
    assert all(record.positions == 8 * 32 for record in records.values())


def test_histories_that_nobody_could_go_on_from_round_in_golden_too(tmp_path, monkeypatch):
    monkeypatch.setattr(noise, "EXACT_POSITIONS", 1_000)
    canary.write(tmp_path / "kv8", canary.Shape(kv_heads=8))
    options = {"model": str(tmp_path / "kv8"), "profile": "default", "dtypes": ("float32",)}
    records = run(tmp_path / "report", "reference", "key.media*", **options)
    assert [record.outcome for record in records.values()] == [Outcome.CONFORMS] * 2
    (measured,) = read(tmp_path / "report").noise
    assert min(measured["solo_max"], measured["shapes_max"]) > 1e-3


def test_a_run_that_has_ended_leaves_no_golden_loading(tmp_path):
    before = set(threading.enumerate())
    with pytest.raises(UsageError):
        run(tmp_path, ROGUE, "serial-canary-block+1-alone-c1-float32", engine_args={"how": "no-start"})
    assert set(threading.enumerate()) == before


def test_engine_and_golden_in_one_process_have_all_their_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(noise, "POSITIONS", 300)
    # While one model was loaded, transformers would leave tied weights of another one out.
    tied = tmp_path / "tied"
    tiny("gpt2", vocab_size=alphabet.VOCAB_SIZE, max_position_embeddings=512).save_pretrained(tied)
    case = "serial-canary-block+1-alone-c1-float32"
    record = only(run(tmp_path, "hf", case, model=str(tied), in_process=True))
    assert record.outcome is Outcome.CONFORMS, record.reason


def test_a_violation_is_recorded_before_it_is_explained(tmp_path, monkeypatch):
    def stopped(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(Trial, "explain", stopped)
    case = "serial-canary-block+1-partner-c2-float32"
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, POOL, case, engine_args=BROKEN, watch=())
    [recorded] = read(tmp_path).cases
    assert (recorded["case"], recorded["outcome"]) == (case, "violates")
    assert [finding["explanation"] for finding in recorded["findings"]] == [None]
    assert "ncomplete" in html.render(read(tmp_path))


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("raise", "engine raised RuntimeError: block table is full"),
        ("exit", "engine process died (exit code 7)"),
        ("kill", "engine process died (signal SIGKILL): last words of the engine"),
        ("hang", "engine did not answer within 4 s and was killed"),
        ("none", "generate() must return a sequence of Completion, not NoneType"),
        ("few", "2 requests got 1 completions"),
        ("foreign-id", "2 requests got 2 completions"),
        ("short", "got 31 tokens instead of 32"),
        ("long", "got 33 tokens instead of 32"),
        ("vocabulary", "got token 3904 outside the vocabulary of 3904"),
        ("type", "got token 'word' of type str, not int"),
        ("unpicklable", "engine raised"),
        ("own-class", "the engine's answer holds objects of its own: No module named 'only_here'"),
        ("own-error", "slot 3 is gone"),
        ("cached", "got -5 cached tokens of a prompt of"),
    ],
)
def test_a_misbehaving_engine_is_a_suite_error_for_its_case_and_the_run_goes_on(tmp_path, how, reason):
    bad, after = (f"independent-canary-block+1-{company}-c2-float32" for company in ("partner", "stranger"))
    records = run(tmp_path, ROGUE, bad, after, engine_args={"how": how}, deadline=4.0)
    assert records[bad].outcome is Outcome.SUITE_ERROR
    assert reason in records[bad].reason
    assert records[after].outcome is Outcome.CONFORMS
    recorded = read(tmp_path)
    assert {case["case"]: case["outcome"] for case in recorded.cases} == {bad: "suite-error", after: "conforms"}
    assert recorded.end["exit_code"] == 3


@pytest.mark.parametrize("how", ["nan", "nan-after-one"])
def test_logprobs_that_are_no_numbers_are_wrong_and_a_report_bears_them(tmp_path, how):
    case = "independent-canary-block+1-partner-c2-float32"
    record = only(run(tmp_path, ROGUE, case, engine_args={"how": how}))
    assert record.outcome is Outcome.VIOLATES
    first = {"nan": 0, "nan-after-one": 1}[how]
    assert record.reason == f"request A0 has a logprob that is no number at output token {first} (and 1 more)"
    assert "that is no number" in html.render(read(tmp_path))


def test_a_cache_that_does_not_tell_or_is_not_hit_is_no_pass(tmp_path):
    record = only(run(tmp_path, ROGUE, "shared-canary-block+1-stranger-c2-float32"))
    assert record.outcome is Outcome.NOT_OBSERVABLE


def test_a_dtype_the_engine_lacks(tmp_path):
    case = "independent-canary-block+1-stranger-c2"
    records = run(tmp_path, ROGUE, f"{case}-float32", f"{case}-bfloat16")
    assert records[f"{case}-bfloat16"].outcome is Outcome.NOT_APPLICABLE
    assert "no dtype bfloat16" in records[f"{case}-bfloat16"].reason
    with pytest.raises(UsageError, match="no dtype bfloat16"):
        run(tmp_path, ROGUE, f"{case}-bfloat16", dtypes=("bfloat16",))


def test_an_engine_that_does_not_start(tmp_path):
    with pytest.raises(UsageError, match="the engine did not start: rogue cannot start: no licence"):
        run(tmp_path, ROGUE, "*-c2-float32", engine_args={"how": "no-start"})


def test_a_case_has_the_same_prompts_however_few_are_run():
    whole = Plan(Settings(engine="hf", model="canary"))
    part = Plan(Settings(engine="hf", model="canary", dtypes=("float16",), cases=("shared-*-c8-*",)))
    assert len(part.cases) == 1
    assert all(part.prompts(case) == whole.prompts(case) for case in part.cases)


def test_no_two_requests_of_a_run_have_one_secret():
    plan = Plan(Settings(engine="hf", model="canary", profile="full"))
    cases = [case for case in plan.cases if isinstance(case, Case) and not case.edge.repeated]
    secrets = [p.secret for case in cases for p in plan.prompts(case)]
    assert len(secrets) == len(set(secrets)) > 2_000


def test_settings_are_checked():
    with pytest.raises(UsageError, match="no profile 'fast': choose one of quick, default"):
        Settings(engine="hf", model="canary", profile="fast")
    with pytest.raises(UsageError, match="unknown engine 'vlm'"):
        Settings(engine="vlm", model="canary")
    with pytest.raises(UsageError, match="makes no sense"):
        Settings(engine="hf", model="canary", deadline=0)
    with pytest.raises(UsageError, match="no case of profile quick matches"):
        Plan(Settings(engine="hf", model="canary", cases=("nothing",))).cases  # noqa: B018
