"""The GPUs of this machine as the queue sees them: which of them its jobs may have, and how they are used.

The jobs measure themselves. The queue looks for its board, and for the size of the largest GPU.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from contextlib import suppress

from slicer.broker.client.gpu_look import open_gpus
from slicer.errors import SlicerError, UsageError
from slicer.gpu.observer import GpuObserver
from slicer.job.plan import Plan
from slicer.kernel.sleep import seconds_until
from slicer.ledger import leasing
from slicer.placement.settings import Policy
from slicer.queue.model import GpuRow, QueueOptions
from slicer.record import replace


class Gpus:
    """``observer`` knows those that there are."""

    def __init__(self, policy: Policy, options: QueueOptions) -> None:
        self.observer = GpuObserver(policy, otherwise=open_gpus)
        self._options = options
        self._look_at = 0.0  # monotonic
        self._utilisation: dict[str, int | None] = {}

    # -- which of them -----------------------------------------------------------------------------------

    def is_narrowed(self, plan: Plan) -> bool:
        """--exclusive: the job gets none on which a job of this queue runs."""
        return self._options.exclusive and plan.missing.gpus > 0

    def has_enough(self, plan: Plan, in_use: Collection[str]) -> bool:
        """Whether enough of them have no job of this queue (``in_use``: those that do)."""
        return len(self._free(in_use)) >= plan.missing.gpus

    def chosen(self, plan: Plan, in_use: Collection[str]) -> Plan:
        """The plan with words for the acceptable GPUs, as in --gpu."""
        words = self._free(in_use) if self.is_narrowed(plan) else self._options.gpus
        if not words or not plan.missing.gpus:
            return plan
        return replace(plan, missing=replace(plan.missing, gpu_choice=words))

    def _free(self, in_use: Collection[str]) -> tuple[str, ...]:
        self.observer.open()
        return tuple(uuid for uuid in self._allowed() if uuid not in in_use)

    def _allowed(self) -> tuple[str, ...]:
        """The UUIDs of the GPUs that this queue may use. Raises UsageError for an unknown GPU."""
        try:
            chosen = leasing.gpus_named(self._options.gpus, self.observer.gpus)
        except UsageError as error:
            raise UsageError(error.message, where="--gpu", hint=error.hint) from error
        return chosen or tuple(gpu.uuid for gpu in self.observer.gpus)

    def check(self) -> None:
        """Make sure that the GPUs of --gpu exist. Raises UsageError, GpuError."""
        if self._options.gpus:
            self.observer.open()
            self._allowed()

    def largest_mib(self) -> int:
        with suppress(SlicerError):
            self.observer.open()  # its job may have ended before the first look
        allowed, seen = self._allowed(), {each.gpu_uuid: each.total_mib for each in self.observer.memory}
        sizes = [seen.get(gpu.uuid, gpu.memory_mib) for gpu in self.observer.gpus if gpu.uuid in allowed]
        return max(sizes, default=0)

    # -- for the board -----------------------------------------------------------------------------------

    def left_s(self) -> float:
        """The seconds until the next look is due."""
        return seconds_until(self._look_at) or 0.0

    def look(self) -> None:
        self._look_at = time.monotonic() + self._options.poll_s
        with suppress(SlicerError):
            self.observer.open()
            self.observer.observe()
            self._utilisation = self.observer.utilisation()

    def rows(self, jobs: Iterable[tuple[int, tuple[str, ...]]]) -> tuple[GpuRow, ...]:
        """As last seen. ``jobs``: the numbers of this queue's running jobs, and their GPUs."""
        memory = {each.gpu_uuid: each for each in self.observer.memory}
        on: dict[str, list[int]] = {}
        for number, uuids in jobs:
            for uuid in uuids:
                on.setdefault(uuid, []).append(number)
        return tuple(
            GpuRow(
                gpu.index, gpu.name, memory[gpu.uuid].total_mib if gpu.uuid in memory else gpu.memory_mib,
                memory[gpu.uuid].used_mib if gpu.uuid in memory else 0,
                self._utilisation.get(gpu.uuid) if on else None, tuple(sorted(on.get(gpu.uuid, []))),
            )
            for gpu in self.observer.gpus
        )  # fmt: skip
