"""Simulated GPUs in place of the driver's, for machines without any; see :mod:`slicer.gpu.sim.usage`."""

from __future__ import annotations

import os

from slicer.errors import GpuError, StateError
from slicer.gpu.sim import usage
from slicer.model import Gpu, GpuLoad, GpuMemory, GpuProcess
from slicer.state import simulated, statedir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from slicer.gpu.sim.usage import Use

    Uses = list[Use]  # inside the class, `list` is the method
    Gpus = tuple[Gpu, ...]


class SimulatedGpus:
    """The GPUs that ``SLICER_SIM`` describes, and the use that processes claim.

    Implements :class:`slicer.gpu.Gpus`.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Raises UsageError for an invalid variable, StateError for a bad state directory, GpuError if the
        use cannot be read.
        """
        sizes = simulated.parse_spec(environ[simulated.VARIABLE])
        self._gpus = simulated_gpus(sizes)
        self._directory = statedir.existing(environ, os.geteuid())
        self._usage = None
        if self._directory is not None:
            try:
                self._usage = usage.UsageFolder(self._directory.base, self._gpus)
            except StateError as error:
                self.close()
                raise GpuError(error.message, where=error.where, hint=error.hint) from error
        self._note = f"the GPUs are simulated ({simulated.VARIABLE}={simulated.canonical(sizes)})"

    def list(self) -> Gpus:
        """The GPUs in the order of their description."""
        return self._gpus

    def memory(self, only: Collection[str] = ()) -> tuple[GpuMemory, ...]:
        """The GPUs' memory. Raises GpuError."""
        used = usage.in_use(self._living())
        return tuple(GpuMemory(gpu.uuid, gpu.memory_mib, used.get(gpu.uuid, 0)) for gpu in self._chosen(only))

    def processes(self, only: Collection[str] = ()) -> tuple[GpuProcess, ...]:
        """The living processes on them. Raises GpuError."""
        wanted = {gpu.uuid for gpu in self._chosen(only)}
        return tuple(
            GpuProcess(uuid, use.pid, mib)
            for use in self._living()
            for uuid, mib in zip(use.gpus, use.mib, strict=True)
            if uuid in wanted
        )

    def utilisation(self, only: Collection[str] = ()) -> dict[str, int | None]:
        """Percent by UUID: the busiest process on each GPU, 0 without any. Raises GpuError."""
        uses = self._living()
        return {
            gpu.uuid: max([use.utilisation for use in uses if gpu.uuid in use.gpus], default=0)
            for gpu in self._chosen(only)
        }

    def load(self, only: Collection[str] = ()) -> dict[str, GpuLoad]:
        """The utilisation by UUID; they have no other sensors. Raises GpuError."""
        return {uuid: GpuLoad(percent) for uuid, percent in self.utilisation(only).items()}

    def busy(self, only: Collection[str] = ()) -> dict[str, frozenset[int] | None]:
        """The living processes with some utilisation, by UUID. Raises GpuError."""
        uses = [use for use in self._living() if use.utilisation]
        return {
            gpu.uuid: frozenset(use.pid for use in uses if gpu.uuid in use.gpus) for gpu in self._chosen(only)
        }

    def notes(self) -> tuple[str, ...]:
        return (self._note,)

    def close(self) -> None:
        if self._directory is not None:
            self._directory.close()
        if self._usage is not None:
            self._usage.close()
        self._directory = self._usage = None

    def _chosen(self, only: Collection[str]) -> Gpus:
        return tuple(gpu for gpu in self._gpus if not only or gpu.uuid in only)

    def _living(self) -> Uses:
        if self._usage is None:
            return []  # no process has used any yet
        try:
            return self._usage.living()
        except StateError as error:
            raise GpuError(error.message, where=error.where, hint=error.hint) from error


def simulated_gpus(sizes: tuple[int, ...]) -> tuple[Gpu, ...]:
    """The simulated GPUs of these sizes in MiB. They have no device files (minor -1)."""
    return tuple(
        Gpu(
            index=index,
            uuid=f"SIM-{index:08d}-0000-0000-0000-000000000000",
            name=f"Simulated GPU ({_name_of(mib)})",
            memory_mib=mib,
            minor=-1,
        )
        for index, mib in enumerate(sizes)
    )


def _name_of(mib: int) -> str:
    return f"{mib} MiB" if mib % 1024 else f"{mib // 1024} GiB"
