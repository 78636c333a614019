"""The part of this machine's GPUs that Slurm gave to the job around this process."""

from __future__ import annotations

import os

from slicer.errors import NoGpu
from slicer.state.allocation import allotted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from slicer.gpu import Gpus
    from slicer.model import Gpu, GpuLoad, GpuMemory, GpuProcess

    Found = tuple[Gpu, ...]  # inside the class, `list` means the method


class AllottedGpus:
    """Implements :class:`slicer.gpu.Gpus`."""

    def __init__(self, whole: Gpus) -> None:
        """Takes over the open driver. Raises NoGpu if Slurm gave none."""
        self._whole = whole
        try:
            self._uuids = [gpu.uuid for gpu in allotted(os.environ, whole.list())]
            if not self._uuids:
                hint = "ask for one, as in sbatch --gres=gpu:1"
                raise NoGpu("no-devices", "Slurm gave this job no GPU", hint=hint)
        except BaseException:
            whole.close()
            raise

    def list(self) -> Found:
        return tuple(gpu for gpu in self._whole.list() if gpu.uuid in self._uuids)

    def memory(self, only: Collection[str] = ()) -> tuple[GpuMemory, ...]:
        return self._whole.memory(self._chosen(only))

    def processes(self, only: Collection[str] = ()) -> tuple[GpuProcess, ...]:
        return self._whole.processes(self._chosen(only))

    def utilisation(self, only: Collection[str] = ()) -> dict[str, int | None]:
        return self._whole.utilisation(self._chosen(only))

    def load(self, only: Collection[str] = ()) -> dict[str, GpuLoad]:
        return self._whole.load(self._chosen(only))

    def busy(self, only: Collection[str] = ()) -> dict[str, frozenset[int] | None]:
        return self._whole.busy(self._chosen(only))

    def notes(self) -> tuple[str, ...]:
        return self._whole.notes()

    def close(self) -> None:
        self._whole.close()

    def _chosen(self, only: Collection[str]) -> Collection[str]:
        return [uuid for uuid in self._uuids if not only or uuid in only]
