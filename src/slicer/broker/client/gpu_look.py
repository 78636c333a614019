"""The GPUs as the broker sees them, for processes fenced off from the driver: in a closed shop, in a job."""

from __future__ import annotations

import os

from slicer.backend import broker_socket
from slicer.broker.client.connection import Connection
from slicer.broker.protocol.messages import Look, Seen, UseNow
from slicer.errors import GpuError, SlicerError
from slicer.gpu.snapshot import GpuSnapshot, ProcessOnGpu, facts_of
from slicer.model import Gpu, GpuLoad, GpuMemory, GpuProcess
from slicer.record import fields_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from slicer.gpu.snapshot import AttributedGpus

    Found = tuple[Gpu, ...]  # inside the class, `list` means the method


def open_gpus() -> AttributedGpus:
    """The GPUs through the broker. Raises NoGpu, GpuError."""
    path = broker_socket(os.environ)
    if not path:
        raise GpuError("there is no broker to ask")
    return BrokerGpus(path)


class BrokerGpus:
    """Implements :class:`slicer.gpu.snapshot.AttributedGpus`. All methods raise GpuError.

    Of other users' jobs only their use is known, not their processes: their pid is 0.
    """

    def __init__(self, path: str) -> None:
        """Raises NoGpu, GpuError if the broker cannot report GPUs."""
        self._connection = Connection(path)
        try:
            self._first = self._look()
        except GpuError:
            self.close()
            raise

    def list(self) -> Found:
        """The GPUs, without their buses and nodes."""
        now = self._first.now
        return tuple(Gpu(each.index, each.uuid, each.name, each.memory_mib, -1) for each in now)

    def snapshot(self, only: Collection[str] = ()) -> GpuSnapshot:
        seen = self._look()
        return GpuSnapshot(
            tuple(
                GpuMemory(each.uuid, each.total_mib, each.used_mib, each.fault)
                for each in seen.now if not only or each.uuid in only
            ),
            tuple(_process(each) for each in seen.uses if not only or each.gpu in only),
        )  # fmt: skip

    def memory(self, only: Collection[str] = ()) -> tuple[GpuMemory, ...]:
        return self.snapshot(only).memory

    def processes(self, only: Collection[str] = ()) -> tuple[GpuProcess, ...]:
        found = self.snapshot(only).processes
        return tuple(GpuProcess(each.gpu_uuid, each.pid, each.used_mib) for each in found)

    def utilisation(self, only: Collection[str] = ()) -> dict[str, int | None]:
        seen = self._look().now
        return {each.uuid: each.utilisation for each in seen if not only or each.uuid in only}

    def load(self, only: Collection[str] = ()) -> dict[str, GpuLoad]:
        seen = self._look().now
        return {
            each.uuid: GpuLoad(**fields_for(GpuLoad, each)) for each in seen if not only or each.uuid in only
        }

    def busy(self, only: Collection[str] = ()) -> dict[str, frozenset[int] | None]:
        return {}  # the broker reports GPUs as a whole only

    def notes(self) -> tuple[str, ...]:
        return ()  # the broker warns root

    def close(self) -> None:
        self._connection.close()

    def _look(self) -> Seen:
        try:
            seen: Seen = self._connection.ask(Look())
        except GpuError:
            raise
        except SlicerError as error:
            raise GpuError(str(error)) from error
        return seen


def _process(use: UseNow) -> ProcessOnGpu:
    """One entry. For our own process, /proc shows in which of our jobs it is."""
    if use.pid:
        found = facts_of(GpuProcess(use.gpu, use.pid, use.used_mib), None, True)
        if found.cgroup:
            return found
    jobs = (use.of_job,) if use.of_job else ()
    return ProcessOnGpu(use.gpu, use.pid, use.used_mib, 0, "", use.cgroup, jobs, (), use.uid)
