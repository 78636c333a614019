"""The other end of a Unix socket, as the kernel knows it."""

from __future__ import annotations

import _socket
import struct

_UCRED = struct.Struct("iII")  # struct ucred of unix(7): uids from 2^31 on are in use (Active Directory)


def credentials(connection: _socket.socket) -> tuple[int, int, int]:
    """The pid, uid and gid of the process that connected, or that made the pair. Raises OSError."""
    pid, uid, gid = _UCRED.unpack(connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _UCRED.size))
    return pid, uid, gid
