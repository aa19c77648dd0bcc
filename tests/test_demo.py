"""The demo shows what it says it shows."""

from dataclasses import replace

from click.testing import CliRunner

from kvfence.conformance import demo
from kvfence.conformance.cli import main
from kvfence.reports.records import read


def test_the_leak_is_shown_and_nothing_without_it(tmp_path):
    result = CliRunner().invoke(main, ["demo", "--report", str(tmp_path)])
    assert result.exit_code == 0, result.output
    # The violation that is told first is the one whose words are shown, and the report's first.
    assert "violates: request A1 answered with 8 words of request B1: " in result.output
    assert "A1 answered, from token 16 on:" in result.output
    page = (tmp_path / demo.ACTS[-1].folder / "report.html").read_text()
    assert "Worst divergence: Request A1 answered with 8 words of request B1</a>" in page
    assert "looks like REFCOUNT" in result.output
    outcomes = [read(tmp_path / act.folder).outcomes for act in demo.ACTS]
    assert outcomes == [[act.expected] for act in demo.ACTS]
    assert all((tmp_path / act.folder / "report.html").stat().st_size for act in demo.ACTS)


def test_a_leak_that_is_not_seen_is_no_success(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "ACTS", (replace(demo.ACTS[-1], fault=""),))
    result = CliRunner().invoke(main, ["demo", "--report", str(tmp_path)])
    assert result.exit_code == 1
    assert "conforms" in result.output


def test_a_folder_that_cannot_be_written_is_a_line(tmp_path):
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(main, ["demo", "--report", str(tmp_path / "file")])
    assert result.exit_code == 2
    assert "cannot write to report folder" in result.output
