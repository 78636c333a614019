"""``slicer wrap`` as people and scripts have it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.unit.cli.test_app import complete
from tests.unit.program import Cli

pytest_plugins = ["tests.unit.program"]

ROUTES = """\
[routes.small]
probe = "duration"
threshold = "1h"
[routes.small.gpu]
[routes.small.cpu]
"""


@pytest.fixture
def program(cli: Cli) -> Path:
    (cli.root / "config" / "slicer").mkdir(parents=True)
    (cli.root / "config" / "slicer" / "config.toml").write_text(ROUTES)
    (cli.root / "bin").mkdir()
    cli.environ["PATH"] = f"{cli.root}/bin:{cli.environ['PATH']}"
    for name in ("tool", "ffprobe", "slicer"):
        shutil.copy(shutil.which("true") or "", cli.root / "bin" / name)
    return cli.root / "bin" / "tool"


def install(cli: Cli, path: object = "tool", *options: str, code: int = 0) -> str:
    line = ("wrap", "install", str(path), "--route", "small", "--slicer", f"{cli.root}/bin/slicer")
    done = cli.run(*line, *options, code=code)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_from_the_first_look_to_the_last(cli: Cli, program: Path) -> None:  # C5
    assert "wrapped" in cli.run("wrap").stdout
    planned = install(cli, "tool", "--dry-run")
    assert planned.count("would ") == 3
    assert not Path(f"{program}-real").exists()
    assert not (cli.root / "history").exists()
    told = install(cli)
    assert f"wrapped {program} by the route small; the program is now {program}-real" in told
    assert 'with on_probe_error = "cpu" in [routes.small] they run on the CPU' in told  # N9
    assert "already" in install(cli, program)
    (wrap,) = cli.json("wrap", "list")["wraps"]
    assert (wrap["path"], wrap["route"], wrap["state"], wrap["problems"]) == (str(program), "small", "ok", [])
    heading, row = cli.run("wrap", "list").stdout.splitlines()
    assert heading.split()[:3] == ["PROGRAM", "ROUTE", "STATE"]
    assert row.split()[:3] == [str(program), "small", "ok"]
    assert cli.run("wrap", "check").stdout == f"{program}: ok, with the route small\n"
    assert cli.run("wrap", "remove", "tool").stdout == f"unwrapped {program}\n"
    assert cli.json("wrap")["wraps"] == []


def test_the_shell_completes_routes_and_what_is_wrapped(cli: Cli, program: Path) -> None:  # C5
    install(cli)
    assert complete(cli, "slicer wrap install x --route s") == ["small"]
    for verb in ("remove", "check"):
        assert complete(cli, f"slicer wrap {verb} t") == ["tool"]
        assert complete(cli, f"slicer wrap {verb} x") == []


@pytest.mark.slow
def test_what_is_wrong_is_said_and_mended(cli: Cli, program: Path) -> None:  # C5
    install(cli)
    os.replace(shutil.copy(shutil.which("false") or "", program.with_name("draft")), program)
    told = cli.run("wrap", "check", "tool", code=1).stdout.splitlines()
    assert told[0].endswith("[replaced]")
    assert told[1] == f"    slicer wrap install {program} --route small"
    (wrap,) = json.loads(cli.run("wrap", "check", "--json", code=1).stdout)["wraps"]
    assert [(each["id"], each["mendable"]) for each in wrap["problems"]] == [("replaced", True)]
    assert "slicer wrap check says" in cli.run("wrap").stdout
    mended = cli.run("wrap", "check", "--fix")
    assert (f"repaired {program}" in mended.stderr, "ok" in mended.stdout) == (True, True)
    (cli.root / "config" / "slicer" / "config.toml").write_text("")
    assert "the route 'small' no longer exists" in cli.run("wrap", "check", "--fix", code=1).stdout
    (cli.root / "config" / "slicer" / "config.toml").write_text("routes = 3")
    # That is no reason to call it broken.
    assert "cannot check whether" in cli.run("wrap", "check").stderr
    assert cli.run("wrap", "remove", "--all").stdout == f"unwrapped {program}\n"
    assert cli.run("wrap", "remove", "--all").stdout == ""


@pytest.mark.parametrize(("line", "said"), [
    (("install", "tool"), "'--route'"),
    (("install", "tool", "--route", "smal"), 'did you mean "small"'),
    (("install", "no-such-program", "--route", "small"), "no program on PATH has this name"),
    (("install", "bin/ffprobe", "--route", "small"), "is a probe of the route 'small'"),
    (("install", "bin/tool", "--route", "small", "--slicer", "bin/none"), "cannot be executed"),
    (("remove", "tool"), "is not wrapped"),
    (("remove",), "needs a program, or --all"),
    (("remove", "tool", "--all"), "not with --all"),
    (("check", "tool"), "is not wrapped"),
])  # fmt: skip
def test_what_cannot_be_is_an_error_that_says_why(
    cli: Cli, program: Path, line: tuple[str, ...], said: str
) -> None:  # C5
    done = cli.run("wrap", *line, code=2)
    assert said in done.stderr
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)


def test_a_name_that_talks_to_the_terminal_is_shown_and_not_obeyed(cli: Cli, program: Path) -> None:  # C5
    odd = program.with_name("a\x1b[31m\nb")
    shutil.copy(program, odd)
    said = [install(cli, odd), cli.run("wrap").stdout, cli.run("wrap", "check").stdout]
    odd.with_name(f"{odd.name}-real").unlink()
    said += [cli.run("wrap", "check", code=1).stdout, cli.run("wrap", "remove", str(odd)).stdout]
    assert all("\x1b" not in text and "\\x1b[31m\\nb" in text for text in said)


def test_who_else_knows_the_route_is_said(cli: Cli, program: Path) -> None:  # C5
    own = cli.root / "own.toml"
    own.write_text(ROUTES)
    (cli.root / "config" / "slicer" / "config.toml").unlink()
    line = ("wrap", "install", "tool", "--route", "small", "--slicer", f"{cli.root}/bin/slicer", "--dry-run")
    assert f"the route is in {own}" in cli.run(*line, env={"SLICER_CONFIG": str(own)}).stderr
