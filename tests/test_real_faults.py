import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import real_faults

    yield real_faults
    sys.modules.pop("real_faults")


def test_the_list_names_what_it_runs_on(page):
    known, models, left_out = page.faults()
    assert len({fault.name for fault in known}) == len(known)
    for fault in known:
        assert fault.bad
        assert fault.bad != fault.good
        assert fault.model in models or fault.model in page.NAMES
        assert all("==" in package for package in (*fault.bad, *fault.good))
        assert all(isinstance(value, str) for value in fault.arguments.values())
    assert all(left_out.values())


@pytest.mark.parametrize(
    ("bad", "good", "told"),
    [
        ({"violated": {"batch.shared": 1}}, {}, "seen"),
        ({"violated": {"batch.shared": 1}}, None, "seen"),
        ({"violated": {"batch.shared": 1}}, {"violated": {"batch.shared": 3}}, "missed"),
        ({"violated": {"batch.shared": 1, "key.salt": 1}}, {"violated": {"batch.shared": 3}}, "seen"),
        ({"outcomes": {"suite-error": 1}}, {"outcomes": {"conforms": 1}}, "engine failed"),
        ({"outcomes": {"suite-error": 1}}, {"outcomes": {"suite-error": 1}}, "missed"),
        ({"outcomes": {"conforms": 1}}, {}, "missed"),
        ({"failed": "it did not start"}, {}, "not run"),
    ],
)
def test_seen_is_what_the_repaired_release_does_not_violate(page, bad, good, told):
    results = [page.Result("f", "", "1", **came) for came in (bad, good) if came is not None]
    assert page.verdict(results[0], results[1] if len(results) > 1 else None) == told


def test_the_page_tells_what_was_missed_and_what_was_not_attempted(page):
    known = [page.Fault("seen-one", "a", "o/r#1", "e", "canary", ("p==1",), ("p==2",))]
    known += [page.Fault("other", "b", "o/r#2", "e", "canary", ("p==1",), (), missed="Nothing asks for it.")]
    known += [page.Fault("not-yet", "c", "o/r#3", "e", "canary", ("p==1",), ())]
    results = {
        ("seen-one", "bad"): page.Result("seen-one", "bad", "1", {}, {"batch.shared": 2}, "batch.two", found=4.2),
        ("seen-one", "good"): page.Result("seen-one", "good", "2"),
        ("other", "bad"): page.Result("other", "bad", "1"),
    }
    told = page.written(known, results, {"o/r#4": "it does not install"}, "")
    assert "Of 2 faults: 1 seen, 1 missed." in told
    assert "| seen | batch.shared (2) | batch.two | none | no | 4 | 0 | 2: nothing violated |" in told
    assert "- `other`: Nothing asks for it." in told
    assert "- o/r#4: it does not install" in told
