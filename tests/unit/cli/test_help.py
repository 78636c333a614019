"""Every command says how it is used: its help fits a terminal, and its examples can be typed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from slicer.cli import runoptions
from slicer.cli.app import app
from tools.manpages.epilog import Item, examples
from tools.manpages.tree import Command, all_commands

pytestmark = pytest.mark.both_pythons

COMMANDS = all_commands()
BY_WORDS = {command.words: command for command in COMMANDS}
GENERAL = Command("slicer", app)
_SHELL_WORDS = ("|", "||", "&&", "&", ";", ">")
MAN = Path(__file__).parents[3] / "docs" / "man"


def in_page() -> list[Item]:
    """The examples of slicer(1)."""
    _, _, text = (MAN / "slicer.1.rst").read_text(encoding="utf-8").partition("\nEXAMPLES\n")
    return [Item(line, "") for line in re.findall(r"^\*\*(slicer .*)\*\*$", text, re.M)]


def of_all() -> list[tuple[str, str]]:
    everything = (*COMMANDS, GENERAL)
    found = [(each.words, item.term) for each in everything for item in examples(each.command.epilog)]
    return [*found, *(("slicer(1)", item.term) for item in in_page())]


def slicer_calls(line: str) -> list[list[str]]:
    """The arguments of each call of slicer in a shell's line, those in a job's command included."""
    calls = [call for inner in re.findall(r"\$\(([^)]*)\)", line) for call in slicer_calls(inner)]
    words = shlex.split(line)
    for number, word in enumerate(words):
        if word == "slicer":
            rest = words[number + 1 :]
            end = next((at for at, each in enumerate(rest) if each in _SHELL_WORDS), len(rest))
            calls.append(rest[:end])
    return calls


def parse(arguments: list[str]) -> None:
    """With the parser that the program has for it. Raises what that raises."""
    if arguments[0] in ("run", "hold"):
        _, command = runoptions.parse(arguments[1:], arguments[0])
        assert command or arguments[0] == "hold"
        return
    if arguments[0] == "route":
        _, words = runoptions.parse(arguments[1:], "route")
        _, command = runoptions.parse(list(words[1:]), "route")
        assert command
        return
    known = GENERAL
    left = list(arguments)
    while left and f"{known.words} {left[0]}" in BY_WORDS:
        known = BY_WORDS[f"{known.words} {left.pop(0)}"]
    known.command.make_context(known.words, left, known.context().parent)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.words)
def test_every_command_has_examples(command: Command) -> None:
    found = examples(command.command.epilog)
    assert 2 <= len(found) <= 8
    assert all(item.text for item in found), "an example without a word about it"
    assert any(command.words in item.term for item in found)


@pytest.mark.parametrize(("whose", "line"), of_all())
def test_every_example_can_be_typed(whose: str, line: str) -> None:
    if line.startswith("export "):
        return
    calls = slicer_calls(line)
    assert calls, f"no call of slicer: {line}"
    for arguments in calls:
        parse(arguments)


@pytest.mark.parametrize("command", [*COMMANDS, GENERAL], ids=lambda command: command.words)
def test_its_help_fits_into_eighty_columns(command: Command) -> None:
    text = command.command.get_help(command.context(width=80))
    assert not [line for line in text.splitlines() if len(line) > 80]


def test_every_command_but_slicer_itself_is_found_in_the_tree() -> None:
    assert {"slicer run", "slicer queue", "slicer queue suggest", "slicer profiles show"} <= set(BY_WORDS)
