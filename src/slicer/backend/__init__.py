"""Puts a job under limits: by systemd, or without it by the means of an unprivileged process."""

from __future__ import annotations

import os

from slicer.kernel import on_host
from slicer.kernel.proc import text_of
from slicer.quantity import INFINITY, parse_duration
from slicer.state import BROKER, BROKER_DIRECTORY, BROKER_ENABLED
from slicer.state.allocation import slurm_job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol

    from slicer.model import BackendName, Manager, Property, Reason, ScopeSpec

    class Watchdog(Protocol):
        """Enforces in user space what the kernel does not enforce here (the plain backend's memory limit)."""

        interval_s: float
        peak_bytes: int  # the highest use so far

        def check(self) -> Reason | None:
            """Check once. Returns a reason if the job must end now."""

# The directives that a keeper acts on by itself, wherever it is.
BY_KEEPER = ("RuntimeMaxSec", "TimeoutStopSec", "KillSignal", "KillMode", "SendSIGHUP", "SendSIGKILL")


class Backend:
    """One way to put a process under limits. What a backend has no use for does nothing."""

    name: BackendName
    manager: Manager
    notice = ""  # for the user of each job; "" for none
    why_no_cap: str | None = None  # from the broker: why the driver does not cap the scope; None: unasked

    def connect(self) -> None:
        """Prepare whatever needs no lease (connect, import). Raises BackendError."""

    def after_fork(self) -> None:
        """In the keeper: release what only the parent may use."""

    def start(self, spec: ScopeSpec, pid: int, meanwhile: Callable[[], None]) -> str:
        """Put the waiting process ``pid`` into its scope and apply the limits.

        ``meanwhile`` may be called once, while systemd works on it. Returns the cgroup in the form of
        /proc/PID/cgroup ("" if there is none). Raises BackendError; then the process is in no scope.
        """
        raise NotImplementedError

    def enforced(self, spec: ScopeSpec, cgroup: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The spec's directives that are effective here, and those that are not."""
        raise NotImplementedError

    def members(self, cgroup: str, besides: int) -> Callable[[], list[int]]:
        """In the keeper: a lister of the job's processes, without the keeper and ``besides``."""
        raise NotImplementedError

    def watchdog(self, spec: ScopeSpec) -> Watchdog | None:
        """In the keeper: the enforcement in user space, where the kernel does not enforce."""
        return None

    def living(self, job: str, cgroup: str) -> list[int]:
        """The job's processes, for a caller that is not their parent."""
        raise NotImplementedError

    def end(self, job: str, unit: str, stop_timeout_s: float) -> None:
        """End the job's processes, whose keeper is dead, and wait for their end. Raises BackendError."""

    def set_properties(self, unit: str, properties: tuple[Property, ...]) -> None:
        """Change properties of a running scope until it ends, all or none. Raises BackendError."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what :meth:`connect` holds."""

    def preload(self) -> None:
        """In a queue: load whatever every run will need, once for all of them. Raises BackendError."""

    def request_end(self, job: str, unit: str) -> None:
        """Request the end of a job whose keeper is dead, without waiting. Raises BackendError."""


BOOTED = "/run/systemd/system"  # sd_booted(3)
BROKER_VARIABLE = "SLICER_BROKER"  # "off", or the path of another socket
_OFF = "off"
_ONLY_HERE = ("SLICER_SIM", "SLICER_STATE_DIR")  # with these, a ledger concerns nobody else


def is_booted() -> bool:
    """Whether systemd runs here."""
    return os.path.isdir(on_host(BOOTED))


def has_systemd() -> bool:
    """Whether jobs can have scopes of systemd, and can be found by their cgroups. Not inside Slurm's."""
    return is_booted() and not slurm_job(os.environ)


def broker_socket(environ: Mapping[str, str], wanted: str = "auto") -> str:
    """The socket of the broker that decides for all users of this machine; "": there is none.

    A broker that is switched on decides even without its socket. So does one that was switched off while its
    jobs still run: private ledgers would grant their resources again. ``wanted``: the value of --backend.
    Without systemd, and for the ledger of a test or a simulation, the private ledger serves.
    """
    path = environ.get(BROKER_VARIABLE) or on_host(BROKER)
    if path == _OFF or wanted == "plain" or any(map(environ.get, _ONLY_HERE)):
        return ""
    if not has_systemd():
        return ""
    return path if os.path.exists(path) or (path == BROKER and _is_missed()) else ""


def _is_missed() -> bool:
    """Whether this machine's broker decides, although its socket does not exist."""
    if not os.path.lexists(BROKER_ENABLED) and not os.path.exists(BROKER_DIRECTORY):
        return False  # it is off, and has not run since the boot
    from slicer.backend.broker_left import is_switched_on, leases_left

    return is_switched_on() or bool(leases_left())


def changes_of(unit: str, manager: Manager) -> str:
    """systemd's folder for the properties of a transient unit that were changed while it runs."""
    base = f"/run/user/{os.getuid()}/systemd" if manager == "user" else "/run/systemd"
    return f"{base}/transient/{unit}.d"


def time_limit_of(unit: str) -> float | None:
    """After how many seconds the system manager stops a transient unit; None: never, or no such unit.

    It may be less than the profile's: the administrator limits how long a job may hold its resources.
    """
    lines = text_of(f"/run/systemd/transient/{unit}").splitlines()
    said = [line.partition("=")[2] for line in lines if line.startswith("RuntimeMaxSec=")]
    limit_us = parse_duration(said[-1]) if said and said[-1] else INFINITY
    return None if limit_us == INFINITY else limit_us / 1e6
