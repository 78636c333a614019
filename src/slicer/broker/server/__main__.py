"""The broker's process. systemd starts it through its socket and provides its directories."""

from __future__ import annotations

import os
import sys

from slicer.broker.server.broker import Broker, Places
from slicer.errors import SlicerError
from slicer.kernel.signals import signal

_FIRST_SOCKET = 3  # sd_listen_fds(3)
EX_NOT_ASKED = 64  # sysexits(3): started by hand


def main() -> None:
    """Serve, then exit. Never returns."""
    os._exit(_run())  # Python takes 10 ms to shut down, and nothing is buffered


def _run() -> int:
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS") != "1":
        _log("<3>systemd starts the broker by its socket: run systemctl start slicer-broker.socket")
        return EX_NOT_ASKED
    os.set_inheritable(_FIRST_SOCKET, False)
    ends: list[int] = []
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    for signo in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signo, lambda number, _: ends.append(number))
    signal.set_wakeup_fd(writer)
    try:
        broker = Broker(_FIRST_SOCKET, _places(), _log)
    except SlicerError as error:
        _log(f"<3>{error}")
        return 1
    broker.wake_by(reader)
    broker.run(lambda: bool(ends))
    broker.close()
    return 0


def _places() -> Places:
    """The unit's directories (RuntimeDirectory= and so on), else the usual ones."""
    usual = Places()
    return Places(
        os.environ.get("RUNTIME_DIRECTORY", usual.state),
        os.environ.get("STATE_DIRECTORY", usual.accounts),
        os.environ.get("CONFIGURATION_DIRECTORY", usual.configuration),
    )


def _log(text: str) -> None:
    try:
        os.write(sys.stderr.fileno(), f"{text}\n".encode("utf-8", "replace"))
    except OSError:
        pass  # the journal is full or does not run: no reason to stop serving


if __name__ == "__main__":
    main()
