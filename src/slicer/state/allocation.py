"""The Slurm job in which this process runs, by the variables that Slurm's daemon sets on a node. Pure.

Inside, Slurm has given CPUs, memory and GPUs, and its own cgroup limits them. So slicer shares out these GPUs
alone, in a ledger of this job, and makes no scopes: a scope is elsewhere, outside of Slurm's cgroup.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slicer.model import Gpu

_LONGEST = 10  # digits of a job's number


def slurm_job(environ: Mapping[str, str]) -> str:
    """The job's number; "" outside. ``salloc`` leaves its shell on the login node, without a node's name."""
    number = environ.get("SLURM_JOB_ID", "")
    is_number = number.isascii() and number.isdigit() and len(number) <= _LONGEST
    return number if is_number and environ.get("SLURMD_NODENAME") else ""


def allotted(environ: Mapping[str, str], gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Those of a node's GPUs that Slurm gave to this step, or to its whole job.

    Slurm counts them by their device nodes. Where its cgroup hides all others, they are all that is seen.
    """
    words = environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS") or ""
    numbers = {int(word) for word in words.split(",") if word.isascii() and word.isdigit()}
    if len(gpus) == len(numbers):
        return tuple(gpus)
    return tuple(gpu for gpu in gpus if (gpu.minor if gpu.minor >= 0 else gpu.index) in numbers)
