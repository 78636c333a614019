"""Run a command that cannot outlive its starter: it is killed as soon as standard input reaches its end.

The starter holds the other end of that pipe, so the kernel closes it however the starter dies, also through
sudo. As a program, `python -m tests.machines.tether [--remove DIR] [--tty] -- CMD…` removes DIR at the end,
and with --tty gives the command the terminal as its standard input.
"""

from __future__ import annotations

import argparse
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# Should the tether itself be killed with SIGKILL, the kernel kills its child.
_DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")


def start(
    argv: Sequence[str], *, stdin: int = subprocess.DEVNULL, stdout: int | None = None
) -> subprocess.Popen[bytes]:
    """Start the command, for `wait`. Call it from the main thread: that one's end would be the command's."""
    return subprocess.Popen([*_DIE_WITH_PARENT, *argv], stdin=stdin, stdout=stdout)


def wait(child: subprocess.Popen[bytes]) -> int:
    """Wait for the child's end, or kill it when standard input ends; its exit status, as Popen gives it."""
    pidfd = os.pidfd_open(child.pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.register(0, select.POLLIN)
        while child.poll() is None:
            ready = {fd for fd, _ in poll.poll()}
            if 0 in ready and not os.read(0, 4096):
                break
    finally:
        child.kill()
        child.wait()
        os.close(pidfd)
    return child.returncode


def end_tethered(tether: subprocess.Popen[bytes], timeout_s: float) -> None:
    """The starter's side: close a tether's pipe and wait until it has cleaned up. Calling twice is fine."""
    assert tether.stdin is not None
    tether.stdin.close()
    try:
        tether.wait(timeout_s)
    except subprocess.TimeoutExpired:
        tether.kill()
        tether.wait()
    if tether.stdout is not None:
        tether.stdout.close()


def handle_signals() -> None:
    """Leave Ctrl-C to what the user looks at; make SIGTERM an orderly end. (Children get the defaults.)"""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--remove", type=Path)
    parser.add_argument("--tty", action="store_true")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(argv)
    handle_signals()
    stdin = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC) if options.tty else subprocess.DEVNULL
    try:
        return abs(wait(start(options.command, stdin=stdin)))
    finally:
        if options.remove is not None:
            shutil.rmtree(options.remove, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
