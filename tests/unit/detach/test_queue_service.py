"""``slicer queue --detach``, but for systemd: what the service is told, and what it has of its caller."""

from __future__ import annotations

import json
import os
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from slicer.detach import handover, service
from slicer.outcome import queue_files
from slicer.outcome.queue_files import DetachedQueue

NOFILE = resource.RLIMIT_NOFILE
# Not every system has them in /bin.
BASH, ECHO, ENV = (shutil.which(name) or name for name in ("bash", "echo", "env"))
UNIT = "slicer-queue-12345678.service"
TOLD: dict[str, Any] = {name: value for name, _, value in service.queue_properties()}


# -- what the service is told --------------------------------------------------------------------------------


def test_a_log_directory_has_one_name_and_no_other_has_it() -> None:  # E7
    name = service.queue_unit("/data/logs")
    assert name == service.queue_unit("/data/logs")
    assert name != service.queue_unit("/data/logs2")
    prefix, _, rest = name.rpartition("-")
    assert prefix == "slicer-queue"
    assert len(rest.removesuffix(".service")) == 8
    int(rest.removesuffix(".service"), 16)
    assert service.queue_unit("/d/\udcff") != service.queue_unit("/d/\udcfe")  # bytes that are not UTF-8


def test_its_description_is_one_line_that_names_the_jobs_file() -> None:
    assert service.queue_description("jobs.txt") == "slicer queue jobs.txt"
    assert service.queue_description("/home/bob/secret/jobs.txt") == "slicer queue jobs.txt"  # S10
    assert "\n" not in service.queue_description("a\nb.txt")


def test_stopping_it_is_one_signal_to_the_queue_and_then_patience() -> None:  # E7
    assert TOLD["KillMode"] == "process"
    assert TOLD["TimeoutStopUSec"] == 2**64 - 1


def test_a_crash_restarts_it_a_few_times_but_no_exit_code_does() -> None:  # E7
    assert TOLD["Restart"] == "on-abnormal"
    assert 0 < TOLD["StartLimitBurst"] < 10
    assert TOLD["StartLimitIntervalUSec"] > TOLD["StartLimitBurst"] * TOLD["RestartUSec"]


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("queue jobs.txt --detach", "queue jobs.txt"),
        ("queue --detach --sim 2 --json jobs.txt -j 3", "queue --sim 2 --json jobs.txt -j 3"),
        ("queue --fresh --detach jobs.txt", "queue jobs.txt"),
        ("queue --detach --watch -- --detach", "queue --watch -- --detach"),
        ("queue --detach --log-dir --fresh-logs jobs.txt", "queue --log-dir --fresh-logs jobs.txt"),
    ],
)
def test_the_service_has_the_callers_arguments_but_forgets_nothing_again(said: str, kept: str) -> None:  # E7
    assert service.queue_arguments(said.split()) == tuple(kept.split())


# -- the environment -----------------------------------------------------------------------------------------

KEPT = (
    "PATH", "HOME", "USER", "LANG", "TZ", "PWD", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV",
    "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "PYTHONPATH", "SLICER_STATE_DIR",
    "SLICER_CONFIG", "SLICER_SIM", "CPU_RUN_SLOTS", "WANDB_API_KEY", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME", "XDG_CONFIG_HOME", "BASH_FUNC_module%%", "TERMINAL_OF_MINE",
)  # fmt: skip
DROPPED = (
    "TERM", "COLUMNS", "LINES", "TMUX", "STY", "SSH_TTY", "SSH_CONNECTION", "DISPLAY", "WAYLAND_DISPLAY",
    "XDG_SESSION_ID", "DBUS_SESSION_BUS_ADDRESS", "INVOCATION_ID", "JOURNAL_STREAM", "NOTIFY_SOCKET",
    "LISTEN_FDS", "SLICER_LEASE", "GPU_LOCK_HELD", "KITTY_WINDOW_ID", "KONSOLE_VERSION",
)  # fmt: skip


def test_the_environment_is_the_callers_without_its_terminal_and_session() -> None:  # E7
    environ = {name: f"of {name}" for name in (*KEPT, *DROPPED)}
    assert service.environment(environ) == {name: f"of {name}" for name in KEPT}


# -- the hand-over -------------------------------------------------------------------------------------------


def handed(tmp_path: Path, *command: str, environ: Mapping[str, str] | None = None, **other: Any) -> Path:
    """A hand-over of a command, in a file."""
    (tmp_path / "there").mkdir()
    asked: dict[str, Any] = {
        "directory": str(tmp_path / "there"), "log_path": str(tmp_path / "queue.log"), "umask": 0o027,
        "soft_limits": {}, **other,
    }  # fmt: skip
    told = service.handed(command, environ or {}, **asked)
    queue = DetachedQueue("jobs.txt", str(tmp_path / "there"), told)
    queue_files.keep(state(tmp_path), queue)
    return Path(queue_files.path_of(state(tmp_path), queue.log_dir))


def state(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


def taken_up(path: Path, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """What systemd would execute."""
    argv = [sys.executable, "-I", "-S", handover.__file__, str(path)]
    return subprocess.run(
        argv, env=environ or {}, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30
    )


def hard_limit() -> str:
    """Of open files, as a shell has it."""
    most = resource.getrlimit(NOFILE)[1]
    return "unlimited" if most == resource.RLIM_INFINITY else str(most)


def test_nobody_else_can_read_what_is_handed_over(tmp_path: Path) -> None:
    path = handed(tmp_path, "/bin/true", environ={"WANDB_API_KEY": "secret"})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) & 0o022 == 0


def test_the_queue_has_its_callers_directory_umask_and_limits(tmp_path: Path) -> None:  # E7
    script = "pwd; umask; ulimit -S -n; ulimit -H -n; echo wrong >&2"
    path = handed(tmp_path, BASH, "-c", script, soft_limits={NOFILE: 123})
    done = taken_up(path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "queue.log").read_text().split() == [
        str(tmp_path / "there"), "0027", "123", hard_limit(), "wrong",
    ]  # fmt: skip


def test_a_limit_beyond_what_the_service_may_have_is_no_obstacle(tmp_path: Path) -> None:
    path = handed(tmp_path, "/bin/sh", "-c", "ulimit -S -n", soft_limits={NOFILE: -1})
    assert taken_up(path).returncode == 0
    assert (tmp_path / "queue.log").read_text().strip() == hard_limit()


def test_its_own_limits_are_among_those_that_are_handed_over() -> None:
    assert handover.soft_limits()[NOFILE] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_every_byte_of_the_environment_and_of_the_arguments_arrives(tmp_path: Path) -> None:  # E7
    # systemd takes no escape characters, no functions of a shell, and nothing that is not UTF-8.
    environ = {
        "LESS": "\x1b[1m",
        "BASH_FUNC_f%%": "() {  :\n}",
        "ODD": "a\udcff$HOME %h",
        "EMPTY": "",
        "LC_ALL": "C.UTF-8",
    }
    program = "import os, sys; print(dict(os.environb), os.fsencode(sys.argv[1]))"
    path = handed(
        tmp_path, sys.executable, "-I", "-S", "-c", program, "$HOME %h \udcfe\n\x1b", environ=environ
    )
    assert taken_up(path, {"UNRELATED": "of the manager"}).returncode == 0
    seen = (tmp_path / "queue.log").read_text()
    there = {os.fsencode(name): os.fsencode(value) for name, value in environ.items()}
    assert seen == f"{there} {os.fsencode('$HOME %h ' + chr(0xDCFE) + chr(10) + chr(27))}\n"


def test_the_way_to_the_bus_is_the_managers_and_the_runtime_directory_the_callers(tmp_path: Path) -> None:
    caller = {"DBUS_SESSION_BUS_ADDRESS": "unix:abstract=gone", "XDG_RUNTIME_DIR": "/run/of/mine"}
    path = handed(tmp_path, ENV, environ=caller)
    taken_up(path, {"DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/bus", "XDG_RUNTIME_DIR": "/run/user/1"})
    assert set((tmp_path / "queue.log").read_text().split()) == {
        "DBUS_SESSION_BUS_ADDRESS=unix:path=/run/bus", "XDG_RUNTIME_DIR=/run/of/mine",
    }  # fmt: skip


def test_the_log_is_appended_to_and_never_through_a_symbolic_link(tmp_path: Path) -> None:
    log = tmp_path / "queue.log"
    log.write_text("before\n")
    assert taken_up(handed(tmp_path, ECHO, "after")).returncode == 0
    assert log.read_text() == "before\nafter\n"
    log.rename(tmp_path / "elsewhere")
    log.symlink_to("elsewhere")
    done = taken_up(Path(queue_files.path_of(state(tmp_path), str(tmp_path / "there"))))
    assert done.returncode != 0
    assert "queue.log" in done.stderr  # which is the journal
    assert (tmp_path / "elsewhere").read_text() == "before\nafter\n"


def test_the_hand_over_is_plain_ascii(tmp_path: Path) -> None:
    path = handed(tmp_path, "/bin/true", environ={"A": "ü\udcff"})
    assert json.loads(path.read_bytes().decode("ascii"))["environment"] == {"A": "ü\udcff"}


# -- without systemd -----------------------------------------------------------------------------------------
