"""Events of jobs, as structured entries of systemd's journal.

An event is a datagram in journald's native protocol: no library, no process, about 40 µs. Nothing here waits
for the journal. If journald is absent, dead or overloaded, :func:`event` returns False and no job is
affected. Every kind of event has its own MESSAGE_ID, explained in ``units/catalog/slicer.catalog``
(``journalctl -x``).

This module is on the hot path of ``slicer run``: C modules only.
"""

from __future__ import annotations

import _socket
import errno
import os
import sys

from slicer.record import record
from slicer.text import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    from slicer.model import Lease, Manager, Ticket

    Kind = Literal[
        "waiting", "acquired", "started", "finished", "released", "over-limit", "error", "stopped",
        "stopping", "paused", "resumed", "changed", "routed", "untold", "idle",
    ]
    Value = str | bytes | float | None
    Field = str | bytes | int

SOCKET = "/run/systemd/journal/socket"
IDENTIFIER = "slicer"

ERROR, WARNING, NOTICE, INFO = 3, 4, 5, 6  # syslog's priorities

_FIELD_NAME_MAX = 64  # journald silently drops longer names

# The priority of a route's decision, by its result. All others are errors.
_ROUTED = {"started": INFO, "fallback": NOTICE, "blocked": NOTICE}


@record
class _Kind:
    message_id: str
    priority: int
    message: str  # follows the job's name, unless the caller has a better text


# The ids never change: catalogs and people's alerts refer to them.
KINDS: dict[Kind, _Kind] = {
    "waiting": _Kind("97655dee75fa468f80c5407fdbf04c18", INFO, "waiting for a lease"),
    "acquired": _Kind("af63995896db4776a32eb93db74d7d50", INFO, "lease acquired"),
    "started": _Kind("ca56f04d695b4d829ab2de8f9406fdc9", INFO, "started"),
    "finished": _Kind("77d802f3bad84efab975f5f9026a7cd7", INFO, "finished"),
    "released": _Kind("54827d7655de4d77aabb5b93937f624b", INFO, "lease released"),
    "over-limit": _Kind("ca074d7ef0ef4a5ab56416b1fbc38638", WARNING, "uses more than it declared"),
    "idle": _Kind("42dce42bf459470dbaa55510cbaac8e1", WARNING, "does not use its GPU"),
    "error": _Kind("5d7d419441a7415b8968325ffae25631", ERROR, "slicer failed"),
    "stopping": _Kind("e595a85f6f81450f8886918c00e467fb", NOTICE, "told to end"),
    "paused": _Kind("f78c18a223c145bcbd2c9c68e88ccf0d", NOTICE, "paused"),
    "resumed": _Kind("20796cce4a3f41249e734a65b38b5e33", NOTICE, "resumed"),
    "changed": _Kind("af25d7cae1c049d7a84dc26d4b1e3dda", NOTICE, "its limits were changed"),
    "stopped": _Kind("1fae59122c0848ddb3bce97113dc6363", WARNING, "leftover processes were ended"),
    "routed": _Kind("d9f7145c5c1240c681db2deb4dd935f6", INFO, "a destination was chosen"),
    "untold": _Kind("64fccecc743f49548ef6fdcc6588e33f", WARNING, "a notification was not delivered"),
}


def event(
    kind: Kind,
    *,
    job: str,
    name: str,
    unit: str = "",
    manager: Manager = "system",
    message: str = "",
    path: str = SOCKET,
    fields: Mapping[str, Value | tuple[str, ...]] | None = None,
) -> bool:
    """Report an event of ``job`` ("" if there is none) to the journal. Returns whether journald has it.

    ``unit`` is the job's scope ("" if none), by which ``journalctl -u`` (or ``--user-unit``) finds the entry.
    ``fields``:
    ``{"exit_code": 1}`` becomes ``SLICER_EXIT_CODE=1``. None omits a field; a tuple repeats it for each
    value. Undecodable bytes, as in Python's argv, arrive unchanged. ``message`` replaces the kind's own.
    Never blocks. Raises only ValueError, for a field name that journald would drop.
    """
    what, more = KINDS[kind], fields or {}
    entry: dict[str, Field] = {
        "MESSAGE": visible(message or f"{visible(name)}: {what.message}", keep="\n\t"),
        "MESSAGE_ID": what.message_id,
        "PRIORITY": _priority(kind, more),
        "SYSLOG_IDENTIFIER": IDENTIFIER,
        "SLICER_EVENT": kind,
        **({"SLICER_JOB": job} if job else {}),
        "SLICER_NAME": name,
    }
    if unit:
        entry["SLICER_UNIT"] = unit
        # Fields that journalctl trusts in another process's entry: OBJECT_SYSTEMD_UNIT when _UID=0,
        # USER_UNIT when _UID is the reader's own (add_matches_for_unit() in systemd's logs-show.c).
        entry["USER_UNIT" if manager == "user" else "OBJECT_SYSTEMD_UNIT"] = unit
    pairs = [*entry.items(), *_pairs(more)]
    return _deliver(b"".join(_encode(key, value) for key, value in pairs), path)


def _priority(kind: Kind, fields: Mapping[str, Value | tuple[str, ...]]) -> int:
    if kind == "finished" and fields.get("exit_code"):
        return NOTICE
    if kind == "routed":
        return _ROUTED.get(str(fields.get("result")), ERROR)
    return KINDS[kind].priority


def about(entry: Lease | Ticket) -> dict[str, Value | tuple[str, ...]]:
    """The fields of every event of a job that its lease or ticket has."""
    found: dict[str, Value | tuple[str, ...]] = {"profile": entry.profile or None}
    if isinstance(entry.gpus, tuple):
        found["gpu"] = gpu_words(entry.gpus, entry.gpu_indices)
        found["slot"] = tuple(sorted(entry.slots))
    return found


def gpu_words(uuids: tuple[str, ...], indices: tuple[int, ...]) -> tuple[str, ...]:
    """All names of the GPUs: ``SLICER_GPU=0`` and ``SLICER_GPU=GPU-…`` must find the same entries."""
    return (*map(str, indices), *uuids)


def _pairs(fields: Mapping[str, Value | tuple[str, ...]]) -> list[tuple[str, Field]]:
    """Each field with each of its values, as the journal's types."""
    found: list[tuple[str, Field]] = []
    for key, given in fields.items():
        for value in given if isinstance(given, tuple) else (given,):
            if value is not None:
                known = value if isinstance(value, str | bytes | int) else repr(value)
                found.append((f"SLICER_{key.upper()}", known))
    return found


def _encode(name: str, value: Field) -> bytes:
    letters = name.replace("_", "A")
    if not (letters.isascii() and letters.isalnum() and letters.isupper() and len(name) <= _FIELD_NAME_MAX):
        raise ValueError(f"not a journal field name: {name!r}")
    if not isinstance(value, bytes):
        try:
            value = str(value).encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:  # a surrogate that represents no byte
            value = str(value).encode("utf-8", "backslashreplace")
    key = name.encode()
    if b"\n" not in value:
        return key + b"=" + value + b"\n"
    return key + b"\n" + len(value).to_bytes(8, "little") + value + b"\n"


def _deliver(data: bytes, path: str) -> bool:
    sock = None
    try:
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_NONBLOCK)
        try:
            sock.sendto(data, path)
        except OSError as error:
            if error.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
                raise
            _send_memfd(sock, data, path)
    except OSError:
        return False
    finally:
        if sock is not None:
            sock.close()
    return True


def _send_memfd(sock: _socket.socket, data: bytes, path: str) -> None:
    """Send an entry that is too large for a datagram. Raises OSError.

    journald accepts an unprivileged sender's memory file only if it is permanently sealed.
    """
    import fcntl

    fd = os.memfd_create("slicer-journal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fd.to_bytes(4, sys.byteorder))
        sock.sendmsg([], [rights], 0, path)
    finally:
        os.close(fd)
