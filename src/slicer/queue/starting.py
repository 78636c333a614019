"""Getting many processes into their scopes at a time, without waiting for systemd.

A call to systemd takes it some milliseconds, and seconds when memory is short; the D-Bus library that there
is waits for the answer. So two small processes do nothing else than to call and wait for it. They are forked
before the queue opens anything, and end with it.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import sys
from typing import TYPE_CHECKING, Protocol

from slicer.errors import BackendError

if TYPE_CHECKING:
    from typing import NoReturn

    from slicer.backend import BatchBackend
    from slicer.model import ScopeSpec

_CALLERS = 2  # enough to keep systemd busy: it does one thing at a time
_LONGEST = 1 << 20  # bytes of a message


class Starts(Protocol):
    """Puts keepers into their scopes."""

    def begin(self, job: str, spec: ScopeSpec, pid: int) -> None:
        """Ask for the scope of a job, with the process in it. Raises BackendError."""

    def poll(self, job: str) -> str | None:
        """The cgroup, once the scope stands (asked for once); None until then. Raises BackendError."""

    def forget(self, job: str) -> None:
        """Nobody will ask for that one any more."""

    def descriptors(self) -> list[int]:
        """What becomes readable when :meth:`poll` may know more."""

    def close(self) -> None:
        """End what was begun for it."""


def starts_for(backend: BatchBackend) -> Starts:
    """The way for this backend. To be called before there are descriptors that nobody must inherit."""
    return _Remote(backend) if backend.name == "systemd" else _Direct(backend)


class _Direct:
    """Without systemd there is nobody to wait for."""

    def __init__(self, backend: BatchBackend) -> None:
        self._backend = backend
        self._found: dict[str, str] = {}

    def begin(self, job: str, spec: ScopeSpec, pid: int) -> None:
        self._found[job] = self._backend.start(spec, pid, lambda: None)

    def poll(self, job: str) -> str | None:
        return self._found.pop(job, None)

    def forget(self, job: str) -> None:
        self._found.pop(job, None)

    def descriptors(self) -> list[int]:
        return []

    def close(self) -> None:
        self._found.clear()


class _Remote:
    def __init__(self, backend: BatchBackend) -> None:
        self._callers = [_Caller(backend) for _ in range(_CALLERS)]
        self._found: dict[str, str | BackendError] = {}

    def begin(self, job: str, spec: ScopeSpec, pid: int) -> None:
        min(self._callers, key=lambda caller: len(caller.asked)).ask(job, spec, pid)

    def poll(self, job: str) -> str | None:
        if job not in self._found:
            for caller in self._callers:
                self._found.update(caller.take())
        found = self._found.pop(job, None)
        if isinstance(found, BackendError):
            raise found
        return found

    def forget(self, job: str) -> None:
        self._found.pop(job, None)
        for caller in self._callers:
            caller.forget(job)

    def descriptors(self) -> list[int]:
        return [caller.fd for caller in self._callers if caller.asked]

    def close(self) -> None:
        for caller in self._callers:
            caller.close()


class _Caller:
    """One of the processes; forked anew where it was killed."""

    def __init__(self, backend: BatchBackend) -> None:
        self._backend = backend
        self.asked: set[str] = set()  # jobs without an answer
        self._begin()

    @property
    def fd(self) -> int:
        return self._socket.fileno()

    def _begin(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._pid = os.fork()
        except OSError as error:
            theirs.close()
            raise BackendError(f"cannot fork: {error.strerror}", hint="see ulimit -u and TasksMax") from error
        if self._pid == 0:
            _call(theirs, self._backend)
        theirs.close()
        self._socket.setblocking(False)

    def ask(self, job: str, spec: ScopeSpec, pid: int) -> None:
        """Raises BackendError."""
        try:
            self._socket.send(pickle.dumps((job, spec, pid)))
        except OSError:
            self._renew()
            raise _gone() from None
        self.asked.add(job)

    def take(self) -> dict[str, str | BackendError]:
        """The answers that have come."""
        found: dict[str, str | BackendError] = {}
        try:
            while data := self._socket.recv(_LONGEST):
                job, answer = pickle.loads(data)
                if job in self.asked:
                    self.asked.remove(job)
                    found[job] = answer
        except BlockingIOError:
            return found
        except ConnectionResetError:
            pass
        found.update(dict.fromkeys(self.asked, _gone()))
        self._renew()
        return found

    def forget(self, job: str) -> None:
        self.asked.discard(job)

    def _renew(self) -> None:
        self.close()
        self.asked.clear()
        self._begin()

    def close(self) -> None:
        """End the process, and wait for it."""
        self._socket.close()
        os.waitpid(self._pid, 0)


def _gone() -> BackendError:
    return BackendError("the process that calls systemd was killed")


def _call(theirs: socket.socket, backend: BatchBackend) -> NoReturn:
    """Call systemd for whoever asks, until nobody does any more. Never returns: this is a forked child."""
    code = 1
    try:
        gc.disable()
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        os.setsid()
        kept = {0, 1, 2, theirs.fileno()}
        for name in os.listdir("/proc/self/fd"):
            if int(name) not in kept:
                _close(int(name))
        backend.after_fork()
        while data := theirs.recv(_LONGEST):
            job, spec, pid = pickle.loads(data)
            theirs.send(pickle.dumps((job, _answer(backend, spec, pid))))
        code = 0
    except (BrokenPipeError, ConnectionResetError):
        code = 0  # the queue has ended
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _answer(backend: BatchBackend, spec: ScopeSpec, pid: int) -> str | BackendError:
    try:
        return backend.start(spec, pid, lambda: None)
    except BackendError as error:
        backend.close()  # whatever state the connection is in, the next one is new
        return BackendError(error.message, where=error.where, hint=error.hint)
    except OSError as error:  # the keeper has just been killed
        return BackendError(f"{spec.unit} cannot be started: {error.strerror}")


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:
        return  # the one by which they were listed
