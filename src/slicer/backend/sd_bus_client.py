"""systemd's D-Bus by libsystemd itself, for a client that waits. Used if pystemd is not installed."""

from __future__ import annotations

import time

from slicer.backend import manager_calls as calls
from slicer.backend.manager_calls import DAEMON, DAEMON_PATH, SYSTEMD, BusBroken, BusError
from slicer.backend.sd_bus import SdBus
from slicer.kernel.sleep import until_readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from slicer.backend.manager_calls import Answer, Arguments, Call

_ANSWER_S = 25.0  # sd-bus' own limit for a call
_APPEARS_S = 5.0  # until systemd is on a bus that was just started, or there again (daemon-reexec)
_NO_OWNER = f"{DAEMON}.Error.NameHasNoOwner"


class SdBusClient:
    """One connection, to the user's bus or the system's. Raises BusBroken."""

    def __init__(self, *, is_user: bool) -> None:
        self._bus = SdBus(self._signal, is_user=is_user)
        self.fd = self._bus.fd
        self._results: dict[str, str] = {}  # of systemd's jobs that have ended, by path
        self._hears_of_jobs = False
        # This first call authenticates: the daemon disconnects clients that have not done so within seconds.
        # It also shows whose signals to trust, because any user may send one.
        end = time.monotonic() + _APPEARS_S
        while isinstance(owner := self._owner(), BusError):
            if owner.name != _NO_OWNER or time.monotonic() > end:
                raise BusBroken(owner.message)
            time.sleep(_APPEARS_S / 100)
        self._bus.senders = {DAEMON, owner[0]}

    def _owner(self) -> Answer:
        return self._call(DAEMON, DAEMON_PATH, f"{DAEMON}.GetNameOwner", (("s", SYSTEMD),))

    def close(self) -> None:
        self._bus.close()

    def after_fork(self) -> None:
        """In a child: close the parent's connection."""
        self._bus.after_fork()

    def ask(self, call: Call, deadline_s: float, meanwhile: Callable[[], None]) -> Answer:
        """Make a call and wait for its answer; ``meanwhile`` is called once systemd works on a job."""
        if call.awaits_job and not self._hears_of_jobs:
            self._call(DAEMON, DAEMON_PATH, f"{DAEMON}.AddMatch", (("s", calls.MATCH_REMOVED),))
            self._hears_of_jobs = True
        answer = self._call(SYSTEMD, call.path, call.name, call.arguments)
        if isinstance(answer, BusError) or not call.awaits_job:
            return answer
        meanwhile()
        job = answer[0]
        if not self._wait(lambda: job in self._results, deadline_s):
            return calls.late(deadline_s)
        return (self._results[job],)

    def _call(self, destination: str, path: str, name: str, arguments: Arguments) -> Answer:
        answers: list[Answer] = []
        try:
            self._bus.call(destination, path, name, arguments, answers.append)
        except BusError as error:  # it does not fit into a message
            return error
        return answers[0] if self._wait(lambda: bool(answers), _ANSWER_S) else calls.late(_ANSWER_S)

    def _wait(self, is_done: Callable[[], bool], limit_s: float) -> bool:
        """Process messages until it is done; False: the time is over."""
        end = time.monotonic() + limit_s
        while True:
            has_more = self._bus.process()
            if is_done():
                return True
            left_s = end - time.monotonic()
            if left_s <= 0:
                return False
            if not has_more:
                until_readable([self.fd], left_s, None)

    def _signal(self, name: str, values: tuple[Any, ...]) -> None:
        if name == calls.REMOVED and len(values) == 4:
            self._results[values[1]] = values[3]
