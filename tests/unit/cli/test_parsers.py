"""Two parsers read the command lines of ``slicer run`` and ``hold``: the fast one, and click's for help."""

from __future__ import annotations

import shlex
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.cli import run_help, runoptions
from slicer.cli.run_help import parsed
from slicer.errors import UsageError

pytestmark = pytest.mark.both_pythons

GOOD = [
    "",
    "--",
    "make -j8",
    "-- make -j8",
    "-p heavy make -p other",
    "-pheavy make",
    "-p=heavy make",
    "--profile heavy -- make --profile other",
    "--profile=heavy make --profile=other -- --name x",
    "--profile= make",
    "--profile heavy --profile gpu make",
    "-p -- -- make",
    "--name -- make",
    "--name --profile make",
    "--name '' make",
    "-g2 --name x make -n2",
    "--gpus -1 make",
    "-q make -v",
    "-v -q make",
    "-q -v -q make",
    "-qv make",
    "-vq make",
    "-qpheavy make -q",
    "-vvg 3 make",
    "--wait --no-wait make",
    "--no-wait --wait make --no-wait",
    "--set MemoryMax=8G --set CPUQuota=50% make --set x",
    "--set=MemoryMax=8G make",
    "--linger --exec --journal --dry-run make",
    "--expect 2h --timeout 90 --outcome o.json --backend plain make",
    "--backend=systemd make",
    "- make",
    "-- -- make",
    "-- --help",
    "make --help",
    "make -h -- --version",
    "--quiet sh -c 'exit 3' -- -p",
    "--gpu 0,1 --gpus 1 --vram 8G --margin=1G --cpu-slots 1 make --gpu",
    "--priority -5 --max-wait 0 --then fail make",
    "--priority=-5 --then=run -- make --then x",
    "--vram '' --gpu= make",
]
# Of these slicer hold takes the options that need no scope.
SCOPED = ["--set A=1 x", "--backend plain x", "--exec x", "--journal x", "--dry-run x"]
HOLD = [line for line in GOOD if not any(f" {each.split()[0]}" in f" {line}" for each in SCOPED)]
BAD = [
    "--bogus make",
    "-z make",
    "-qz make",
    "--prof heavy make",  # no abbreviations: a new option must not change the meaning of an old line
    "--backend upstart make",
    "--backend= make",
    "--wait=yes make",
    "--exec= make",
    "--profile",
    "-p",
    "--set",
    "---",
    "--then walk make",
    "--then= make",
    "--then",
    "--gpu",
]
COMMANDS = {"run": run_help.command, "hold": run_help.hold, "route": run_help.route}


def by_click(arguments: list[str], program: str) -> tuple[dict[str, Any], tuple[str, ...]] | None:
    """What click makes of it; None for an error."""
    try:
        return parsed(program, COMMANDS[program].make_context(program, list(arguments)).params)
    except click.UsageError:
        return None


def by_hand(arguments: list[str], program: str) -> tuple[dict[str, Any], tuple[str, ...]] | None:
    try:
        return runoptions.parse(list(arguments), program)
    except UsageError:
        return None


def agree(arguments: list[str], program: str = "run") -> tuple[dict[str, Any], tuple[str, ...]] | None:
    fast = by_hand(arguments, program)
    assert fast == by_click(arguments, program), arguments
    return fast


@pytest.mark.parametrize("line", GOOD)
def test_both_parsers_agree(line: str) -> None:
    assert agree(shlex.split(line)) is not None


@pytest.mark.parametrize("line", BAD)
def test_both_parsers_refuse(line: str) -> None:
    assert agree(shlex.split(line)) is None


@pytest.mark.parametrize("line", HOLD)
def test_hold_reads_its_command_line_as_run_does(line: str) -> None:
    options, command = agree(shlex.split(line), "hold")
    assert options.pop("protocol") == ""
    assert (options, command) == by_hand(shlex.split(line), "run")


@pytest.mark.parametrize("line", [*BAD, *SCOPED])
def test_hold_refuses_what_needs_a_scope(line: str) -> None:
    assert agree(shlex.split(line), "hold") is None


def test_what_only_run_takes_is_said() -> None:
    with pytest.raises(UsageError) as caught:
        runoptions.parse(["--set", "A=1", "x"], "hold")
    assert str(caught.value).startswith("--set: no such option (slicer run has it; see slicer help hold")


OPTIONS = st.lists(
    st.sampled_from(
        [
            ["-p", "heavy"],
            ["-pheavy"],
            ["--profile=x"],
            ["-q"],
            ["-v"],
            ["--no-wait"],
            ["--wait"],
            ["--set", "A=1"],
            ["--linger"],
            ["--name", "-q"],
            ["--gpus", "2"],
            ["-qv"],
            ["--outcome", "--"],
            ["--backend", "auto"],
            ["--gpu", "0,1"],
            ["--vram=8G"],
            ["--priority", "-5"],
            ["--then", "run"],
        ]
    )
).map(lambda words: [word for each in words for word in each])
WORDS = st.lists(
    st.one_of(
        st.sampled_from(["-p", "--", "--help", "-q", "--profile", "--set=A=1", "-", ""]),
        st.text(st.characters(blacklist_characters="\0"), max_size=5),
    )
)


@given(OPTIONS, WORDS)
def test_after_two_dashes_everything_is_the_commands(options: list[str], words: list[str]) -> None:
    found = agree([*options, "--", *words])
    assert found is not None
    assert found[1] == tuple(words)


@given(OPTIONS, st.text("abc/.=-", min_size=1).filter(lambda word: word[0] != "-"), WORDS)
def test_without_them_everything_from_the_first_word_is_the_commands(
    options: list[str], program: str, words: list[str]
) -> None:
    found = agree([*options, program, *words])
    assert found is not None
    assert found[1] == (program, *words)


@pytest.mark.parametrize("program", ["run", "hold", "route"])
def test_every_option_has_a_default_and_is_in_the_help(program: str) -> None:
    command = COMMANDS[program]
    shown = command.get_help(click.Context(command))
    for option in runoptions.options_of(program):
        assert option.field in runoptions.defaults_of(program)
        assert all(name in shown for name in option.names) is not option.hidden, option


ROUTE = ["r x", "-q r x", "--dry-run r -- x", "--on-busy=wait --json r x"]
ROUTE += ["--program /p r -- x", "--name -q r x"]
NO_ROUTE = ["--gpus 1 r x", "--exec r x", "-p heavy r x", "--on-busy walk r x", "--program"]


@pytest.mark.parametrize("line", ROUTE)
def test_route_reads_its_command_line_as_click_does(line: str) -> None:
    assert agree(shlex.split(line), "route") is not None


@pytest.mark.parametrize("line", NO_ROUTE)
def test_route_refuses_what_it_decides_itself(line: str) -> None:
    assert agree(shlex.split(line), "route") is None
