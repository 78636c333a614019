"""The broker's parts put together, and its turns until nobody needs it."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable

from slicer import faults
from slicer.broker.server.cleanup import Leftovers, Overtime
from slicer.broker.server.connections import Connections
from slicer.broker.server.deciding import Decider
from slicer.broker.server.giving_way import Preemption
from slicer.broker.server.idleness import Idleness
from slicer.broker.server.lease_files import RULES, LeaseFiles
from slicer.broker.server.leases import Holding, Leases
from slicer.broker.server.limits_asked import LimitsAsked
from slicer.broker.server.loop import Loop, now_s
from slicer.broker.server.policy_state import PolicyState
from slicer.broker.server.queueing import Queueing
from slicer.broker.server.scopes import Scopes
from slicer.broker.server.scoping import Scoping
from slicer.broker.server.service import Service
from slicer.config.profiles import host
from slicer.errors import StateError
from slicer.kernel import inotify
from slicer.record import record
from slicer.state.directory import open_trusted

IDLE_S = 30.0


@record
class Places:
    state: str = "/run/slicer-broker"
    accounts: str = "/var/lib/slicer"
    configuration: str = "/etc/slicer"


class Broker:
    """Serves until nobody needs it. Raises SlicerError if it cannot begin."""

    def __init__(self, listener: int, places: Places, log: Callable[[str], None]) -> None:
        """``listener``: the socket's descriptor. ``log`` receives lines with systemd's prefixes ("<4>")."""

        def warn(text: str) -> None:
            log(f"<4>{text}")

        self._log = log
        self._configuration = places.configuration
        self._files: inotify.Inotify | None = None  # watches the configuration
        self._is_watching = False
        self._loop = Loop()
        base = open_trusted(places.state)
        base.rules = RULES
        self._policy_state = PolicyState(places.configuration, places.accounts, base, warn)
        self._lease_files = LeaseFiles(base, warn)
        self._leases = Leases(
            self._lease_files, self._loop, warn, self._unsettle, self._ended,
            self._policy_state.accounts.write,
        )  # fmt: skip
        self._decider = Decider(self._leases, self._policy_state, warn)
        self._folders = base, base.own_folder("slices")
        self._scopes = Scopes(self._loop, self._folders[1])
        self._queueing: Queueing | None = None  # None while the leases are loaded; loading may end some
        self._leftovers: Leftovers | None = None
        self._leases.load()
        for holding in self._leases.holdings.values():
            self._policy_state.groups(holding.lease.uid, holding.claim.gids)
        limits_asked = LimitsAsked(self._leases, self._policy_state, self._decider, host())
        self._overtime = Overtime(self._leases, self._policy_state, self._scopes, self._loop, log)
        self._idleness = Idleness(self._leases, self._decider, self._overtime, self._loop, log)
        self._giving_way = Preemption(self._leases, self._decider, self._overtime, self._loop, log)
        self._queueing = queueing = Queueing(
            self._leases, self._decider, self._policy_state, self._overtime, self._loop, log
        )
        self._leftovers = Leftovers(self._leases, self._scopes, self._loop, log)
        scoping = Scoping(self._leases, self._scopes, limits_asked, queueing, log)
        service = Service(self._leases, self._decider, self._policy_state, queueing, scoping, log)
        self._connections = Connections(
            listener, self._loop, service.call, queueing.gone, is_user=self._policy_state.is_user
        )
        faults.point("broker-loaded")

    def _unsettle(self) -> None:
        if self._queueing is not None:
            self._queueing.unsettle()

    def _ended(self, holding: Holding) -> None:
        lease = holding.lease
        self._log(f"<6>uid {lease.uid}: {lease.job} has ended")
        self._policy_state.ended(holding)
        if self._leftovers is not None and lease.unit:
            self._leftovers.expect()

    def _watch_configuration(self) -> None:
        """While requests wait, a changed policy takes effect at once. Otherwise the next call reads it."""
        try:
            self._files = inotify.Inotify(self._configuration)
            self._files.add(self._configuration, inotify.CLOSE_WRITE | inotify.MOVED_TO | inotify.DELETE)
        except StateError as error:
            self._log(f"<4>changed files take effect only at the next call: {error}")
        if self._files is not None:
            self._loop.watch(self._files.fd, self._configuration_changed)

    def _configuration_changed(self, _: int) -> None:
        assert self._files is not None
        if self._files.take() and self._policy_state.refresh():
            self._unsettle()

    def wake_by(self, fd: int) -> None:
        """End a turn when the descriptor is readable, after a signal."""
        self._loop.watch(fd, lambda _: _drain(fd))

    def run(self, is_to_end: Callable[[], bool], idle_s: float = IDLE_S) -> None:
        """Serve until ``is_to_end``, or until nobody has needed it for ``idle_s`` seconds."""
        assert self._queueing is not None
        gc.freeze()  # modules are never garbage
        needed_s = now_s()
        while not is_to_end():
            if self._queueing.is_unsettled:
                began_s = time.process_time()
                self._queueing.settle()
                self._connections.charge(time.process_time() - began_s)
            self._leases.finish()
            if self._leases.waiters and not self._is_watching:
                self._is_watching = True
                self._watch_configuration()
            if self._is_needed():
                needed_s = now_s()
            left_s = needed_s + idle_s - now_s()
            if left_s <= 0:
                break
            self._loop.turn(left_s)

    def _is_needed(self) -> bool:
        """Whether a request waits, or some work is not finished."""
        is_starting = any(each.is_starting for each in self._leases.holdings.values())
        is_busy = is_starting or self._connections.must_stay or self._overtime.is_expected()
        watches = [self._idleness.expect(), self._giving_way.expect()]
        return bool(len(self._connections) or self._leases.waiters or is_busy or any(watches))

    def close(self) -> None:
        """Close everything. Leases last without the broker."""
        self._leases.finish()
        self._connections.close()
        self._scopes.close()
        self._decider.observer.close()
        self._policy_state.accounts.close()
        self._loop.close()
        self._lease_files.close()
        for folder in self._folders:
            folder.close()
        if self._files is not None:
            self._files.close()


def _drain(fd: int) -> None:
    try:
        os.read(fd, 4096)
    except BlockingIOError:
        pass
