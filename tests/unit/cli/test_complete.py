"""What completion offers: only words that are safe to have typed, since a shell takes them as they are."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import time

import click
import pytest
from click.shell_completion import CompletionItem

from slicer.cli import complete
from tests.patience import DEADLINE_S, until
from tests.unit.cli.test_app import complete as offered
from tests.unit.program import Cli

pytest_plugins = ["tests.unit.program"]

HOSTILE = (
    "zz$(touch${IFS}x)", "zz`touch x`", "zz;touch x", "zz|x", "zz&x", "zz>x", "zz x", "zz\tx", "zz\nfile,x",
    "zz'x", 'zz"x', "zz\\x", "zz*", "zz?", "zz[a]", "zz{a,b}", "zz~", "zz!x", "zz#x", "zz\x1b[2J", "zz(x)",
    "zz=x", "zzé", "",
)  # fmt: skip


@pytest.mark.parametrize("word", [*HOSTILE, "--force", "-q"])
def test_a_word_that_a_shell_would_not_take_as_it_is_is_not_offered(word: str) -> None:  # S5
    assert complete.harmless([word, "zz-1"], "") == ["zz-1"]


def test_ordinary_names_ids_and_units_are_offered() -> None:
    words = ["train", "train-2", "lr_1e.5", "a:b", "me@host", "0f3a9c01b7de", "slicer-0f3a.scope"]
    assert complete.harmless(words, "") == words
    assert complete.harmless(words, "train") == ["train", "train-2"]


def test_programs_and_profiles_with_hostile_names_are_not_offered(cli: Cli) -> None:  # S5
    programs = cli.root / "bin"
    programs.mkdir()
    for name in ("zz$(touch x)", "-zz", "zzgood"):
        shutil.copy("/bin/true", programs / name)
    assert offered(cli, "slicer run zz", PATH=f"{programs}:{cli.environ['PATH']}") == ["zzgood"]
    assert offered(cli, "slicer run -", PATH=str(programs)).count("-zz") == 0


def test_a_directory_of_path_that_cannot_be_read_has_no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: str) -> list[str]:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "listdir", denied)
    context = click.Context(click.Command("run"))
    assert complete.command_line(context, click.Argument(["command"]), "tr") == []


def test_every_completion_passes_the_filter(monkeypatch: pytest.MonkeyPatch) -> None:  # S5
    """Also one that somebody adds and that forgets about it."""
    items = [CompletionItem(word) for word in (*HOSTILE, "0,1", "--gpus", "fine")]
    items.append(CompletionItem("any $thing", type="file"))  # the shell looks for it, and quotes
    kept = [item.value for item in complete.sifted(items)]
    assert kept == ["0,1", "--gpus", "fine", "any $thing"]


def test_a_tab_in_bash_never_types_what_another_job_is_called(cli: Cli) -> None:  # S5
    """bash itself: the name of a job that runs is a command, Tab and Enter are pressed."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    cli.running("--name", "zz$(touch${IFS}x)")
    program = cli.root / "slicer"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m slicer "$@"\n')
    program.chmod(0o755)
    shell = Bash(cli)
    try:
        shell.type('eval "$(_SLICER_COMPLETE=bash_source slicer)"; echo on-$?\n')
        shell.read_until("\non-0")
        shell.type("slicer stop zz\t\n")
        shell.read_until("no such job: 'zz'")
        shell.type("echo over-$?\n")
        shell.read_until("\nover-2")
    finally:
        shell.close()
    assert not (cli.root / "x").exists()


class Bash:
    """An interactive bash on a terminal of its own."""

    def __init__(self, cli: Cli) -> None:
        self._fd, inner = pty.openpty()
        environ = {**cli.environ, "PATH": f"{cli.root}:{cli.environ['PATH']}", "TERM": "dumb", "PS1": "$ "}
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"], cwd=cli.root, env=environ, stdin=inner, stdout=inner,
            stderr=inner, start_new_session=True,
        )  # fmt: skip
        os.close(inner)
        os.set_blocking(self._fd, False)
        self._seen = ""

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def read_until(self, text: str) -> None:
        def has_come() -> bool:
            try:
                self._seen += os.read(self._fd, 65536).decode(errors="replace").replace("\r\n", "\n")
            except BlockingIOError:
                time.sleep(0.005)
            return text in self._seen

        try:
            until(has_come, f"bash says {text!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it said {self._seen!r}") from None

    def close(self) -> None:
        os.close(self._fd)
        self._process.kill()
        self._process.wait(timeout=DEADLINE_S)
