"""Who is at the other end of a Unix socket."""

from __future__ import annotations

import os
import socket
import struct

from slicer.kernel.peer import credentials


class Directory(socket.socket):
    """A socket whose peer has the largest uid and gid of a directory service."""

    def getsockopt(self, level: int, name: int, size: int = 0) -> bytes:  # type: ignore[override]
        assert (level, name, size) == (socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return struct.pack("=III", 7, 2**32 - 2, 2**31)


def test_a_uid_of_any_size_is_that_of_the_peer() -> None:  # U2
    one, other = socket.socketpair()
    with one, other:
        assert credentials(one) == (os.getpid(), os.geteuid(), os.getegid())
    with Directory(socket.AF_UNIX) as far:
        assert credentials(far) == (7, 2**32 - 2, 2**31)
