"""A queue that goes on without its terminal: from a command line and an environment to a service. Pure."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence

from slicer.text import command_text

ServiceProperty = tuple[str, str, object]  # as StartTransientUnit has it: name, D-Bus signature, value

_FOREVER = 2**64 - 1
_RESTARTS = 5  # within _RESTARTS_WITHIN_S; what crashes more often will do so again
_RESTARTS_WITHIN_S = 600
_RESTART_AFTER_S = 1

# What tells of the terminal or the login session that the caller sits in, which the queue outlives; and what
# tells of the service or the job that the caller is in, and the queue will not be.
_SESSIONS = frozenset((
    "TERM", "COLORTERM", "COLUMNS", "LINES", "TERMCAP", "TERM_PROGRAM", "TERM_PROGRAM_VERSION",
    "TERM_SESSION_ID", "WINDOWID", "VTE_VERSION", "TMUX", "TMUX_PANE", "STY", "WINDOW", "INSIDE_EMACS",
    "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "GPG_TTY", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY",
    "XDG_SESSION_ID", "XDG_SESSION_TYPE", "XDG_SESSION_CLASS", "XDG_SESSION_PATH", "XDG_SEAT",
    "XDG_SEAT_PATH", "XDG_VTNR", "DBUS_SESSION_BUS_ADDRESS", "SHLVL", "OLDPWD", "_",
    "INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "MANAGERPID", "MAINPID", "NOTIFY_SOCKET",
    "RUNTIME_DIRECTORY", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES",
    "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE", "SLICER_LEASE",
))  # fmt: skip
_TERMINALS = ("KITTY_", "KONSOLE_", "ITERM_", "WEZTERM_", "ALACRITTY_", "VSCODE_")

# What only the service's manager knows: the way to its bus stays good when the caller's session is gone.
_MANAGERS = ("DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR")


def unit_name(log_dir: str) -> str:
    """The service's name: one for each log directory (an absolute path), as only one queue can use it."""
    digest = hashlib.sha1(os.fsencode(log_dir), usedforsecurity=False).hexdigest()
    return f"slicer-queue-{digest[:8]}.service"


def description(jobs_file: str) -> str:
    """What ``systemctl status`` calls it, for every user of the machine: without the directory."""
    return command_text(("slicer", "queue", os.path.basename(jobs_file)))


def arguments(said: Sequence[str]) -> tuple[str, ...]:
    """The service's arguments from those of the caller.

    Without ``--fresh``: a service that is restarted after a crash goes on where it was.
    """
    end = said.index("--") if "--" in said else len(said)
    kept = [word for word in said[:end] if word not in ("--detach", "--fresh")]
    return (*kept, *said[end:])


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment without what is about its terminal and session."""
    return {
        name: value
        for name, value in environ.items()
        if name not in _SESSIONS and not name.startswith(_TERMINALS)
    }


def properties(unit: str) -> tuple[ServiceProperty, ...]:
    """What the manager is told of the service, besides what it executes.

    ``systemctl stop`` is one SIGTERM to the queue alone, and then patience: its jobs decide how long. After a
    crash it is started again, which runs nothing twice; not after an end of its own, whatever the exit code.
    """
    return (
        ("Type", "s", "exec"),
        # Without scopes the jobs are in the service's cgroup, and are the queue's to end.
        ("KillMode", "s", "process"),
        ("TimeoutStopUSec", "t", _FOREVER),
        ("OOMPolicy", "s", "continue"),
        ("Restart", "s", "on-abnormal"),
        ("RestartUSec", "t", _RESTART_AFTER_S * 1_000_000),
        ("StartLimitIntervalUSec", "t", _RESTARTS_WITHIN_S * 1_000_000),
        ("StartLimitBurst", "u", _RESTARTS),
        ("CollectMode", "s", "inactive-or-failed"),
        # Has the hand-over in it, which goes with the service.
        ("RuntimeDirectory", "as", [unit.removesuffix(".service")]),
        ("RuntimeDirectoryMode", "u", 0o700),
        ("RuntimeDirectoryPreserve", "s", "restart"),
    )


def handed(
    command: Sequence[str], environ: Mapping[str, str], *, directory: str, log_path: str, umask: int,
    soft_limits: Mapping[int, int],
) -> dict[str, object]:  # fmt: skip
    """What :mod:`slicer.queue.detach.handover` takes up; ``soft_limits`` by the numbers of getrlimit(2)."""
    return {
        "command": [_text(word) for word in command],
        "environment": {_text(name): _text(value) for name, value in environment(environ).items()},
        "from_manager": list(_MANAGERS),
        "directory": _text(directory),
        "log": _text(log_path),
        "umask": umask,
        "soft_limits": {str(number): value for number, value in soft_limits.items()},
    }


def _text(word: str) -> str:
    """Bytes of the system as text that is the same in every locale."""
    return os.fsencode(word).decode("utf-8", "surrogateescape")
