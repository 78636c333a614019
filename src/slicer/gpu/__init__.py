"""GPUs: which there are, and what uses them.

:func:`open_gpus` opens the driver; :class:`slicer.gpu.observer.GpuObserver` is what all of slicer uses. The
driver's library is loaded only when somebody asks for GPUs.
"""

from __future__ import annotations

import os

from slicer.kernel import cgroup, on_host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Protocol

    from slicer.gpu.snapshot import GpuSnapshot
    from slicer.model import Gpu, GpuMemory, GpuProcess

    class Gpus(Protocol):
        """An open driver of this machine's GPUs. Each call asks it anew, and may raise GpuError."""

        def list(self) -> tuple[Gpu, ...]:
            """The physical GPUs in CUDA's PCI_BUS_ID order, ``index`` counting in that order."""

        def memory(self, only: Collection[str] = ()) -> tuple[GpuMemory, ...]:
            """How full each GPU of :meth:`list` is, in that order; ``only``: the UUIDs to ask about."""

        def processes(self, only: Collection[str] = ()) -> tuple[GpuProcess, ...]:
            """The processes with a context on any of them, one entry for each GPU and process."""

        def utilisation(self, only: Collection[str] = ()) -> dict[str, int | None]:
            """How busy each GPU is in percent, by UUID; None where the driver does not say."""

        def notes(self) -> tuple[str, ...]:
            """What :meth:`list` found that a user should know: a GPU that is lost, MIG mode, …"""

        def close(self) -> None:
            """Give the library back. Safe to repeat."""

    class AttributedGpus(Gpus, Protocol):
        """The GPUs as somebody else sees them, who knows whose the processes are."""

        def snapshot(self, only: Collection[str] = ()) -> GpuSnapshot:
            """All of one moment, the jobs of all processes with it. Raises GpuError."""


DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/nvidia0")


def has_nvidia() -> bool:
    """Whether NVIDIA's driver, or a node of it, is here. Without the driver's library, which loads slowly."""
    return any(os.path.exists(on_host(path)) for path in DRIVER_FILES)


def open_gpus() -> Gpus:
    """The GPUs of this machine through NVML, or those that SLICER_SIM describes; the caller closes it.

    Loading NVML takes tens of milliseconds. Raises NoGpu when no GPU can be used; its ``reason`` says whether
    pynvml, the driver's library, the loaded driver, a device or a permission is missing, or the driver does
    not match its library. Raises GpuError when NVML fails in any other way, UsageError where SLICER_SIM makes
    no sense.
    """
    if os.environ.get("SLICER_SIM"):
        from slicer.gpu.sim.gpus import SimulatedGpus

        return SimulatedGpus(os.environ)
    from slicer.gpu.nvml import Nvml

    return Nvml()


def is_fenced() -> bool:
    """Whether this process is root's, and fenced off from GPUs: by the job around it, or in a closed shop.

    NVML then shows the job's own GPUs, or none. Simulated GPUs know no fence.
    """
    if os.geteuid() != 0 or os.environ.get("SLICER_SIM"):
        return False
    own = cgroup.of("self")
    fence = "/user.slice" if own.startswith("/user.slice/") else ""
    before, found, rest = own.partition("/slicer-")
    name = rest.partition("/")[0]
    if found and name.endswith(".scope"):
        fence = f"{before}{found}{name}"
    if not fence:
        return False
    from slicer.kernel import bpf

    return bpf.filters_devices(cgroup.path_of(fence))
