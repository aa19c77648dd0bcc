"""A run in short: JSON, Markdown, annotations. What an engine says stays text in all of them."""

import json
from dataclasses import replace

import pytest
import samples

from kvfence.conformance import terminal
from kvfence.reports.digest import SHOWN, annotations, as_json, markdown
from kvfence.reports.outcome import Outcome

GOOD = samples.case()
BAD = replace(samples.case(mode="serial", concurrency=1), outcome=Outcome.VIOLATES, reason="request A0: 100 %\nbad")
OPEN = replace(samples.case(mode="independent"), outcome=Outcome.INCONCLUSIVE, reason="the cache was never hit")
KNOWN = replace(BAD, case="known", known="tracked")


def run(*cases, code=1):
    return samples.as_run([samples.header(), samples.engine(), *cases, samples.EndRecord(3.0, code)])


def test_json_names_what_is_not_as_it_should_be():
    told = json.loads(as_json(run(GOOD, BAD, OPEN, KNOWN), 1))
    assert told["outcomes"] == {"conforms": 1, "violates": 2, "inconclusive": 1}
    assert [(case["case"], case["known"]) for case in told["cases"]] == [
        (OPEN.case, ""),
        (BAD.case, ""),
        ("known", "tracked"),
    ]
    assert (told["exit_code"], told["engine"], told["baseline"]) == (1, "vllm", [])
    assert json.loads(as_json(run(GOOD), 1, ["x is kept now"]))["baseline"] == ["x is kept now"]


@pytest.mark.parametrize(
    ("cases", "code", "verdict"),
    [
        ((GOOD, BAD), 1, "1 violation"),
        ((GOOD, KNOWN), 0, "nothing violated but 1 known case"),
        ((GOOD, OPEN), 3, "nothing violated, and not all decided"),
        ((GOOD,), 1, "the baseline does not hold any more"),
    ],
)
def test_the_verdict_is_the_headline(cases, code, verdict):
    assert markdown(run(*cases, code=code)).splitlines()[0] == f"# kvfence: {verdict}"


def test_markdown_names_some_and_counts_the_rest():
    text = markdown(run(*(replace(BAD, case=f"c{i:02}") for i in range(SHOWN + 3))))
    assert text.count("\n- c") == SHOWN
    assert "- c09" in text
    assert "- c10" not in text
    assert "and 3 violations more in the report." in text
    assert "| isolation.serial | ✗ 13 |" in text


def test_annotations_are_one_line_each_and_no_other_command():
    assert list(annotations(run(GOOD, BAD, OPEN, KNOWN))) == [
        f"::error title=kvfence isolation.serial::{BAD.case}: request A0: 100 %25\\nbad",
        f"::warning title=kvfence isolation.independent::{OPEN.case}: the cache was never hit",
    ]
    [told] = annotations(run(replace(BAD, requirement="a:b,c", reason="x\n::set-output name=y::z\r\n")))
    assert told.startswith("::error title=kvfence a%3Ab%2Cc::")
    assert "\n" not in told
    assert "\r" not in told


def test_a_hostile_run_stays_text():
    hostile = samples.as_run(samples.hostile())
    for text in (markdown(hostile), *annotations(hostile)):
        assert "<script" not in text.replace("\\<", "") or text.startswith("::")
        assert all(line.isprintable() for line in text.splitlines())
    assert json.loads(as_json(hostile, 1))["cases"]


def test_github_gets_annotations_and_a_summary(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    (tmp_path / "summary").write_text("before\n")
    terminal._tell_github(run(BAD))
    assert capsys.readouterr().out.startswith("::error title=")
    assert (tmp_path / "summary").read_text() == "before\n" + markdown(run(BAD))
