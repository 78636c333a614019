"""Completion in real shells: a Tab is pressed on a terminal, and what the shell then runs is looked at."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import LONGEST_S, until
from tests.unit.program import Cli

pytest_plugins = ["tests.unit.program"]

SHELLS = {
    "bash": ("bash", "--norc", "--noprofile", "-i"),
    "zsh": ("zsh", "-f", "-i"),
    "fish": ("fish", "--no-config", "--interactive"),
}
# What each shell is told before the first Tab. zsh asks about directories of other owners unless told -u.
TURN_ON = {
    "bash": 'eval "$(slicer completion bash)"',
    "zsh": 'autoload -U compinit; compinit -u -D; eval "$(slicer completion zsh)"',
    "fish": "slicer completion fish | source",
}
LIBRARY = "/usr/share/bash-completion/bash_completion"

# It completes as slicer does, and runs nothing: it says with which arguments it was called.
PROGRAM = """\
#!/bin/sh
[ -z "$_SLICER_COMPLETE" ] && [ "$1" != completion ] || exec {python} -m slicer "$@"
printf 'ran'; printf ' <%s>' "$@"; echo ' .'
"""


class Shell:
    """An interactive shell on a terminal of its own."""

    def __init__(self, cli: Cli, name: str) -> None:
        self._fd, inner = pty.openpty()
        environ = {
            **cli.environ, "PATH": f"{cli.root}/bin:{cli.environ['PATH']}", "TERM": "dumb", "PS1": "$ ",
            "COLUMNS": "300",
        }  # fmt: skip
        self._process = subprocess.Popen(
            ["setsid", "--ctty", *SHELLS[name]], cwd=cli.root, env=environ, stdin=inner, stdout=inner,
            stderr=inner,
        )  # fmt: skip
        os.close(inner)
        os.set_blocking(self._fd, False)
        self._seen = ""

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def read_until(self, text: str) -> None:
        """Wait until the shell has printed this, and forget all that it has printed so far."""

        def has_come() -> bool:
            try:
                self._seen += os.read(self._fd, 65536).decode(errors="replace").replace("\r", "")
            except BlockingIOError:
                time.sleep(0.005)
            return text in self._seen

        try:
            until(has_come, f"the shell says {text!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it said {self._seen!r}") from None
        self._seen = ""

    def close(self) -> None:
        os.close(self._fd)
        self._process.kill()
        self._process.wait(timeout=LONGEST_S)


def need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, cli: Cli) -> Iterator[Shell]:
    name: str = request.param
    need(name)
    programs = cli.root / "bin"
    programs.mkdir()
    (programs / "slicer").write_text(PROGRAM.format(python=sys.executable))
    (programs / "slicer").chmod(0o755)
    for made in ("zztop", "zz$(touch ${IFS}x)"):
        shutil.copy("/bin/true", programs / made)
    started = Shell(cli, name)
    try:
        started.type(f"{TURN_ON[name]}; echo on-{{1,2}}\n")
        started.read_until("on-1 on-2")
        yield started
    finally:
        started.close()


@pytest.mark.parametrize(
    ("typed", "arguments"),
    [
        ("hist\t", "<history>"),
        ("run --prof\thea\t-- true", "<run> <--profile> <heavy> <--> <true>"),
        ("run --profile=hea\t-- true", "<run> <--profile=heavy> <--> <true>"),
        ("run -p gp\t-- true", "<run> <-p> <gpu> <--> <true>"),
        ("run --set CPUW\t50 true", "<run> <--set> <CPUWeight=50> <true>"),
        ("run --set=CPUW\t50 true", "<run> <--set=CPUWeight=50> <true>"),
        ("run --then f\ttrue", "<run> <--then> <fail> <true>"),
        ("run -- zzt\t", "<run> <--> <zztop>"),
        ("run zzt\t", "<run> <zztop>"),
        ("run --gpus 1 -- zztop data\t", "<run> <--gpus> <1> <--> <zztop> <data file.csv>"),
        ("run --gpus 1 zztop data\t", "<run> <--gpus> <1> <zztop> <data file.csv>"),
        ("run --outcome dat\ttrue", "<run> <--outcome> <data file.csv> <true>"),
        ("hold --gpus 1 zztop data\t", "<hold> <--gpus> <1> <zztop> <data file.csv>"),
        ("profiles sh\the\t", "<profiles> <show> <heavy>"),
        ("queue ret\t", "<queue> <retry>"),
        ("queue dat\t", "<queue> <data file.csv>"),
        ("queue sugg\tdat\t", "<queue> <suggest> <data file.csv>"),
        ("queue add.\t", "<queue> <add.d it>"),
    ],
)
def test_a_tab_completes_the_word_and_no_other(shell: Shell, cli: Cli, typed: str, arguments: str) -> None:
    (cli.root / "data file.csv").touch()
    (cli.root / "add.d it").touch()
    (cli.root / "some").mkdir()
    (cli.root / "some.txt").touch()
    shell.type(f"slicer {typed}\n")
    shell.read_until(f"ran {arguments} .")


def test_jobs_are_completed_by_name_id_and_unit(shell: Shell, cli: Cli) -> None:
    lease = cli.running("--name", "train:3")
    for typed, found in (("tra\t", "train:3"), (f"{lease.job[:6]}\t", lease.job)):
        shell.type(f"slicer stop {typed}\n")
        shell.read_until(f"ran <stop> <{found}> .")


def test_a_tab_never_types_what_another_job_or_program_is_called(shell: Shell, cli: Cli) -> None:  # S5
    """The name is a command: Tab and Enter are pressed."""
    cli.running("--name", "yy$(touch${IFS}x)")
    shell.type("slicer stop yy\t\n")
    shell.read_until("ran <stop> <yy> .")
    shell.type("slicer run -- zz\t\n")
    shell.read_until("ran <run> <--> <zztop> .")
    assert not (cli.root / "x").exists()


def test_a_jobs_command_is_completed_as_without_slicer(cli: Cli, tmp_path: Path) -> None:
    """By the command's own completion, as sudo has it."""
    need("bash")
    if not os.path.exists(LIBRARY):
        pytest.skip("bash-completion is not installed")
    programs = cli.root / "bin"
    programs.mkdir()
    (programs / "slicer").write_text(PROGRAM.format(python=sys.executable))
    (programs / "slicer").chmod(0o755)
    shutil.copy("/bin/true", programs / "zztop")
    started = Shell(cli, "bash")
    try:
        started.type(f". {LIBRARY}; complete -W 'legs beard' zztop; {TURN_ON['bash']}; echo on-{{1,2}}\n")
        started.read_until("on-1 on-2")
        for before in ("--gpus 1 --name a:b --", "--set=MemoryMax=1G"):
            started.type(f"slicer run {before} zztop x=1 be\t\n")
            words = "> <".join((*before.split(), "zztop", "x=1", "beard"))
            started.read_until(f"ran <run> <{words}> .")
    finally:
        started.close()
