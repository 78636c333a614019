"""Two more users beside a soak of the broker: one hangs up at bad moments, one only wants a no-op done."""

from __future__ import annotations

import os
import pwd
import random
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from slicer.broker.client.connection import Connection
from slicer.broker.protocol import messages, wire
from slicer.errors import BrokerError
from slicer.state import BROKER
from tests.broker_client import DEFAULTS


def be(user: str, act: Callable[[], None]) -> int:
    """A process of that user's which does this to its end; its pid."""
    entry = pwd.getpwnam(user)
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setgroups([])
        os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
        os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        act()
    finally:
        os._exit(1)


def _asked(**wish: object) -> messages.Acquire:
    return messages.Acquire(**{**DEFAULTS, "job": os.urandom(6).hex(), **wish})


def hang_up_for_ever(seed: int) -> None:
    """Ask with a patience of some milliseconds, and hang up at about that time."""
    dice = random.Random(f"{seed}:hangs up")
    while True:
        patience_s = dice.uniform(0.001, 0.02)
        with socket.socket(socket.AF_UNIX) as caller:
            try:
                caller.connect(BROKER)
                asked = _asked(slots={"cpu": 1}, max_wait_s=patience_s, runs_anyway=dice.random() < 0.5)
                caller.sendall(wire.encode_call(asked, more=True))
            except OSError:
                pass  # the broker was killed
            time.sleep(patience_s * dice.uniform(0.5, 1.5))


def want_a_no_op(told: Path) -> None:
    """Ask for what nobody else wants, again and again, and write down the worst time, in seconds."""
    worst_s = 0.0
    while True:
        asked, began_s = _asked(slots={"own": 1}, slot_limits={"own": 1}, wait=False), time.monotonic()
        connection = Connection(BROKER)
        try:
            connection.ask(asked, timeout_s=60.0)
            took_s = time.monotonic() - began_s
            connection.ask(messages.Release(asked.job), timeout_s=60.0)
        except BrokerError:  # the broker was killed, and asked anew
            took_s = 0.0
        finally:
            connection.close()
        if took_s > worst_s:
            worst_s = took_s
            told.write_text(f"{worst_s:.3f}")
        time.sleep(0.05)
