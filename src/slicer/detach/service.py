"""Detached jobs and queues: their place, and a service's name, environment and properties. Pure."""

from __future__ import annotations

import os

from slicer.text import command_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Literal

    Place = Literal["system", "user", "process"]

ServiceProperty = tuple[str, str, object]  # for StartTransientUnit: name, D-Bus signature, value

_FOREVER = 2**64 - 1
_RESTARTS = 5  # within _RESTARTS_WITHIN_S; a queue that crashes more often will crash again
_RESTARTS_WITHIN_S = 600
_RESTART_AFTER_S = 1

# Variables about the caller's terminal or login session, which a detached job outlives, and about the service
# or job around the caller, to which it does not belong.
_SESSION_VARIABLES = frozenset((
    "TERM", "COLORTERM", "COLUMNS", "LINES", "TERMCAP", "TERM_PROGRAM", "TERM_PROGRAM_VERSION",
    "TERM_SESSION_ID", "WINDOWID", "VTE_VERSION", "TMUX", "TMUX_PANE", "STY", "WINDOW", "INSIDE_EMACS",
    "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "GPG_TTY", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY",
    "XDG_SESSION_ID", "XDG_SESSION_TYPE", "XDG_SESSION_CLASS", "XDG_SESSION_PATH", "XDG_SEAT",
    "XDG_SEAT_PATH", "XDG_VTNR", "DBUS_SESSION_BUS_ADDRESS", "SHLVL", "OLDPWD", "_",
    "INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "MANAGERPID", "MAINPID", "NOTIFY_SOCKET",
    "RUNTIME_DIRECTORY", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES",
    "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE", "SLICER_LEASE", "GPU_LOCK_HELD",
))  # fmt: skip
_TERMINAL_PREFIXES = ("KITTY_", "KONSOLE_", "ITERM_", "WEZTERM_", "ALACRITTY_", "VSCODE_")

# Variables that the service's manager provides: its bus outlives the caller's session.
_MANAGER_VARIABLES = ("DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR")


def queue_unit(log_dir: str) -> str:
    """The service's name. Each log directory (an absolute path) has one, because only one queue uses it."""
    import hashlib  # of all that is detached, only a queue needs OpenSSL

    digest = hashlib.sha1(os.fsencode(log_dir), usedforsecurity=False).hexdigest()
    return f"slicer-queue-{digest[:8]}.service"


def queue_description(jobs_file: str) -> str:
    """The name in ``systemctl status``. Every user can see it, so it leaves out the directory."""
    return command_text(("slicer", "queue", os.path.basename(jobs_file)))


def queue_arguments(said: Sequence[str]) -> tuple[str, ...]:
    """The caller's arguments without ``--fresh``, so that a restarted service resumes."""
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


def place_of(uid: int, *, has_systemd: bool, reaches_manager: bool, lingers: bool, stays: bool) -> Place:
    """Where a detached job runs: as a service of the system or of the user, or as a plain process.

    The user's manager ends with the last session, unless the user lingers. ``stays``: a plain process lasts
    longer than that manager does, or the broker will see to it, or a job around it should end it.
    """
    if not has_systemd:
        return "process"
    if uid == 0:
        return "system"
    return "user" if reaches_manager and (lingers or not stays) else "process"


def is_session(cgroup: str) -> bool:
    """Whether that is the cgroup of a login session. Its processes keep it, and the user's manager."""
    return _unit(cgroup).startswith("session-")


def _unit(cgroup: str) -> str:
    units = (part for part in reversed(cgroup.split("/")) if part.endswith((".service", ".scope")))
    return next(units, "")


def ends_early(
    user: str, place: Place, cgroup: str, *, lingers: bool, is_inside: bool, kills_processes: bool
) -> str:
    """What would end a detached job or queue early; "": nothing.

    ``cgroup``: the caller's, in which a plain process stays; "" without systemd. ``is_inside``: the caller
    runs in another job.
    """
    keep = f"loginctl enable-linger {user} keeps it running"
    if place == "system" or (place == "user" and lingers):
        return ""
    if place == "user":
        return f"your last logout would end it: {keep}"
    if is_inside:
        return "it ends with the job around it"
    if is_session(cgroup):
        return f"a logout would end it (KillUserProcesses=yes): {keep}" if kills_processes else ""
    return f"it ends with {_unit(cgroup)}: {keep}" if _unit(cgroup) else ""


def after_boot(*, is_restored: bool, lingers: bool) -> str:
    """What becomes of a detached queue. ``is_restored``: a unit starts it with the system, or the manager."""
    if not is_restored:
        return "after a reboot, slicer queue restore resumes it; slicer install has systemd do that"
    return f"after a reboot it goes on {'by itself' if lingers else 'once you log in'}"


def job_unit(job: str) -> str:
    """The name of a detached job's service, which exists beside its scope."""
    return f"slicer-run-{job}.service"


def job_properties(stdin: int) -> tuple[ServiceProperty, ...]:
    """The properties of a detached job's service, besides its command. ``stdin``: the open hand-over.

    ``systemctl stop`` sends SIGTERM to the supervisor alone, which passes it on. The service is not
    restarted, because the keeper completes the job without the supervisor.
    """
    return (
        ("Type", "s", "exec"),
        ("KillMode", "s", "process"),
        ("OOMPolicy", "s", "continue"),
        ("CollectMode", "s", "inactive-or-failed"),
        ("StandardInputFileDescriptor", "h", stdin),
    )


def queue_properties() -> tuple[ServiceProperty, ...]:
    """The properties of a queue's service, besides its command.

    ``systemctl stop`` sends one SIGTERM to the queue alone and waits as long as the jobs take. systemd
    restarts the service after a crash, which runs no job twice, but not after an exit, whatever its code.
    """
    return (
        ("Type", "s", "exec"),
        # Jobs without scopes are in the service's cgroup. The queue ends them.
        ("KillMode", "s", "process"),
        ("TimeoutStopUSec", "t", _FOREVER),
        ("OOMPolicy", "s", "continue"),
        ("Restart", "s", "on-abnormal"),
        ("RestartUSec", "t", _RESTART_AFTER_S * 1_000_000),
        ("StartLimitIntervalUSec", "t", _RESTARTS_WITHIN_S * 1_000_000),
        ("StartLimitBurst", "u", _RESTARTS),
        ("CollectMode", "s", "inactive-or-failed"),
    )


def handed(
    command: Sequence[str], environ: Mapping[str, str], *, directory: str, log_path: str, umask: int,
    soft_limits: Mapping[int, int], log_mode: int = 0o666, reports: bool = True,
) -> dict[str, object]:  # fmt: skip
    """The data for :mod:`slicer.detach.handover`. ``soft_limits`` has the numbers of getrlimit(2)."""
    return {
        "command": [_text(word) for word in command],
        "environment": {_text(name): _text(value) for name, value in environment(environ).items()},
        "from_manager": list(_MANAGER_VARIABLES),
        "directory": _text(directory),
        "log": _text(log_path),
        "log_mode": log_mode,
        "umask": umask,
        "reports": reports,
        "soft_limits": {str(number): value for number, value in soft_limits.items()},
    }


def _text(word: str) -> str:
    """Bytes of the system as text, the same in every locale."""
    return os.fsencode(word).decode("utf-8", "surrogateescape")
