"""What holds for every command: help, errors as one line of text or JSON, exit codes, imports, completion."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from slicer import __version__
from slicer.cli import app
from tests.patience import LONGEST_S
from tests.unit.program import Cli

pytestmark = pytest.mark.both_pythons

pytest_plugins = ["tests.unit.program"]


def test_version(cli: Cli) -> None:
    assert cli.run("--version").stdout == f"slicer {__version__}\n"


def test_a_fault_of_ours_is_one_line_and_125(cli: Cli) -> None:
    code = "import slicer.cli.app as a, slicer.outcome.history as h\n"
    code += "def read(*_, **__): raise RuntimeError('so\\nwhat')\nh.read = read\n"
    code += "import sys; sys.exit(a.main(['history']))"
    done = _python(cli, code)
    assert done.returncode == 125
    assert done.stderr.startswith("slicer: internal error: RuntimeError: so what (please report it")
    assert done.stderr.count("\n") == 1
    assert "Traceback" in _python(cli, code, SLICER_DEBUG="1").stderr


def _python(cli: Cli, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**cli.environ, **env},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )


@pytest.mark.parametrize(
    "line",
    [["status"], ["profiles"], ["run", "--help"], ["run", "--backend", "plain", "--dry-run", "--", "true"]],
)
def test_a_reader_that_leaves_is_no_error(cli: Cli, line: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    env = {"PYTHONUNBUFFERED": "1"}
    with cli.popen(*line, env=env, stdout=write, stderr=subprocess.PIPE, text=True) as process:
        os.close(write)
        said = process.communicate(timeout=LONGEST_S)[1]
    assert process.returncode == 141
    assert "Error" not in said


def test_ctrl_c_is_130_and_silent(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def interrupted(**_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(app.app.get_command(None, "status"), "callback", interrupted)  # type: ignore[arg-type]
    assert app.main(["status"]) == 130
    assert capfd.readouterr() == ("", "")


MODULES = "import sys; from slicer.cli.app import main; main(sys.argv[1:]); print(*sys.modules)"


@pytest.mark.parametrize("name", ["status", "history", "profiles"])
def test_only_the_command_in_use_is_imported(cli: Cli, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MODULES, name],
        env=cli.environ,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert f"slicer.cli.{name}" in loaded
    others = {
        f"slicer.cli.{other}" for other in ("run_help", "status", "history", "profiles", "install")
    }
    assert loaded & others == {f"slicer.cli.{name}"}


def complete(cli: Cli, words: str, **env: str) -> list[str]:
    """The words that bash would offer for the last of ``words``."""
    asked = {"_SLICER_COMPLETE": "bash_words", "_SLICER_WORDS": words.replace(" ", "\n") + "\n"}
    lines = [line.split("\t") for line in cli.run(env={**asked, **env}).stdout.splitlines()]
    return [value for kind, value, _ in lines if kind == "plain"]


def test_completion_knows_the_jobs(cli: Cli) -> None:
    lease = cli.running("--name", "train")
    assert complete(cli, "slicer stop ") == ["train", lease.job]
    assert complete(cli, f"slicer stop {lease.job[:2]}") == [lease.job]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_turned_on(cli: Cli, shell: str) -> None:
    out = cli.run(env={"_SLICER_COMPLETE": f"{shell}_source"}).stdout
    assert f"_SLICER_COMPLETE={shell}_words" in out
    assert cli.run("completion", shell).stdout == out
