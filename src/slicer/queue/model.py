"""The types of the queue: an entry of the jobs file, a job's state, an event, the board.

Nothing here touches the machine. Memory is in MiB. Durations are in seconds, and times in seconds since the
epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from slicer.record import record

# "pending": not started yet, or to be started again. All others except "running" are final.
Status = Literal["pending", "running", "ok", "failed", "timeout", "oom", "cancelled", "infeasible", "lost"]
FINAL: frozenset[Status] = frozenset(get_args(Status)) - {"pending", "running"}
# What a job declared, compared with what it used (E5). "unknown": nothing declared, or seen too seldom.
Verdict = Literal["within", "under-declared", "over-declared", "unknown"]
ENOUGH_LOOKS = 10  # fewer looks at a job's GPUs do not show its peak: the driver reports none in between
DONE_SHOWN = 50  # ended jobs that a board has


class Kind(NamedTuple):
    """What a line says of the demand; jobs of one kind ask for the same. None or empty: not given."""

    vram_mib: int | None = None  # on each GPU
    gpus: int | None = None
    profile: str | None = None
    priority: int | None = None
    slots: tuple[tuple[str, int], ...] = ()  # how many of which name, in the order of the names
    share: str | None = None  # as slicer run --share


@record
class Attributes:
    """The attributes in the brackets before a command. None or empty: not given."""

    kind: Kind = Kind()
    timeout_s: float | None = None
    retries: int | None = None  # after CUDA's "out of memory"
    cancel: bool = False
    name: str = ""
    after: tuple[str, ...] = ()  # names of jobs that must have ended well before
    cwd: str = ""
    env: tuple[tuple[str, str], ...] = ()


class Entry(NamedTuple):  # not a record: there may be 100,000
    """One job as the jobs file has it. ``key`` is its identity: two lines with the same command have two."""

    number: int  # of the line, from 1
    key: str  # the first 12 hex digits of sha1(command), "#", how many lines before have the same command
    command: str
    attributes: Attributes


class JobState:
    """The journal's knowledge of one job. Unset fields have the class's defaults, which saves memory."""

    key: str
    no: int  # its number for people: jobs are counted in the order in which they were first seen
    command: str
    name: str = ""
    status: Status = "pending"
    attempts: int = 0  # how many have begun; one that never started does not count
    ooms: int = 0  # attempts that ended with CUDA's "out of memory"
    next_vram_mib: int | None = None  # declared for the next attempt, raised after "out of memory"
    # Of the attempt that runs, or was the last:
    job: str = ""  # its id: of its lease, scope and outcome
    boot_id: str = ""
    started_at: float = 0.0
    log: str = ""  # file name in the log directory
    gpus: tuple[str, ...] = ()  # UUIDs
    gpu_indices: tuple[int, ...] = ()  # as people count them, in the order of gpus
    vram_mib: int | None = None  # declared on each of them
    cancelling: bool = False  # it was asked to end because its line says "cancel"
    # How it ended:
    exit_code: int = 0
    signal: int | None = None
    reason: str = ""  # as in Outcome.reason; for "infeasible" and "lost", a sentence
    wall_s: float = 0.0
    vram_peak_mib: tuple[int, ...] = ()  # in the order of gpus; () unknown
    utilisation: float | None = None  # percent, of the GPUs it ran on, while it ran
    looks: int = 0  # how often its GPUs were looked at while it ran
    verdict: Verdict = "unknown"
    memory_peak_bytes: int | None = None

    def __init__(self, key: str, no: int, command: str, name: str = "", **more: Any) -> None:
        self.key = key
        self.no = no
        self.command = command
        self.name = name
        if more:
            self.update(more)

    def update(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if name not in STATE_FIELDS:
                raise TypeError(f"a JobState has no field {name!r}")
            setattr(self, name, value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, JobState):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in STATE_FIELDS)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"JobState({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    @property
    def is_final(self) -> bool:
        return self.status in FINAL


# The fields of a JobState and their types, as written; of those that have one, their defaults.
STATE_FIELDS: dict[str, str] = JobState.__annotations__
STATE_DEFAULTS: dict[str, Any] = {
    name: vars(JobState)[name] for name in STATE_FIELDS if name in vars(JobState)
}


@record
class Row:
    """One job on the board."""

    no: int
    name: str  # "" when the line gives none
    command: str
    status: Status
    attempt: int  # which runs, or will run next (from 1); of a job that has ended, how many there were
    declared_mib: int | None
    gpu_indices: tuple[int, ...]  # where it runs or ran
    now_mib: tuple[int, ...]  # in use, in the order of gpu_indices; () unknown
    peak_mib: tuple[int, ...]
    utilisation: float | None  # percent, average so far
    looks: int  # how often its GPUs were looked at
    wall_s: float  # how long it runs, or ran
    exit_code: int
    reason: str
    verdict: Verdict
    waits_for: str  # why a pending job does not run: "GPU 0 is held by train", "job 3"; "" unknown or no
    note: str  # "cancelling"; "" for nothing


@record
class GpuRow:
    """One GPU on the board."""

    index: int
    name: str
    total_mib: int
    used_mib: int
    utilisation: int | None  # percent
    jobs: tuple[int, ...]  # the numbers of this queue's jobs on it


BoardState = Literal["running", "stopping", "ending", "drained", "stalled", "ended"]


@record
class Board:
    """The whole queue at one moment. ``pending`` and ``done`` may be cut short; ``counts`` count all jobs."""

    title: str  # the jobs file, as the user named it
    at: float
    began_at: float
    gpus: tuple[GpuRow, ...]
    running: tuple[Row, ...]
    pending: tuple[Row, ...]  # in the order in which they are to start
    done: tuple[Row, ...]  # the last to end comes last
    counts: dict[Status, int]
    eta_s: float | None  # until all is done; None: nothing to guess from
    state: BoardState
    warning: str  # what keeps the queue from going on: the disk is full, the file malformed; "" for nothing
    pid: int  # the queue's own
    every_s: float  # how often status.txt is written while jobs run


EventKind = Literal[
    "opened",  # the queue begins: total, pending, done (how many), log_dir, jobs_file, resumed (bool)
    "file-changed",  # added, removed (how many pending lines came and went)
    "file-kept",  # the file cannot be used now; the last good one stays: error
    "file-good",  # it can be used again
    "skipped",  # ended in an earlier run: count, counts (of each status)
    "waiting",  # nothing can start now (said once): why
    "started",  # log (file name)
    "adopted",  # found running, from a queue that died
    "usage",  # verbose: its memory has grown (job.now_mib, job.peak_mib)
    "exceeds",  # E5, at once, and once an attempt and GPU: gpu (index), used_mib, declared_mib
    "finished",  # job.status says how; log, log_path; unless it went well, last_line (of the log)
    "retry",  # after CUDA's "out of memory": declared_mib (before), next_mib, attempt, attempts, log
    "infeasible",  # reason
    "cancelling",  # its line says cancel, it is being ended
    "cancelled",  # before it started: its line says so, or somebody took it out of the queue
    "requeued",  # an attempt that never began, or that a reboot ended: why
    "lost",  # it ended together with its keeper: how, nobody knows; log, log_path, last_line
    "unrunnable",  # it waits for what will never be (its "after" failed or is gone): why
    "drained",  # nothing is left to do; watch (bool)
    "stopping",  # asked to stop: nothing new is started; running (how many)
    "ending",  # asked twice: running jobs are being ended
    "stalled",  # nothing is started because what must last cannot be written: why
    "resumed",  # it can again
    "warning",  # text
    "notice",  # text
    "summary",  # counts (of each status), failed, earlier, under, over (Rows), logs (by number), exit_code, …
]


@record
class Event:
    """Something that happened. ``job`` is as it was then; ``data`` has the fields named at its kind."""

    kind: EventKind
    at: float
    job: Row | None = None
    data: Mapping[str, Any] = MappingProxyType({})


DEFAULT_LOG_DIR = "slicer_logs"


@record
class QueueOptions:
    """``gpus``: indices, UUIDs or beginnings of UUIDs; () all. None in another field: as configured."""

    jobs_file: str
    log_dir: str
    gpus: tuple[str, ...] = ()
    idle_threshold_mib: int | None = None
    margin_mib: int | None = None
    spike_buffer: float | None = None
    tolerance: float = 0.10
    poll_s: float = 5.0
    exclusive: bool = False
    watch: bool = False
    oom_retries: int = 0
    fresh: bool = False
    verbose: bool = False
    profile: str = "gpu"
    at_a_time: int | None = None  # how many jobs may run at once, beyond what the ledger says
    backend: str = "auto"
    notify: str | None = None  # what is told of its jobs' ends, as slicer run --notify
    trust_file: bool = False  # root runs it, though other users may change it
