"""What is run, and what came of it: plain data. Pure."""

from __future__ import annotations

from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Share = Literal["off", "lock"]

FAKE = "Fake GPU"  # how the name of a GPU begins that is none: the tests' driver
UNMANAGED = "unmanaged"
ALONE = "alone"
ALONE_LOCKED = "alone, with lock"


@record
class Parameters:
    """The command line."""

    gpu: str  # an index or UUID; "" is wherever slicer finds room
    duration_s: float  # that is measured, of each run
    warmup_s: float  # before that, under the same load
    repeats: int
    batch_jobs: int
    kernel_us: int  # of a batch job
    kernel: str  # of a batch job: compute or memory
    depth: int  # kernels that a batch job has in flight
    period_ms: float  # of the latency job: one request each
    request_kernels: int
    request_kernel_us: int
    modes: tuple[str, ...]  # as --modes names them
    priority: int  # of the latency job where a mode has one
    vram_mib: int  # that each job asks slicer for
    backend: str = "auto"


@record
class Scenario:
    """What runs at the same time, and how it shares. ``priority`` is that of the latency job."""

    name: str  # the table's row
    latency: bool
    batch: bool
    share: Share
    mode: str = ""  # as --share-mode takes it; "": the default
    skip_syncs: int = 0
    priority: int = 0


@record
class Calibration:
    """The GPU, and how much work a time is on it, as a job found that was alone."""

    device: str
    uuid: str
    memory_mib: int
    compute_capability: str
    cuda: str  # that the driver knows: "13.0"
    sm_count: int
    compute_ns: float  # of one iteration of the kernel that computes
    memory_ns: float  # of one round of the one that copies
    request_ms: float  # of one request's work on the GPU, without pauses


@record
class Sharing:
    """What slicer's outcome says of a job's sharing."""

    processes: int
    gated: int
    turns: int
    undrained: int
    troubles: tuple[str, ...]


@record
class LatencyRun:
    """One run of the latency job: requests that were due in the measured time, and responses to them."""

    due: int
    responses_ms: tuple[float, ...]
    sharing: Sharing | None = None


@record
class BatchRun:
    """One run of a batch job: kernels that were done in the time that is measured."""

    done: int
    seconds: float
    sharing: Sharing | None = None


@record
class Run:
    """One repetition of a scenario. ``error`` says why there are no figures; "": there are."""

    scenario: str
    latency: LatencyRun | None
    batch: tuple[BatchRun, ...]
    error: str = ""
