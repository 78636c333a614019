"""What is said of a request that could never be served."""

from __future__ import annotations

from slicer.errors import InfeasibleError
from slicer.quantity import format_size
from slicer.text import counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.placement.capacity import AnyRequest
    from slicer.placement.decision import Infeasible


def refusal(never: Infeasible, request: AnyRequest) -> InfeasibleError:
    """The error for a request that not even an empty machine could serve."""
    if never.kind == "gpu-choice":
        return InfeasibleError(f"there is no GPU {never.uuid}", hint="see slicer status")
    if never.kind == "vram":
        return InfeasibleError(_too_large(never, request), hint="see slicer status for the GPUs' sizes")
    what = "GPU" if never.kind == "gpu" else "CPU slot"
    were = "was" if never.wanted == 1 else "were"
    return InfeasibleError(
        f"{counted(never.wanted, what)} {were} asked for, but this machine has {counted(never.total, what)}",
        hint="ask for fewer" if never.total else f"this machine has no {what}",
    )


def _too_large(never: Infeasible, request: AnyRequest) -> str:
    """As in "30G + 512M margin fits on no GPU; the largest has 24G"."""
    wanted = _size(request.vram_mib or 0)
    if request.margin_mib:
        wanted += f" + {_size(request.margin_mib)} margin"
    pool = "these" if request.gpu_choice else "the GPUs"
    if request.gpus > 1:
        return f"{wanted} does not fit on {request.gpus} of {pool}; the smallest has {_size(never.total)}"
    fits = f"fits on none of {pool}" if request.gpu_choice else "fits on no GPU"
    return f"{wanted} {fits}; the largest has {_size(never.total)}"


def _size(mib: int) -> str:
    return format_size(mib << 20).replace(".0", "")
