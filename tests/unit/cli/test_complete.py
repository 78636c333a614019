"""What completion offers: only words that are safe to have typed, since a shell takes them as they are."""

from __future__ import annotations

import os
import shutil

import click
import pytest
from click.shell_completion import CompletionItem

from slicer.cli import complete
from tests.unit.cli.test_app import complete as offered
from tests.unit.program import Cli

pytestmark = pytest.mark.both_pythons

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
        shutil.copy(shutil.which("true") or "", programs / name)
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


def test_the_command_of_a_route_begins_after_its_options() -> None:
    assert complete._command_start(["route", "-q", "zz-one", "--json", "--", "make"]) == 5
    assert complete._command_start(["route", "zz-one", "--json"]) == 0


def test_what_is_wrapped_is_offered_by_its_name(cli: Cli) -> None:  # C5, S5
    config = cli.root / "routes.toml"
    config.write_text('[routes.some]\n[routes.some.cpu]\n')
    environ = {"SLICER_CONFIG": str(config)}
    slicer = cli.root / "slicer"
    shutil.copy(shutil.which("true") or "", slicer)
    for name in ("zzgood", "zz$(touch x)"):
        program = cli.root / name
        shutil.copy(shutil.which("true") or "", program)
        line = ("wrap", "install", str(program), "--route", "some", "--slicer", str(slicer))
        cli.run(*line, env=environ)
    assert offered(cli, "slicer wrap remove zz", **environ) == ["zzgood"]
    for name in ("zzgood", "zz$(touch x)"):
        cli.run("wrap", "remove", str(cli.root / name), env=environ)
