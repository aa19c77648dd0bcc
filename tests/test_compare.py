"""Runs side by side, and what changed between two of them."""

from dataclasses import replace

import pytest
import samples
from click.testing import CliRunner
from page import Page

from kvfence.conformance.cli import main
from kvfence.reports.comparison import changes, column, table, told
from kvfence.reports.html import render_comparison
from kvfence.reports.outcome import Outcome
from kvfence.reports.records import Writer

CASES = tuple(samples.case(concurrency=n) for n in (1, 2, 8))


def run(*outcomes, cases=CASES, **header):
    found = [replace(case, outcome=outcome) for case, outcome in zip(cases, outcomes, strict=False)]
    return samples.as_run([samples.header(**header), samples.engine(), *found, samples.EndRecord(75.0, 0)])


GOOD, BAD, OPEN = Outcome.CONFORMS, Outcome.VIOLATES, Outcome.INCONCLUSIVE
AWAY, UNSEEN, ERROR = Outcome.NOT_APPLICABLE, Outcome.NOT_OBSERVABLE, Outcome.SUITE_ERROR


@pytest.mark.parametrize(
    ("outcomes", "cell", "decided"),
    [
        ((GOOD, GOOD, GOOD), "✓ 3", 1),
        ((GOOD, AWAY, UNSEEN), "✓ 1 of 3", 1),
        ((GOOD, BAD, GOOD), "✗ 1 of 3", 1),
        ((GOOD, OPEN, OPEN), "? 2 of 3", 1),
        ((GOOD, ERROR, OPEN), "! 1 of 3", 1),
        ((AWAY, AWAY, UNSEEN), "○ 1 of 3", 0),
        ((AWAY, AWAY, AWAY), "— 3", 0),
    ],
)
def test_a_cell_tells_what_says_most_of_the_engine(outcomes, cell, decided):
    lines = table([column(run(*outcomes))]).splitlines()
    assert lines[2] == f"| isolation.shared | {cell} |"
    assert lines[3] == f"| requirements decided | {decided} of 1 |"
    assert lines[4] == "| wall time | 1 min 15 s |"


def test_what_one_run_alone_has_is_empty_in_the_other():
    other = [samples.case(mode="serial", concurrency=1)]
    lines = table([column(run(GOOD)), column(run(BAD, cases=other, engine_args={}, profile="quick"))]).splitlines()
    assert lines[0] == "| requirement | vllm 0.32.0 block\\_size=32, canary, default | vllm 0.32.0, canary, quick |"
    assert lines[2:5] == [
        "| isolation.serial |  | ✗ 1 |",
        "| isolation.shared | ✓ 1 |  |",
        "| requirements decided | 1 of 2 | 1 of 2 |",
    ]


@pytest.mark.parametrize(
    ("before", "after", "where", "code"),
    [
        (GOOD, BAD, "broken", 1),
        (OPEN, BAD, "broken", 1),
        (BAD, GOOD, "fixed", 0),
        (GOOD, OPEN, "lost", 3),
        (BAD, UNSEEN, "lost", 3),
        (GOOD, GOOD, None, 0),
        (BAD, BAD, None, 0),
        (OPEN, GOOD, None, 0),
    ],
)
def test_a_case_that_came_out_otherwise(before, after, where, code):
    found = changes(run(before), run(after))
    assert {name: bool(getattr(found, name)) for name in ("broken", "fixed", "lost", "gone")} == {
        name: name == where for name in ("broken", "fixed", "lost", "gone")
    }
    assert found.exit_code == code
    assert (told(found) == "No case came out otherwise.\n") == (where is None)


def test_cases_that_are_new_or_gone():
    assert [change.before for change in changes(run(GOOD), run(GOOD, BAD)).broken] == [None]
    gone = changes(run(GOOD, GOOD), run(GOOD))
    assert (gone.gone, gone.exit_code) == ((CASES[1].case,), 3)
    assert told(gone) == f"1 case less: {CASES[1].case.replace('_', chr(92) + '_')}\n"


def test_what_an_engine_says_of_itself_does_nothing_in_a_table():
    hostile = samples.as_run(samples.hostile())
    text = table([column(hostile)])
    assert len({line.replace("\\|", "").count("|") for line in text.splitlines()[:3]}) == 1
    assert "<script" not in text.replace("\\<", "")
    assert all(line.isprintable() for line in text.splitlines())


def test_the_page_has_the_table_and_what_changed():
    old, new = run(GOOD, BAD, GOOD), run(BAD, GOOD, OPEN, engine_args={}, profile="quick")
    seen = Page(render_comparison([column(old), column(new)], changes(old, new)))
    assert "✗ Newly broken 1 newly broken, 1 newly fixed, 1 not known any more, 0 cases less." in seen.text
    assert [row[:4] for row in seen.rows if row and row[0].startswith("isolation.shared.")] == [
        [CASES[0].case, "isolation.shared", "✓ conforms", "✗ violates"],
        [CASES[1].case, "isolation.shared", "✗ violates", "✓ conforms"],
        [CASES[2].case, "isolation.shared", "✓ conforms", "? inconclusive"],
    ]
    assert ["isolation.shared", "✗ 1 of 3 violates", "✗ 1 of 3 violates"] in seen.rows
    assert ["Requirements decided", "1 of 1", "1 of 1"] in seen.rows
    assert {cell["title"] for cell in seen.of_class("cell") if "title" in cell} == {
        "1 violates, 2 conforms",
        "1 violates, 1 inconclusive, 1 conforms",
    }


@pytest.mark.parametrize(
    ("after", "words"),
    [((GOOD, GOOD), "✓ Nothing newly broken"), ((GOOD,), "? Known no more"), ((), "? Known no more")],
)
def test_the_page_begins_with_the_verdict(after, words):
    old, new = run(GOOD, GOOD), run(*after)
    assert words in Page(render_comparison([column(old), column(new)], changes(old, new))).text
    three = Page(render_comparison([column(old)] * 3, None)).text
    assert "3 runs Requirements by runs" in three
    assert "newly" not in three


def test_nothing_in_the_page_acts_on_its_reader():
    hostile = samples.as_run(samples.hostile())
    text = render_comparison([column(hostile)] * 2, changes(run(GOOD), hostile))
    assert text.count("&lt;/script&gt;&lt;script&gt;alert(1)") > 4
    seen = Page(text)
    assert {tag for tag, _ in seen.elements} & {"script", "img"} == set()
    (policy,) = [attrs["content"] for _, attrs in seen.elements if attrs.get("http-equiv")]
    assert "script-src 'none'" in policy
    assert {char for char in text if not char.isprintable()} == {"\n"}


def record(folder, id, *outcomes):
    writer = Writer(folder, id)
    for each in (samples.header(run=id), samples.engine(), *map(lambda c, o: replace(c, outcome=o), CASES, outcomes)):
        writer.write(each)
    writer.close()


def compared(*words):
    result = CliRunner().invoke(main, ["compare", *map(str, words)])
    return result.exit_code, result.output


def test_the_command_compares_folders_and_the_last_two_runs_of_one(tmp_path):
    old, new, file = tmp_path / "o@d", tmp_path / "new", tmp_path / "page.md"
    record(old, "20260101T000000-aaaa", GOOD, GOOD, GOOD)
    record(new, "20260102T000000-bbbb", GOOD, BAD, GOOD)
    code, out = compared(old, new, "--output", file)
    assert code == 1
    assert "Newly broken" in out
    assert file.read_text() == out
    page = tmp_path / "page.html"
    assert compared(old, new, "--output", page) == (code, out)
    assert page.read_text().startswith("<!doctype html>")
    code, out = compared(new)
    assert (code, out.strip()) == (2, f"kvfence: there is no second run in {new} to compare with; "
                                   "name another report folder")  # fmt: skip
    record(new, "20260103T000000-cccc", GOOD, GOOD, GOOD)
    assert compared(new)[0] == 0
    assert "Newly fixed" in compared(new)[1]
    assert compared(f"{new}@20260103T000000-cccc", f"{new}@20260102T000000-bbbb")[0] == 1
    assert compared(old, new, new)[0] == 0
    code, out = compared(old, tmp_path / "nothing")
    assert code == 2
    assert "no records in" in out
    code, out = compared(f"{new}@never", new)
    assert code == 2
    assert "no run never in" in out
