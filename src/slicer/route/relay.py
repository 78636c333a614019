"""Passes on what a command writes, unchanged and at once, and checks it for messages about GPU memory.

A relay is a separate process. So whatever happens to slicer, no output is lost, and nobody has to wait for a
background process that keeps its stderr open. All signals but one are blocked in it. It exits when nobody can
write any more.

If the output goes to a terminal, the command gets a pseudo-terminal, so that progress bars keep working. It
is raw: only the real terminal changes the output. Its size follows that of the real one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import sys
import termios
from _thread import get_native_id

from slicer.errors import BackendError
from slicer.gpu.oom import Excerpt
from slicer.kernel import proc
from slicer.kernel.open_files import close_all_but
from slicer.kernel.signals import INTERRUPTS, STOP, signal
from slicer.record import record

_CHUNK = 1 << 16
_MOST_WAITING = 1 << 20  # bytes; no pipe of ours and no pseudo-terminal holds more
_ASK = b"?"
_F_SETOWN_EX = 15  # fcntl(2); its argument begins with F_OWNER_TID (0): the signal goes to this thread

# A user who ends slicer must not have to wait for a reader that does not read.
ENDING = INTERRUPTS | {signal.SIGQUIT, STOP}


@record
class Relayed:
    """The output that has passed a relay so far."""

    tells_of_oom: bool
    is_empty: bool
    lost: int  # the errno because of which some of it was lost; 0: nothing was


class Relay:
    """A relay. The command writes to ``fd``, and the relay passes that on to the descriptor ``sink``."""

    def __init__(self, sink: int, *, is_droppable: bool) -> None:
        """``is_droppable``: a full disk loses output without an error for the command. Raises OSError."""
        source, self.fd = _terminal_like(sink) if os.isatty(sink) else os.pipe2(os.O_CLOEXEC)
        asked, self._ask = os.pipe2(os.O_CLOEXEC)
        self._answer, answer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(source, False)
        self._pid = os.fork()
        if self._pid == 0:
            copier = _Copier(source, sink, asked, answer, is_droppable=is_droppable)
            proc.be_child(copier.run)
        for fd in (source, asked, answer):
            os.close(fd)
        self._has_ended = True  # it does, once our descriptors are closed

    def seen(self) -> Relayed | None:
        """The output, once the relay has passed on everything written so far. The command must have ended.

        None if the relay was killed, or if a signal to end slicer arrived while it waited for a slow reader.
        The signals that end slicer must be blocked.
        """
        os.close(self.fd)  # so that the relay sees the end, unless another process can still write
        self.fd = -1
        self._has_ended = False
        # SIGIO arrives when the pipe is readable. So one call waits for it and for the other signals.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGIO})
        fcntl.fcntl(self._answer, _F_SETOWN_EX, bytes(4) + get_native_id().to_bytes(4, sys.byteorder))
        fcntl.fcntl(self._answer, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        try:
            os.write(self._ask, _ASK)
            words = self._await_answer().split()
        except BrokenPipeError:
            words = []  # it was killed
        fcntl.fcntl(self._answer, fcntl.F_SETFL, os.O_NONBLOCK)
        signal.sigtimedwait({signal.SIGIO}, 0)  # if it stayed pending, it would kill us once unblocked
        if len(words) != 4:
            return None
        self._has_ended = words[3] == b"1"
        return Relayed(words[0] == b"1", words[1] == b"1", int(words[2]))

    def _await_answer(self) -> bytes:
        """The relay's answer; empty if it is dead, or if we have to end."""
        while True:
            try:
                return os.read(self._answer, 64)
            except BlockingIOError:
                if signal.sigwaitinfo({signal.SIGIO} | ENDING).si_signo in ENDING:
                    return b""

    def close(self, *, waits: bool = True) -> None:
        """Let go of the relay. It stays as long as somebody can write.

        Without ``waits``, do not wait for its end: the command may still run although slicer has failed.
        """
        for fd in (self.fd, self._ask, self._answer):
            if fd >= 0:
                os.close(fd)
        if self._has_ended and waits:
            os.waitpid(self._pid, 0)


def _terminal_like(sink: int) -> tuple[int, int]:
    """A raw pseudo-terminal with the size of the terminal ``sink``; a pipe if none is available."""
    import tty

    try:
        master, slave = os.openpty()
    except OSError:  # a container without /dev/pts
        return os.pipe2(os.O_CLOEXEC)
    tty.setraw(slave)
    _copy_size(sink, master)
    return master, slave


def _copy_size(terminal: int, master: int) -> bool:
    """Give a pseudo-terminal the size of the terminal. Returns whether that changed it."""
    try:
        size = fcntl.ioctl(terminal, termios.TIOCGWINSZ, bytes(8))
        if size == fcntl.ioctl(master, termios.TIOCGWINSZ, bytes(8)):
            return False
        fcntl.ioctl(master, termios.TIOCSWINSZ, size)
    except OSError:  # the terminal is gone
        return False
    return True


class _Copier:
    """The relay's process."""

    def __init__(self, source: int, sink: int, asked: int, answer: int, *, is_droppable: bool) -> None:
        self._source = source
        self._sink = sink
        self._asked = asked
        self._answer = answer
        self._is_droppable = is_droppable
        self._excerpt = Excerpt()
        self._is_empty = True
        self._lost = 0
        self._is_open = True

    def run(self) -> None:
        """Pass on until nobody can write any more, or nobody reads."""
        # Others wait for the ends of the other pipes, and for locks.
        close_all_but({self._source, self._sink, self._asked, self._answer}, lowest=0)
        with open("/proc/self/comm", "wb", buffering=0) as comm:
            comm.write(b"slicer-relay")
        if os.isatty(self._source):
            signal.signal(signal.SIGWINCH, self._resize)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGWINCH})
            _copy_size(self._sink, self._source)  # it may have changed since the fork
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        poll.register(self._asked, select.POLLIN)
        while self._is_open:
            for fd, _ in poll.poll():
                if fd == self._source:
                    self._pass_on()
                elif os.read(self._asked, 1):
                    self._tell()
                else:
                    poll.unregister(self._asked)  # slicer is gone, or needs no more answers
        # A later question is still answered: no more output can arrive.
        os.close(self._source)
        while os.read(self._asked, 1):
            self._tell()

    def _pass_on(self) -> int:
        """Pass on the available output. Returns its number of bytes."""
        try:
            data = os.read(self._source, _CHUNK)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""  # nobody has the pseudo-terminal open any more
        self._is_open = bool(data)
        if data:
            self._is_empty = False
            self._excerpt.add(data)
            self._write(data)
        return len(data)

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._sink, data) :]
            except BlockingIOError:  # another process that shares it has made it non-blocking
                room = select.poll()
                room.register(self._sink, select.POLLOUT)
                room.poll()
            except OSError as error:
                self._lost = error.errno or errno.EIO
                # If nobody reads any more, the command must get the error as if it had written directly.
                self._is_open = self._is_droppable and stat.S_ISREG(os.fstat(self._sink).st_mode)
                return

    def _tell(self) -> None:
        """Answer, after passing on everything that was there when the question came."""
        passed = 0
        while self._is_open and passed < _MOST_WAITING and (length := self._pass_on()):
            passed += length
        facts = (self._excerpt.tells_of_oom(), self._is_empty, self._lost, not self._is_open)
        answer = b"%d %d %d %d\n" % facts
        try:
            os.write(self._answer, answer)
        except BrokenPipeError:
            pass  # slicer was killed meanwhile

    def _resize(self, signo: int, frame: object) -> None:
        # The command has got the signal, too, and may have read the old size.
        if _copy_size(self._sink, self._source):
            os.kill(0, signal.SIGWINCH)


_STDOUT, _STDERR = 1, 2


@record
class Written:
    """What matters of an attempt's output. ``lost``: why some of it could not be passed on."""

    tells_of_oom: bool
    on_stdout: bool
    lost: str


class OutputWatch:
    """Watches what the command writes. ``output`` has the descriptors for its stdout and stderr.

    A relay passes on stderr. It also passes on stdout if that goes to the same place, which keeps their
    order. If
    ``must_know_stdout``, stdout has to be told apart. Then a file is compared with its state before,
    /dev/null does not count, and anything else gets a second relay.
    """

    def __init__(self, *, must_know_stdout: bool) -> None:
        """Raises BackendError."""
        self._stdout: Relay | None = None
        self._before: tuple[int, ...] | None = None
        out, err = os.fstat(_STDOUT), os.fstat(_STDERR)
        is_same = os.path.samestat(out, err)
        try:
            is_null = stat.S_ISCHR(out.st_mode) and out.st_rdev == os.makedev(1, 3)
            if must_know_stdout and not is_null:
                if stat.S_ISREG(out.st_mode) and not is_same:
                    self._before = _marks()
                else:
                    self._stdout = Relay(_STDOUT, is_droppable=False)
            merges = is_same and self._stdout is None
            self._stderr = Relay(_STDERR, is_droppable=not merges)
        except OSError as error:
            hint = "see ulimit -n and ulimit -u"
            raise BackendError(f"stderr cannot be watched: {error.strerror}", hint=hint) from error
        stdout = self._stdout.fd if self._stdout else self._stderr.fd if merges else _STDOUT
        self.output = (stdout, self._stderr.fd)

    def written(self) -> Written | None:
        """What the attempt wrote, now that all of it is passed on; None if that is unknown.

        The signals that end slicer must be blocked.
        """
        err = self._stderr.seen()
        out = self._stdout.seen() if self._stdout else None
        if err is None or (self._stdout and out is None):
            return None
        streams: list[Relayed] = [seen for seen in (err, out) if seen is not None]
        lost = next((seen.lost for seen in streams if seen.lost), 0)
        return Written(
            tells_of_oom=any(seen.tells_of_oom for seen in streams),
            on_stdout=not out.is_empty if out else self._before is not None and _marks() != self._before,
            lost=os.strerror(lost) if lost else "",
        )

    def close(self, *, waits: bool = True) -> None:
        """Stop watching. Later output is still passed on. See :meth:`Relay.close`."""
        for relay in (self._stdout, self._stderr):
            if relay is not None:
                relay.close(waits=waits)


def _marks() -> tuple[int, ...]:
    """Values that change when somebody writes to the file behind stdout."""
    seen = os.fstat(_STDOUT)
    return (os.lseek(_STDOUT, 0, os.SEEK_CUR), seen.st_size, seen.st_mtime_ns)
