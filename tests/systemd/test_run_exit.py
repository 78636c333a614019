"""Exit codes come through, and the command's words arrive as they were (A9)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.systemd.helpers import systemctl
from tests.systemd.helpers.jobs import Slicer

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd


@pytest.mark.parametrize("code", [0, 1, 2, 75, 124, 125, 126, 127, 128, 255])
def test_the_exit_code_is_the_commands(slicer: Slicer, code: int) -> None:  # A9
    done = slicer.run("--", "sh", "-c", f"exit {code}")
    assert done.code == code
    assert slicer.outcome_of(done).exit_code == code


@pytest.mark.parametrize(
    "signo", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGHUP, signal.SIGPIPE]
)
def test_death_by_signal_is_128_plus_the_signal(slicer: Slicer, signo: signal.Signals) -> None:  # A9
    done = slicer.run("--", "sh", "-c", f"kill -{signo.name[3:]} $$")
    assert done.code == 128 + signo
    assert f"exit {128 + signo} (killed by {signo.name})" in done.stderr
    outcome = slicer.outcome_of(done)
    assert (outcome.reason, outcome.signal, outcome.exit_code) == ("signal", signo, 128 + signo)


def test_death_by_ctrl_c_is_slicers_own_death_too(slicer: Slicer) -> None:  # A9
    done = slicer.run("--", "sh", "-c", "kill -INT $$")
    assert done.code == -signal.SIGINT  # what stops a shell's loop
    assert slicer.outcome_of(done).exit_code == 130


def test_over_its_time_limit_is_124(slicer: Slicer) -> None:  # A9
    gate = slicer.gate()
    done = slicer.run("--timeout", "1s", "--", "sh", "-c", f": < {gate}")
    assert done.code == 124
    assert "over its time limit" in done.stderr
    outcome = slicer.outcome_of(done)
    assert (outcome.reason, outcome.signal) == ("timeout", signal.SIGTERM)
    assert outcome.wall_s > 0.9


def test_over_its_time_limit_and_deaf_to_sigterm_is_124(slicer: Slicer) -> None:  # A9
    gate = slicer.gate()
    script = f"trap '' TERM; : < {gate}"
    done = slicer.run("--timeout", "1s", "--set", "TimeoutStopSec=1s", "--", "sh", "-c", script)
    assert done.code == 124
    assert slicer.outcome_of(done).reason == "timeout"


@pytest.mark.parametrize("signo", [signal.SIGINT, signal.SIGUSR1])
@pytest.mark.parametrize("options", [(), ("--linger",)])
def test_over_its_time_limit_is_124_whatever_the_signal(
    slicer: Slicer, signo: signal.Signals, options: tuple[str, ...]
) -> None:  # A9, D9
    gate = slicer.gate()
    script = f": < {gate}" if not options else f"(: < {gate}) & exit 0"
    kill_signal = f"KillSignal={signo.name}"
    done = slicer.run(*options, "--timeout", "1s", "--set", kill_signal, "--", "sh", "-c", script)
    assert done.code == 124
    assert slicer.outcome_of(done).reason == "timeout"


def test_ctrl_c_stops_no_scope(slicer: Slicer) -> None:  # D9
    done = slicer.run("--set", "KillSignal=SIGINT", "--", "sh", "-c", "kill -INT $$")
    assert done.code == -signal.SIGINT
    assert slicer.outcome_of(done).reason == "signal"


def test_not_found_is_127_and_nothing_was_acquired(slicer: Slicer) -> None:  # A9
    for command in ("no-such-command", "/no/such/command"):
        done = slicer.run("-p", "heavy", "--", command)
        assert done.code == 127
        assert command in done.stderr
        assert done.told.count("\n") == 1


@pytest.mark.parametrize("separator", [("--",), ()])
def test_the_commands_words_arrive_exactly(slicer: Slicer, separator: tuple[str, ...]) -> None:  # A9
    words: list[str | bytes] = [
        "--profile",
        "-q",
        "--",
        "",
        " ",
        "a\nb",
        "'",
        '"',
        "$HOME",
        "`id`",
        "\\",
        "*",
        b"\xff\xfe",
        "ü",
        "\t",
    ]
    done = slicer.run(*separator, "printf", "%s\\0", *words)
    assert done.code == 0
    got = os.fsencode(done.stdout).split(b"\0")[:-1]
    assert got == [os.fsencode(word) for word in words]
    outcome = slicer.outcome_of(done)
    assert outcome.command == ("printf", "%s\\0", *(os.fsdecode(word) for word in words))


@pytest.mark.parametrize(
    "name", ["two\nlines", "it's", 'say "hi"', "$(id)", "ü", "a\tb", b"\xff\xfe", "x" * 200]
)
def test_any_job_name_is_fine(slicer: Slicer, name: str | bytes) -> None:  # B2
    gate = slicer.gate()
    job = slicer.start("-p", "heavy", "--name", name, "--", "sh", "-c", f"echo up; : < {gate}")
    job.said("up")
    text = os.fsdecode(name)
    assert job.lease().name == text
    description = systemctl.show(job.lease().unit, "Description")["Description"]
    assert "\n" not in description
    refused = slicer.run("--no-wait", "-p", "heavy", "--", "true")
    assert refused.code == 75
    assert json.loads(refused.stderr)["holder"]["name"] == text
    gate.open()
    done = job.end()
    assert done.code == 0
    assert done.told.count("\n") == 1
    entry = systemctl.journal(f"_PID={done.pid}", "SLICER_EVENT=finished")[0]["SLICER_NAME"]
    assert (bytes(entry) if isinstance(entry, list) else entry.encode()) == os.fsencode(name)


def test_a_relative_program_and_directory_are_kept(slicer: Slicer) -> None:  # A9
    tool = slicer.path("tool")
    tool.write_text("#!/bin/sh\npwd\n")
    tool.chmod(0o755)
    done = slicer.run("./tool")
    assert (done.code, Path(done.stdout.strip())) == (0, slicer.directory)


def test_the_umask_limits_and_descriptors_are_kept(slicer: Slicer) -> None:  # A9
    read_end, write_end = os.pipe()
    script = f"umask; ulimit -n; ulimit -c; echo through >&{write_end}; ls /proc/self/fd | wc -l"
    preset = ("sh", "-c", 'umask 027; ulimit -n 777; ulimit -c 0; exec "$@"', "sh")
    os.set_inheritable(write_end, True)
    done = subprocess.run(
        [*preset, "slicer", "run", "-q", "--", "bash", "-c", script],
        env=slicer.environ(), pass_fds=(write_end,), capture_output=True, text=True,
    )  # fmt: skip
    os.close(write_end)
    assert done.stdout.split()[:3] == ["0027", "777", "0"], done
    assert os.read(read_end, 100) == b"through\n"
    os.close(read_end)
