"""Schedule files: what is written is read again as it was, and what is none is told in a line."""

import json
from dataclasses import replace

import pytest

from kvfence.conformance import schedule_file
from kvfence.conformance.plan import Plan
from kvfence.conformance.settings import Settings, UsageError


@pytest.fixture(scope="module")
def plan():
    return Plan(Settings("reference", "canary", "scenarios"))


def case(plan, name):
    return next(case for case in plan.cases if case.name == name)


def loads(plan, text):
    return schedule_file.loads(text, "a.json", plan.model.path.resolve(), plan.mirror)


def test_every_scenario_is_read_as_it_was_written(plan):
    for scenario in plan.cases:
        read = loads(plan, schedule_file.dumps(scenario))
        # Requests may have been given one prompt; in a file each has its own.
        own = {name: replace(prompt, name=name) for name, prompt in scenario.prompts.items()}
        assert read == replace(scenario, prompts=own)


def test_an_operation_is_a_line(plan):
    scenario = case(plan, "cancel.decoding")
    lines = schedule_file.dumps(scenario).splitlines()
    assert sum(line.startswith('    {"do":') for line in lines) == len(scenario.schedule)
    assert '    {"do": "cancel", "target": "goes", "when": {"request": "goes", "tokens": 5}},' in lines


def test_it_reads_as_text(plan):
    told = list(schedule_file.lines(case(plan, "cancel.decoding")))
    assert told[0] == "sharing, 4 at once, pool of 208 tokens, chunks of 48 tokens"
    assert told[1] == "submit A: 58 tokens, 6 new"
    assert told[2] == "submit keeps: 58 tokens, the first 48 as A, 60 new when A has ended"
    assert told[4] == "cancel goes when goes has emitted 5"
    weights = [line for line in schedule_file.lines(case(plan, "key.weights")) if "weights" in line]
    assert [line.partition(" when ")[0] for line in weights] == [
        "go on with other weights",
        "go on with its own weights",
    ]
    assert "fork A into 2 when A has emitted 3" in list(schedule_file.lines(case(plan, "fork.in-a-block")))


def changed(plan, change):
    data = json.loads(schedule_file.dumps(case(plan, "cancel.decoding")))
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda d: d.update(kind="other"), "its kind is not kvfence-schedule"),
        (lambda d: d.update(schema=9), "a.json is a schedule of schema 9; this kvfence reads 1"),
        (lambda d: d.pop("setup"), "setup is missing"),
        (lambda d: d["setup"].update(size=3), "a setup has no size"),
        (lambda d: d["operations"][0].update(do="dance"), "operation 1 does 'dance', which is none of submit, cancel"),
        (lambda d: d["operations"][0].pop("prompt"), "prompt is missing"),
        (lambda d: d["operations"][0].update(prompt=["x"]), "tokens must be a list of token ids"),
        (lambda d: d["operations"][0].update(prompt=3), "'int' object is not iterable"),
        (lambda d: d["operations"].append(d["operations"][0]), "request A is submitted twice"),
        (lambda d: d["operations"].insert(0, {"do": "cancel", "target": "A"}), "request A is named before it is sub"),
        (lambda d: d["hits"].append("nobody"), "request nobody is named before it is submitted"),
        (lambda d: d["operations"].clear() or d["hits"].clear(), "it submits nothing"),
        (lambda d: d["operations"][0].update(adapter="a"), "request A is for adapter a, which nothing before it loads"),
        (lambda d: d.update(operations=3), "operations must be a list, not 3"),
        (lambda d: d.update(setup=7), "setup must be a table, not 7"),
        (lambda d: d.update(name=7), "name must be a string, not 7"),
        (lambda d: d.update(dtype="float99"), "its dtype float99 is none of float32"),
    ],
)
def test_what_is_no_schedule_is_told_in_a_line(plan, change, told):
    with pytest.raises(UsageError) as error:
        loads(plan, changed(plan, change))
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"x"'])
def test_other_files_are_no_schedules(plan, text):
    with pytest.raises(UsageError, match=r"^a\.json is no schedule: "):
        loads(plan, text)
