"""The messages of io.slicer.Broker as records. Every field is checked when it is read; see :mod:`.wire`.

The broker identifies a caller by its socket, never by its message. So no message has a uid or a pid of the
caller. Sizes are MiB, times seconds on CLOCK_BOOTTIME, unless specified otherwise.
"""

from __future__ import annotations

from slicer.errors import (
    BackendError,
    BrokerError,
    BusyError,
    DeadlockError,
    GoneError,
    InfeasibleError,
    NoGpu,
    NotAllowedError,
    RefusedError,
    SlicerError,
    TooManyError,
)
from slicer.model import Busy, Demand, Lease, Reservation
from slicer.model import GroupStanding as GroupStanding  # a part of Standing
from slicer.model import Standing as Standing  # the answer to Status
from slicer.model import UserStanding as UserStanding
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal


    # "process": as long as the caller lives, or until it returns the lease. "scope": until Start has put a
    # keeper into a scope, then as long as that is populated.
    Binding = Literal["process", "scope"]

INTERFACE = "io.slicer.Broker"
VERSION = 1  # of the interface: new fields are optional, because either end may be older
MOST_BYTES = 16 * 1024  # of a message, with its NUL
MOST_NAME = 200  # characters
MOST_COMMAND = 4096
MOST_SERIES = 6000  # bytes of a series, which are 8000 characters


# -- calls --------------------------------------------------------------------------------------------------


@record
class Preview(Demand):
    """As :class:`Acquire`, but nothing is taken: what would the request get now?"""

    slot_limits: dict[str, int]  # of slots that the administrator's configuration does not define


@record
class Acquire(Preview):
    """Request a lease. With ``more`` there may be many :class:`Waiting` before :class:`Granted`.

    The caller chooses ``job``, an id that no lease and no other ticket has. After a broken connection the
    same id resumes the caller's own ticket. The outer jobs' scopes and the arrival are not fields: the broker
    reads the former from the caller's cgroup and the latter from its own clock.
    """

    job: str
    name: str  # visible to everybody: the job's name, or its program's
    command: str  # for its owner and root
    profile: str
    binding: Binding
    expect_s: float | None
    ahead_of: str  # a waiting job of the caller, whose place this one takes; "": the last place
    wait: bool
    max_wait_s: float | None
    runs_anyway: bool  # after max_wait_s; only for requests without GPUs
    # It is for the process that started the caller, and lasts as long as that. With binding "process" only.
    for_parent: bool = False
    limit_s: float | None = None  # its time limit, if it has one: an estimate of its length, no more
    inside: tuple[str, ...] = ()  # the caller's own leases without a scope that last as long as this one
    # As in Lease, for a job whose priority is PREEMPTIBLE. None: it gives way at once.
    min_run_s: float | None = None
    stop_s: float | None = None
    adopts: tuple[int, ...] = ()  # as in Start: what it has on these GPUs is not in its way


@record
class Start:
    """Put a keeper into the scope of a lease: the process ``keeper``, which started at ``keeper_start``.

    It must be alive, and its real, effective and saved uid must be that of the caller and of the lease. Its
    start is field 22 of /proc/PID/stat, so a later process with the same pid is not mistaken for it.
    ``limits`` are resolved directives in the form of a profile: ("CPUQuota", "200%"). ``share_cap``: the
    driver should cap the scope's GPU memory at the lease's vram_mib, if it can. A request that waits may have
    its scope before its turn, and asks for it again when it has its lease. (Not every one: NoSuchJob.)
    ``own_slice``: the scope is in a slice of the job's own, which has the limits: a daemon of the system's
    starts processes of the job in there (docker).
    """

    job: str
    slice: str  # "gpu" or "cpu"
    description: str
    limits: tuple[tuple[str, str], ...]
    share_cap: bool
    keeper: int  # its pid, as the broker sees it
    keeper_start: int
    fence: str = ""  # "on": the fence is required. Root's profile may have "auto" and "off", too
    devices: tuple[str, ...] = ()  # further nodes of NVIDIA's that it may open; only root's count
    own_slice: bool = False
    adopts: tuple[int, ...] = ()  # pid and start of a process of the caller's, in no job: to be moved, too


@record
class Detach:
    """Put the process of a detached job into a scope without a lease, in which it outlives its caller.

    ``keeper`` and ``keeper_start`` as in :class:`Start`. It must be in no job, and gets no GPU. ``job``: the
    id with which it will ask.
    """

    job: str
    description: str
    keeper: int
    keeper_start: int


@record
class Release:
    """Return a lease that is bound to a process (or whose scope was never started), or leave the queue."""

    job: str


@record
class Finished:
    """Report a job's end for the accounts. Sent while the keeper is still in the scope."""

    job: str
    reason: str
    exit_code: int
    wall_s: float
    waited_s: float
    cpu_s: float | None
    memory_peak_bytes: int | None
    vram_peak_mib: tuple[int, ...]
    paused_s: float = 0.0  # of wall_s; an older slicer sends neither it nor what follows
    ended_by: str = ""  # as in Outcome


@record
class Sampled:
    """What a job of the caller used over time, for the accounts; also a moment after its lease has ended.

    ``series``: :func:`slicer.outcome.series.encode`, in base64.
    """

    job: str
    series: str


@record
class Status:
    """Request all leases and tickets."""


@record
class Look:
    """Request the use of the GPUs, if the caller may not ask the driver. One reading serves all for 0.2 s."""


@record
class Usage:
    """Request the jobs' usage: the caller's own; root: everybody's."""

    since: float | None  # seconds since 1970; None: ever
    by: str  # "user", "group" or "profile"


@record
class Recent:
    """Request who held GPUs lately. Everybody may know, as with :class:`Status`."""

    since: float  # seconds since 1970


@record
class Stop:
    """Stop the job's scope; a ticket leaves the queue. Own jobs only; root may stop all."""

    job: str


@record
class Freeze:
    """Freeze the job's scope. As for all calls below: own jobs only; root may freeze all."""

    job: str


@record
class Thaw:
    """Thaw it, whoever froze it."""

    job: str


@record
class Set:
    """Change limits of the job's scope until it ends, all or none. ``limits`` as in :class:`Start`."""

    job: str
    limits: tuple[tuple[str, str], ...]


@record
class Reserve:
    """Keep GPUs for jobs of a user from ``from_at`` until ``until_at``, in seconds since 1970.

    ``uid``: whose jobs; the caller's own unless it is root. ``gpu_choice``: their UUIDs or numbers, else
    ``gpus`` of any.
    """

    gpus: int
    gpu_choice: tuple[str, ...]
    from_at: float
    until_at: float
    uid: int


@record
class Unreserve:
    """Give up a reservation: the caller's own, or made for it; root any."""

    id: str


@record
class SetService:
    """Root takes GPUs out of service: they get no more jobs until it puts them back, also after a reboot."""

    gpu_choice: tuple[str, ...]  # UUIDs or numbers; UUIDs of those to put back
    is_out: bool
    why: str = ""  # they are taken out


# -- replies ------------------------------------------------------------------------------------------------


@record
class Waiting:
    """The request has a place in the queue. Repeated from time to time after a change."""

    job: str
    busy: Busy  # its leases have no commands except the caller's own
    starts_in_s: float | None  # expected; None: it depends on a job that gave no estimate
    why: str  # the administrator's cap or share that holds it back, in words; "": there is none


@record
class Granted:
    """The lease, still without a keeper and a cgroup."""

    lease: Lease
    waited_s: float


@record
class StartedScope:
    """The scope is running, and the keeper is in it."""

    unit: str
    cgroup: str
    limits: tuple[str, ...]  # the directives that were set, including the fence's and the administrator's
    is_fenced: bool
    driver_cap: str  # "": the driver caps the scope; else why not


@record
class Previewed:
    """``busy`` None: the request would be granted ``gpus`` (UUIDs)."""

    gpus: tuple[str, ...]
    busy: Busy | None
    why: str


@record
class GpuNow:
    index: int
    uuid: str
    name: str
    memory_mib: int
    total_mib: int  # usable by programs
    used_mib: int
    utilisation: int | None  # percent; None: the driver does not report it
    # As in GpuLoad. An older broker does not send them.
    temperature_c: int | None = None
    power_w: int | None = None
    power_limit_w: int | None = None
    fault: str = ""  # as in GpuMemory


@record
class UseNow:
    """A process's use of a GPU; for other users, the sum over the processes of one job, or of no job."""

    gpu: str
    pid: int  # 0: other users'. Root gets all
    of_job: str  # "": no job with a lease
    cgroup: str  # of that job; "": it has none
    used_mib: int | None  # None: the driver does not report it
    uid: int | None = None  # of others' processes without a job; None: unknown


@record
class Seen:
    """The answer to :class:`Look`."""

    now: tuple[GpuNow, ...]
    uses: tuple[UseNow, ...]


@record
class UsageRow:
    """The usage by the jobs of one user, group or profile."""

    of: str  # a uid, a gid or a profile
    jobs: int
    running: int  # how many of them are running
    gpu_s: float  # a job that declared its memory counts for that part of a GPU
    vram_mib_s: float
    cpu_s: float  # of jobs that have ended
    waited_s: float


@record
class Used:
    """The answer to :class:`Usage`: the most GPU time first."""

    rows: tuple[UsageRow, ...]


@record
class Reserved:
    """The answer to :class:`Reserve`."""

    reserved: Reservation


@record
class PastLease:
    """GPUs that a job held until it ended."""

    uid: int
    gpus: tuple[str, ...]
    granted_at: float  # seconds since 1970
    held_s: float


@record
class PastLeases:
    """The answer to :class:`Recent`: the last to end first, and not more than fit."""

    rows: tuple[PastLease, ...]


@record
class Done:
    """The call succeeded."""


# -- errors: io.slicer.Broker.NAME, parameters message, where, hint, and for Busy also busy ------------------

# What each becomes at the client.
ERRORS: dict[str, type[SlicerError]] = {
    "Busy": BusyError,  # with wait false, or after max_wait_s
    "Infeasible": InfeasibleError,  # this machine could never serve it
    "NotAllowed": NotAllowedError,  # the administrator's policy never allows it
    "RefusedLimit": RefusedError,  # a directive that is not allowed, or that systemd does not accept
    "BadProcess": BackendError,  # the keeper cannot be put into a scope
    "NoSuchJob": GoneError,  # or not the caller's
    "JobExists": BackendError,
    "Deadlock": DeadlockError,
    "NoGpu": NoGpu,  # with the parameter reason, too
    "Broken": BrokerError,  # systemd, the driver, a full /run, an invalid policy: the call had no effect
    "TooMany": TooManyError,  # connections or waiting jobs of this user
}
