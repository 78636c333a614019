"""The life of a job's command, from its start to the end of all that it left: what happens next. Pure.

:func:`step` takes an event and returns the actions. The command's parent (:mod:`slicer.job.command`) passes
it all events in order, and carries out the actions. So no order of signals, limits and ends asks a process
twice, loses a deadline, or changes what is said of an end that was decided. Times are in seconds on a
monotonic clock.
"""

from __future__ import annotations

from slicer.kernel.signals import signal
from slicer.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Literal

    from slicer.job.stop_rule import StopRule
    from slicer.model import EndedBy, Reason

    Name = Literal[
        "passed",  # the supervisor passes a signal on
        "direct",  # a signal that the command has got, too; "by": terminal, systemd or shutdown, if known
        "stop",  # the job is to end by this rule; None: at once
        "systemd",  # the same, and systemd will kill all processes when its time is over
        "exceeds",  # a limit that is watched here
        "ended",  # the command has ended, perhaps not the processes that it started
        "left",  # such processes live
        "killed",  # SIGKILL was sent
        "spared",  # those that live belong to another user: it could not be sent
        "time",  # only time has passed
    ]
    Action = Literal[
        "send",  # the event's signal to the command
        "send all",  # to all processes
        "ask",  # those whose turn it is by the rule, each once
        "kill",  # all processes; "killed" or "spared" follows
        "report",  # to the supervisor, which may be the only one to survive
    ]

# If a command ends by one of these, the sender that we saw most likely sent it to the command, too.
ENDING = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM})

# A signal to the whole process group also reached the command. It is not forwarded again within this time.
_SAME_SIGNAL_S = 1.0

# A command's helpers may need a moment to notice its end: Python's resource tracker, workers with a pipe.
_BY_THEMSELVES_S = 0.5

# What podman runs beside a container ends by itself, soon after that. If it were ended first, podman would
# show the container as running for ever.
_BESIDE = frozenset(("conmon", "fuse-overlayfs", "pasta", "pasta.avx2", "rootlessport", "slirp4netns"))
_AFTER_CONTAINERS_S = 10.0  # podman's clean-up takes seconds on a loaded machine
_BEFORE_END_S = 0.2  # of a stop's whole time

_KILL_AGAIN_S = 0.1  # a fork bomb outruns one round, and some processes die slowly
_BEFORE_SYSTEMD_S = 1.0  # SIGKILL comes this much before systemd's, which also kills us; at most a tenth


@record
class Terms:
    """What does not change during a life."""

    stop: StopRule
    linger: bool  # wait for what the command leaves, instead of ending it
    timeout_s: float | None  # that is kept here; None: none is
    has_scope: bool  # systemd kills what is left


@record
class Event:
    """Something that has happened."""

    name: Name
    signo: int = 0
    by: EndedBy = ""
    reason: Reason = "stopped"
    rule: StopRule | None = None
    is_beside: bool = False  # of "left": all of them are podman's, beside containers that have ended


@record
class Life:
    """The state of a command and of the processes that it started."""

    began_s: float
    rule: StopRule  # by which the job ends, once it is asked to
    ended_s: float | None = None  # the command; None: it runs
    reason: Reason | None = None  # set once something other than the command decides its end
    ended_by: EndedBy = ""
    senders: Mapping[int, EndedBy] = {}  # of signals by which the command may end
    direct_s: Mapping[int, float] = {}  # when a signal last came not from the supervisor
    asked_s: float | None = None  # when the first was asked to end
    all_s: float | None = None  # when those are asked that were not asked yet
    kill_s: float | None = None
    beside_s: float | None = None  # until when podman's own are spared, alone; 0: no longer; None: not alone

    def is_done(self, terms: Terms) -> bool:
        """Whether the command has ended, and what it left is not waited for."""
        return self.ended_s is not None and not terms.linger

    def ends_leftovers(self, now_s: float, terms: Terms) -> bool:
        """Whether what an ended command left is to end now."""
        if self.beside_s is not None and now_s < self.beside_s:
            return False
        if self.reason is not None:
            return True
        return not terms.linger and now_s >= (self.ended_s or 0.0) + _BY_THEMSELVES_S


def due_s(life: Life, terms: Terms) -> float | None:
    """When :func:`step` needs the next "time" or "left" event; None: not before another event."""
    at = [each for each in (life.all_s, life.kill_s) if each is not None]
    if life.reason is None and life.ended_s is not None and not terms.linger and life.asked_s is None:
        at.append(max(life.ended_s + _BY_THEMSELVES_S, life.beside_s or 0.0))
    elif life.beside_s:
        at.append(life.beside_s)
    if life.reason is None and terms.timeout_s is not None and not life.is_done(terms):
        at.append(life.began_s + terms.timeout_s)
    return min(at, default=None)


def step(life: Life, event: Event, now_s: float, terms: Terms) -> tuple[Life, tuple[Action, ...]]:
    """The state after this event, and the actions, in this order."""
    match event.name:
        case "passed":
            return _passed(life, event.signo, now_s)
        case "direct":
            return _direct(life, event, now_s), ()
        case "stop" | "systemd":
            return _stop(life, event, now_s, terms)
        case "exceeds" if life.reason is None:
            return replace(life, reason=event.reason), ("kill",)
        case "ended":
            return replace(life, ended_s=now_s), ()
        case "left":
            return _left(life, event, now_s, terms)
        case "killed":
            return replace(life, kill_s=now_s + _KILL_AGAIN_S), ()
        case "spared":
            return replace(life, kill_s=None), ()
        case "time":
            return _time(life, now_s, terms)
        case _:
            return life, ()


def _passed(life: Life, signo: int, now_s: float) -> tuple[Life, tuple[Action, ...]]:
    if now_s - life.direct_s.get(signo, -_SAME_SIGNAL_S) < _SAME_SIGNAL_S:
        return life, ()  # the command got it, too
    if life.ended_s is not None:
        return life, ("send all",)
    return _sent(life, signo, "slicer run"), ("send",)


def _direct(life: Life, event: Event, now_s: float) -> Life:
    life = replace(life, direct_s={**life.direct_s, event.signo: now_s})
    if event.by == "shutdown" and life.reason is None:
        return replace(life, reason="stopped", ended_by="shutdown")
    return _sent(life, event.signo, event.by) if event.by else life


def _sent(life: Life, signo: int, by: EndedBy) -> Life:
    """Somebody sent the command a signal by which it may end."""
    return replace(life, senders={**life.senders, signo: by}) if signo in ENDING else life


def _stop(life: Life, event: Event, now_s: float, terms: Terms) -> tuple[Life, tuple[Action, ...]]:
    """The job is to end, unless it has just ended by itself."""
    if life.is_done(terms):
        return life, ()
    if life.reason is None:
        life = replace(life, reason=event.reason, ended_by=event.by)
    if event.rule is None:
        return life, ("kill",)
    told: tuple[Action, ...] = ("report",) if event.name == "systemd" else ()
    return _begin_ending(life, event.rule, now_s, terms), ("ask", *told)


def _left(life: Life, event: Event, now_s: float, terms: Terms) -> tuple[Life, tuple[Action, ...]]:
    """What the command left lives: it is to end, unless it does so by itself."""
    if event.is_beside and life.beside_s is None:
        until_s = now_s + _AFTER_CONTAINERS_S
        is_systemds = life.ended_by in ("systemd", "shutdown") or life.reason == "timeout"
        if life.asked_s is not None and is_systemds:  # it kills all, and us, when the stop's time is over
            until_s = min(until_s, life.asked_s + life.rule.total_s - _BEFORE_END_S)
        life = replace(life, beside_s=until_s)
    if not life.ends_leftovers(now_s, terms):
        return life, ()
    if life.asked_s is None:
        life = _begin_ending(life, replace(terms.stop, signo=signal.SIGTERM), now_s, terms)
    return life, ("ask",)


def _begin_ending(life: Life, rule: StopRule, now_s: float, terms: Terms) -> Life:
    """The rule's times run from now, unless the job ends sooner anyway."""
    early_s = min(_BEFORE_SYSTEMD_S, rule.total_s / 10) if terms.has_scope else 0.0
    kill_s = now_s + rule.total_s - early_s
    if life.kill_s is not None and kill_s >= life.kill_s:
        return life
    return replace(life, rule=rule, asked_s=now_s, all_s=now_s + rule.grace_s, kill_s=kill_s)


def _time(life: Life, now_s: float, terms: Terms) -> tuple[Life, tuple[Action, ...]]:
    actions: tuple[Action, ...] = ()
    if life.beside_s and now_s >= life.beside_s:
        life = replace(life, beside_s=0.0)
    if life.kill_s is not None and now_s >= life.kill_s:
        actions = ("kill",)
    elif life.all_s is not None and now_s >= life.all_s:
        life, actions = replace(life, all_s=None), ("ask",)
    is_over = terms.timeout_s is not None and now_s >= life.began_s + terms.timeout_s
    if is_over and life.reason is None:
        life, more = _stop(life, Event("stop", reason="timeout", rule=terms.stop), now_s, terms)
        actions += more
    return life, actions


def beside_containers(names: Mapping[int, str], parent_of: Callable[[int], int]) -> frozenset[int]:
    """What podman runs beside containers, among the processes with these names, by pid.

    conmon watches a container. When that ends, it runs podman, which takes note and cleans up.
    """
    monitors = {pid for pid, name in names.items() if name == "conmon"}
    return frozenset(
        pid for pid, name in names.items()
        if monitors and (name in _BESIDE or ("podman" in name and parent_of(pid) in monitors))
    )  # fmt: skip
