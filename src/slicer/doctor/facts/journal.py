"""systemd's journal: whether events get there, stay there, and can be read by this user."""

from __future__ import annotations

import os
import socket

from slicer.doctor.facts.files import names_in, setting
from slicer.outcome.journal import SOCKET
from slicer.record import record

_PERSISTENT = "/var/log/journal"
_VOLATILE = "/run/log/journal"


@record
class JournalFacts:
    """``socket_error`` is "" where journald listens."""

    socket_error: str
    storage: str  # Storage= of journald.conf; "" the default
    is_persistent: bool  # entries outlive a reboot
    may_read: bool  # this user sees the entries of the system, and so those of root's jobs
    may_read_own: bool  # and those of the user's own


def gather(uid: int) -> JournalFacts:
    """Sends nothing."""
    is_persistent = bool(_files(_PERSISTENT))
    directory = _PERSISTENT if is_persistent else _VOLATILE
    files = _files(directory)
    return JournalFacts(
        socket_error=_socket_error(),
        storage=setting("journald.conf", "Storage").lower(),
        is_persistent=is_persistent,
        may_read=_may_read(files, "system.journal"),
        may_read_own=_may_read(files, f"user-{uid}.journal") or _may_read(files, "system.journal"),
    )


def _files(directory: str) -> list[str]:
    machines = (f"{directory}/{name}" for name in names_in(directory))
    return [f"{machine}/{name}" for machine in machines for name in names_in(machine)]


def _may_read(files: list[str], name: str) -> bool:
    if os.geteuid() == 0:
        return True
    return any(os.path.basename(path) == name and os.access(path, os.R_OK) for path in files)


def _socket_error() -> str:
    """Why journald cannot be reached; connecting a datagram socket sends nothing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
        try:
            sock.connect(SOCKET)
        except OSError as error:
            return error.strerror or str(error)
    return ""
