"""The pytest plugin: the suite's cases as tests, found by entry point, inert unless an engine is named.

    pytest --pyargs kvfence.conformance --kvfence-engine hf --kvfence-model canary

A violation fails its test; an undecided case is an error; what cannot be observed or does not apply is skipped.
"""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from kvfence.conformance.settings import DEADLINE, LEVELS, Settings, UsageError, engine_arguments
from kvfence.conformance.versions import environment, package_versions
from kvfence.reports.outcome import UNDECIDED, Outcome, exit_code

if TYPE_CHECKING:
    # Torch comes with these; a pytest that only has kvfence installed must not pay for it.
    from kvfence.conformance.case import Case
    from kvfence.conformance.plan import Plan
    from kvfence.conformance.subject import Subject
    from kvfence.conformance.suite import Suite

T = TypeVar("T")
_RUN = "kvfence_run"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options, all `--kvfence-…`."""
    group = parser.getgroup("kvfence", "KV-cache isolation of an LLM inference engine")
    add = group.addoption
    add("--kvfence-engine", metavar="NAME", help="installed adapter, or module:factory")
    add("--kvfence-model", default="canary", metavar="MODEL", help="model folder, or canary, random, smollm2")
    add("--kvfence-profile", default="quick", metavar="NAME", help="how much to cover, such as quick, default or full")
    add("--kvfence-report", default="kvfence-report", metavar="DIR", help="folder for records and report")
    add("--kvfence-seed", default=0, type=int, help="seed of all passphrases")
    add("--kvfence-dtype", action="append", default=[], metavar="DTYPE", help="only this dtype (repeatable)")
    add("--kvfence-case", action="append", default=[], metavar="PATTERN", help="only matching cases (repeatable)")
    add("--kvfence-engine-arg", action="append", default=[], metavar="KEY=VALUE", help="passed on (repeatable)")
    add("--kvfence-device", default="cpu", metavar="DEVICE", help="cpu or cuda")
    add("--kvfence-deadline", default=DEADLINE, type=float, metavar="S", help="seconds for one call to the engine")
    add("--kvfence-require-level", choices=LEVELS, help="what a case must have been looked at to conform")
    add("--kvfence-baseline", metavar="FILE", help="violations that are known; see `kvfence baseline`")
    add("--kvfence-in-process", action="store_true", help="engine in this process, for a debugger")


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    config.addinivalue_line("markers", "requirement(id): the requirement of the kvfence catalogue that a test asserts")
    config.stash[_SESSION] = Session(config)
    config.addinivalue_line("markers", "mode(name): serial, independent, shared or scenario")
    config.addinivalue_line("markers", "requires(*capabilities): what an engine must be able to do for a test")


def settings_of(config: pytest.Config) -> Settings:
    """The run asked for by pytest's options. Raises pytest.UsageError."""
    option = config.getoption
    if not option("--kvfence-engine"):
        raise pytest.UsageError("name the engine to test with --kvfence-engine")
    try:
        return Settings(
            engine=option("--kvfence-engine"),
            model=option("--kvfence-model"),
            profile=option("--kvfence-profile"),
            report=Path(option("--kvfence-report")),
            seed=option("--kvfence-seed"),
            dtypes=tuple(option("--kvfence-dtype")),
            cases=tuple(option("--kvfence-case")),
            engine_args=engine_arguments(tuple(option("--kvfence-engine-arg"))),
            device=option("--kvfence-device"),
            deadline=option("--kvfence-deadline"),
            in_process=option("--kvfence-in-process"),
            require_level=option("--kvfence-require-level"),
            baseline=Path(option("--kvfence-baseline")) if option("--kvfence-baseline") else None,
        )
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error


class Session:
    """The suite of one pytest session, made when first needed and closed at its end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._suite: Suite | None = None
        self.stale: list[str] = []  # what the baseline says and does not hold

    @cached_property
    def settings(self) -> Settings:
        """The run asked for. Raises pytest.UsageError."""
        return settings_of(self._config)

    @cached_property
    def plan(self) -> "Plan":
        """The cases, needed at collection. Raises pytest.UsageError."""
        from kvfence.conformance.plan import Plan

        return _checked(lambda: Plan(self.settings))

    @property
    def suite(self) -> "Suite":
        """The running suite. Raises pytest.UsageError."""
        if self._suite is None:
            from kvfence.conformance.suite import Suite

            worker = getattr(self._config, "workerinput", {"workerid": "main"})["workerid"]
            self._suite = _checked(lambda: Suite(self.settings, self.plan, self.run, worker))
        return self._suite

    @cached_property
    def run(self) -> str:
        """Id of the run: made by the controlling process, handed down to workers."""
        from kvfence.conformance.suite import new_run

        return str(getattr(self._config, "workerinput", {}).get(_RUN) or new_run())

    def close(self) -> None:
        """End the run and, in the controlling process, write the reports."""
        if self._suite is not None:
            self._suite.finish(exit_code(self._suite.outcomes, self._suite.known))
            self._suite.close()
        if not hasattr(self._config, "workerinput") and "run" in vars(self):
            from kvfence.conformance.baseline import stale
            from kvfence.conformance.terminal import write_reports
            from kvfence.reports.records import runs

            if self.run in runs(self.settings.report):
                write_reports(self.settings.report, self.run)
                self.stale = stale(self.settings, self.run)


_SESSION = pytest.StashKey[Session]()


def _checked(make: Callable[[], T]) -> T:
    try:
        return make()
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Name the run in pytest's header: its command, what it runs with, and what the environment says."""
    if not config.getoption("--kvfence-engine"):
        return []
    settings = config.stash[_SESSION].settings
    versions = ", ".join(f"{name} {version}" for name, version in package_versions().items())
    variables = [f"{name}={value}" for name, value in environment().items()]
    told = [settings.command(), f"{versions}; seed {settings.seed}, profile {settings.profile}", *variables]
    return [f"kvfence: {line}" for line in told]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Say what is wrong with the options before anything is collected."""
    if session.config.getoption("--kvfence-engine"):
        session.config.stash[_SESSION].plan  # noqa: B018


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Close the engine, write the reports; a baseline that does not hold fails the run."""
    ours = session.config.stash[_SESSION]
    ours.close()
    if ours.stale and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say which entries of the baseline do not hold."""
    for line in config.stash[_SESSION].stale:
        terminalreporter.line(f"kvfence: baseline: {line}", red=True)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give xdist workers the id of their common run."""
    if node.config.getoption("--kvfence-engine"):
        node.workerinput[_RUN] = node.config.stash[_SESSION].run


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the cases of one engine configuration on one worker."""
    if not config.getoption("--kvfence-engine"):
        return None
    from kvfence.conformance.scheduler import ByEngine

    return ByEngine(config, log)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per case for those that take one, of the mode they are marked with."""
    mode = metafunc.definition.get_closest_marker("mode")
    if "case" not in metafunc.fixturenames or mode is None:
        return
    config = metafunc.config
    cases = config.stash[_SESSION].plan.cases if config.getoption("--kvfence-engine") else []
    cases = [case for case in cases if case.topic == mode.args[0]]
    metafunc.parametrize("case", [pytest.param(case, id=case.id, marks=_marks(case)) for case in cases])


def _marks(case: "Subject") -> list[pytest.MarkDecorator]:
    from kvfence.conformance.stage import wanted

    # Tests of the modes say themselves what they are about.
    about = [pytest.mark.requirement(case.requirement)] if case.topic == "scenario" else []
    return [*about, pytest.mark.requires(*sorted(wanted(case)))]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let `-k` choose by the id of a requirement and the names of capabilities, too."""
    for name in ("requirement", "requires"):
        item.extra_keyword_matches.update(str(arg) for mark in item.iter_markers(name) for arg in mark.args)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drop tests of which no case was asked for; without an engine there is nothing they could be about."""
    ours = [item for item in items if item.get_closest_marker("mode")]
    if ours and not config.getoption("--kvfence-engine"):
        raise pytest.UsageError("name the engine to test with --kvfence-engine")
    # pytest keeps a parametrised test of no parameters as one that is skipped.
    items[:] = [item for item in items if item not in ours or not item.get_closest_marker("skip")]


@pytest.fixture
def verdict(request: pytest.FixtureRequest, case: "Case") -> Any:
    """The record of a case that was decided; an undecided one is an error, an unobservable one is skipped."""
    from dataclasses import asdict

    from kvfence.reports.junit import properties

    try:
        record = request.config.stash[_SESSION].suite.examine(case)
    except (UsageError, pytest.UsageError) as error:
        pytest.exit(f"kvfence: {error}", returncode=2)
    # Not by record_property, which warns that JUnit's strictest schema knows none.
    request.node.user_properties.extend(properties(asdict(record)).items())
    if record.known:
        pytest.xfail(f"known: {record.known}")
    required = request.config.getoption("--kvfence-require-level")
    if record.outcome in UNDECIDED or (required and record.outcome is Outcome.NOT_OBSERVABLE):
        pytest.fail(f"{record.outcome}: {record.reason}", pytrace=False)
    if record.outcome in (Outcome.NOT_OBSERVABLE, Outcome.NOT_APPLICABLE):
        pytest.skip(f"{record.outcome}: {record.reason}")
    return record
