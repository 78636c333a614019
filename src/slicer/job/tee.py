"""``--journal``: copies the command's output to journald, on its way to its destination.

journald files a stream under the unit of the connecting process. So the copying process must be in the scope,
and the keeper forks it. The command then writes to pipes, not to a terminal: that would need a second
pseudo-terminal in between, with all its job control.
"""

from __future__ import annotations

import _socket
import fcntl
import os
import select
import struct
import time

from slicer.kernel.signals import signal

_STREAM = "/run/systemd/journal/stdout"
_INFO, _ERROR = 6, 3
_CHUNK = 65536
_SIOCOUTQ = 0x5411  # unix(7): the bytes that the peer has not read yet
_PATIENCE_S = 3.0  # how long to wait for a journald that does not read


def _stream(identifier: str, unit: str, priority: int) -> int:
    """A connection to journald for lines (sd_journal_stream_fd(3)). -1: journald does not run."""
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, struct.pack("ll", int(_PATIENCE_S), 0))
        sock.connect(_STREAM)
        name = identifier.replace("\n", " ").encode("utf-8", "surrogateescape")
        # identifier, unit (accepted only from root), priority, level prefix, forward to syslog, kmsg, console
        sock.send(name + b"\n%s\n%d\n0\n0\n0\n0\n" % (unit.encode(), priority))
    except OSError:
        sock.close()
        return -1
    return sock.detach()


class Tee:
    """A process (``pid``) that copies. ``stdout`` and ``stderr`` are the command's ends of its pipes."""

    def __init__(self, unit: str, name: str, targets: tuple[int, int]) -> None:
        """``targets``: descriptors that get the command's stdout and stderr besides the journal."""
        out_read, self.stdout = os.pipe2(os.O_CLOEXEC)
        err_read, self.stderr = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(self.stdout)
                os.close(self.stderr)
                _copy({out_read: (targets[0], _INFO), err_read: (targets[1], _ERROR)}, name or unit, unit)
                code = 0
            finally:
                os._exit(code)
        os.close(out_read)
        os.close(err_read)

    def handed_over(self) -> None:
        """The command has its ends. Close ours, so that the copier gets the end of file."""
        os.close(self.stdout)
        os.close(self.stderr)

    def finish(self) -> None:
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            pass  # reaped with the other children


def _copy(sources: dict[int, tuple[int, int]], identifier: str, unit: str) -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    streams = {fd: _stream(identifier, unit, priority) for fd, (_, priority) in sources.items()}
    poll = select.poll()
    for fd in sources:
        poll.register(fd, select.POLLIN)
    while sources:
        for fd, _ in poll.poll():
            data = os.read(fd, _CHUNK)
            if streams[fd] >= 0 and not _write_all(streams[fd], data):
                streams[fd] = -1  # journald has ended; the output itself continues
            if not data or not _write_all(sources[fd][0], data):
                # The end of file, or the reader has closed its end and the command must get its SIGPIPE.
                poll.unregister(fd)
                os.close(fd)
                del sources[fd]
    end = time.monotonic() + _PATIENCE_S
    for stream in streams.values():
        _drain(stream, end)


def _drain(stream: int, end: float) -> None:
    """Stay until journald has read everything, because it asks the kernel for the writer only then."""
    while stream >= 0 and time.monotonic() < end:
        try:
            left = struct.unpack("i", fcntl.ioctl(stream, _SIOCOUTQ, b"\0\0\0\0"))[0]
        except OSError:
            return
        if not left:
            return
        time.sleep(0.002)


def _write_all(fd: int, data: bytes) -> bool:
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:
        return False
    return True
