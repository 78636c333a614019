"""The messages of io.slicer.Broker as records. Every field is checked when it is read; see :mod:`.wire`.

A caller is known by its socket, never by what it says. So no message has a uid or a pid of the caller.
Sizes are MiB, times seconds on CLOCK_BOOTTIME, unless they say otherwise.
"""

from __future__ import annotations

from slicer.model import Demand
from slicer.model import GroupStanding as GroupStanding  # said in Standing
from slicer.model import UserStanding as UserStanding
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from slicer.model import Busy, Lease, Ticket

    # "process": for as long as the caller lives, or until it gives it back. "scope": until Start has put a
    # keeper into a scope, then for as long as that is populated.
    Binding = Literal["process", "scope"]

INTERFACE = "io.slicer.Broker"
VERSION = 1  # of the interface: new fields are optional, so that either end may be older
MOST_BYTES = 16 * 1024  # of a message, with its NUL
MOST_NAME = 200  # characters
MOST_COMMAND = 4096


# -- calls --------------------------------------------------------------------------------------------------


@record
class Preview(Demand):
    """As :class:`Acquire`, but nothing is taken: what would it get now?"""

    slot_limits: dict[str, int]  # of slots that the administrator's configuration does not name


@record
class Acquire(Preview):
    """Ask for a lease. With ``more`` there may be many :class:`Waiting` before :class:`Granted`.

    ``job`` is an id of the caller's choice that no lease and no ticket has; the caller's own ticket of that
    id, whose connection broke, is taken up again. The outer jobs and the arrival are no fields: the broker
    reads the ones from the caller's cgroup, and the other from its own clock.
    """

    job: str
    name: str  # for everybody to read: the job's name, or its program's
    command: str  # for its owner and root
    profile: str
    binding: Binding
    expect_s: float | None
    ahead_of: str  # a waiting job of the caller's own: take its place, it takes the next; "" the last place
    wait: bool
    max_wait_s: float | None
    runs_anyway: bool  # after max_wait_s; only for what wants no GPU
    # It is for the process that started the caller, and lasts as long as that. With binding "process" only.
    for_parent: bool = False


@record
class Start:
    """Put a keeper into the scope of a lease: the process ``keeper``, which started at ``keeper_start``.

    It must be alive, and its real, effective and saved uid that of the caller and of the lease. Its start is
    field 22 of /proc/PID/stat; by that nobody else is taken for it who got its pid later. ``limits``
    are directives in the words of a profile, resolved: ("CPUQuota", "200%"). ``share_cap``: the driver is
    asked to cap the scope's GPU memory at the lease's vram_mib, where it can.
    """

    job: str
    slice: str  # "gpu" or "cpu"
    description: str
    limits: tuple[tuple[str, str], ...]
    share_cap: bool
    keeper: int  # its pid, as the broker sees it
    keeper_start: int
    fence: str = ""  # "on": not without the device fence. Root's profile may say "auto" and "off", too
    devices: tuple[str, ...] = ()  # of NVIDIA's nodes that it may open besides; only root's counts


@record
class Release:
    """Give a lease back that is bound to a process (or whose scope was never started), or leave the queue."""

    job: str


@record
class Finished:
    """What became of a job, for the accounts. Sent while the keeper is still in the scope."""

    job: str
    reason: str
    exit_code: int
    wall_s: float
    waited_s: float
    cpu_s: float | None
    memory_peak_bytes: int | None
    vram_peak_mib: tuple[int, ...]


@record
class Status:
    """Ask for all leases and tickets."""


@record
class Look:
    """Ask what is on the GPUs, where the caller may not ask the driver. One reading serves all for 0.2 s."""


@record
class Usage:
    """Ask what jobs used: the caller's own; root: everybody's."""

    since: float | None  # seconds since 1970; None: ever
    by: str  # "user", "group" or "profile"


@record
class Stop:
    """Have the job's scope stopped; a ticket leaves the queue. Own jobs only, root all."""

    job: str


@record
class Freeze:
    """Freeze the job's scope. As all that follows: own jobs only, root all."""

    job: str


@record
class Thaw:
    """Thaw it, whoever froze it."""

    job: str


@record
class Set:
    """Change limits of the job's scope until it ends: all or none. ``limits`` as in :class:`Start`."""

    job: str
    limits: tuple[tuple[str, str], ...]


# -- replies ------------------------------------------------------------------------------------------------


@record
class Waiting:
    """The request has a place in the queue. Repeated now and then when something has changed."""

    job: str
    busy: Busy  # the leases in it have no commands but the caller's own
    starts_in_s: float | None  # expected; None: it depends on a job that gave no estimate
    why: str  # a cap or a share of the administrator's policy, in words; "" where that is not the reason


@record
class Granted:
    """The lease, still without a keeper and a cgroup."""

    lease: Lease
    waited_s: float


@record
class StartedScope:
    """The scope stands, and the keeper is in it."""

    unit: str
    cgroup: str
    limits: tuple[str, ...]  # the directives that were set, fence and administrator's among them
    is_fenced: bool
    driver_cap: str  # "" where the driver caps the scope; else why not


@record
class Previewed:
    """``busy`` None: it would be granted ``gpus`` (UUIDs)."""

    gpus: tuple[str, ...]
    busy: Busy | None
    why: str


@record
class Standing:
    """The answer to :class:`Status`. Commands are blank but in the caller's own (root: all)."""

    leases: tuple[Lease, ...]
    tickets: tuple[Ticket, ...]  # in the order in which they are served
    held_back: dict[str, str]  # by the ticket's job: a cap or share that it waits for, in words
    users: tuple[UserStanding, ...]
    groups: tuple[GroupStanding, ...]  # that may hold only so much together
    slot_limits: dict[str, int]  # of the administrator
    left_out: int = 0  # leases and tickets for which the reply has no room; each user's first ones are in it


@record
class GpuNow:
    """One GPU as it is now."""

    index: int
    uuid: str
    name: str
    memory_mib: int
    total_mib: int  # that programs can have
    used_mib: int
    utilisation: int | None  # percent; None: the driver does not say


@record
class UseNow:
    """What a process uses of a GPU; of others' processes what those of one job use together."""

    gpu: str
    pid: int  # 0: others'. Root is told all
    of_job: str  # "" where it is none that has a lease
    cgroup: str  # of that job; "" where it has none
    used_mib: int | None  # None: the driver does not say


@record
class Seen:
    """The answer to :class:`Look`."""

    now: tuple[GpuNow, ...]
    uses: tuple[UseNow, ...]


@record
class UsageRow:
    """What the jobs of one user, group or profile used."""

    of: str  # a uid, a gid or a profile
    jobs: int
    running: int  # of them
    gpu_s: float  # a job that declared its memory counts for that part of a GPU
    vram_mib_s: float
    cpu_s: float  # of jobs that have ended
    waited_s: float


@record
class Used:
    """The answer to :class:`Usage`: the most GPU time first."""

    rows: tuple[UsageRow, ...]


@record
class Done:
    """There is nothing to say."""


# -- errors: io.slicer.Broker.NAME, parameters message, where, hint, and for Busy also busy ------------------

ERRORS = (
    "Busy",  # with wait false, or after max_wait_s
    "Infeasible",  # this machine could never serve it
    "NotAllowed",  # the administrator's policy forbids it, now and later
    "RefusedLimit",  # a directive that may not be asked for, or systemd does not take
    "BadProcess",  # the keeper is none that may be started
    "NoSuchJob",  # or not the caller's
    "JobExists",
    "Deadlock",
    "NoGpu",  # parameters have reason, too
    "Broken",  # systemd, the driver, a full /run, a bad policy: what was asked for was not done
    "TooMany",  # connections or waiting jobs of this user
)
