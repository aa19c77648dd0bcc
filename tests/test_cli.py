"""The command line as a user meets it: real processes, exit codes and one-line errors."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from kvfence.conformance.cli import main
from kvfence.conformance.scenarios.order import QUICK
from kvfence.conformance.settings import spare_threads
from kvfence.reports.records import read

KVFENCE = [sys.executable, "-m", "kvfence.conformance"]
ROGUE = ["run", "--engine", "rogue_engine:open_engine", "--dtype", "float32"]


@pytest.fixture
def kvfence(tmp_path):
    def run(*args: str, expect: int) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([*KVFENCE, *args], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == expect, done.stdout + done.stderr
        return done

    return run


def no_write(tmp_path: Path) -> str:
    (tmp_path / "file").touch()
    return str(tmp_path / "file" / "report")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--engine", "vlmm"], "unknown engine 'vlmm': choose one of"),
        (["--engine", "no_such_module:f"], "the engine did not start: cannot load adapter no_such_module:f"),
        (["--model", "missing/folder"], "no model folder missing/folder"),
        (["--model", "empty"], "model folder empty is empty"),
        (["--model", "bert"], "bert is a BertForMaskedLM, not a causal LM"),
        (["--model", "hollow"], "cannot load"),
        (["--dtype", "int8"], "no dtype int8"),
        (["--profile", "fast"], "no profile 'fast': choose one of quick, default"),
        (["--case", "nothing"], "no case of profile quick matches"),
        (["--engine-arg", "x"], "engine argument 'x' is not key=value"),
        (["--engine-arg", "how=no-start"], "rogue cannot start: no licence"),
        (["--report", "file/report"], "cannot write to report folder file/report"),
        (["--device", "cuda"], "no CUDA device is here"),
        (["--in-process", "--engine", "nowhere:f"], "cannot load adapter nowhere:f"),
        (["--report", ""], "--report is empty; name a file or folder"),
        (["--baseline", ""], "--baseline is empty; name a file or folder"),
        (["--model", ""], "no model '': give a model folder"),
        (["--deadline", "-1"], "a deadline of -1 s makes no sense"),
        (["--deadline", "nan"], "a deadline of nan s makes no sense"),
        (["--deadline", "inf"], "a deadline of inf s makes no sense"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_2(monkeypatch, tmp_path, args, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name, architecture in (("bert", "BertForMaskedLM"), ("hollow", "LlamaForCausalLM")):
        (tmp_path / name).mkdir()
        config = {"architectures": [architecture], "vocab_size": 4000, "model_type": "llama"}
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    engine = ["run", "--engine", "hf"] if args[:2] == ["--model", "hollow"] else ROGUE
    done = CliRunner().invoke(main, [*engine, *args])
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert done.stderr.startswith("kvfence: ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_what_the_system_refuses_is_one_line_too(kvfence, tmp_path):
    (tmp_path / "out" / "report.html").mkdir(parents=True)
    done = kvfence(*ROGUE, "--case", "independent-canary-block+1-partner-c2-*", "--report", "out", expect=2)
    assert done.stderr.splitlines() == ["kvfence: cannot write report out/report.html: Is a directory"]
    assert list((tmp_path / "out" / "records").iterdir())


@pytest.mark.parametrize(
    ("broken", "code", "told"),
    [(RuntimeError("never thought of"), 3, "a fault of kvfence itself"), (KeyboardInterrupt(), 130, "interrupted")],
)
def test_what_breaks_or_is_broken_off_does_not_look_like_a_leak(monkeypatch, broken, code, told):
    def breaks(*_):
        raise broken

    monkeypatch.setattr("kvfence.conformance.terminal.write_reports", breaks)
    done = CliRunner().invoke(main, ["report", "out"])
    assert done.exit_code == code
    assert done.stderr.splitlines()[-1].startswith(f"kvfence: {told}")


def test_an_adapter_in_this_folder_is_found_in_process_too(kvfence, tmp_path):
    (tmp_path / "mine.py").write_text("from rogue_engine import open_engine")
    case = "independent-canary-block+1-partner-c2-float32"
    kvfence("run", "--engine", "mine:open_engine", "--in-process", "--case", case, expect=0)


def test_records_that_cannot_be_read_are_told(kvfence, tmp_path):
    kvfence(*ROGUE, "--case", "independent-canary-block+1-partner-c2-*", "--report", "out", expect=0)
    (file,) = (tmp_path / "out" / "records").iterdir()
    with file.open("a") as to:
        to.write("no record\n")
    done = kvfence("report", "out", expect=0)
    assert done.stderr == "kvfence: 1 record line could not be read (cut short by a kill?)\n"


def test_nothing_to_report_on(kvfence):
    done = kvfence("report", "nowhere", expect=2)
    assert done.stderr.startswith("kvfence: nothing to report on: no records in nowhere")


def test_a_conforming_run_leaves_its_reports(kvfence, tmp_path):
    done = kvfence(*ROGUE, "--case", "independent-*-c2-*", "--report", "out", expect=0)
    assert "4 cases: 4 conforms" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    (suite,) = ET.parse(tmp_path / "out" / "junit.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "0", "0")
    assert "<html" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    (tmp_path / "out" / "report.html").unlink()
    kvfence("report", "out", expect=0)
    assert (tmp_path / "out" / "report.html").is_file()


def test_a_broken_engine_is_red_and_the_source_named(kvfence, tmp_path):
    args = ["run", "--engine", "slot_pool:open_engine", "--engine-arg", "fault=length"]
    done = kvfence(*args, "--case", "serial-canary-block+1-partner-c2-float32", expect=1)
    assert "violates serial-canary-block+1-partner-c2-float32" in done.stdout
    assert "    request B0 answered " in done.stdout
    assert "of request A0" in done.stdout
    (suite,) = ET.parse(tmp_path / "kvfence-report" / "junit.xml").getroot()
    assert suite.get("failures") == "1"
    # The command it prints does reproduce it.
    (line,) = [line.strip() for line in done.stdout.splitlines() if line.strip().startswith("kvfence run")]
    again = kvfence(*line.split()[1:], "--report", "again", expect=1)
    assert "of request A0" in again.stdout


def test_json_is_all_there_is_on_stdout(kvfence, tmp_path):
    done = kvfence(*ROGUE, "--case", "independent-canary-block+1-partner-c2-*", "--json", expect=0)
    told = json.loads(done.stdout)
    assert (told["exit_code"], told["outcomes"], told["cases"]) == (0, {"conforms": 1}, [])
    assert (tmp_path / "kvfence-report" / "summary.md").read_text().startswith("# kvfence: nothing violated")


def test_undecided_cases_are_exit_3(kvfence):
    done = kvfence(*ROGUE, "--engine-arg", "how=short", "--case", "independent-*-c2-*", expect=3)
    assert "suite-error 2 cases: request" in done.stdout.replace("\n", " ")


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_stopped_half_way_keeps_its_records(kvfence, tmp_path, sign):
    # A run that records nothing ends by its deadline, and the test with it.
    command = [*KVFENCE, *ROGUE, "--engine-arg", "how=hang", "--report", "out", "--deadline", "60"]
    command += ["--case", "independent-*-stranger-*", "--case", "independent-*-mixed-c8-*"]
    # A shell starts what runs in its background with SIGINT ignored, and children inherit that.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, preexec_fn=heed, **quiet) as process:
        # A case without a request of group B is answered, the next one hangs.
        while not any(b'"kind": "case"' in f.read_bytes() for f in (tmp_path / "out" / "records").glob("*")):
            assert process.poll() is None
        process.send_signal(sign)
        told = process.stderr.read().splitlines()
    if sign == signal.SIGINT:
        assert process.returncode == 130
        assert told[-1] == "kvfence: interrupted; `kvfence report out` tells what was done"
        assert (tmp_path / "out" / "report.html").is_file()
    kvfence("report", "out", expect=0)
    assert "ncomplete" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    recorded = read(tmp_path / "out")
    assert recorded.end is None
    assert 0 < len(recorded.cases) < recorded.header["cases"]


def test_lists(kvfence):
    listed = kvfence("list", expect=0).stdout
    for word in ("hf", "canary", "smollm2", "quick", "default", "modes.shared"):
        assert word in listed
    cases = kvfence("list", "--cases", expect=0).stdout.split()
    assert "shared-canary-block+1-mixed-c16-bfloat16" in cases
    assert len(cases) == 60 + len(QUICK)


def test_a_model_is_written_where_asked_and_runs(kvfence, tmp_path):
    kvfence("model", "canary", "mine", "--kv-heads", "8", "--head-dim", "128", expect=0)
    shape = json.loads((tmp_path / "mine" / "config.json").read_text())
    assert (shape["num_key_value_heads"], shape["head_dim"]) == (8, 128)
    kvfence(*ROGUE, "--model", "mine", "--case", "independent-canary-block+1-partner-c2-float32", expect=0)
    assert "not empty" in kvfence("model", "canary", "mine", expect=2).stderr


@pytest.mark.parametrize("args", [["--help"], ["run", "--help"], ["--version"]])
def test_help_does_not_import_torch(args):
    script = (
        "import sys\nfrom kvfence.conformance.cli import main\n"
        f"try: main({args!r})\nexcept SystemExit: pass\n"
        "assert not {'torch', 'transformers', 'numpy', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, env=os.environ)


@pytest.mark.parametrize(
    ("model", "asked", "threads"), [("canary", None, "1"), ("canary", "3", "3"), ("random", None, None)]
)
def test_the_canary_is_computed_on_one_thread_where_nobody_says_otherwise(monkeypatch, model, asked, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", asked or "")
    if asked is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    spare_threads(model)
    assert os.environ.get("OMP_NUM_THREADS") == threads
