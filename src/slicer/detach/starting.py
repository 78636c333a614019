"""Starts a detached job as a service or a process, hands over to it, and learns whether it waits or runs."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from slicer import faults
from slicer.detach import handover, service
from slicer.errors import EX_SLICER, StateError
from slicer.kernel.orphan import start_orphan
from slicer.kernel.signals import signal
from slicer.state.directory import Directory, failed
from slicer.state.socket_files import sweep

_PREFIX = "detach-"
_ANSWER_S = 60.0  # to begin at all; the time until it is ready depends on its request
_LONGEST = 1 << 20  # bytes of messages, in all: the peer is a process of the same user


def program() -> tuple[str, ...]:
    """The command that started this slicer."""
    script = os.path.abspath(sys.argv[0])
    if os.path.basename(script) != "__main__.py" and os.access(script, os.X_OK):
        return (script,)
    return sys.executable, "-m", "slicer"


def taker(path: str) -> tuple[str, ...]:
    """The command that takes the hand-over at ``path``."""
    return sys.executable, "-I", "-S", os.path.abspath(handover.__file__), path


def handed_by_us(
    arguments: Sequence[str], environ: Mapping[str, str], log: str, log_mode: int = 0o666
) -> dict[str, object]:
    """The hand-over to a slicer with these arguments, from this process and its directory."""
    return service.handed(
        (*program(), *arguments), environ, directory=os.getcwd(), log_path=log, umask=_umask(),
        soft_limits=handover.soft_limits(), log_mode=log_mode,
    )  # fmt: skip


def _umask() -> int:
    """Our umask; os.umask could read it only by changing it."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))


class HandOver:
    """A socket that takes one detached job's connection. Raises StateError."""

    def __init__(self, directory: Directory, job: str) -> None:
        self._directory = directory
        self._name = f"{_PREFIX}{job}"
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._job: socket.socket | None = None
        self.path = f"{directory.path}/{self._name}"
        before = os.umask(0o177)  # the directory may be open to others
        try:
            sweep(directory, _PREFIX, socket.SOCK_STREAM)
            self._listening.bind(f"{directory.handle}/{self._name}")
            self._listening.listen(1)
        except OSError as error:
            self._listening.close()
            raise failed(self.path, error, what="cannot be created") from error
        finally:
            os.umask(before)

    def close(self) -> None:
        """Close the connection, and remove the socket."""
        self._listening.close()
        if self._job is not None:
            self._job.close()
        self._directory.remove(self._name)

    def send(self, handed: dict[str, object]) -> None:
        """Wait for the job's process and hand over to it; then it is independent. Raises StateError."""
        data = json.dumps(handed).encode("ascii") + b"\0"
        faults.point("detach-started")
        try:
            self._job = self._accepted()
            faults.point("detach-connected")
            self._job.sendall(data)
            self._job.settimeout(None)
        except OSError as error:
            why = error.strerror or "no answer in time"
            raise StateError(f"the job's process did not take over: {why}", where=self.path) from error
        faults.point("detach-handed")

    def _accepted(self) -> socket.socket:
        end = time.monotonic() + _ANSWER_S
        while (left_s := end - time.monotonic()) > 0:
            self._listening.settimeout(left_s)
            found, _ = self._listening.accept()
            if handover.peer(found)[1] == os.geteuid():
                found.settimeout(left_s)
                return found
            found.close()
        raise TimeoutError

    def hear(self, show: Callable[[str], None]) -> str | int:
        """Wait for "waits" or "runs", or the exit code of a job that did not start. Raises StateError.

        ``show`` gets the job's messages.
        """
        assert self._job is not None
        data = b""
        while len(data) < _LONGEST:
            more = self._job.recv(1 << 16)
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
        raise StateError("its process was ended before it could report whether the job runs")


def start_process(command: Sequence[str], mask: frozenset[int]) -> None:
    """Execute a command as a process without our session, terminal or descriptors.

    ``mask``: its signal mask. Raises OSError. If it cannot be executed, the caller gets no connection.
    """

    def execute() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execv(command[0], list(command))

    start_orphan(execute)


class DetachCaller:
    """The connection of a detached job's process to the caller. If the caller has ended, nothing is sent."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        try:
            os.set_inheritable(handover.CALLER_FD, False)
            found = socket.socket(fileno=handover.CALLER_FD)
        except OSError:
            return  # somebody typed the hidden option
        if handover.peer(found)[1] != os.geteuid():
            found.detach()  # an unrelated descriptor
            return
        self._socket = found
        # A keeper's copy would hide our death from the caller.
        os.register_at_fork(after_in_child=self._close)

    def hear(self, message: str) -> None:
        """Send a message for people."""
        self._say(f"m{message}")

    def be_ready(self, state: str) -> None:
        """Report that the job waits or runs."""
        self._say(f"s{state}")
        self._close()

    def fail(self, exit_code: int) -> None:
        """Report that the job did not start."""
        self._say(f"f{exit_code}")
        self._close()

    def _say(self, text: str) -> None:
        if self._socket is None:
            return
        try:
            # Without blocking: a stopped caller must not stop the job.
            self._socket.send(text.encode("utf-8", "backslashreplace") + b"\0", socket.MSG_DONTWAIT)
        except OSError:
            self._close()

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
