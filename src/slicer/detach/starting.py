"""Starts a detached job as a service or a process, hands over to it, and learns whether it waits or runs."""

from __future__ import annotations

import _socket
import errno
import os
import sys

from slicer import faults
from slicer.detach import handover, service
from slicer.errors import EX_SLICER, StateError
from slicer.kernel.orphan import start_orphan
from slicer.kernel.peer import credentials
from slicer.kernel.signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Self

_ANSWER_S = 60.0  # to read the hand-over; the time until it is ready depends on its request
_LONGEST = 1 << 20  # bytes of messages, in all: the peer is a process of the same user


def program() -> tuple[str, ...]:
    """The command that started this slicer."""
    script = os.path.abspath(sys.argv[0])
    if os.path.basename(script) != "__main__.py" and os.access(script, os.X_OK):
        return (script,)
    return sys.executable, "-m", "slicer"


def taker(path: str) -> tuple[str, ...]:
    """The command of a service, which takes the hand-over from the file ``path``, or from its stdin."""
    command = sys.executable, "-I", "-S", os.path.abspath(handover.__file__)
    return (*command, path) if path else command


def handed_by_us(
    arguments: Sequence[str], environ: Mapping[str, str], log: str, log_mode: int = 0o666, *,
    reports: bool = True,
) -> dict[str, object]:  # fmt: skip
    """The hand-over to a slicer with these arguments, from this process and its directory.

    ``reports``: that slicer says on the connection what becomes of it; else its start ends the connection.
    """
    return service.handed(
        (*program(), *arguments), environ, directory=os.getcwd(), log_path=log, umask=_umask(),
        soft_limits=handover.soft_limits(), log_mode=log_mode, reports=reports,
    )  # fmt: skip


def _umask() -> int:
    """Our umask; os.umask could read it only by changing it."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))


class HandOver:
    """The connection to one detached job: a pair of sockets, to which nobody else can connect.

    ``given`` becomes the stdin of the job's process.
    """

    def __init__(self) -> None:
        self._own, self.given = _socket.socketpair()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.given.close()
        self._own.close()

    def introduced(self) -> int:
        """The pid of the process that was started. Raises StateError."""
        self.given.close()  # so that the end of that process ends the connection
        self._own.settimeout(_ANSWER_S)
        said = b""
        try:
            while not said.endswith(b"\0"):
                more = self._own.recv(1)
                if not more:
                    raise ConnectionError(errno.EPIPE, "it has ended")
                said += more
        except OSError as error:
            raise _not_taken(error) from error
        return int(said[:-1])

    def send(self, handed: dict[str, object]) -> None:
        """Hand over to the process, which was started; then it is independent. Raises StateError."""
        faults.point("detach-started")
        try:
            self._own.sendall(handover.packed(handed) + b"\0")
        except OSError as error:
            raise _not_taken(error) from error
        self._own.settimeout(None)
        faults.point("detach-handed")

    def hear(self, show: Callable[[str], None], at_end: str = "") -> str | int:
        """Wait for "waits" or "runs", or the exit code of a job that did not start. Raises StateError.

        ``show`` gets the job's messages. ``at_end``: what the end of the connection means; "": an error.
        """
        data = b""
        while len(data) < _LONGEST:
            try:
                more = self._own.recv(1 << 16)
            except ConnectionError:  # it was ended before it had read all
                more = b""
            *words, data = (data + more).split(b"\0")
            for word in words:
                kind, text = word[:1], word[1:].decode("utf-8", "replace")
                if kind == b"s":
                    return text
                if kind == b"f":
                    return int(text) if text.isdigit() else EX_SLICER
                show(text)
            if not more:
                break
        if at_end:
            return at_end
        raise StateError("its process was ended before it could report whether the job runs")


def _not_taken(error: OSError) -> StateError:
    return StateError(f"its process did not take over: {error.strerror or 'no answer in time'}")


def start_process(mask: frozenset[int], stdin: int) -> None:
    """Take the hand-over in a process without our session, terminal or descriptors but ``stdin``.

    ``mask``: its signal mask. Raises OSError.
    """

    def take() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        handover.take()

    start_orphan(take, stdin)


class DetachCaller:
    """The connection of a detached job's process to the caller. If the caller has ended, nothing is sent."""

    def __init__(self) -> None:
        self._socket: _socket.socket | None = None
        try:
            os.set_inheritable(handover.CALLER_FD, False)
            found = _socket.socket(fileno=handover.CALLER_FD)
        except OSError:
            return  # somebody typed the hidden option
        if credentials(found)[1] != os.geteuid():
            found.detach()  # an unrelated descriptor
            return
        self._socket = found
        # A keeper's copy would hide our death from the caller.
        os.register_at_fork(after_in_child=self._close)

    def hear(self, message: str) -> bool:
        """Send a message for people; whether the caller is there to show it."""
        return self._say(f"m{message}")

    def be_ready(self, state: str) -> None:
        """Report that the job waits or runs."""
        self._say(f"s{state}")
        self._close()

    def fail(self, exit_code: int) -> None:
        """Report that the job did not start."""
        self._say(f"f{exit_code}")
        self._close()

    def _say(self, text: str) -> bool:
        if self._socket is None:
            return False
        try:
            # Without blocking: a stopped caller must not stop the job.
            self._socket.send(text.encode("utf-8", "backslashreplace") + b"\0", _socket.MSG_DONTWAIT)
        except OSError:
            self._close()
            return False
        return True

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
