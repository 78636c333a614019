"""A detached queue as a service: its name, arguments, environment and properties. Pure."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence

from slicer.text import command_text

ServiceProperty = tuple[str, str, object]  # as StartTransientUnit has it: name, D-Bus signature, value

_FOREVER = 2**64 - 1
_RESTARTS = 5  # within _RESTARTS_WITHIN_S; a queue that crashes more often will crash again
_RESTARTS_WITHIN_S = 600
_RESTART_AFTER_S = 1

# Variables about the caller's terminal or login session, which the queue outlives, and about the service or
# job around the caller, which will not be around the queue.
_SESSION_VARIABLES = frozenset((
    "TERM", "COLORTERM", "COLUMNS", "LINES", "TERMCAP", "TERM_PROGRAM", "TERM_PROGRAM_VERSION",
    "TERM_SESSION_ID", "WINDOWID", "VTE_VERSION", "TMUX", "TMUX_PANE", "STY", "WINDOW", "INSIDE_EMACS",
    "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "GPG_TTY", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY",
    "XDG_SESSION_ID", "XDG_SESSION_TYPE", "XDG_SESSION_CLASS", "XDG_SESSION_PATH", "XDG_SEAT",
    "XDG_SEAT_PATH", "XDG_VTNR", "DBUS_SESSION_BUS_ADDRESS", "SHLVL", "OLDPWD", "_",
    "INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "MANAGERPID", "MAINPID", "NOTIFY_SOCKET",
    "RUNTIME_DIRECTORY", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES",
    "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE", "SLICER_LEASE",
))  # fmt: skip
_TERMINAL_PREFIXES = ("KITTY_", "KONSOLE_", "ITERM_", "WEZTERM_", "ALACRITTY_", "VSCODE_")

# Variables that come from the service's manager: its bus outlives the caller's session.
_MANAGER_VARIABLES = ("DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR")


def unit_name(log_dir: str) -> str:
    """The service's name: one for each log directory (an absolute path), as only one queue can use it."""
    digest = hashlib.sha1(os.fsencode(log_dir), usedforsecurity=False).hexdigest()
    return f"slicer-queue-{digest[:8]}.service"


def description(jobs_file: str) -> str:
    """The service's name in ``systemctl status``: without the directory, because every user sees it."""
    return command_text(("slicer", "queue", os.path.basename(jobs_file)))


def arguments(said: Sequence[str]) -> tuple[str, ...]:
    """The caller's arguments without ``--fresh``: a service that is restarted goes on where it was."""
    end = said.index("--") if "--" in said else len(said)
    kept = [word for word in said[:end] if word not in ("--detach", "--fresh")]
    return (*kept, *said[end:])


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment without the variables about its terminal and session."""
    return {
        name: value
        for name, value in environ.items()
        if name not in _SESSION_VARIABLES and not name.startswith(_TERMINAL_PREFIXES)
    }


def properties(unit: str) -> tuple[ServiceProperty, ...]:
    """The service's properties, besides its command.

    ``systemctl stop`` sends one SIGTERM to the queue alone and waits as long as the jobs take. After a crash
    the service is restarted, which runs nothing twice; after an exit it is not, whatever the code.
    """
    return (
        ("Type", "s", "exec"),
        # Without scopes the jobs are in the service's cgroup, and the queue ends them.
        ("KillMode", "s", "process"),
        ("TimeoutStopUSec", "t", _FOREVER),
        ("OOMPolicy", "s", "continue"),
        ("Restart", "s", "on-abnormal"),
        ("RestartUSec", "t", _RESTART_AFTER_S * 1_000_000),
        ("StartLimitIntervalUSec", "t", _RESTARTS_WITHIN_S * 1_000_000),
        ("StartLimitBurst", "u", _RESTARTS),
        ("CollectMode", "s", "inactive-or-failed"),
        # For the hand-over: removed with the service.
        ("RuntimeDirectory", "as", [unit.removesuffix(".service")]),
        ("RuntimeDirectoryMode", "u", 0o700),
        ("RuntimeDirectoryPreserve", "s", "restart"),
    )


def handed(
    command: Sequence[str], environ: Mapping[str, str], *, directory: str, log_path: str, umask: int,
    soft_limits: Mapping[int, int],
) -> dict[str, object]:  # fmt: skip
    """The data for :mod:`slicer.queue.detach.handover`. ``soft_limits`` has the numbers of getrlimit(2)."""
    return {
        "command": [_text(word) for word in command],
        "environment": {_text(name): _text(value) for name, value in environment(environ).items()},
        "from_manager": list(_MANAGER_VARIABLES),
        "directory": _text(directory),
        "log": _text(log_path),
        "umask": umask,
        "soft_limits": {str(number): value for number, value in soft_limits.items()},
    }


def _text(word: str) -> str:
    """Bytes of the system as text, the same in every locale."""
    return os.fsencode(word).decode("utf-8", "surrogateescape")
