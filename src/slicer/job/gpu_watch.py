"""What one job uses on the GPUs of its lease. It is looked at once a second, and after its end.

The outer half does this. If it is dead, the keeper looks at the end. Nobody looks while a job runs that has
neither (``--exec``), that uses what an outer job holds, or whose outer half was killed.
"""

from __future__ import annotations

from slicer.errors import NoGpu, SlicerError
from slicer.gpu.observer import GpuObserver
from slicer.job.gpu_monitor import Escaped, Monitor
from slicer.job.job import tell
from slicer.quantity import format_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.gpu import AttributedGpus
    from slicer.gpu.snapshot import ProcessOnGpu
    from slicer.job.gpu_monitor import Exceeded
    from slicer.job.job import Job
    from slicer.ledger.held_lease import HeldLease
    from slicer.ledger.ledger import Ledger

SAMPLE_S = 1.0
WORTH_REPEATING = 1.10  # times the use that was warned of


def _through_the_broker() -> AttributedGpus:
    from slicer.broker.client.gpus import open_gpus

    return open_gpus()


class GpuWatch:
    """Looks at the GPUs of one job. A look that fails is reported once, and is the last."""

    def __init__(self, job: Job, held: HeldLease, ledger: Ledger, warn: Callable[[str], None]) -> None:
        self.job = job
        self.held = held
        self._warn = warn
        self.observer = GpuObserver(only=held.lease.gpus, otherwise=_through_the_broker)
        self.monitor = Monitor(self.observer, ledger, SAMPLE_S, again=WORTH_REPEATING)
        self.monitor.follow(held, shares=job.sharing is not None and job.sharing.is_active)
        self.has_failed = False  # then looking again makes no sense
        self.end_job: Callable[[], None] | None = None  # how a job that got past its cap is ended

    def left_s(self) -> float | None:
        """How long until the next look; None when there will be none."""
        return None if self.has_failed else self.monitor.left_s()

    def sample(self) -> None:
        """Look, and note the peak. Raises nothing of the driver or the ledger: it stops no job."""
        for found in self.monitor.look():
            self._tell(found)
        if self.monitor.problem is not None:
            self.fail(self.monitor.problem)

    def fail(self, error: SlicerError) -> None:
        """Say why the GPUs are not looked at any more; not that they are fenced off, which is meant so."""
        if not self.has_failed:
            self.has_failed = True
            if isinstance(error, NoGpu) and error.reason == "fenced":
                return
            self.say(f"what the job uses on its GPUs can no longer be seen: {error}")

    def say(self, text: str) -> None:
        """To the user and the journal."""
        self._warn(text)
        tell(self.job, "error", lease=self.held.lease, message=text)

    def name_of(self, uuid: str) -> str:
        """ "GPU 0", as `slicer status` and CUDA's PCI order count."""
        return f"GPU {self.observer.index(uuid)}"

    def _tell(self, found: Exceeded | Escaped) -> None:
        name = self.job.name or "the job"
        if isinstance(found, Escaped):
            self._warn(f"{name} {ESCAPED}")
            return
        text = exceeds(self.name_of(found.gpu), found)
        self._warn(f"{name} {text}")
        tell(
            self.job, "over-limit", lease=self.held.lease, message=text, over_gpu=found.gpu,
            declared_mib=found.declared_mib, used_mib=found.used_mib,
        )  # fmt: skip
        if found.ends and self.end_job is not None:
            self.end_job()


ESCAPED = (
    "uses its GPU without the library: its program is statically linked, or its environment was cleared;"
    " it takes no turns, and has no cap"
)


def exceeds(gpu: str, found: Exceeded) -> str:
    """What is said of a job that uses more than it declared, or got past its cap."""
    used, declared = format_size(found.used_mib << 20), format_size(found.declared_mib << 20)
    if not found.is_cap:
        return f"uses {used} of {gpu}, declared {declared}"
    ended = ", and is ended" if found.ends else ""
    return f"uses {used} of {gpu}, beyond its cap of {declared}: it got past the library{ended}"


def describe(process: ProcessOnGpu) -> str:
    """As in "pid 4711 (python, 3.2G)"."""
    size = "size unknown" if process.used_mib is None else format_size(process.used_mib << 20)
    if not process.pid:
        return f"processes of others ({size})"
    return f"pid {process.pid} ({process.name or 'unknown'}, {size})"
