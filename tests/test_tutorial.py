"""The tutorial: its commands, run one after another in an empty folder, do what it says."""

import json
import shlex
import subprocess
import sys

import jsonschema
from test_docs import ROOT, commands

PAGE = ROOT / "docs" / "tutorial.md"
SCHEMA = json.loads((ROOT / "reports" / "schema.json").read_text(encoding="utf-8"))
ENDPOINT = "url="  # takes a server


def test_every_command_of_the_tutorial_does_what_it_says(tmp_path):
    said = {}
    for line in [line for line in commands(PAGE) if ENDPOINT not in line]:
        words = [sys.executable, "-m", "kvfence.conformance", *shlex.split(line)[1:]]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=600)
        said[line] = (done.returncode, done.stdout + done.stderr)
    codes = {line: code for line, (code, _) in said.items()}
    red = [line for line in codes if "defect=" in line or " compare " in line]
    assert {line: code for line, code in codes.items() if line not in red} == {
        line: 0 for line in codes if line not in red
    }, said
    assert {line: codes[line] for line in red} == dict.fromkeys(red, 1), said
    assert len(red) == 3
    for file in ("kvfence-demo/shared-slot/report.html", "wrong/report.html", "comparison.html", "known.toml"):
        assert (tmp_path / file).stat().st_size > 0
    for file in [*tmp_path.glob("*/records/*.ndjson"), *tmp_path.glob("*/*/records/*.ndjson")]:
        for line in file.read_text(encoding="utf-8").splitlines():
            jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(line))
    (replayed,) = [text for line, (_, text) in said.items() if " replay " in line]
    assert "FIXED" in replayed
    (diagnosed,) = [text for line, (_, text) in said.items() if " diagnose " in line]
    assert "KEY-HASH" in diagnosed
