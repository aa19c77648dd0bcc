"""The benchmarks of the reference engine run, in small, and what is exact in them is."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_sharing_saves_what_the_closed_form_says(capsys, canary_folder):
    import reference_sharing

    reference_sharing.main(["", "--quick"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split(": ")[1] == "88.24%, 100.0% of it"
    assert lines[2].split(": ")[1] == "88.24%, 100.0% of it"
    assert "544 -> 64" in lines[1]
    assert "8704 -> 1024" in lines[2]


def test_waste_is_below_four_percent_under_a_steady_load(canary_folder):
    from reference_waste import Load, measure

    load = Load(concurrency=4, prompt=(200, 300), new=(10, 30), steps=60, warm_up=20)
    waste = measure(load)
    assert waste.length >= 200
    # Half a block a request, give or take: neither nothing nor a block.
    assert 0.015 < waste.blocks < 0.04
    # A positive control: larger blocks waste more, and the measurement sees it.
    assert measure(load, block_size=64).blocks > 2 * waste.blocks


def test_bookkeeping(capsys, canary_folder):
    import reference_pool

    reference_pool.main(["", "--quick"])
    out = capsys.readouterr().out
    for name in ("allocate", "share", "release", "reserve", "match", "plain", "trace", "tags", "audit"):
        assert re.search(rf"\b{name}\b.* \d", out), name


def test_throughput_is_compared_on_right_outputs(capsys, canary_folder):
    import reference_throughput

    reference_throughput.main(["", "--quick", "--threads", "1"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("concurrency 2")]
    assert re.search(r"reference [\d,]+, generate [\d,]+, continuous [\d,]+; ", line)


def test_sweep_and_its_figure(capsys, tmp_path, canary_folder):
    import reference_sweep

    reference_sweep.main(["", "--quick", "--threads", "1", str(tmp_path / "sweep.svg")])
    out = capsys.readouterr().out
    # 6 shared blocks of 96 tokens, and 5 of each request's own 73 tokens; a block of the canary is 48 KiB.
    assert [float(line.split()[-2]) for line in out.splitlines()[:3]] == [
        pytest.approx((6 + 5 * count) * 48 / 1024, abs=0.005) for count in (1, 2, 4)
    ]
    svg = ET.parse(tmp_path / "sweep.svg").getroot()
    assert len(svg.findall(".//{*}circle")) == 2 * 3


def test_the_knee_is_where_doubling_stops_to_pay():
    from reference_sweep import Point, knee

    rising = [Point(1, 100, 1), Point(2, 190, 1), Point(4, 300, 1), Point(8, 370, 1), Point(16, 380, 1)]
    assert knee(rising).concurrency == 8
    assert knee(rising[:4]).concurrency == 8
    assert knee([Point(1, 100, 1), Point(2, 119, 1), Point(4, 500, 1)]).concurrency == 1
