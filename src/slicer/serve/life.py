"""The life of a server, from the first request until its memory is free again: what happens next. Pure.

:func:`step` takes an event and returns the actions. The owner of a server passes it all events in order, and
carries out the actions. So nothing is acquired or started twice, and no request reaches a server that is
about to go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from slicer.record import record, replace
from slicer.serve.terms import State

Event = Literal[
    "came",  # a request that needs the GPU
    "gave_up",  # the client of a request that was not forwarded yet is gone
    "began",  # a call of slicer's own began, such as loading a model; it counts as a forwarded request
    "done",  # a forwarded request has ended
    "granted",  # the lease is held; a server that slicer starts is being started
    "refused",  # others hold the GPU and slicer must not wait, or there can be no lease
    "ready",  # the server answers
    "failed",  # the server did not become ready
    "ended",  # its job has ended by itself
    "free",  # released: the memory is free, and the lease given back
    "stuck",  # release_timeout is over, and the memory is still in use
    "crowded",  # another job waits for this server's GPU
    "uncrowded",
    "rivalled",  # a server at the same address waits for it
    "unrivalled",
    "time",  # only time has passed
    "close",  # slicer serve has to end; the second time: at once
]
Action = Literal[
    "acquire",  # ask for the lease, and start the server once it is held
    "withdraw",  # cancel the request for the lease
    "admit",  # forward the requests that wait
    "refuse",  # tell those that wait that the server is busy, or why it failed
    "release",  # unload or end the job until that succeeds; "stuck" may follow, and "free" will
]

_LONGEST_PAUSE_S = 60.0  # between attempts after failed starts


@record
class LifeTimings:
    """The settings of a server's life, in seconds."""

    idle_s: float
    min_hold_s: float
    drain_s: float
    give_way: bool


@record
class Life:
    """The state of a server. Times in seconds, on a monotonic clock."""

    state: State = "stopped"
    since_s: float = 0.0  # in this state
    held_since_s: float = 0.0  # the lease
    waiting: int = 0  # requests that are not forwarded yet
    running: int = 0  # forwarded requests
    idle_since_s: float = 0.0  # the end of the last request
    failures: int = 0  # consecutive failed starts
    not_before_s: float = 0.0  # the earliest time for the next start
    is_crowded: bool = False
    is_rivalled: bool = False
    is_closing: bool = False
    is_hurried: bool = False  # do not wait for requests

    @property
    def is_idle(self) -> bool:
        """Whether it holds a lease that nobody uses."""
        return self.state == "ready" and not self.running


def step(life: Life, event: Event, now_s: float, bounds: LifeTimings) -> tuple[Life, tuple[Action, ...]]:
    """The server's new state after this event, and the actions, in this order."""
    life, actions = _happened(life, event, now_s)
    life, more = _settled(life, now_s, bounds)
    return life, (*actions, *more)


def next_to_go(crowded: Sequence[Life]) -> Life | None:
    """Of servers for whose GPUs another job waits the idle one to release now; None: none yet.

    They go one at a time, the one that is idle for longest first: each may be enough for who waits.
    """
    if any(each.state == "releasing" for each in crowded):
        return None
    idle = [each for each in crowded if each.is_idle]
    return min(idle, key=lambda each: each.idle_since_s, default=None)


def due_s(life: Life, bounds: LifeTimings) -> float | None:
    """When :func:`step` needs the next "time" event; None: not before another event."""
    if life.state == "draining" and life.is_closing:
        return life.since_s + bounds.drain_s
    if life.state != "ready":
        return None
    ends = [life.idle_since_s + bounds.idle_s] if life.is_idle else []
    ends += [life.held_since_s + bounds.min_hold_s] if life.is_rivalled else []
    return min(ends, default=None)


def _happened(life: Life, event: Event, now_s: float) -> tuple[Life, tuple[Action, ...]]:
    match event:
        case "came" if life.state == "ready":
            return replace(life, running=life.running + 1), ("admit",)
        case "came":
            return replace(life, waiting=life.waiting + 1), ()
        case "gave_up":
            return replace(life, waiting=max(0, life.waiting - 1)), ()
        case "began":
            return replace(life, running=life.running + 1), ()
        case "done":
            return replace(life, running=max(0, life.running - 1), idle_since_s=now_s), ()
        case "crowded" | "uncrowded":
            return replace(life, is_crowded=event == "crowded"), ()
        case "rivalled" | "unrivalled":
            return replace(life, is_rivalled=event == "rivalled"), ()
        case "close":
            return replace(life, is_closing=True, is_hurried=life.is_closing), ()
        case _:  # time, or news of the lease and the server
            return _moved(life, event, now_s)


def _moved(life: Life, event: Event, now_s: float) -> tuple[Life, tuple[Action, ...]]:
    """The effect of news of the lease and the server; none if slicer has given them up meanwhile."""
    match life.state, event:
        case "waiting", "granted":
            life = replace(life, held_since_s=now_s, is_crowded=False, is_rivalled=False)
            return _into(life, "starting", now_s), ()
        case "waiting", "refused":
            return replace(_into(life, "stopped", now_s), waiting=0), ("refuse",)
        case "starting", "ready":
            # Earlier requests may not have noticed yet that their server is gone.
            running = life.running + life.waiting
            life = replace(life, running=running, waiting=0, failures=0, idle_since_s=now_s)
            return _into(life, "ready", now_s), ("admit",)
        case "starting", "failed" | "ended":
            failures = life.failures + 1
            pause_s = 0.0 if failures == 1 else min(2.0**failures, _LONGEST_PAUSE_S)
            life = replace(life, waiting=0, failures=failures, not_before_s=now_s + pause_s)
            return _into(life, "releasing", now_s), ("refuse", "release")
        case "ready" | "draining", "ended":
            # The cut tells the forwarded requests. The memory has to become free all the same.
            return _into(life, "releasing", now_s), ("release",)
        case "releasing" | "stuck", "free":
            return _into(life, "stopped", now_s), ()
        case "releasing", "stuck":
            return _into(life, "stuck", now_s), ()
        case _:
            return life, ()


def _settled(life: Life, now_s: float, bounds: LifeTimings) -> tuple[Life, tuple[Action, ...]]:
    """What follows from the new state."""
    must_refuse = life.is_closing or (life.state == "stopped" and now_s < life.not_before_s)
    if must_refuse and life.waiting:
        life, more = _settled(replace(life, waiting=0), now_s, bounds)
        return life, ("refuse", *more)
    if life.state == "stopped" and life.waiting:
        return _into(life, "waiting", now_s), ("acquire",)
    if life.state == "waiting" and not life.waiting:
        return _into(life, "stopped", now_s), ("withdraw",)
    if life.state == "starting" and life.is_closing:
        return _into(life, "releasing", now_s), ("release",)
    if life.state == "ready" and _is_to_go(life, now_s, bounds):
        life = _into(life, "draining", now_s)
    is_late = life.is_hurried or now_s >= life.since_s + bounds.drain_s
    is_cut = life.state == "draining" and life.is_closing and is_late
    if life.state == "draining" and (not life.running or is_cut):
        return _into(life, "releasing", now_s), ("release",)
    return life, ()


def _is_to_go(life: Life, now_s: float, bounds: LifeTimings) -> bool:
    """Whether a ready server must be released once its requests have ended."""
    if life.is_closing:
        return True
    if life.is_rivalled and (life.is_idle or now_s >= life.held_since_s + bounds.min_hold_s):
        return True
    if not life.is_idle:
        return False
    return (bounds.give_way and life.is_crowded) or now_s >= life.idle_since_s + bounds.idle_s


def _into(life: Life, state: State, now_s: float) -> Life:
    return replace(life, state=state, since_s=now_s)
