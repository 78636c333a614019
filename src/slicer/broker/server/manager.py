"""The connection to systemd's manager. Its calls survive a lost bus and a systemd that starts anew."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from slicer.backend.sd_bus import DAEMON, DAEMON_PATH, BusBroken, BusError, SdBus
from slicer.broker.server.loop import Due, Loop
from slicer.errors import BackendError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.backend.sd_bus import Arguments

Answer = tuple[Any, ...] | BusError

SYSTEMD = "org.freedesktop.systemd1"
PATH = "/org/freedesktop/systemd1"
MANAGER = f"{SYSTEMD}.Manager"
_REMOVED = f"{MANAGER}.JobRemoved"
_NEW_OWNER = f"{DAEMON}.NameOwnerChanged"
_MATCHES = (
    f"type='signal',sender='{SYSTEMD}',path='{PATH}',interface='{MANAGER}',member='JobRemoved'",
    f"type='signal',sender='{DAEMON}',member='NameOwnerChanged',arg0='{SYSTEMD}'",
)
LATE = "slicer.Late"  # our own name of an error: there was no answer in time
# systemd is not on the bus at the moment: it is executed anew (daemon-reexec).
_ABSENT = tuple(
    f"{DAEMON}.Error.{name}"
    for name in ("NoReply", "ServiceUnknown", "NameHasNoOwner", "Disconnected", "Spawn.ChildExited")
)
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0


class _Work:
    """One call that is under way, and the systemd job that it may have made."""

    def __init__(self, path: str, name: str, arguments: Arguments, done: Callable[[Answer], None]) -> None:
        self.path = path
        self.name = name
        self.arguments = tuple(arguments)
        self.done = done
        self.awaits_job = False
        self.only: Collection[str] = ()  # of the properties that are asked for
        self.due: Due | None = None
        self.cookie = 0  # 0: not sent, or answered
        self.job = ""


class Manager:
    """Calls of systemd. Answers come through the loop, never before a method has returned."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._bus: SdBus | None = None
        self._events = 0
        self._work: dict[int, _Work] = {}
        self._jobs: dict[str, _Work] = {}
        self._is_closed = False
        self._again: Due | None = None
        self._pause_s = _FIRST_PAUSE_S
        self._trouble = ""

    # -- asking ---------------------------------------------------------------------------------------------

    def ask(
        self, method: str, arguments: Arguments, done: Callable[[Answer], None], deadline_s: float, *,
        awaits_job: bool = False,
    ) -> None:  # fmt: skip
        """Call a method of the manager. ``done`` gets the reply's values, or an error.

        ``awaits_job``: the reply is a job of systemd. ``done`` gets the job's result ("done", "failed",
        "canceled", …) when it has ended.
        """
        work = _Work(PATH, f"{MANAGER}.{method}", arguments, done)
        work.awaits_job = awaits_job
        self._begin(work, deadline_s)

    def properties(
        self, unit: str, interface: str, names: Collection[str],
        done: Callable[[dict[str, Any] | BusError], None], deadline_s: float,
    ) -> None:  # fmt: skip
        """Some properties of a unit, which systemd loads for that. ``interface``: "Slice".

        What this systemd does not have is left out.
        """

        def answered(answer: Answer) -> None:
            done(answer if isinstance(answer, BusError) else answer[0])

        arguments = (("s", f"{SYSTEMD}.{interface}"),)
        work = _Work(_path_of(unit), f"{DAEMON}.Properties.GetAll", arguments, answered)
        work.only = names
        self._begin(work, deadline_s)

    def set_properties(
        self, unit: str, properties: Iterable[tuple[str, str, Any]], done: Callable[[Answer], None],
        deadline_s: float,
    ) -> None:  # fmt: skip
        """Change properties of a unit until the next boot (a transient one: until its end), all or none."""
        told: list[tuple[str, tuple[str, Any]]] = []
        for name, signature, value in properties:
            if signature.startswith("a(") and value:
                told.append((name, (signature, ())))  # systemd would add to the list
            told.append((name, (signature, value)))
        self.ask("SetUnitProperties", (("s", unit), ("b", True), ("a(sv)", told)), done, deadline_s)

    def close(self) -> None:
        self._is_closed = True
        for work in self._work.values():
            if work.due is not None:
                work.due.cancel()
        self._work.clear()
        self._drop()

    def _begin(self, work: _Work, deadline_s: float) -> None:
        self._work[id(work)] = work
        work.due = self._loop.after(deadline_s, lambda: self._late(work, deadline_s))
        self._connect()
        self._send(work)

    # -- the connection -------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Connect, unless that is done, or will be tried after a pause."""
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
            # Without anybody who subscribed, systemd tells of no jobs. It is an error to do it twice.
            bus.call(SYSTEMD, PATH, f"{MANAGER}.Subscribe", (), _ignore)
        except BusBroken as error:
            self._broken(error)
            return
        self._watch()

    def _send(self, work: _Work) -> None:
        if self._bus is None or id(work) not in self._work:
            return
        try:
            work.cookie = self._bus.call(
                SYSTEMD, work.path, work.name, work.arguments,
                lambda answer: self._answered(work, answer), work.only,
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
        """Connect again after a pause, if anybody waits for an answer, and ask everything once more."""
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
        if name == _REMOVED and len(values) == 4:
            work = self._jobs.pop(values[1], None)
            if work is not None:
                self._finish(work, (values[3],))
        elif name == _NEW_OWNER and len(values) == 3 and values[0] == SYSTEMD and self._bus is not None:
            self._bus.senders = {DAEMON, values[2]} if values[2] else {DAEMON}
            if values[2]:
                self._anew()

    def _anew(self) -> None:
        """systemd was executed anew, and is back on the bus. Ends of jobs may have been missed meanwhile."""
        assert self._bus is not None
        try:
            self._bus.call(SYSTEMD, PATH, f"{MANAGER}.Subscribe", (), _ignore)
        except BusBroken as error:
            self._broken(error)
            return
        jobs, self._jobs = self._jobs, {}
        for work in jobs.values():
            work.job = ""
            self._send(work)

    def _answered(self, work: _Work, answer: Answer) -> None:
        work.cookie = 0
        if id(work) not in self._work:
            return
        if isinstance(answer, BusError) and answer.name in _ABSENT:
            self._trouble = answer.message
            self._loop.after(_FIRST_PAUSE_S, lambda: self._send(work))
        elif isinstance(answer, BusError) or not work.awaits_job:
            self._finish(work, answer)
        else:
            work.job = answer[0]
            self._jobs[work.job] = work

    def _late(self, work: _Work, deadline_s: float) -> None:
        if self._bus is not None and work.cookie:
            self._bus.forget(work.cookie)
        self._jobs.pop(work.job, None)
        message = f"systemd did not answer within {deadline_s:g} s"
        self._finish(work, BusError(LATE, f"{message}: {self._trouble}" if self._trouble else message))

    def _finish(self, work: _Work, answer: Answer) -> None:
        if self._work.pop(id(work), None) is None:
            return
        if work.due is not None:
            work.due.cancel()
        work.done(answer)


def failure(error: BusError, what: str, *, hint: str) -> BackendError:
    """An error of systemd's in the words of slicer."""
    hint = "is PID 1 stuck? see systemctl list-jobs" if error.name == LATE else hint
    return BackendError(f"{what}: {error.message}", hint=hint)


def _ignore(_: Answer) -> None:
    """The answer is of no use: the calls that follow fail if it was an error."""


def _path_of(unit: str) -> str:
    """The object of a unit on the bus (sd_bus_path_encode(3))."""
    encoded = "".join(
        chr(byte) if chr(byte).isalnum() and (at or not chr(byte).isdigit()) else f"_{byte:02x}"
        for at, byte in enumerate(unit.encode())
    )
    return f"{PATH}/unit/{encoded}"
