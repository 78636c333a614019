"""Looks at the machine, side by side, each in its own child process with a deadline.

If a driver, a bus or a network file system hangs, the doctor must not hang, nor lose the other looks'
results.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Mapping
from typing import Any

from slicer.errors import SlicerError
from slicer.kernel import proc
from slicer.kernel.signals import signal
from slicer.kernel.sleep import until_readable
from slicer.record import record

_CHUNK = 1 << 16
_MOST_BYTES = 16 << 20


@record
class LookResult:
    """The result of one look. Without ``facts``, ``failed`` is the reason, or "" for a timeout."""

    facts: Any
    failed: str = ""


class _LookChild:
    """A child process that makes one look, and the pipe for its answer."""

    def __init__(self, duty: Callable[[], object]) -> None:
        self.fd, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(writer, True)
        try:
            self.pid = os.fork()
        except OSError:
            os.close(self.fd)
            os.close(writer)
            raise
        if not self.pid:
            proc.be_child(lambda: _answer(duty, writer))
        os.close(writer)
        self.data = b""

    def read(self) -> bool:
        """Read the available data. Returns whether the answer is complete."""
        try:
            chunk = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return False
        self.data += chunk
        return not chunk or len(self.data) > _MOST_BYTES

    def end(self) -> None:
        """Kill the child. One that sleeps in the kernel ends when it wakes."""
        os.close(self.fd)
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, os.WNOHANG)
        except (ProcessLookupError, ChildProcessError):
            return

    def look(self) -> LookResult:
        if not self.data:
            return LookResult(None, "its process ended without an answer")
        answer: LookResult = pickle.loads(self.data)
        return answer


def _answer(duty: Callable[[], object], writer: int) -> None:
    """In the child: make the look, and send the answer."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Ctrl-C ends the doctor, which ends this child. The user should not see what a library prints.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)
    data = pickle.dumps(look(duty))
    while data:
        data = data[os.write(writer, data) :]


def look(duty: Callable[[], object]) -> LookResult:
    """Make one look in this process, without a deadline."""
    try:
        return LookResult(duty())
    except SlicerError as error:
        return LookResult(None, str(error))
    except Exception as error:  # the doctor reports whatever a library raises
        return LookResult(None, f"{type(error).__name__}: {error}")


def take(duties: Mapping[str, Callable[[], object]], deadline_s: float) -> dict[str, LookResult]:
    """Make all looks, and wait at most ``deadline_s`` seconds for them."""
    end_s = time.monotonic() + deadline_s
    children: dict[str, _LookChild] = {}
    found: dict[str, LookResult] = {}
    try:
        for name, duty in duties.items():
            try:
                children[name] = _LookChild(duty)
            except OSError as error:  # no process or no descriptor is available
                found[name] = LookResult(None, f"no process for it: {error.strerror}")
        waiting = dict(children)
        while waiting and (left_s := end_s - time.monotonic()) > 0:
            _read_ready(waiting, left_s)
        for name, child in children.items():
            found[name] = LookResult(None) if name in waiting else child.look()
    finally:
        for child in children.values():
            child.end()
    return found


def _read_ready(waiting: dict[str, _LookChild], left_s: float) -> None:
    """Wait until a child writes, and remove those that have finished."""
    names = {child.fd: name for name, child in waiting.items()}
    for fd in until_readable(list(names), left_s, None):
        if waiting[names[fd]].read():
            del waiting[names[fd]]
