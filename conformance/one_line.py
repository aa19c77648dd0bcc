"""A user's mistake, told in one line."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from kvfence.adapters.api import EngineStartError
from kvfence.conformance.settings import UsageError

T = TypeVar("T")


class OneLine(click.ClickException):
    """A user's mistake: one line and exit code 2."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        click.echo(f"kvfence: {self.message}", err=True)


class NamedPath(click.Path):
    """A path with a name: an empty one, such as of a variable that is not set, would be the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value):
            raise OneLine(f"{param.opts[0] if param else 'a path'} is empty; name a file or folder")
        return super().convert(value, param, ctx)


PATH = NamedPath(path_type=Path)


def or_one_line(call: Callable[[], T]) -> T:
    """What a call gives. Raises OneLine where it cannot be done."""
    from kvfence.prompts.folder import ModelError
    from kvfence.reports.records import RecordError

    try:
        return call()
    except (ModelError, UsageError, RecordError, EngineStartError) as error:
        raise OneLine(str(error)) from error
    except OSError as error:
        raise OneLine(f"{error.filename or 'a file'}: {error.strerror or error}") from error


class Commands(click.Group):
    """The command line. What is interrupted or breaks has exit codes of its own: 1 says that an engine leaks."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt as error:
            done = getattr(error, "__notes__", ["nothing was recorded"])
            click.echo(f"kvfence: interrupted; {done[0]}", err=True)
            ctx.exit(130)
        except Exception:
            traceback.print_exc()
            click.echo("kvfence: a fault of kvfence itself, of which the lines above tell; nothing is known", err=True)
            ctx.exit(3)
