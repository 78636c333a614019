"""Delivers an event to its destinations, one after the other.

Each has its own process group and a time limit. Failures are warnings in the journal.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from slicer.kernel import proc
from slicer.kernel.sleep import until_readable
from slicer.kernel.users import user_name
from slicer.model import Notify
from slicer.notify.events import variables
from slicer.outcome import journal

LIMIT_S = 30.0  # for each destination
MOST, WITHIN_S = 20, 60.0  # the largest number of messages within a time
_FILE = "notified"  # beside the history: when the last messages were sent
_BUS = "org.freedesktop.Notifications"
_SHOWN_MS = 15_000


def deliver(notify: Notify, event: dict[str, Any], directory: str) -> None:
    """Deliver to all destinations. ``directory`` is the history's."""
    told = {
        "v": 1, "at": round(time.time(), 3), "host": socket.gethostname(),
        "user": user_name(os.geteuid()), **event,
    }  # fmt: skip
    try:
        room = _room(directory, time.time())
    except OSError as error:
        return _warn(told, f"not sent: {_FILE} beside the history cannot be used: {error.strerror}")
    if room <= 0:
        if room == 0:
            _warn(told, f"more than {MOST} messages within {WITHIN_S:g} s: further ones are not sent")
        return None
    if notify.command:
        _try(told, f"the command {notify.command[0]}", lambda: _execute(notify.command, told))
    if notify.desktop:
        _try(told, "the desktop", lambda: _execute(_on_desktop(told), told))
    for url in notify.urls:
        _try(told, f"{url.partition(':')[0]}: (urls)", partial(_apprise, url, told))
    return None


def _room(directory: str, now_s: float) -> int:
    """The number of messages that may be sent now; 0 for the first excess one. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    os.makedirs(directory, 0o700, exist_ok=True)  # the first job may not have ended yet
    fd = os.open(f"{directory}/{_FILE}", flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            sent = [at for at in json.loads(os.read(fd, 1 << 16) or b"[]") if now_s - WITHIN_S < at <= now_s]
        except (ValueError, TypeError, RecursionError):
            sent = []
        room = MOST - len(sent)
        if room >= 0:
            os.pwrite(fd, data := json.dumps([*sent, now_s]).encode(), 0)
            os.ftruncate(fd, len(data))
        return room
    finally:
        os.close(fd)


def _try(event: dict[str, Any], what: str, act: Callable[[], None]) -> None:
    """Run ``act`` in its own process group, within the time limit."""
    child = os.fork()
    if not child:
        proc.be_child(lambda: _lead(act))
    try:
        os.setpgid(child, child)  # both do it, because either may be first
    except PermissionError:
        pass  # it has executed its program already
    pidfd = os.pidfd_open(child)
    in_time = until_readable([pidfd], LIMIT_S, None)
    os.close(pidfd)
    os.killpg(child, signal.SIGKILL)  # and its leftovers
    _, status = os.waitpid(child, 0)
    if not in_time:
        _warn(event, f"{what} took longer than {LIMIT_S:g} s")
    elif status:
        _warn(event, f"{what} failed with {os.waitstatus_to_exitcode(status)}")


def _lead(act: Callable[[], None]) -> None:
    os.setpgid(0, 0)
    act()


def _execute(command: tuple[str, ...], event: dict[str, Any]) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    stdin = os.memfd_create("event")
    os.write(stdin, json.dumps(event).encode() + b"\n")
    os.lseek(stdin, 0, os.SEEK_SET)
    os.dup2(stdin, 0)
    os.execvpe(command[0], command, {**os.environ, **variables(event)})


def _on_desktop(event: dict[str, Any]) -> tuple[str, ...]:
    path = f"/{_BUS.replace('.', '/')}"
    return (
        "busctl", "--user", "call", _BUS, path, _BUS, "Notify", "susssasa{sv}i", "slicer", "0", "",
        event["title"], event["text"], "0", "0", str(_SHOWN_MS),
    )  # fmt: skip


def _apprise(url: str, event: dict[str, Any]) -> None:
    """Send through apprise. A failure is raised, so the process exits with another code than 0."""
    import apprise

    sender = apprise.Apprise()
    if not sender.add(url) or not sender.notify(title=event["title"], body=event["text"]):
        raise SystemExit(1)


def _warn(event: dict[str, Any], text: str) -> None:
    journal.event("untold", job=event["job"], name=event["name"], message=f"{event['name']}: {text}")
