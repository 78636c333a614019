"""The connection to systemd's manager. Calls survive a lost bus and a re-executed systemd."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from slicer.backend import manager_calls as calls
from slicer.backend.manager_calls import DAEMON, DAEMON_PATH, MANAGER, PATH, SYSTEMD, BusBroken, BusError
from slicer.backend.sd_bus import SdBus
from slicer.broker.server.loop import Due, Loop
from slicer.errors import BackendError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    from slicer.backend.manager_calls import Answer, Call, Conversation

    _T = TypeVar("_T")

_NEW_OWNER = f"{DAEMON}.NameOwnerChanged"
_MATCHES = (
    calls.MATCH_REMOVED,
    f"type='signal',sender='{DAEMON}',member='NameOwnerChanged',arg0='{SYSTEMD}'",
)
# systemd is not on the bus at the moment: it is being re-executed (daemon-reexec).
_ABSENT = tuple(
    f"{DAEMON}.Error.{name}"
    for name in ("NoReply", "ServiceUnknown", "NameHasNoOwner", "Disconnected", "Spawn.ChildExited")
)
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0


class _Work:
    """One pending call, and the systemd job that it may have created."""

    def __init__(self, call: Call, done: Callable[[Answer], None]) -> None:
        self.call = call
        self.done = done
        self.due: Due | None = None
        self.cookie = 0  # 0: not sent, or answered
        self.job = ""


class Manager:
    """Calls systemd. Answers come through the loop, never before a method has returned."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._bus: SdBus | None = None
        self._events = 0
        self._work: dict[int, _Work] = {}
        self._jobs: dict[str, list[_Work]] = {}  # two stops of one unit are one job of systemd's
        self._is_closed = False
        self._again: Due | None = None
        self._pause_s = _FIRST_PAUSE_S
        self._trouble = ""

    # -- asking ---------------------------------------------------------------------------------------------

    def converse(
        self, steps: Conversation[_T], done: Callable[[_T | BackendError], None], deadline_s: float
    ) -> None:
        """Run a conversation with systemd. ``done`` gets its result or its error.

        ``deadline_s`` applies to each of its calls.
        """

        def go_on(answer: Answer | None) -> None:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                done(end.value)
            except BackendError as error:
                done(error)
            else:
                if isinstance(step, float):
                    self._loop.after(step, lambda: go_on(None))
                else:
                    self.ask(step, go_on, deadline_s)

        go_on(None)

    def ask(self, call: Call, done: Callable[[Answer], None], deadline_s: float) -> None:
        """Call systemd. ``done`` gets the answer."""
        work = _Work(call, done)
        self._work[id(work)] = work
        work.due = self._loop.after(deadline_s, lambda: self._late(work, deadline_s))
        self._connect()
        self._send(work)

    def close(self) -> None:
        self._is_closed = True
        for work in self._work.values():
            if work.due is not None:
                work.due.cancel()
        self._work.clear()
        self._drop()

    # -- the connection -------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Connect, unless it is connected or will retry after a pause."""
        if self._bus is not None or self._again is not None or self._is_closed:
            return
        try:
            self._bus = bus = SdBus(self._signal)
        except BackendError as error:
            self._broken(error)
            return
        try:
            bus.call(DAEMON, DAEMON_PATH, f"{DAEMON}.GetNameOwner", (("s", SYSTEMD),), self._owned)
            for rule in _MATCHES:
                bus.call(DAEMON, DAEMON_PATH, f"{DAEMON}.AddMatch", (("s", rule),), _ignore)
            # Without a subscriber, systemd announces no jobs. Subscribing twice is an error.
            bus.call(SYSTEMD, PATH, f"{MANAGER}.Subscribe", (), _ignore)
        except BusBroken as error:
            self._broken(error)
            return
        self._watch()

    def _send(self, work: _Work) -> None:
        if self._bus is None or id(work) not in self._work:
            return
        call = work.call
        try:
            work.cookie = self._bus.call(
                SYSTEMD, call.path, call.name, call.arguments,
                lambda answer: self._answered(work, answer), call.only,
            )  # fmt: skip
        except BusBroken as error:
            self._broken(error)
        except BusError as error:
            refused = error
            self._loop.after(0.0, lambda: self._finish(work, refused))
        else:
            self._watch()

    def _watch(self) -> None:
        bus = self._bus
        if bus is not None and (events := bus.events()) != self._events:
            self._events = events
            self._loop.watch(bus.fd, self._ready, events)

    def _ready(self, _: int = 0) -> None:
        bus = self._bus
        if bus is None:
            return
        try:
            has_more = bus.process()
        except BusBroken as error:
            self._broken(error)
            return
        if has_more and self._bus is bus:
            self._loop.after(0.0, self._ready)
        self._watch()

    def _broken(self, error: BackendError) -> None:
        """Reconnect after a pause, if answers are awaited, and repeat all calls."""
        self._trouble = error.message
        self._drop()
        if self._work and not self._is_closed and self._again is None:
            self._again = self._loop.after(self._pause_s, self._try_again)
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _try_again(self) -> None:
        self._again = None
        self._connect()
        for work in tuple(self._work.values()):
            self._send(work)

    def _drop(self) -> None:
        if self._bus is not None:
            self._loop.forget(self._bus.fd)
            self._bus.close()
            self._bus, self._events = None, 0
        self._jobs.clear()
        for work in self._work.values():
            work.cookie, work.job = 0, ""

    # -- answers --------------------------------------------------------------------------------------------

    def _owned(self, answer: Answer) -> None:
        if self._bus is not None and not isinstance(answer, BusError):
            self._pause_s, self._trouble = _FIRST_PAUSE_S, ""
            self._bus.senders = {DAEMON, answer[0]}

    def _signal(self, name: str, values: tuple[Any, ...]) -> None:
        if name == calls.REMOVED and len(values) == 4:
            for work in self._jobs.pop(values[1], ()):
                self._finish(work, (values[3],))
        elif name == _NEW_OWNER and len(values) == 3 and values[0] == SYSTEMD and self._bus is not None:
            self._bus.senders = {DAEMON, values[2]} if values[2] else {DAEMON}
            if values[2]:
                self._anew()

    def _anew(self) -> None:
        """systemd was re-executed and is back on the bus. Ends of jobs may have been missed."""
        assert self._bus is not None
        try:
            self._bus.call(SYSTEMD, PATH, f"{MANAGER}.Subscribe", (), _ignore)
        except BusBroken as error:
            self._broken(error)
            return
        jobs, self._jobs = self._jobs, {}
        for work in chain.from_iterable(jobs.values()):
            work.job = ""
            self._send(work)

    def _answered(self, work: _Work, answer: Answer) -> None:
        work.cookie = 0
        if id(work) not in self._work:
            return
        if isinstance(answer, BusError) and answer.name in _ABSENT:
            self._trouble = answer.message
            self._loop.after(_FIRST_PAUSE_S, lambda: self._send(work))
        elif isinstance(answer, BusError) or not work.call.awaits_job:
            self._finish(work, answer)
        else:
            work.job = answer[0]
            self._jobs.setdefault(work.job, []).append(work)

    def _late(self, work: _Work, deadline_s: float) -> None:
        if self._bus is not None and work.cookie:
            self._bus.forget(work.cookie)
        if work.job in self._jobs:
            self._jobs[work.job].remove(work)
        self._finish(work, calls.late(deadline_s, self._trouble))

    def _finish(self, work: _Work, answer: Answer) -> None:
        if self._work.pop(id(work), None) is None:
            return
        if work.due is not None:
            work.due.cancel()
        work.done(answer)


def _ignore(_: Answer) -> None:
    """Ignore the answer: if it is an error, the calls that follow fail."""
