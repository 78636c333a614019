"""One word for a thing: the options of all commands agree with the table in docs/dev/words.md."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import click
import pytest

from slicer.cli import elsewhere
from tools.manpages.tree import all_commands

SRC = Path(__file__).parents[3] / "src/slicer"
_PAGE = (Path(__file__).parents[3] / "docs/dev/words.md").read_text(encoding="utf-8")
_OPTIONS = {
    (command.words, name): option
    for command in all_commands()
    for option in command.command.get_params(command.context())
    if isinstance(option, click.Option) and not option.hidden
    for name in option.opts
}


def rows() -> list[tuple[str, str, str]]:
    """Of the table of options: the options, their values, and the words that are not used."""
    text = _PAGE.partition("## Options")[2].partition("\n## ")[0].replace("\\|", "!")
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "`" in line
    ]
    return [(row[0], row[1].replace("!", "|"), row[3]) for row in cells]


def value_of(option: click.Option) -> str:
    if option.is_flag or option.count or (isinstance(option.type, click.Choice) and option.metavar is None):
        return ""
    return option.metavar or option.type.name


def test_an_option_of_several_commands_is_in_the_table_with_its_value() -> None:
    users = defaultdict(set)
    for (words, name), option in _OPTIONS.items():
        users[name].add((words, value_of(option)))
    known = {name: values for names, values, _ in rows() for name in re.findall(r"`(-[^`]*)`", names)}
    several = {name: {value for _, value in found} for name, found in users.items() if len(found) > 1}
    assert set(several) - set(known) == set()
    for name, values in several.items():
        assert values <= {each.strip() for each in re.split("[,;]", known[name])} | {""}, name


def test_a_letter_stands_for_one_option() -> None:
    meant = defaultdict(set)
    for (_, name), option in _OPTIONS.items():
        if not name.startswith("--"):
            meant[name].add(max(option.opts, key=len))
    several = {letter: words for letter, words in meant.items() if len(words) > 1}
    assert several == {"-h": {"-h", "--help"}, "-n": {"--lines", "--number"}}
    letters = defaultdict(set)
    for (_, name), option in _OPTIONS.items():
        letters[name].add(min(option.opts, key=len))
    assert {name for name, found in letters.items() if len(found) > 1} <= {"--help"}


def test_no_command_has_a_second_word() -> None:
    second = {name for _, _, others in rows() for name in re.findall(r"`(-[^`]*)`", others)}
    assert len(second) > 20
    assert {name for _, name in _OPTIONS} & second == set()


def test_a_column_of_a_table_has_its_word() -> None:
    printed = set()
    for path in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "|" in node.value:
                cells = (re.sub(r"[<>!\d]*$", "", cell.strip()) for cell in node.value.split("|"))
                printed |= {cell for cell in cells if re.fullmatch(r"[A-Z][A-Z :]+", cell)}
    heads = [line.strip("|").split("|") for line in _PAGE.partition("### Heads")[2].splitlines()]
    known, second = (
        {word for row in heads if len(row) == 3 for word in re.findall("`([^`]*)`", row[column])}
        for column in (0, 2)
    )
    assert len(printed) > 60
    assert (printed - known, known - printed, printed & second) == (set(), set(), set())


def test_another_programs_word_is_not_one_of_slicers() -> None:
    own = {command.words.split()[1] for command in all_commands()}
    assert own & {word for words in elsewhere.COMMANDS for word in words.split()} == set()
    options = {word for words in elsewhere.OPTIONS for word in words.split()}
    assert options & {name for words, name in _OPTIONS if words == "slicer run"} <= {"--detach"}


@pytest.mark.parametrize(
    ("word", "says"),
    [("stauts", "did you mean slicer status?"), ("lgos", "did you mean slicer logs?"),
     ("squeue", "slicer status"), ("start", "slicer run"), ("zzz", "")],
)  # fmt: skip
def test_a_command_that_slicer_lacks_is_answered(word: str, says: str) -> None:
    assert elsewhere.command(word, ["run", "status", "logs", "client"]).startswith(says)
    assert says or not elsewhere.command(word, ["run", "status", "logs", "client"])


@pytest.mark.parametrize(
    ("name", "known", "says"),
    [("--gres", ["--gpus"], "here: --gpus N"),
     ("--timout", ["--time", "--timeout"], "did you mean --timeout?"),
     ("--port", ["--host"], ""), ("--port", ["--host", "--listen"], "here: --listen HOST:PORT"),
     ("--env", [], "it gets this environment"), ("--watch", ["--json"], "slicer top")],
)  # fmt: skip
def test_an_option_that_a_command_lacks_is_answered(name: str, known: list[str], says: str) -> None:
    assert elsewhere.option(name, known).startswith(says)
    assert says or not elsewhere.option(name, known)
