"""Transient scopes of systemd's manager, over D-Bus."""

from __future__ import annotations

import os
import time

from slicer.backend import manager_calls as calls
from slicer.backend.manager_calls import MANAGER, START_DEADLINE_S, BusBroken, BusError
from slicer.backend.scopes import ScopeBackend, leaving, requested
from slicer.errors import BackendError
from slicer.kernel import cgroup, proc
from slicer.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol, TypeVar

    from slicer.backend.manager_calls import Answer, Call, Conversation
    from slicer.model import Manager, Property, ScopeSpec

    _T = TypeVar("_T")

    class Bus(Protocol):
        """A connection to systemd. Each method raises BusBroken."""

        fd: int

        def ask(self, call: Call, deadline_s: float, meanwhile: Callable[[], None]) -> Answer:
            """Make a call and wait for its answer; ``meanwhile`` is called once systemd works on a job."""

        def close(self) -> None:
            """Close the connection."""

        def after_fork(self) -> None:
            """In a child: release the parent's connection, and leave it open for the parent."""


STOP_DEADLINE_S = 120.0


def open_bus(*, is_user: bool) -> Bus:
    """A connection by pystemd; by sd-bus if pystemd is not installed, 3 ms slower. Raises BusBroken."""
    from slicer.backend.pystemd_bus import PystemdBus, load_dbuslib

    lib = load_dbuslib()
    if lib is not None:
        return PystemdBus(lib, is_user=is_user)
    from slicer.backend.sd_bus_client import SdBusClient

    return SdBusClient(is_user=is_user)


class SystemdBackend(ScopeBackend):
    """The system manager for root, the user manager for everybody else. A ``with`` closes the connection."""

    def __init__(self, manager: Manager) -> None:
        self.manager: Manager = manager
        self._bus: Bus | None = None

    def __enter__(self) -> SystemdBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> None:
        """Connect to the bus. Raises BackendError with a remedy."""
        self._connected()

    def _connected(self) -> Bus:
        if self._bus is not None:
            return self._bus
        if cgroup.root() is None:
            hint = "boot with systemd.unified_cgroup_hierarchy=1"
            raise BackendError("no cgroup v2 hierarchy is mounted", hint=hint)
        if self.manager == "user":
            _find_user_bus()
        try:
            self._bus = open_bus(is_user=self.manager == "user")
        except BusBroken as error:
            raise _no_bus(self.manager, error.reason) from error
        return self._bus

    def close(self) -> None:
        if self._bus is not None:
            self._bus.close()
            self._bus = None

    def after_fork(self) -> None:
        """In a child: release the parent's connection."""
        if self._bus is not None:
            self._bus.after_fork()
            self._bus = None

    def converse(
        self, steps: Conversation[_T], deadline_s: float = START_DEADLINE_S,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> _T:  # fmt: skip
        """Run a conversation with systemd, waiting for each answer. Raises BackendError.

        ``deadline_s`` applies to each of systemd's jobs. ``meanwhile`` is called while systemd works on one.
        """
        bus = self._connected()
        answer: Answer | None = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                result: _T = end.value
                return result
            if isinstance(step, float):
                time.sleep(step)
                answer = None
            else:
                answer = bus.ask(step, deadline_s, meanwhile)

    def start(self, spec: ScopeSpec, pid: int, meanwhile: Callable[[], None]) -> str:
        """Start the scope with the process in it and wait until systemd has done so.

        Returns its cgroup, or that of the job's own slice.
        """
        asked = replace(spec, properties=requested(spec))
        pidfd = os.pidfd_open(pid)
        try:
            self.converse(calls.start_scope(asked, pidfd, lambda: pid), START_DEADLINE_S, meanwhile)
            try:
                found = cgroup.of(pid)
                whole, _, unit = found.rpartition("/")
                is_its = unit == spec.unit
                calls.check_place(spec.unit, found, is_its=is_its, has_ended=proc.has_ended(pidfd))
            except BackendError:
                # systemd may never notice that it becomes empty.
                self.converse(calls.stop(spec.whole, self.manager, awaits_end=False))
                raise
            if spec.adopts:
                left = leaving(spec.adopts, os.geteuid(), spec.unit)
                self.converse(calls.take_in(spec.unit, left, self.manager))
            return whole if spec.within else found
        finally:
            os.close(pidfd)

    def manager_property(self, name: str) -> str:
        """A property of the manager that is a text. Raises BackendError."""
        answer = self._connected().ask(calls.get_call(MANAGER, name), 0.0, lambda: None)
        if isinstance(answer, BusError):
            raise BackendError(f"systemd did not report its {name}: {answer.message}")
        return str(answer[0])

    def stop(self, unit: str, deadline_s: float = STOP_DEADLINE_S) -> None:
        """Stop a unit and wait for its end. Raises BackendError."""
        self.converse(calls.stop(unit, self.manager), deadline_s)

    def end(self, job: str, unit: str, stop_timeout_s: float) -> None:
        self.stop(unit, stop_timeout_s + STOP_DEADLINE_S)

    def preload(self) -> None:
        """Find out whether systemd can be reached, before the first job needs it."""
        self.connect()
        self.close()

    def request_end(self, job: str, unit: str) -> None:
        """Request that a scope be stopped, without waiting. Raises BackendError.

        The connection is closed, so that later forks of the queue do not inherit it.
        """
        try:
            self.converse(calls.stop(unit, self.manager, awaits_end=False))
        finally:
            self.close()

    # -- running scopes ----------------------------------------------------------------------------------

    def freeze(self, unit: str) -> None:
        """Freeze a scope: no process in it runs until it is thawed. Raises UnitGone, BackendError."""
        self.converse(calls.freeze(unit, self.manager))

    def thaw(self, unit: str, directory: str) -> None:
        """Thaw a scope. ``directory`` is its cgroup's. Raises UnitGone, BackendError."""
        self.converse(calls.thaw(unit, lambda: cgroup.thaw(directory), self.manager))

    def set_properties(self, unit: str, properties: tuple[Property, ...]) -> None:
        """Change properties of a scope until it ends, all or none. Lists are replaced.

        Raises RefusedError for properties that systemd does not support or accept, UnitGone, BackendError.
        """
        self.converse(calls.set_properties(unit, properties, self.manager))

    def cgroup_of(self, unit: str) -> str | None:
        """The cgroup of a unit in the form of /proc/PID/cgroup; None: there is none. Raises BackendError."""
        found = self.property_of(unit, "ControlGroup")
        return found if isinstance(found, str) and found else None

    def property_of(self, unit: str, name: str) -> Any:
        """One property of a scope. None: this systemd does not have it, or there is no such unit.

        Raises BackendError.
        """
        return self.converse(calls.property_of(unit, name, self.manager))


def _find_user_bus() -> None:
    """Set XDG_RUNTIME_DIR, which is missing under sudo and cron although the user's manager runs."""
    runtime = f"/run/user/{os.getuid()}"
    if not os.environ.get("XDG_RUNTIME_DIR") and os.path.exists(f"{runtime}/bus"):
        os.environ["XDG_RUNTIME_DIR"] = runtime


def _no_bus(manager: Manager, reason: str) -> BackendError:
    if manager == "user":
        from slicer.kernel.users import user_name

        user = user_name(os.getuid())
        if not os.path.isdir(f"/run/user/{os.getuid()}"):
            hint = f"once: loginctl enable-linger {user} (by root if refused); or use --backend plain"
            return BackendError(f"{user} is not logged in (cron, su, a system service)", hint=hint)
        hint = f"loginctl enable-linger {os.getuid()} (by root if refused); or use --backend plain"
        return BackendError(f"no connection to your user manager: {reason}", hint=hint)
    hint = "is dbus running? see slicer doctor; --backend plain runs without systemd's limits"
    return BackendError(f"no connection to systemd: {reason}", hint=hint)
