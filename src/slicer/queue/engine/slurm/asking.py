"""What is asked of Slurm, and when: one question covers all attempts, and is rarer while nothing changes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from slicer.kernel.sleep import seconds_until
from slicer.queue.engine.slurm import parsing, tracking
from slicer.queue.engine.slurm.commands import Commands, CompletedCommand
from slicer.queue.engine.slurm.parsing import Node, SlurmTask
from slicer.queue.engine.slurm.tracking import Tracked

Tasks = dict[tuple[str, int], SlurmTask]  # by batch and position

_SINFO = ("sinfo", "-h", "-e", "-o", parsing.NODE_FORMAT)


class Questions:
    """``nodes``: those of the cluster; () as long as Slurm does not answer. ``problem``: why it does not."""

    def __init__(self, commands: Commands, attempts: Mapping[str, Tracked]) -> None:
        """``attempts``: those that Slurm has, or is about to get."""
        self._commands = commands
        self._attempts = attempts
        self.nodes: tuple[Node, ...] = ()
        self.problem = ""
        self._cancelling: list[Tracked] = []  # with the scancel that runs
        self._to_cancel: list[Tracked] = []
        self._tick_s = 0.0
        self._tick_at = 0.0  # monotonic

    # -- the clock ---------------------------------------------------------------------------------------

    def soon(self) -> None:
        """Something has changed: ask soon."""
        self._tick_s, now = tracking.next_tick_s(0.0, has_changed=True), time.monotonic()
        self._tick_at = min(self._tick_at, now + self._tick_s) if self._tick_at > now else now + self._tick_s

    def later(self, *, has_changed: bool) -> None:
        """An answer came: ask again after a while."""
        self._tick_s = tracking.next_tick_s(self._tick_s, has_changed=has_changed)
        self._tick_at = time.monotonic() + self._tick_s

    @property
    def is_due(self) -> bool:
        return self._is_ticking and time.monotonic() >= self._tick_at

    @property
    def _is_ticking(self) -> bool:
        return bool(self._attempts or self._to_cancel) and not self._commands.runs("squeue")

    def left_s(self) -> float | None:
        """The seconds until :meth:`ask` is due; None: there is nothing to ask, or no answer yet."""
        return seconds_until(self._tick_at) if self._is_ticking else None

    # -- questions ---------------------------------------------------------------------------------------

    def find_nodes(self, *, waits: bool = False) -> None:
        """Ask which nodes there are. ``waits``: only at the queue's beginning. Raises BackendError."""
        if waits:
            self._take_nodes(self._commands.call(_SINFO))
        elif not self._commands.runs("sinfo"):
            self._commands.start(_SINFO)

    def has_partition(self, name: str) -> bool:
        return any(node.partition == name for node in self.nodes)

    def ask(self) -> None:
        """Ask about the tasks of all attempts. Raises BackendError."""
        wanted = {tracked.batch for tracked in (*self._attempts.values(), *self._to_cancel)} - {""}
        names = ",".join(f"slicer-{batch}" for batch in sorted(wanted)) or "slicer-none"
        words = ["squeue", "-h", "-r", "-t", "all", "-u", str(os.geteuid()), "-n", names]
        self._commands.start([*words, "-o", parsing.JOB_FORMAT])

    def take(self) -> Tasks | str | None:
        """All tasks of this user's queues, why Slurm does not answer, or None: nothing was asked."""
        if (done := self._commands.take("sinfo")) is not None:
            self._take_nodes(done)
        if (done := self._commands.take("scancel")) is not None:
            if done.code:  # perhaps some of them have ended meanwhile
                self._to_cancel += self._cancelling
            self._cancelling = []
        if (done := self._commands.take("squeue")) is None:
            return None
        if done.code:
            return f"Slurm does not answer: {parsing.last_words(done.error)}"
        return parsing.tasks(done.output, os.geteuid())

    def _take_nodes(self, done: CompletedCommand) -> None:
        self.nodes = parsing.nodes(done.output) if not done.code else ()
        if not self.nodes:
            self.problem = f"Slurm does not answer: {parsing.last_words(done.error) or 'it has no nodes'}"

    # -- ending ------------------------------------------------------------------------------------------

    def cancel(self, tracked: Tracked, *, at_once: bool = False) -> None:
        """Have Slurm end the task of an attempt, once its number is known."""
        self._to_cancel.append(tracked)
        if at_once:
            self._tick_at = 0.0
        else:
            self.soon()

    def cancel_known(self, tasks: Tasks, under_way: set[str]) -> None:
        """End what is to be ended. ``under_way``: attempts that Slurm may not know. Raises BackendError."""
        if self._commands.runs("scancel") or not self._to_cancel:
            return
        active, left = [], []
        for tracked in self._to_cancel:
            task = tasks.get((tracked.batch, tracked.position))
            if task is not None and task.is_active:
                active.append((tracked, task))
            elif tracked.job_id in under_way:
                left.append(tracked)
        self._to_cancel = left
        if active:
            self._cancelling = [tracked for tracked, _ in active]
            self._commands.start(["scancel", *parsing.numbers(task for _, task in active)])
