"""Makes standard input readable twice: once by a probe, once by the command."""

from __future__ import annotations

import errno
import os
import stat

from slicer.errors import SlicerError
from slicer.state.directory import write_all

_STDIN = 0
_CHUNK = 1 << 20


class SpoolError(SlicerError):
    """Standard input could not be saved for the command."""

    kind = "spool"


def keep_stdin(directory: str) -> None:
    """Make stdin a file: the content of a pipe is first written to a file in ``directory``.

    Nobody else can see the file. It vanishes with the last process that has it open. Raises SpoolError.
    """
    if stat.S_ISREG(os.fstat(_STDIN).st_mode):
        return
    fd = -1
    try:
        fd = _nameless_file(directory)
        size = 0
        while data := os.read(_STDIN, _CHUNK):
            write_all(fd, data, size)
            size += len(data)
        # A new open file description: the command reads from the beginning, and cannot write.
        read_only = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(read_only, _STDIN)
        os.close(read_only)
    except OSError as error:
        hint = "set TMPDIR to a directory with more room"
        message = f"standard input cannot be saved: {error.strerror}"
        raise SpoolError(message, where=directory, hint=hint) from error
    finally:
        if fd >= 0:
            os.close(fd)


def _nameless_file(directory: str) -> int:
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        # A file system or kernel may not know O_TMPFILE: open(2).
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT) or not os.path.isdir(directory):
            raise
    path = os.path.join(directory, f"slicer-{os.urandom(8).hex()}")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.unlink(path)
    return fd
