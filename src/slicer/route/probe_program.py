"""Asks a program for a metric: it runs in its own process group, with a deadline and a limit on its output.

However it ends, the whole group is killed. So no process that a probe started stays behind, unless it left
the group.
"""

from __future__ import annotations

import errno
import os
import time

from slicer.errors import ProbeError
from slicer.kernel.signals import INTERRUPTS, block_interrupts, signal, signal_name
from slicer.kernel.sleep import until_readable
from slicer.quantity import format_duration
from slicer.record import record
from slicer.text import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

FFPROBE = "ffprobe"
MOST_BYTES = 64 * 1024  # of an answer are kept
_MOST_COMPLAINT = 4096
_DIES_S = 2.0  # SIGKILL takes longer only if the kernel waits for a disk


@record
class ProgramOutput:
    stdout: bytes  # at most MOST_BYTES
    stderr: bytes


class _SignalCame(BaseException):
    def __init__(self, signo: int) -> None:
        self.signo = signo


class _Interrupts:
    """Lets interrupts act only during sleep, and end the program before they end us."""

    def __enter__(self) -> _Interrupts:
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self.mask = block_interrupts()  # during sleep, and in the program
        self._deadly = []
        self._is_raised = False
        for signo in INTERRUPTS:
            if signal.getsignal(signo) == signal.SIG_DFL:
                try:
                    signal.signal(signo, self._raise)
                except ValueError:
                    break  # only the first thread can set handlers
                self._deadly.append(signo)
        return self

    def _raise(self, signo: int, frame: FrameType | None) -> None:
        if not self._is_raised:  # a second exception would interrupt the handling of the first
            self._is_raised = True
            raise _SignalCame(signo)

    def __exit__(self, kind: object, failure: BaseException | None, trace: object) -> None:
        for signo in self._deadly:
            signal.signal(signo, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)
        if isinstance(failure, _SignalCame):  # die as if it had not been handled
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {failure.signo})
            os.kill(os.getpid(), failure.signo)


@record
class ProgramStart:
    environ: Mapping[str, str]
    stdin: int = -1  # the descriptor for its stdin; -1: /dev/null


def ask(
    command: tuple[str, ...], timeout_s: float, setting: ProgramStart, *, keeps_end: bool = False
) -> ProgramOutput:
    """Run a program (found in PATH) to its end, and return its output.

    ``keeps_end``: keep only the end of any amount of output; otherwise too much is an error. Raises
    ProbeError, also for an exit code other than 0.
    """
    with _Interrupts() as interrupts:
        out, out_end = os.pipe2(os.O_CLOEXEC)
        err, err_end = os.pipe2(os.O_CLOEXEC)
        try:
            os.set_blocking(out, False)
            os.set_blocking(err, False)
            try:
                pid = _spawn(command, setting, out_end, err_end, interrupts.mask)
            finally:
                os.close(out_end)
                os.close(err_end)
            listener = _Listener(command[0], pid, out, err, keeps_end)
            try:
                listener.listen(timeout_s, interrupts.mask)
            finally:
                status = listener.end()
        finally:
            os.close(out)
            os.close(err)
    stderr = bytes(listener.stderr)
    if status:
        how = f"failed with exit code {os.waitstatus_to_exitcode(status)}"
        if os.WIFSIGNALED(status):
            how = f"was killed by {signal_name(os.WTERMSIG(status))}"
        raise ProbeError(f"{one_line(command[0], 60)} {how}{_complaint(stderr, command)}")
    return ProgramOutput(bytes(listener.stdout), stderr)


def _spawn(command: tuple[str, ...], setting: ProgramStart, out: int, err: int, mask: frozenset[int]) -> int:
    """Start the program. Returns its pid. Raises ProbeError."""
    none = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    actions = [
        none if setting.stdin < 0 else (os.POSIX_SPAWN_DUP2, setting.stdin, 0),
        (os.POSIX_SPAWN_DUP2, out, 1),
        (os.POSIX_SPAWN_DUP2, err, 2),
    ]
    shown = one_line(command[0], 60)
    try:
        return os.posix_spawnp(
            command[0],
            command,
            setting.environ,
            file_actions=actions,
            setpgroup=0,
            setsigmask=mask,
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # Python ignores these two
        )
    except FileNotFoundError:
        hint = "install ffmpeg, which includes it" if command[0] == FFPROBE else "see probe_command"
        raise ProbeError(f"there is no {shown}", hint=hint) from None
    except OSError as error:
        hint = "a script must begin with #! and its interpreter" if error.errno == errno.ENOEXEC else ""
        raise ProbeError(f"{shown} cannot be executed: {error.strerror}", hint=hint) from None


class _Listener:
    """Reads a program's output until it ends."""

    def __init__(self, name: str, pid: int, out: int, err: int, keeps_end: bool) -> None:
        self.stdout, self.stderr = bytearray(), bytearray()
        self._name, self._pid, self._err = one_line(name, 60), pid, err
        self._keeps_end = keeps_end
        self._pidfd = os.pidfd_open(pid)
        self._open = [out, err]

    def listen(self, timeout_s: float, mask: frozenset[int]) -> None:
        """Read until the program ends. Raises ProbeError if it takes too long or prints too much."""
        end_s = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, end_s - time.monotonic())
            ready = until_readable([self._pidfd, *self._open], left_s, mask)
            for fd in ready & set(self._open):
                self._read(fd)
            if self._pidfd in ready:
                for fd in self._open:
                    while self._read(fd):
                        pass  # empty the pipe, without waiting for other processes that may write to it
                return
            if time.monotonic() >= end_s:
                after = format_duration(timeout_s)
                hint = "probe_timeout sets the limit"
                raise ProbeError(f"{self._name} had no answer after {after}", hint=hint)

    def _read(self, fd: int) -> bool:
        """Read one piece. Returns whether there was one. Raises ProbeError."""
        try:
            piece = os.read(fd, MOST_BYTES)
        except BlockingIOError:
            return False
        if not piece:
            self._open = [each for each in self._open if each != fd]
            return False
        if fd == self._err:
            self.stderr += piece
            del self.stderr[:-_MOST_COMPLAINT]  # the last lines say why a program failed
            return True
        self.stdout += piece
        if len(self.stdout) > MOST_BYTES:
            if not self._keeps_end:
                raise ProbeError(f"{self._name} printed more than {MOST_BYTES >> 10} KiB, not a number")
            del self.stdout[:-MOST_BYTES]
        return True

    def end(self) -> int:
        """Kill the rest of the group, and reap the program. Returns its status as in waitpid(2)."""
        try:
            try:
                os.killpg(self._pid, signal.SIGKILL)  # not reaped yet, so the pid is still the group's
            except (ProcessLookupError, PermissionError):
                pass  # the rest belongs to another user by now
            if not until_readable([self._pidfd], _DIES_S, None):
                return signal.SIGKILL  # it hangs in the kernel, and will die as soon as it can
            return os.waitpid(self._pid, 0)[1]
        finally:
            os.close(self._pidfd)


def _complaint(stderr: bytes, command: tuple[str, ...]) -> str:
    """The program's last message, without the argument that it names, as the end of an error message."""
    said = [line.strip() for line in stderr.decode("utf-8", "replace").split("\n") if line.strip()]
    if not said:
        return ""
    about = next((word for word in command if word and said[-1].startswith(f"{word}: ")), "")
    return f": {one_line(said[-1].removeprefix(f'{about}: '), 200)}"
