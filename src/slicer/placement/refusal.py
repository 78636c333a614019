"""The message for a request that could never be served."""

from __future__ import annotations

from slicer.errors import InfeasibleError
from slicer.model import CPU, Request
from slicer.quantity import short_mib
from slicer.text import counted, slot_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.placement.decision import Infeasible


def refusal(never: Infeasible, request: Request) -> InfeasibleError:
    """The error for a request that not even an empty machine could serve."""
    if never.kind == "gpu-choice":
        return InfeasibleError(f"there is no GPU {never.uuid}", hint="see slicer status")
    if never.kind == "vram":
        return InfeasibleError(_too_large(never, request), hint="see slicer status for the GPUs' sizes")
    were = "was" if never.wanted == 1 else "were"
    if never.kind == "slot":
        message = f"{slot_words(never.slot, never.wanted)} {were} asked for, but "
        message += f"this machine has {slot_words(never.slot, never.total)}"
        hint = "ask for fewer" if never.slot == CPU else "ask for fewer; [slots] says how many there are"
        return InfeasibleError(message, hint=hint)
    have = counted(never.total, "GPU")
    return InfeasibleError(
        f"{counted(never.wanted, 'GPU')} {were} asked for, but this machine has {have}",
        hint="ask for fewer" if never.total else "this machine has no GPU",
    )


def _too_large(never: Infeasible, request: Request) -> str:
    """As in "30G + 512M margin fits on no GPU; the largest has 24G"."""
    wanted = short_mib(request.vram_mib or 0)
    if request.margin_mib:
        wanted += f" + {short_mib(request.margin_mib)} margin"
    pool = "these" if request.gpu_choice else "the GPUs"
    if request.gpus > 1:
        return f"{wanted} does not fit on {request.gpus} of {pool}; the smallest has {short_mib(never.total)}"
    fits = f"fits on none of {pool}" if request.gpu_choice else "fits on no GPU"
    return f"{wanted} {fits}; the largest has {short_mib(never.total)}"
