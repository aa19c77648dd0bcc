"""The search: draws what the engine can do, finds what breaks, makes it small, keeps it."""

from collections import Counter

import pytest
from click.testing import CliRunner

from kvfence.adapters.schedule import Verb, capabilities
from kvfence.conformance import search as searching
from kvfence.conformance.answerable import answerable
from kvfence.conformance.cli import main
from kvfence.conformance.search import Search, planned
from kvfence.conformance.seeds import SEEDS
from kvfence.conformance.settings import Settings, UsageError
from kvfence.reports.outcome import Outcome

ALL = {
    "session", "fork", "preempt", "conversations", "reset_cache", "salt", "sharing", "adapters", "media", "weights",
}  # fmt: skip


class Info:
    """An engine that can do so much."""

    def __init__(self, *able):
        self._able = able

    def can(self, name):
        return name in self._able


class Verdict:
    """As little of one as is looked at."""


class Bench:
    """A lab in which what fails is said by a rule."""

    def __init__(self, rule, *able):
        self.info, self.rule, self.played = Info(*able), rule, []

    def fails(self, scenario):
        self.played.append(scenario)
        return self.rule(scenario)

    def judge(self, scenario):
        self.fails(scenario)
        return Verdict()


@pytest.fixture(scope="module")
def plan():
    return planned(Settings("reference", "canary", "scenarios"))


def forks(scenario):
    return any(op.verb is Verb.FORK for op in scenario.schedule)


def hunted(plan, tmp_path, rule, able=ALL, most=400, seed=0):
    lab = Bench(rule, *able)
    return lab, list(Search(lab, plan, tmp_path, lambda: len(lab.played) >= most, seed).finds())


def test_the_seeds_come_first(plan, tmp_path):
    lab, finds = hunted(plan, tmp_path, lambda scenario: scenario.name == "search.one-block")
    assert [scenario.name for scenario in lab.played[:3]] == [*list(SEEDS)[:2], "search.one-block"]
    assert finds[0].small.name == "search.one-block"


def test_what_breaks_is_found_and_made_small(plan, tmp_path):
    lab, [find] = hunted(plan, tmp_path, forks)
    assert forks(find.small)
    assert [op.verb for op in find.small.schedule] == [Verb.SUBMIT, Verb.FORK]
    assert find.alone
    assert find.schedules >= 1
    assert len(lab.played) > find.schedules


def test_what_does_not_break_by_itself_is_told_as_it_was(plan, tmp_path):
    first = []

    def once(scenario):
        if forks(scenario) and not first:
            first.append(scenario)
            return True
        return False

    _, [find] = hunted(plan, tmp_path, once)
    assert (find.alone, find.small) == (False, find.drawn)


def test_one_seed_draws_one_sequence(plan, tmp_path):
    played = [[s.schedule for s in hunted(plan, tmp_path / str(i), forks)[0].played] for i in range(2)]
    assert played[0] == played[1]


def test_only_what_the_engine_can_do_is_drawn(plan, tmp_path):
    able = {"sharing"}
    lab, finds = hunted(plan, tmp_path, lambda scenario: False, able, most=60)
    drawn = [scenario for scenario in lab.played if scenario.name == "search.drawn"]
    assert not finds
    assert len(drawn) > 20
    assert {name for scenario in drawn for name in capabilities(scenario.schedule)} <= {"session"}
    assert {op.verb for scenario in drawn for op in scenario.schedule} == {Verb.SUBMIT}


def test_every_kind_of_operation_is_drawn(plan, tmp_path):
    lab, _ = hunted(plan, tmp_path, lambda scenario: False, most=200)
    verbs = {op.verb for scenario in lab.played for op in scenario.schedule}
    assert verbs == set(Verb)
    assert all(scenario.length <= searching.LONGEST for scenario in lab.played)
    asked = [op.request for scenario in lab.played for op in scenario.schedule if op.request]
    assert {request.salt for request in asked} == {None, "x", "y", "a"}
    assert {request.adapter for request in asked} == {None, "a", "b"}
    assert any(request.media for request in asked)
    assert any(request.conversation for request in asked)


def test_seeds_and_what_is_drawn_are_in_the_dtype_asked_for(plan, tmp_path):
    half = planned(Settings("reference", "canary", "scenarios", dtypes=("bfloat16",)))
    for each, dtype in ((plan, "float32"), (half, "bfloat16")):
        lab, _ = hunted(each, tmp_path / dtype, lambda scenario: False, most=20)
        assert {scenario.dtype for scenario in lab.played} == {dtype}
        assert {scenario.name for scenario in lab.played} == {*SEEDS, searching.NAME}


def test_the_canary_is_never_in_doubt(plan, tmp_path):
    lab, _ = hunted(plan, tmp_path, lambda scenario: False, most=200)
    assert all(map(answerable, lab.played))
    assert sum(map(forks, lab.played)) > 20


def test_nothing_is_exchanged_while_a_request_may_run(plan, tmp_path):
    lab, _ = hunted(plan, tmp_path, lambda scenario: False, most=200)
    exchanged = 0
    for scenario in lab.played:
        running = set()
        for op in scenario.schedule:
            if op.when and op.when.tokens is None:
                running.discard(op.when.request)
            if op.verb is Verb.SUBMIT:
                running.add(op.target)
            elif op.verb is Verb.CANCEL:
                running.discard(op.target)
            elif op.verb is Verb.WEIGHTS:
                exchanged += 1
                assert not running
    assert exchanged


def test_a_real_fault_is_found_kept_and_found_again(tmp_path):
    engine = ["--engine", "kvfence.conformance.faults:open_faulty", "--in-process", "--corpus", str(tmp_path / "c")]
    faulty = ["--engine-arg", "defect=cow.fork"]
    first = CliRunner().invoke(main, ["search", *engine, *faulty, "--minutes", "20"])
    assert first.exit_code == 1, first.output
    assert "VIOLATES after " in first.output
    [file] = (tmp_path / "c").glob("*.json")
    assert f"kvfence replay {file} --engine" in first.output
    mended = CliRunner().invoke(main, ["replay", str(file), *engine[:3], "--report", str(tmp_path / "r")])
    assert mended.output.splitlines()[-1] == "FIXED", mended.output


def test_a_search_without_any_verdict_is_no_pass(tmp_path, monkeypatch):
    outcomes = {Outcome.SUITE_ERROR: 3}

    class Fixed(Bench):
        def __init__(self, settings, plan):
            super().__init__(lambda scenario: False)
            self.outcomes = Counter(outcomes)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(searching, "Lab", Fixed)
    arguments = ["search", "--engine", "reference", "--corpus", str(tmp_path), "--minutes", "0.05"]
    done = CliRunner().invoke(main, arguments)
    assert (done.exit_code, done.output.count("\n")) == (2, 1)
    assert "no schedule came to a verdict (3 suite-error)" in done.output
    outcomes[Outcome.CONFORMS] = 1
    silent = CliRunner().invoke(main, arguments)
    assert silent.output == "nothing found in 0.05 minutes, 4 schedules: 3 suite-error, 1 conforms\n"
    assert silent.exit_code == 0


def test_bad_input_is_a_line(tmp_path):
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(main, ["search", "--engine", "reference", "--corpus", str(tmp_path / "file")])
    assert (done.exit_code, done.output.count("\n")) == (2, 1)
    assert "cannot write to corpus" in done.output
    done = CliRunner().invoke(main, ["search", "--dtype", "float12"])
    assert (done.exit_code, done.output.count("\n")) == (2, 1)
    assert "no dtype float12" in done.output
    with pytest.raises(UsageError, match="unknown engine"):
        Settings("nope", "canary")
