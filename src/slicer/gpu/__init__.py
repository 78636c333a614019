"""GPUs: which ones there are, and what uses them.

:func:`open_gpus` opens the driver. All of slicer uses :class:`slicer.gpu.observer.GpuObserver`. The driver's
library is loaded only when GPUs are needed.
"""

from __future__ import annotations

import os

from slicer.kernel import cgroup, on_host
from slicer.state.allocation import allotted, slurm_job
from slicer.state.statefile import is_job_unit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Protocol

    from slicer.model import Gpu, GpuLoad, GpuMemory, GpuProcess

    class Gpus(Protocol):
        """An open driver of this machine's GPUs. Each call asks the driver, and may raise GpuError."""

        def list(self) -> tuple[Gpu, ...]:
            """The physical GPUs in CUDA's PCI_BUS_ID order; ``index`` is the place in it."""

        def memory(self, only: Collection[str] = ()) -> tuple[GpuMemory, ...]:
            """The memory of each GPU of :meth:`list`, in that order; ``only``: these UUIDs."""

        def processes(self, only: Collection[str] = ()) -> tuple[GpuProcess, ...]:
            """The processes with a context on any of them, one entry for each GPU and process."""

        def utilisation(self, only: Collection[str] = ()) -> dict[str, int | None]:
            """The utilisation of each GPU in percent, by UUID; None if the driver does not report it."""

        def load(self, only: Collection[str] = ()) -> dict[str, GpuLoad]:
            """The utilisation, temperature and power of each GPU, by UUID."""

        def busy(self, only: Collection[str] = ()) -> dict[str, frozenset[int] | None]:
            """The pids that used each GPU since the last call, by UUID; None if the driver cannot tell."""

        def notes(self) -> tuple[str, ...]:
            """What :meth:`list` found that a user should know: a lost GPU, MIG mode, …"""

        def close(self) -> None:
            """Close the library. Safe to repeat."""


DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/nvidia0")


def has_nvidia() -> bool:
    """Whether NVIDIA's driver or one of its nodes exists. Does not load the library, which is slow."""
    return any(os.path.exists(on_host(path)) for path in DRIVER_FILES)


def open_gpus() -> Gpus:
    """This machine's GPUs through NVML, or those that SLICER_SIM describes. The caller closes them.

    Loading NVML takes tens of milliseconds. Raises NoGpu if no GPU can be used; its ``reason`` says whether
    pynvml, the driver's library, the loaded driver, a device or a permission is missing, or whether the
    driver does not match its library. Raises GpuError if NVML fails in any other way, UsageError for an
    invalid SLICER_SIM.
    """
    if os.environ.get("SLICER_SIM"):
        from slicer.gpu.sim.driver import SimulatedGpus

        return SimulatedGpus(os.environ)
    from slicer.gpu.nvml import Nvml

    return Nvml()


def ours(gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Those of a machine's GPUs that slicer may use: inside a job of Slurm, the ones that it gave.

    Raises NoGpu if it gave none.
    """
    if not slurm_job(os.environ):
        return gpus
    found = allotted(os.environ, gpus)
    if not found:
        from slicer.errors import NoGpu

        hint = "ask for one, as in sbatch --gres=gpu:1"
        raise NoGpu("no-devices", "Slurm gave this job no GPU", hint=hint)
    return found


def is_fenced() -> bool:
    """Whether this process is root's and fenced off from GPUs: by the job around it, or in a closed shop.

    NVML then shows only the job's own GPUs, or none. Simulated GPUs have no fence.
    """
    if os.geteuid() != 0 or os.environ.get("SLICER_SIM"):
        return False
    own = cgroup.of("self")
    fence = "/user.slice" if own.startswith("/user.slice/") else ""
    before, found, rest = own.partition("/slicer-")
    name = rest.partition("/")[0]
    if found and name.endswith(".scope"):
        has_own_slice = is_job_unit(before.rpartition("/")[2])  # which has the fence
        fence = before if has_own_slice else f"{before}{found}{name}"
    if not fence:
        return False
    from slicer.kernel import bpf

    return bpf.filters_devices(cgroup.path_of(fence))
