"""A user's mistake, told in one line."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from kvfence.conformance.settings import UsageError

T = TypeVar("T")


class OneLine(click.ClickException):
    """A user's mistake: one line and exit code 2."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        click.echo(f"kvfence: {self.message}", err=True)


def or_one_line(call: Callable[[], T]) -> T:
    """What a call gives. Raises OneLine where it cannot be done."""
    from kvfence.prompts.folder import ModelError
    from kvfence.reports.records import RecordError

    try:
        return call()
    except (ModelError, UsageError, RecordError) as error:
        raise OneLine(str(error)) from error
