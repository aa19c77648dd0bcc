"""HTML report as a file: self-contained, sealed, whole."""

import re
from pathlib import Path

import pytest
import samples
from page import Page, embedded, page, records

from kvfence.reports import html
from kvfence.reports.file import write
from kvfence.reports.records import Record, RecordError, Run

OWN_SCRIPT_LIMIT = 12_000


def test_the_file_asks_nobody_for_anything() -> None:
    document = html.render(samples.as_run(samples.violating()))
    assert not re.findall(r"https?://|@import|url\(", document)
    for _, attrs in Page(document).elements:
        for name in ("src", "href", "action", "srcset", "xlink:href"):
            assert (attrs.get(name) or "#").startswith(("#", "data:,")), attrs
        assert "style" not in attrs


def test_policy_forbids_what_is_not_ours() -> None:
    metas = [attrs for tag, attrs in page(samples.conforming()).elements if tag == "meta"]
    policy = str(next(each["content"] for each in metas if each.get("http-equiv")))
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert len(re.findall(r"'sha256-[A-Za-z0-9+/]{43}='", policy)) == 2


def test_own_script_stays_small_and_cannot_close_itself() -> None:
    script = Path(html.__file__).with_name("report.js").read_text()
    assert len(script.encode()) <= OWN_SCRIPT_LIMIT
    assert "</" not in script
    assert "innerHTML" not in script
    assert "eval" not in script


@pytest.mark.parametrize("lines", [samples.violating(), samples.hostile()], ids=["violating", "hostile"])
def test_records_are_embedded_once_and_whole_but_for_logs(lines: list[Record]) -> None:
    document = html.render(samples.as_run(lines))
    run = samples.as_run(lines)
    assert embedded(document) == records(run)
    assert sum(case["log_left_out"] for case in embedded(document) if case["kind"] == "case") > 0
    # Packed, and nowhere beside as they are.
    assert (document.count('id="records"'), document.count('"prompt_text":')) == (1, 0)


def test_same_records_same_report() -> None:
    run: Run = samples.as_run(samples.violating())
    assert html.render(run) == html.render(run)


def test_write_replaces_the_file_whole(tmp_path: Path) -> None:
    file = tmp_path / "new" / "report.html"
    write(html.render(samples.as_run(samples.conforming())), file)
    write(html.render(samples.as_run(samples.violating())), file)
    assert file.read_text("utf-8") == html.render(samples.as_run(samples.violating()))
    assert [each.name for each in file.parent.iterdir()] == ["report.html"]


def test_a_failed_write_leaves_the_old_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "report.html"
    file.write_text("old")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(RecordError, match=r"report\.html: No space left"):
        write(html.render(samples.as_run(samples.conforming())), file)
    assert file.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1
