"""The documentation: every kvfence command in it is one that the command line takes, and every link leads somewhere."""

import re
import shlex
from pathlib import Path

import click
import pytest

from kvfence.conformance.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# In a block, or between backticks of a sentence; a comment behind it is none of it.
COMMAND = re.compile(r"(?:^ {4}(?:\$ )?|^\s*- run: |`)(kvfence [a-z][^`#\n]*)", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


def commands(file):
    return [found.strip() for found in COMMAND.findall(file.read_text(encoding="utf-8"))]


def parsed(words):
    """The command that words name, its options taken and checked; nothing is run. Raises click.UsageError."""
    command, path = main, ["kvfence"]
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, *words = words
        found = command.commands.get(name)
        if found is None:
            raise click.UsageError(f"{' '.join(path)} has no command {name}")
        command, path = found, [*path, name]
    # What a sentence says of a command need not name all that it takes.
    options = [word for word in words if word.startswith("--")]
    known = {name for parameter in command.params for name in parameter.opts}
    if odd := [word for word in options if word.partition("=")[0] not in known]:
        raise click.UsageError(f"{' '.join(path)} has no option {odd[0]}")
    return command


@pytest.mark.parametrize("file", [*PAGES, ROOT / "docs" / "examples" / "kvfence.yml"], ids=lambda file: file.name)
def test_commands_are_taken(file):
    for line in commands(file):
        parsed(shlex.split(line)[1:])


def test_commands_are_found_and_wrong_ones_are_not_taken():
    assert sum(len(commands(file)) for file in PAGES) > 30
    for words in (["rnu"], ["run", "--engin", "hf"], ["faults", "walk"], ["compare", "--matrix"]):
        with pytest.raises(click.UsageError):
            parsed(words)


def test_options_of_pytest_are_there(pytestconfig):
    text = "".join(file.read_text(encoding="utf-8") for file in PAGES)
    named = set(re.findall(r"--kvfence-[a-z-]+", text))
    assert named
    taken = {f"--{name.replace('_', '-')}" for name in vars(pytestconfig.option)}
    assert named - taken == set()


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.name)
def test_links_lead_somewhere(file):
    links = LINK.findall(file.read_text(encoding="utf-8"))
    assert [link for link in links if not (file.parent / link).exists()] == []
