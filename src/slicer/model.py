"""slicer's terms as types: job, profile, lease, scope, outcome.

Everything here is immutable data that does not touch the machine. The module is on the hot path of ``slicer
run``, so it imports nothing but :mod:`slicer.record`.
"""

from __future__ import annotations

from slicer.record import fields_for, record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

    Manager = Literal["system", "user"]
    BackendName = Literal["systemd", "plain", "inner"]  # inner: nested in another job's scope
    SliceName = Literal["cpu", "gpu"]
    Reason = Literal["exited", "signal", "oom-kill", "timeout", "stopped", "unknown"]
    EndedBy = Literal[
        "", "slicer stop", "slicer cap", "slicer idle", "slicer queue", "slicer run", "terminal", "systemd",
        "shutdown", "outside", "caller", "gpu", "gave way",
    ]
    Then = Literal["run", "fail"]
    Share = Literal["off", "lock", "cap", "both"]
    OverCap = Literal["warn", "end"]
    OnIdle = Literal["warn", "stop"]
    GpuIds = Literal["uuid", "index"]
    Fence = Literal["auto", "on", "off"]
    EstimateSource = Literal["", "expect", "runs", "limit", "machine"]  # see slicer.placement.lengths
    Resource = Literal["gpu", "cpu", "slot"]  # a scarce resource; slot: one with a name other than "cpu"
    Value = bool | int | str | bytes | tuple[tuple[str, str], ...] | tuple[tuple[str, int], ...]

SLICE_VARIABLE = "SLICER_SLICE"  # names the job's own slice, in its environment
LEASE_VARIABLE = "SLICER_LEASE"  # in a job's environment: the ids of its outer jobs
KEEPER = "slicer-keeper"  # a keeper's name in /proc/PID/comm
SLICES: tuple[SliceName, ...] = ("cpu", "gpu")
PRIORITY_MAX = 100  # the lowest is -100
PREEMPTIBLE = -PRIORITY_MAX - 1  # the priority of jobs that give way to all others
GAVE_WAY: EndedBy = "gave way"
CPU = "cpu"  # the slot that every machine has


def unit_name(job: str) -> str:
    return f"slicer-{job}.scope"


def detached_unit(job: str) -> str:
    """The scope of a detached job's supervisor, where the broker made one."""
    return f"slicer-run-{job}.scope"


def slice_around(slice_name: str, job: str) -> str:
    """The job's own slice in that slice: around its scope, and the containers that a daemon starts for it."""
    return f"{slice_name.removesuffix('.slice')}-{job}.slice"


def job_of_unit(unit: str) -> str:
    """The job whose scope, or own slice, has that name; any other text unchanged."""
    if unit.endswith(".slice"):
        return unit.removesuffix(".slice").rpartition("-")[2]
    return unit.removesuffix(".scope").removeprefix("slicer-")


def is_in_job(there: str, lease: Lease) -> bool:
    """Whether a cgroup is the lease's, or below it: then the job cannot end before the cgroup is empty."""
    return bool(lease.cgroup) and f"{there}/".startswith(f"{lease.cgroup}/")


def manager_of(uid: int) -> Manager:
    """The systemd that runs a user's jobs: the system's for root, their own for everybody else."""
    return "user" if uid else "system"


@record
class Gpu:
    """One physical GPU (or MIG-less device) as NVML reports it."""

    index: int
    uuid: str
    name: str
    memory_mib: int
    minor: int  # the N of /dev/nvidiaN


@record
class GpuProcess:
    """A process that has a context on a GPU. ``used_mib`` is None if the driver does not report it."""

    gpu_uuid: str
    pid: int
    used_mib: int | None


@record
class GpuMemory:
    """One GPU's memory. ``total_mib`` is 0 if the memory is shared with the CPU."""

    gpu_uuid: str
    total_mib: int
    used_mib: int
    fault: str | None = ""  # why it should get no more jobs, in words; None: only the kernel's log knows


@record
class GpuLoad:
    """How one GPU works now. None: unknown."""

    utilisation: int | None = None  # the percentage of the last sampling period in which a kernel ran
    temperature_c: int | None = None
    power_w: int | None = None
    power_limit_w: int | None = None


@record
class Host:
    """The facts about this machine on which a decision may depend."""

    cpus: tuple[int, ...]  # that this process may use
    memory_bytes: int  # physical memory


@record
class Property:
    """A systemd resource property, ready to be sent.

    ``name`` is systemd's directive (``MemoryMax``), ``dbus_name``/``signature``/``value`` are the arguments
    of StartTransientUnit (``MemoryMax``, ``t``, bytes), ``text`` is the user's spelling.
    """

    name: str
    dbus_name: str
    signature: str
    value: Value
    text: str


@record
class Demand:
    """The GPUs and slots that a job wants: all at once, or none. Profiles, requests and calls extend it."""

    gpus: int
    gpu_choice: tuple[str, ...]  # the suitable ones: indices or UUIDs (or their beginnings); empty: any
    vram_mib: int | None  # on each GPU; None: whole GPUs, not shared
    margin_mib: int  # of each GPU's memory, kept free beyond vram_mib
    slots: dict[str, int]  # counts by name, each at least 1
    priority: int  # -100 … 100, or PREEMPTIBLE

    @property
    def is_nothing(self) -> bool:
        """Whether the job needs only an entry in the ledger."""
        return not self.gpus and not self.slots

    @property
    def need_mib(self) -> int | None:
        """The MiB that must be free on each GPU; None: all of it."""
        return None if self.vram_mib is None else self.vram_mib + self.margin_mib


@record
class Profile(Demand):
    """A named set of limits and needs, with every default resolved for this machine.

    ``sources`` names the origin of each value ("built-in heavy", "/etc/slicer/config.toml:12", "--set"); its
    keys are this record's field names, ``env.NAME`` for variables and the directive for properties.
    """

    name: str
    description: str
    slice: SliceName
    max_wait_s: float | None  # None: wait for ever
    then: Then | None  # after max_wait_s; None: "fail" if GPUs are wanted, else "run"
    threads: int  # the cap for OMP_NUM_THREADS and the like
    timeout_s: float | None  # wall time, None: unlimited
    linger: bool  # wait for leftovers instead of ending them
    env: dict[str, str]
    properties: dict[str, Property]
    sources: dict[str, str]
    # How it shares GPUs with other jobs. Unused if vram_mib is None: whole GPUs are not shared.
    share: Share = "off"  # a lock for its GPU work, a cap on its memory, both
    share_mode: str = "yield"  # when a turn ends: "yield", "launches=10", "time=5ms", "each"
    share_skip_syncs: int = 0  # keep the turn over this number of syncs
    over_cap: OverCap = "warn"  # the treatment of a job that exceeded its cap
    fence: Fence = "auto"  # its processes can open its own GPUs only; "on": the fence is required
    devices: tuple[str, ...] = ()  # further nodes and groups of NVIDIA's that it may open
    notify: tuple[str, ...] | None = None  # events, and "desktop"; None: those of [notify]
    idle_timeout_s: float | None = None  # without use of its GPUs; None: unlimited
    on_idle: OnIdle = "warn"  # the treatment of a job after that time; "stop": ended after the warning
    gpu_ids: GpuIds = "uuid"  # what CUDA_VISIBLE_DEVICES has of each GPU
    grace_s: float | None = None  # of the command alone, once it is asked to end; None: by TimeoutStopSec
    preemptible: bool = False  # it gives way to other jobs, and runs again
    min_run_s: float | None = 600.0  # but not before it has run for so long; None: never
    retry: str = ""  # how often it runs again after failures, as in "any:2,gpu:3"; "" unsaid


@record
class Notify:
    """The events to report, and the destinations: each gets all of them."""

    on: tuple[str, ...]
    command: tuple[str, ...]  # an argument list; () for none
    urls: tuple[str, ...]  # for apprise; they may contain passwords
    desktop: bool


@record
class Request(Demand):
    """A demand with its place in the queue. ``gpu_choice`` are whole UUIDs.

    Its place among others is by priority (highest first), then arrival, then job.
    """

    job: str  # the job's id: 12 lower-case hex digits
    arrived_s: float  # CLOCK_BOOTTIME seconds, in whole microseconds
    slot_limits: dict[str, int]  # the limits of these slots, by the requester's configuration
    est_s: float | None  # how long the job should run, as decisions assume; None: unknown


@record
class Lease:
    """The right to use resources, held by one job until its scope is empty."""

    job: str
    name: str
    command: str  # for display: quoted as in a shell, and shortened
    pid: int  # of the supervisor (with --exec of the command)
    pid_start: int  # field 22 of /proc/PID/stat; with boot_id it makes pid unique
    keeper: int  # pid of the keeper; 0 before the start
    boot_id: str
    uid: int
    backend: BackendName
    manager: Manager
    unit: str  # its scope, or the slice of its own around that; "" with the plain backend
    cgroup: str  # absolute path below /sys/fs/cgroup; "" until the scope is running
    gpus: tuple[str, ...]  # UUIDs
    vram_mib: int | None  # declared for each of gpus; None: all of it
    vram_peak_mib: tuple[int, ...]  # the highest use, in the order of gpus; () before the first snapshot
    slots: dict[str, int]  # counts by name, each at least 1
    priority: int
    forced: int  # 1: it waited too long, and runs although its resources are not free
    since_s: float  # CLOCK_BOOTTIME seconds when it was granted
    expect_s: float | None
    profile: str = ""  # "": none, in a Python program
    gpu_indices: tuple[int, ...] = ()  # of gpus, as users see them; () unknown
    est_s: float | None = None  # how long decisions take the job to run; None: unknown
    est_from: EstimateSource = ""  # where est_s comes from
    # The idle times after which it is warned and ended (None: never), and since when it is idle (None: it is
    # not, or was not warned yet), on the clock of since_s.
    idle_warn_s: float | None = None
    idle_end_s: float | None = None
    idle_since_s: float | None = None
    # Of a job that gives way: how long it runs before, and how long its end may take. Once it does: to which
    # job, and when it is killed.
    min_run_s: float | None = None
    stop_s: float | None = None
    gives_way_to: str = ""
    gives_way_by_s: float | None = None


@record
class Ticket(Request):
    """A request that waits for its lease, with its requester."""

    name: str
    command: str  # for display: quoted as in a shell, and shortened
    pid: int
    pid_start: int
    boot_id: str
    uid: int
    inside: tuple[str, ...]  # its outer jobs, which keep their leases while it waits
    expect_s: float | None  # as the user said
    profile: str = ""  # "": none, in a Python program
    est_from: EstimateSource = ""  # where est_s comes from


def ticket_from(demand: Demand, inside: tuple[Lease, ...], arrived_s: float, **changes: Any) -> Ticket:
    """The ticket of a demand. ``inside``: the leases of its outer jobs. ``changes`` override the demand."""
    shares = demand.gpus > 0 and demand.vram_mib is not None
    fields = {
        "est_s": None, **fields_for(Ticket, demand), "vram_mib": demand.vram_mib if shares else None,
        "margin_mib": demand.margin_mib if shares else 0, "inside": tuple(lease.job for lease in inside),
        "arrived_s": round(arrived_s, 6),
    }  # fmt: skip
    return Ticket(**{**fields, **changes})


def lease_from(ticket: Ticket, gpus: tuple[str, ...], since_s: float, **changes: Any) -> Lease:
    """The lease that a ticket becomes, before its scope is running."""
    fields = {
        **fields_for(Lease, ticket), "keeper": 0, "backend": "systemd", "manager": "system", "unit": "",
        "cgroup": "", "gpus": gpus, "vram_peak_mib": (), "forced": 0, "since_s": since_s,
    }  # fmt: skip
    return Lease(**{**fields, **changes})


@record
class Busy:
    """Why a request was not granted."""

    kind: Resource
    holders: tuple[Lease, ...]  # the leases on what is missing
    ahead: int  # requests for something of the same that go first
    foreign: tuple[str, ...]  # the GPUs that are not available because foreign processes use them
    reserved_for: str  # the job for which free resources are kept; "" for none
    outsider: int = 0  # the process that holds the plain lock of scripts; 0 for none
    slot: str = ""  # the missing slot; "" for a GPU
    why: str = ""  # the policy's part in it, in words; "" for none


@record
class UserStanding:
    """A user's holdings, caps and usage. None: no cap."""

    uid: int
    gpus: int
    max_gpus: int | None
    vram_mib: int
    max_vram_mib: int | None
    slots: int  # CPU slots
    max_slots: int | None
    waiting: int
    share: float  # of all users' recent usage, 0 … 1
    due: float  # by the weights of active users


@record
class GroupStanding:
    """The holdings and caps of a group's members together. None: no cap."""

    gid: int
    name: str
    gpus: int
    max_gpus: int | None
    vram_mib: int
    max_vram_mib: int | None
    slots: int  # CPU slots
    max_slots: int | None


@record
class Standing:
    """The broker's data about all users. Only the viewer's own entries have commands (root: all)."""

    leases: tuple[Lease, ...]
    tickets: tuple[Ticket, ...]  # in the order in which they are served
    held_back: dict[str, str]  # by the ticket's job: the cap or share for which it waits, in words
    users: tuple[UserStanding, ...]
    groups: tuple[GroupStanding, ...]  # with common limits
    slot_limits: dict[str, int]  # the administrator's
    reservations: tuple[Reservation, ...] = ()  # those that are not over, the first to begin first
    out_of_service: tuple[OutOfService, ...] = ()  # by hand
    suspects: tuple[str, ...] = ()  # GPUs that are placed last
    left_out: int = 0  # leases and tickets for which the reply has no room; each user's first are in it


@record
class ScopeSpec:
    """The arguments of StartTransientUnit for a job's scope, without the process."""

    unit: str
    slice: str  # "gpu.slice"
    description: str
    properties: tuple[Property, ...]
    manager: Manager
    has_keeper: bool = True  # it ends the job's processes; systemd tells only the keeper to begin
    # Only for the broker:
    share_cap: bool = False  # the driver should cap the scope's GPU memory, if it can
    fence: str = ""  # the profile's value; "" if it is not set
    devices: tuple[str, ...] = ()  # as in Profile
    within: str = ""  # a slice of the job's own (:func:`slice_around`), which gets the limits; "": none
    adopts: tuple[int, ...] = ()  # pid and start of a process that runs already, and is moved into it

    @property
    def whole(self) -> str:
        """The unit that contains everything of the job."""
        return self.within or self.unit


@record
class Usage:
    """A job's usage, from its cgroup (None: unknown). Bytes and seconds."""

    cpu_s: float | None = None
    cpu_user_s: float | None = None
    cpu_system_s: float | None = None
    throttled_s: float | None = None
    memory_peak_bytes: int | None = None
    io_read_bytes: int | None = None
    io_write_bytes: int | None = None
    oom_kills: int | None = None
    pressure_cpu_s: float | None = None  # PSI "some" totals
    pressure_memory_s: float | None = None
    pressure_io_s: float | None = None


@record
class Reservation:
    """GPUs that are kept for one user's jobs. Times are in seconds since 1970."""

    id: str
    uid: int  # whose jobs may use them
    gpus: tuple[str, ...]  # UUIDs
    from_at: float
    until_at: float


@record
class OutOfService:
    """A GPU that root has taken out of service by hand, until it puts it back."""

    gpu: str  # its UUID
    why: str  # in root's words
    since_at: float  # seconds since 1970

    @property
    def words(self) -> str:
        """Why it gets no jobs, and how to change that."""
        return f"by root: {self.why}; slicer reserve --remove {self.gpu[:12]} puts it back"


@record
class Sharing:
    """The preloaded library's work for a job that was run with ``--share``, summed over its processes."""

    wants: Share  # as requested; never "off"
    mode: str  # as in Profile.share_mode
    processes: int  # that used CUDA through the library; 0: it was never active
    gated: int = 0  # launches, copies and the like that went through the gate
    passed: int = 0  # those of them without a turn: in a capture, or impossible to gate
    turns: int = 0  # the job's turns
    held_s: float = 0.0  # their total duration
    waits: int = 0  # how often one of its threads slept for a turn
    waited_s: float = 0.0  # their total sleep
    longest_wait_s: float = 0.0
    undrained: int = 0  # turns that were passed on before the work was done
    allocations: int = 0  # charged allocations
    refused: int = 0  # allocations that the cap refused
    uncounted: int = 0  # allocations that could not be counted and passed through
    peak_mib: tuple[int, ...] = ()  # the most that was charged at once, by GPU
    overhead_mib: tuple[int, ...] = ()  # used in addition, as last seen: CUDA contexts; by GPU
    got_past_cap: int = 0  # 1: it was seen to use more than its cap
    driver_cap: int = 0  # 1: the driver enforced the cap of the job's cgroup, too
    troubles: tuple[str, ...] = ()  # why a setting was not applied: slicer.share.troubles


@record
class Git:
    """What a job's working directory was a checkout of, just after the command's start."""

    commit: str
    branch: str  # "": none is checked out
    dirty: int | None  # 1: tracked files differ from the commit; None: git could not say, or not in time
    diff: str  # the SHA-256 of how they differ, as 64 hex digits; ""


@record
class PastAttempt:
    """One of several runs of a job, under one id. The fields are those of an outcome."""

    number: int  # from 1
    reason: Reason
    exit_code: int
    signal: int | None
    ended_by: EndedBy
    started_at: float
    wall_s: float
    gpus: tuple[str, ...]


@record
class Outcome:
    """How a job ended, with its figures."""

    job: str
    name: str
    command: tuple[str, ...]
    profile: str
    backend: BackendName
    manager: Manager
    unit: str
    slice: str
    gpus: tuple[str, ...]
    vram_mib: int | None  # declared for each of gpus; None: whole GPUs, or none
    vram_peak_mib: tuple[int, ...]  # the highest use, in the order of gpus; () unknown
    cpu_slots: int  # slots with the name "cpu"
    slots: dict[str, int]  # counts by name, each at least 1
    forced: int  # 1: it waited too long, and ran although its resources were not free
    uid: int
    reason: Reason
    exit_code: int  # slicer's own
    signal: int | None  # the signal that ended the command
    started_at: float  # seconds since the epoch, for display; durations below are monotonic
    waited_s: float  # from the request to the lease
    wall_s: float  # from the command's start to its end; with linger, to that of the last process
    usage: Usage
    leftovers: int  # processes that outlived the command and were ended
    enforced: tuple[str, ...]  # directives that are effective here
    not_enforced: tuple[str, ...]  # requested directives that are not effective here
    paused_s: float | None = None  # the part of wall_s during which it was paused or frozen; None: unknown
    ended_by: EndedBy = ""  # who ended it; "": it ended by itself, or unknown
    changed: tuple[str, ...] = ()  # final "NAME=VALUE" of properties that slicer set changed
    changed_outside: tuple[str, ...] = ()  # the same, for changes by others (systemctl set-property)
    sharing: Sharing | None = None  # None: it was not run with --share
    directory: str = ""  # that it ran in; "" unknown
    log: str = ""  # the file that its output went to; "" where slicer did not open one
    gpu_indices: tuple[int, ...] = ()  # of gpus, as users see them; () unknown
    git: Git | None = None  # None: it ran in no work tree of git, or git was not asked
    attempts: tuple[PastAttempt, ...] = ()  # of a job that ran again: the last 100, this one included
