"""Starts the delivery of an event, in a process that nobody waits for."""

from __future__ import annotations

import os

from slicer.kernel import proc
from slicer.kernel.signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slicer.model import Notify


def send(notify: Notify, event: dict[str, Any], history: str) -> None:
    """Start the delivery, and return. ``history``: the path of the user's history.

    ``event`` has at least ``event``, ``job``, ``name``, ``title`` and ``text``. Raises OSError if no process
    can be forked.
    """
    child = os.fork()
    if not child:
        proc.be_child(lambda: _leave(notify, event, os.path.dirname(history)))
    os.waitpid(child, 0)


def _leave(notify: Notify, event: dict[str, Any], directory: str) -> None:
    """Deliver in an orphan without slicer's descriptors: no lease, output or terminal."""
    if os.fork():
        return
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    for signo in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(signo, signal.SIG_DFL)
    from slicer.notify.delivery import deliver

    deliver(notify, event, directory)
