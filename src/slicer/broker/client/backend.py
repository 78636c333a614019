"""A job's scope, which the broker starts in the system manager, in ``gpu-UID.slice`` or ``cpu-UID.slice``.

On the hot path of ``slicer run``: pystemd is not needed.
"""

from __future__ import annotations

from slicer.backend import changes_of
from slicer.backend.scopes import ScopeBackend, requested
from slicer.broker.client.calls import ask
from slicer.broker.client.connection import HINT, Connection, Lost
from slicer.broker.protocol.messages import Start, StartedScope, Stop
from slicer.errors import BackendError, BrokerError, RefusedError
from slicer.kernel import cgroup, proc
from slicer.model import job_of_unit
from slicer.quantity import format_cpus, mask_to_cpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.model import Manager, Property, ScopeSpec

# How long the broker may take to start a scope. systemd can be slow when memory is short, but that the broker
# says itself; it may also stand still or be started anew meanwhile.
START_DEADLINE_S = 120.0
_TRIES = 3  # of a start whose connection breaks
_STOP_DEADLINE_S = 120.0
_ASK_S = 0.2  # how long to wait for a refusal, not for the end
_ENTRIES = "; "  # separates the entries of a list


class BrokerBackend(ScopeBackend):
    """Puts processes into scopes through the broker whose socket is at ``path``."""

    manager: Manager = "system"

    def __init__(self, path: str) -> None:
        self.path = path
        self.started: StartedScope | None = None  # the last scope that this process started
        self._connection: Connection | None = None

    def take_connection(self, connection: Connection) -> None:
        """Use the connection over which the lease came, in place of one of its own."""
        self._connection = connection

    def after_fork(self) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- the start ---------------------------------------------------------------------------------------

    def start(self, spec: ScopeSpec, pid: int, meanwhile: Callable[[], None]) -> str:
        """Have the broker put the process into its lease's scope, and wait until it is there."""
        self.started = self._start(start_of(spec, pid), meanwhile)
        self.why_no_cap = self.started.driver_cap if spec.share_cap else None
        if spec.fence == "on" and not self.started.is_fenced:
            message = "the job requires the device fence, but the broker set none around it"
            raise RefusedError(message, where="fence", hint=HINT)
        found = cgroup.of(pid)  # verified here, too
        there = f"{self.started.cgroup}/{spec.unit}" if spec.within else self.started.cgroup
        if found and (found != there or found.rpartition("/")[2] != spec.unit):
            raise BackendError(f"the broker started {spec.unit}, but the process is in {found}", hint=HINT)
        return self.started.cgroup

    def _start(self, call: Start, meanwhile: Callable[[], None]) -> StartedScope:
        """Safe to repeat: the broker recognises a process that is already in its scope."""
        for tries_left in reversed(range(_TRIES)):
            try:
                if self._connection is None:
                    self._connection = Connection(self.path)
                self._connection.send(call)
                meanwhile()
                reply = self._connection.receive(START_DEADLINE_S)
                if reply is None:
                    raise BrokerError(f"no scope within {START_DEADLINE_S:g} s", where=self.path, hint=HINT)
                found: StartedScope = reply.message
                return found
            except Lost:
                self.close()
                if not tries_left:
                    raise
        raise AssertionError("not reached")

    # -- while it stands ---------------------------------------------------------------------------------

    def added(self, spec: ScopeSpec) -> tuple[str, ...]:
        if self.started is None:
            return _told(spec.whole)
        return tuple(name for name in self.started.limits if name != "KillSignal")  # it is for the keeper

    def end(self, job: str, unit: str, stop_timeout_s: float) -> None:
        ask(self.path, Stop(job), stop_timeout_s + _STOP_DEADLINE_S)

    def request_end(self, job: str, unit: str) -> None:
        """Request that a scope be stopped, without waiting. Raises BackendError, BrokerError."""
        connection = Connection(self.path)
        try:
            connection.send(Stop(job))
            connection.receive(_ASK_S)
        finally:
            connection.close()


def start_of(spec: ScopeSpec, keeper: int) -> Start:
    return Start(
        job=job_of_unit(spec.unit),
        slice="gpu" if spec.slice.startswith("gpu") else "cpu",
        description=spec.description, limits=limits_of(requested(spec)), share_cap=spec.share_cap,
        keeper=keeper, keeper_start=proc.start_time(keeper) or 0, fence=spec.fence, devices=spec.devices,
        own_slice=bool(spec.within), adopts=spec.adopts,
    )  # fmt: skip


def limits_of(properties: tuple[Property, ...]) -> tuple[tuple[str, str], ...]:
    """Directives and values for the broker, with everything that depends on this process resolved."""
    return tuple((each.name, _text(each)) for each in properties)


def _text(each: Property) -> str:
    if each.name == "AllowedCPUs":  # the requested CPUs, less those that we may not use
        return format_cpus(mask_to_cpus(each.value)) if isinstance(each.value, bytes) and each.value else ""
    return _ENTRIES.join(each.text.split("\n"))


def _told(unit: str) -> tuple[str, ...]:
    """The directives in systemd's own file for the scope."""
    from slicer.config.live import settings_of

    return tuple(settings_of(proc.text_of(changes_of(unit, "system").removesuffix(".d"))))
