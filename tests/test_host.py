import os
import select
import signal
import subprocess
import sys
import textwrap

import pytest

from kvfence.adapters.api import (
    EngineConfig,
    EngineFaultError,
    EngineStartError,
    Request,
    UnsupportedConfigError,
)
from kvfence.adapters.check import check_completions
from kvfence.adapters.host import InProcessHost, ProcessHost
from kvfence.prompts import alphabet

SPEC = "rogue_engine:open_engine"
PROMPT = alphabet.prompt_tokens(range(50, 60))
GOOD, BAD = [Request("x/A0", PROMPT, 4)], [Request("x/B0", PROMPT, 4)]


def config(how: str) -> EngineConfig:
    return EngineConfig(engine_args={"how": how})


@pytest.fixture
def host():
    host = ProcessHost(SPEC, "no-model", deadline=20)
    yield host
    host.close()


def test_a_progress_bar_is_no_reason(host):
    host._start()
    host._log.write(b"disk is full\nLoading weights:  50%|###  | 15/30\rLoading weights: 100%|######| 30/30\n")
    host._process.kill()
    assert host._obituary() == "engine process died (signal SIGKILL): disk is full"


def answers(host) -> bool:
    return check_completions(GOOD, host.generate(GOOD), alphabet.VOCAB_SIZE)[0].tokens == alphabet.answer(PROMPT, 4)


@pytest.mark.parametrize("make", [lambda: ProcessHost(SPEC, "no-model"), lambda: InProcessHost(SPEC, "no-model")])
def test_opens_and_answers(make):
    host = make()
    assert host.open(config("good")).name == "rogue"
    assert answers(host)
    host.close()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raise", "engine raised RuntimeError: block table is full"),
        ("exit", "engine process died (exit code 7)"),
        ("kill", "engine process died (signal SIGKILL): last words of the engine"),
        ("unpicklable", "engine raised"),
        ("own-class", "the engine's answer holds objects of its own"),
        ("own-error", "slot 3 is gone"),
    ],
)
def test_a_fault_is_told_in_one_line_and_the_next_call_answers(host, how, message):
    host.open(config(how))
    with pytest.raises(EngineFaultError) as error:
        host.generate(BAD)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert answers(host)


def test_a_hang_is_killed_at_its_deadline_and_the_engine_restarted():
    host = ProcessHost(SPEC, "no-model", deadline=3)
    host.open(config("hang"))
    hung = host._process
    with pytest.raises(EngineFaultError, match=r"^engine did not answer within 3 s and was killed$"):
        host.generate(BAD)
    assert hung.returncode == -signal.SIGKILL
    assert answers(host)
    host.close()


def test_one_configuration_a_process_unless_the_engine_reopens(host):
    host.open(config("good"))
    first = host._process.pid
    host.open(config("good"))
    assert host._process.pid == first
    host.open(config("raise"))
    assert host._process.pid != first


def test_a_restart_opens_the_same_configuration_anew(host):
    first, process = host.open(config("good")), host._process.pid
    again = host.restart()
    assert again == first
    assert again is not first
    assert host._process.pid != process
    assert host.open(config("good")) is again
    assert answers(host)


@pytest.mark.parametrize("make", [lambda: ProcessHost(SPEC, "no-model"), lambda: InProcessHost(SPEC, "no-model")])
def test_start_errors_keep_their_class(make):
    host = make()
    with pytest.raises(EngineStartError, match="no licence"):
        host.open(config("no-start"))
    with pytest.raises(UnsupportedConfigError, match="no dtype int8"):
        host.open(EngineConfig(dtype="int8"))
    host.close()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("no-engine", "the adapter must return an Engine, not int"),
        ("block-size", "the engine's block size is '16'; it must be a positive int, or None"),
        ("capabilities", "the engine's capability token_prompts must be a Capability"),
    ],
)
def test_an_engine_that_does_not_keep_to_the_contract_does_not_start(how, message):
    host = ProcessHost(SPEC, "no-model")
    with pytest.raises(EngineStartError, match=message):
        host.open(config(how))
    host.close()


def test_missing_adapter_is_a_start_error():
    host = ProcessHost("no_such_module:f", "no-model")
    with pytest.raises(EngineStartError, match="cannot load adapter"):
        host.open(EngineConfig())
    host.close()


def test_an_engine_in_this_process_is_guarded_against_exceptions():
    host = InProcessHost(SPEC, "no-model")
    host.open(config("raise"))
    with pytest.raises(EngineFaultError, match="engine raised RuntimeError"):
        host.generate(BAD)


def test_close_leaves_no_process():
    host = ProcessHost(SPEC, "no-model")
    host.open(config("good"))
    process = host._process
    host.close()
    assert process.poll() is not None


def test_a_hanging_engine_dies_with_its_host():
    script = f"""
        from kvfence.adapters.api import EngineConfig, Request
        from kvfence.adapters.host import ProcessHost
        host = ProcessHost({SPEC!r}, "no-model")
        host.open(EngineConfig(engine_args={{"how": "hang"}}))
        print(host._process.pid, flush=True)
        host.generate([Request("x/B0", {PROMPT!r}, 4)])
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        watch = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    assert select.select([watch], [], [], 20)[0], "the engine outlived its host"
    os.close(watch)
