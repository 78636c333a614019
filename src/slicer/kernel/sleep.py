"""Sleeping until a descriptor is readable or a deadline is due."""

from __future__ import annotations

import select
import time

from slicer.kernel.proc import LONGEST_POLL_S
from slicer.kernel.signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


_LOOKS_AT_CLOCK_S = 60.0


def soonest(*limits_s: float | None) -> float | None:
    """The least of these numbers of seconds; None (for ever) if there is none."""
    return min((limit_s for limit_s in limits_s if limit_s is not None), default=None)


def until_readable(
    descriptors: list[int], timeout_s: float | None, mask: frozenset[int] | None, *,
    urgent: Iterable[int] = (),
) -> frozenset[int]:  # fmt: skip
    """Sleep until one of the descriptors is readable, or for ``timeout_s`` seconds (None: for ever).

    ``urgent``: further descriptors, with exceptional events (POLLPRI), as of cgroup.events. Returns those
    with events. A sleep ends after a day at the latest. ``mask`` is the signal mask while asleep (None:
    unchanged); a signal that it lets through is taken before or during the sleep.
    """
    poll = select.poll()
    for fd in descriptors:
        poll.register(fd, select.POLLIN)
    for fd in urgent:
        poll.register(fd, select.POLLPRI)
    timeout_ms = None if timeout_s is None else min(timeout_s, LONGEST_POLL_S) * 1000
    if mask is None:
        return frozenset(fd for fd, _ in poll.poll(timeout_ms))
    before = signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        return frozenset(fd for fd, _ in poll.poll(timeout_ms))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def until_moment(at: float, mask: frozenset[int] | None) -> None:
    """Sleep until this time, in seconds since 1970. ``mask``: as in :func:`until_readable`."""
    while left_s := seconds_until_moment(at):
        until_readable([], left_s, mask)


def seconds_until_moment(at: float | None) -> float | None:
    """How long to sleep before this time, in seconds since 1970; None: for ever.

    Somebody may set the clock, or suspend the machine. So the caller looks again after a minute.
    """
    return None if at is None else min(max(0.0, at - time.time()), _LOOKS_AT_CLOCK_S)


def seconds_until(*due: float | None) -> float | None:
    """The seconds until the earliest of these monotonic times, at least 0; None if there is none."""
    first = soonest(*due)
    return None if first is None else max(0.0, first - time.monotonic())
