"""Where the experiment takes place: the driver, the GPU, who else is on it."""

from __future__ import annotations

import time
from contextlib import closing

from bench.sharing.model import Environment
from slicer.errors import GpuError
from slicer.gpu import open_gpus
from slicer.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bench.sharing.model import Calibration

_VERSION = "/sys/module/nvidia/version"


def environment(found: Calibration) -> Environment:
    """What is known of it while no job of ours runs."""
    return Environment(
        gpu=found.device, uuid=found.uuid, memory_mib=found.memory_mib,
        compute_capability=found.compute_capability, driver=_driver(), cuda=found.cuda, slicer=__version__,
        date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), others=_others(found.uuid),
    )  # fmt: skip


def _driver() -> str:
    """The version of the kernel module; "" where there is none to be seen (WSL, a fake)."""
    try:
        with open(_VERSION, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _others(uuid: str) -> int:
    """How many processes have memory on the GPU."""
    try:
        with closing(open_gpus()) as gpus:
            return sum(process.gpu_uuid == uuid for process in gpus.processes((uuid,)))
    except GpuError:
        return 0  # slicer run will say what is wrong with it
