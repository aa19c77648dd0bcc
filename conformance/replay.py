"""Replay: one schedule file on any engine, by itself or with the probes that tell what it looks like."""

from pathlib import Path

from kvfence.conformance import schedule_file
from kvfence.conformance.plan import Plan
from kvfence.conformance.probes import PROBES
from kvfence.conformance.scenarios.scenario import Scenario
from kvfence.conformance.settings import Settings, UsageError


def replayed(settings: Settings, probes: bool = False) -> Plan:
    """The plan of a run of one schedule file, which comes first, and the probes if these are asked for.

    Raises UsageError for a file that cannot be read or is no schedule.
    """
    file = settings.schedule
    assert file is not None
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        told = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"cannot read schedule {file}: {told}") from error

    def write(plan: Plan) -> list[Scenario]:
        scenario = _checked(settings, file, text, plan)
        others = [plan.write_scenario(name, scenario.dtype) for name in PROBES] if probes else []
        return [scenario, *others]

    return Plan(settings, write)


def _checked(settings: Settings, file: Path, text: str, plan: Plan) -> Scenario:
    scenario = schedule_file.loads(text, str(file), plan.model.path.resolve(), plan.mirror)
    if scenario.layout not in plan.layouts:
        raise UsageError(f"{file} is written in {scenario.layout} words, and {settings.model} has others")
    tokens = [token for prompt in scenario.prompts.values() for token in prompt.tokens]
    tokens += [token for operation in scenario.schedule for token in operation.tokens]
    if (largest := max(tokens)) >= plan.model.vocabulary:
        raise UsageError(f"{file} holds token {largest}; {settings.model} has {plan.model.vocabulary} of them")
    return scenario
