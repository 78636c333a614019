"""A simulated job's use of memory over time, and its message when a GPU is full. Pure."""

from __future__ import annotations

import math

from slicer.errors import UsageError
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.gpu.sim.usage import NoRoom
    from slicer.model import Gpu

_STEP_S = 0.02
LIBRARIES = ("pytorch", "jax", "tf", "cupy")


@record
class Spike:
    """More memory for a moment."""

    mib: int
    at_s: float
    length_s: float


@record
class MemoryPlan:
    """How much memory the job uses when; times count from the start."""

    vram_mib: int  # on each GPU, reached at the end of the ramp
    ramp_s: float
    hold_s: float
    spike: Spike | None

    @property
    def end_s(self) -> float:
        return self.ramp_s + self.hold_s


def demand_mib(plan: MemoryPlan, at_s: float) -> int:
    """The memory that the job wants on each GPU at a moment."""
    share = min(1.0, at_s / plan.ramp_s) if plan.ramp_s else 1.0
    mib = round(plan.vram_mib * share)
    spike = plan.spike
    if spike is not None and spike.at_s <= at_s < spike.at_s + spike.length_s:
        return max(mib, spike.mib)
    return mib


def next_step_s(plan: MemoryPlan, at_s: float, now_s: float) -> float:
    """When the demand changes next after ``at_s``. Steps of the ramp before ``now_s`` are skipped."""
    moments = [plan.end_s, plan.ramp_s]
    if plan.spike is not None:
        moments += [plan.spike.at_s, plan.spike.at_s + plan.spike.length_s]
    if at_s < plan.ramp_s:
        moments.append((math.floor(max(at_s, now_s) / _STEP_S + 1e-6) + 1) * _STEP_S)
    return min((moment for moment in moments if at_s < moment <= plan.end_s), default=plan.end_s)


def visible_gpus(text: str | None, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES shows, by index or by the beginning of their UUID; unset: the first.

    Raises UsageError for a GPU that does not exist.
    """
    if text is None:
        return gpus[:1]
    found: list[Gpu] = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        if word == "-1":  # CUDA ignores the rest
            break
        meant = [gpu for gpu in gpus if word == str(gpu.index) or gpu.uuid.lower().startswith(word.lower())]
        exact = [gpu for gpu in meant if word == str(gpu.index)] or meant
        if len(exact) != 1:
            raise UsageError(f"no such simulated GPU: {word!r}", where="CUDA_VISIBLE_DEVICES")
        found += exact
    return tuple(dict.fromkeys(found))


def oom_text(kind: str, lacking: NoRoom, wanted_mib: int) -> str:
    """A library's message when the driver has no memory left, as at the end of a traceback."""
    index, total, free = lacking.gpu.index, lacking.gpu.memory_mib, lacking.free_mib
    size = wanted_mib << 20
    match kind:
        case "jax":
            return (
                "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to"
                f" allocate {size} bytes."
            )
        case "tf":
            return (
                "tensorflow.python.framework.errors_impl.ResourceExhaustedError: {{function_node"
                " __wrapped__AddV2_device_/job:localhost/replica:0/task:0/device:GPU:0}} OOM when allocating"
                f" tensor with shape[{size // 4}] and type float on"
                f" /job:localhost/replica:0/task:0/device:GPU:{index} by allocator GPU_{index}_bfc [Op:AddV2]"
            )
        case "cupy":
            return (
                f"cupy.cuda.memory.OutOfMemoryError: Out of memory allocating {size:,} bytes"
                f" (allocated so far: {max(0, total - free) << 20:,} bytes)."
            )
        case _:
            return (
                f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {wanted_mib / 1024:.2f} GiB."
                f" GPU {index} has a total capacity of {total / 1024:.2f} GiB of which"
                f" {max(0, free) / 1024:.2f} GiB is free."
            )
