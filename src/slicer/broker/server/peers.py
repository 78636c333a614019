"""Identifies a socket's peer by the kernel's data, and checks a keeper."""

from __future__ import annotations

import _socket
import errno
import os
import struct

from slicer.broker.server.requests import Refusal
from slicer.kernel.peer import credentials
from slicer.kernel.proc import has_ended, parent, pid_of, read_text, start_time
from slicer.record import record

_SO_PEERPIDFD = 77  # asm-generic/socket.h; Linux 6.5
_SO_PEERGROUPS = 59
_MOST_GROUPS = 65536  # NGROUPS_MAX
_GONE = (errno.ESRCH, errno.EINVAL, errno.ENODATA)  # kernels' errors for a peer that has been reaped
_UNKNOWN = (errno.ENOPROTOOPT, errno.EOPNOTSUPP)


class NoPeer(Exception):
    """The peer has ended, or is hidden from us."""


@record
class Peer:
    """The process that connected, and its user then. A later exec or setuid changes nothing here."""

    pid: int
    uid: int
    gids: tuple[int, ...]  # its primary group, then the others
    pidfd: int  # the receiver closes it
    start: int  # its start time, as in /proc/PID/stat


def peer_of(connection: _socket.socket) -> Peer:
    """The peer of a Unix socket. Raises NoPeer, and OSError if descriptors run out."""
    pid, uid, gid = credentials(connection)
    if pid <= 0:
        raise NoPeer("it is in a namespace that cannot be seen from here")
    pidfd = _peer_pidfd(connection, pid)
    # In this order: while the process of the pidfd lives, its pid is not reused.
    start = start_time(pid)
    if not start or has_ended(pidfd):
        os.close(pidfd)
        raise NoPeer(f"process {pid} has ended")
    return Peer(pid, uid, (gid, *_groups(connection)), pidfd, start)


def _groups(connection: _socket.socket) -> tuple[int, ...]:
    for most in (64, _MOST_GROUPS):
        try:
            found = connection.getsockopt(_socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * most)
        except OSError as error:
            if error.errno != errno.ERANGE:
                raise
            continue
        return struct.unpack(f"{len(found) // 4}I", found)
    return ()


def _peer_pidfd(connection: _socket.socket, pid: int) -> int:
    try:
        return connection.getsockopt(_socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno in _GONE:
            raise NoPeer(f"process {pid} has ended") from None
        if error.errno not in _UNKNOWN:
            raise
    # An older kernel. If the pid has been reused by now, only the user who sent that process away is harmed.
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise NoPeer(f"process {pid} has ended") from None


def parent_of(child: int, uid: int) -> tuple[int, int] | None:
    """The pid and the start of the parent of a process; None unless that is seen, and wholly that user's."""
    pid = parent(child)
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        check_keeper(pidfd, uid)
        start = start_time(pid)
        return (pid, start) if start and parent(child) == pid else None
    except Refusal:
        return None
    finally:
        os.close(pidfd)


def check_keeper(pidfd: int, uid: int) -> int:
    """The pid of a living process that belongs wholly to that user. Raises Refusal.

    Its real, effective, saved and file-system uids must be the same: a program that is or was set-uid is not
    the user's to move. It may still execute one afterwards, as in any scope of a user manager.
    """
    pid = pid_of(pidfd)
    if pid is None or pid <= 0:
        raise Refusal("BadProcess", "the process has ended, or cannot be seen from here")
    try:
        status = read_text(f"/proc/{pid}/status")
    except (FileNotFoundError, ProcessLookupError):
        raise Refusal("BadProcess", "the process has ended") from None
    # The data is only its own if it still has its pid.
    if has_ended(pidfd):
        raise Refusal("BadProcess", "the process has ended")
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    uids = fields.get("Uid", "").split()
    if uids != [str(uid)] * 4:
        raise Refusal("BadProcess", "the process is not the user's own")
    if fields.get("Tgid", "").strip() != str(pid):
        raise Refusal("BadProcess", "it is a thread, not a process")
    return pid
