"""What holds for every command: help, errors as one line of text or JSON, exit codes, imports, completion."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from slicer import __version__
from slicer.cli import app
from tests.patience import DEADLINE_S
from tests.unit.program import Cli

pytestmark = pytest.mark.both_pythons

pytest_plugins = ["tests.unit.program"]

COMMANDS = (
    "run", "hold", "route", "status", "stop", "history", "profiles", "doctor", "install", "completion"
)  # fmt: skip


def test_version(cli: Cli) -> None:
    assert cli.run("--version").stdout == f"slicer {__version__}\n"


_SUBMIT = "slicer run --detach -- COMMAND runs one job, slicer queue FILE the jobs in a file"
_MEMORY = "--set MemoryMax=8G limits main memory; --vram 8G requests GPU memory"
_BACKGROUND = "slicer run --detach runs it in the background; start slicer hold and route in tmux"
_NO_MEMORY = "slicer: --set: unknown resource property 'memory' (did you mean MemoryMax?)\n"  # W14


@pytest.mark.parametrize("line", [["--help"], ["-h"]])
def test_help_names_every_command_in_80_columns(cli: Cli, line: list[str]) -> None:
    out = cli.run(*line).stdout
    for name in COMMANDS:
        assert f"\n  {name} " in out
    assert "..." not in out.partition("Commands:")[2]  # each summary fits
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("name", [*COMMANDS, "profiles show", "profiles init"])
def test_each_command_has_help_in_80_columns(cli: Cli, name: str) -> None:
    out = cli.run(*name.split(), "--help").stdout
    assert out.startswith(f"Usage: slicer {name} ")
    assert max(map(len, out.splitlines())) <= 80


def test_help_of_run_says_the_exit_codes(cli: Cli) -> None:
    out = cli.run("run", "-h").stdout
    for code in ("2", "75", "124", "125", "126", "127"):
        assert f"\n  {code:>5}  " in out, out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["stat"], "slicer: no such command 'stat' (did you mean slicer status?)\n"),
        (["top"], "slicer: no such command 'top' (did you mean slicer status?)\n"),  # W14
        (["kill"], "slicer: no such command 'kill' (did you mean slicer stop?)\n"),
        (["submit"], f"slicer: no such command 'submit' ({_SUBMIT})\n"),  # W33
        (["run", "--mem", "8G"], f"slicer: --mem: no such option ({_MEMORY})\n"),
        (["run", "--background", "true"], f"slicer: --background: no such option ({_BACKGROUND})\n"),
        (["xyz"], "slicer: no such command 'xyz' (see slicer --help)\n"),
        (["-p", "heavy"], "slicer: no such option '-p' (did you mean slicer run -p?)\n"),
        (["status", "--jsn"], "slicer: status: no such option '--jsn' (did you mean --json?)\n"),
        (
            ["run", "--bogus", "true"],
            "slicer: --bogus: no such option (see slicer run --help; the command's own "
            "options go after --)\n",
        ),
        (["run", "--gpu-mem", "8G"], "slicer: --gpu-mem: no such option (did you mean --vram?)\n"),  # W14
        (["run", "--set", "memory=8G", "true"], _NO_MEMORY),
        (["run", "--tiemout", "1", "true"], "slicer: --tiemout: no such option (did you mean --timeout?)\n"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_2(cli: Cli, line: list[str], said: str) -> None:
    done = cli.run(*line, code=2)
    assert (done.stdout, done.stderr) == ("", said)


@pytest.mark.parametrize("line", ["status more", "stop", "history -n x", "profiles show a b"])
def test_what_click_finds_wrong_looks_the_same(cli: Cli, line: str) -> None:
    done = cli.run(*line.split(), code=2)
    assert done.stdout == ""
    command = " ".join(
        word for word in line.split()[:2] if word in ("status", "stop", "history", "profiles", "show")
    )
    assert done.stderr.startswith(f"slicer: {command}: ")
    assert done.stderr.endswith(f" (see slicer {command} --help)\n")
    assert done.stderr.count("\n") == 1


def test_an_error_is_data_with_json(cli: Cli) -> None:
    done = cli.run("stop", "--quiet", "nobody", code=2)
    assert done.stderr == "slicer: no such job: 'nobody' (no job runs or waits)\n"
    done = cli.run("history", "--json", "0123", code=2)
    assert done.stdout == ""
    error = json.loads(done.stderr)
    assert error == {
        "error": "unknown-job",
        "message": "no ended job '0123'",
        "where": error["where"],
        "hint": "slicer status shows running jobs",
    }
    error = json.loads(cli.run("status", "--json", "--bogus", code=2).stderr)
    assert (error["error"], error["where"]) == ("usage", "status")


def test_a_wrong_state_directory_is_one_line_and_125(cli: Cli) -> None:
    cli.state.write_text("")
    done = cli.run("status", code=125)
    assert done.stderr.startswith(f"slicer: {cli.state}: is not a directory")
    assert done.stderr.count("\n") == 1


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
        timeout=DEADLINE_S,
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
        said = process.communicate(timeout=DEADLINE_S)[1]
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
        timeout=DEADLINE_S,
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


def test_completion_knows_commands_profiles_jobs_and_programs(cli: Cli) -> None:
    assert complete(cli, "slicer st") == ["status", "stop"]
    assert complete(cli, "slicer run --prof") == ["--profile"]
    assert complete(cli, "slicer run --profile ") == ["gpu", "heavy", "light"]
    assert complete(cli, "slicer run -p h") == ["heavy"]
    assert complete(cli, "slicer run --backend p") == ["plain"]
    assert complete(cli, "slicer profiles show l") == ["light"]
    assert "sleep" in complete(cli, "slicer run -p heavy slee")
    assert complete(cli, "slicer stop ") == []
    assert not cli.state.exists()  # looking makes nothing
    lease = cli.running("--name", "train")
    assert complete(cli, "slicer stop ") == ["train", lease.job]
    assert complete(cli, f"slicer stop {lease.job[:2]}") == [lease.job]
    assert complete(cli, "slicer run --set MemoryM") == ["MemoryMin=", "MemoryMax="]
    assert complete(cli, "slicer run --set=MemoryMa") == ["--set=MemoryMax="]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_turned_on(cli: Cli, shell: str) -> None:
    out = cli.run(env={"_SLICER_COMPLETE": f"{shell}_source"}).stdout
    assert f"_SLICER_COMPLETE={shell}_words" in out
    assert cli.run("completion", shell).stdout == out


def test_looking_at_a_fresh_machine_leaves_no_trace(cli: Cli) -> None:
    for line in (
        ["status"],
        ["history"],
        ["profiles"],
        ["run", "--backend", "plain", "--dry-run", "--", "true"],
    ):
        cli.run(*line)
    assert not list(cli.root.iterdir()), "looking made files"
