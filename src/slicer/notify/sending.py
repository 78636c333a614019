"""Starts the delivery of an event, in a process that nobody waits for."""

from __future__ import annotations

import os

from slicer.kernel.orphan import start_orphan
from slicer.kernel.signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slicer.model import Notify


def send(notify: Notify, event: dict[str, Any], history: str) -> str:
    """Start the delivery, and return: the problem, in words, if there is one.

    ``event`` has at least ``event``, ``job``, ``name``, ``title`` and ``text``. ``history``: the path of the
    user's history.
    """
    try:
        start_orphan(lambda: _deliver(notify, event, os.path.dirname(history)))
    except OSError as error:
        return f"no notification can be sent: {error.strerror}"
    return ""


def _deliver(notify: Notify, event: dict[str, Any], directory: str) -> None:
    for signo in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(signo, signal.SIG_DFL)
    from slicer.notify.delivery import deliver

    deliver(notify, event, directory)
