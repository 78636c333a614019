"""Submits attempts: jobs that ask for the same become one array. Its script and orders are written first."""

from __future__ import annotations

import os

from slicer import faults
from slicer.errors import BackendError, RefusedError, SlicerError
from slicer.queue.engine.slurm import parsing, script
from slicer.queue.engine.slurm.commands import Commands, CompletedCommand
from slicer.queue.engine.slurm.exchange import Exchange
from slicer.queue.engine.slurm.parsing import SlurmTask
from slicer.queue.engine.slurm.tracking import Tracked

_MOST_TASKS = 500  # in an array: Slurm's own limit is 1000, unless configured
# Whatever surrounds the queue, this is said to Slurm.
_ALWAYS = (
    "sbatch", "--parsable", "--no-requeue", "--nodes=1", "--ntasks=1", "--export=ALL", "--chdir=/",
    "--output=/dev/null", "--error=/dev/null",
)  # fmt: skip


class Submissions:
    """One sbatch runs at a time, so that arrays arrive in the order of their jobs."""

    def __init__(self, exchange: Exchange, commands: Commands) -> None:
        self._exchange = exchange
        self._commands = commands
        self._waiting: list[Tracked] = []  # the register has them, and Slurm has not
        self._sent: list[Tracked] = []  # with the sbatch that runs
        self._failed: list[tuple[Tracked, SlicerError]] = []

    def add(self, tracked: Tracked) -> None:
        self._waiting.append(tracked)

    def remove(self, tracked: Tracked) -> bool:
        """Forget an attempt that was not sent; False if it was."""
        is_waiting = tracked in self._waiting
        if is_waiting:
            self._waiting.remove(tracked)
        return is_waiting

    def under_way(self) -> set[str]:
        """The attempts of which it is not yet known whether Slurm has them."""
        return {tracked.job_id for tracked in (*self._sent, *self._waiting)}

    def start(self) -> bool:
        """Send the next array, if no other is being sent. The register must be saved."""
        if self._sent or not self._waiting:
            return False
        wanted = self._waiting[0].arguments
        self._sent = [each for each in self._waiting if each.arguments == wanted][:_MOST_TASKS]
        sent = set(self._sent)
        self._waiting = [each for each in self._waiting if each not in sent]
        try:
            self._send()
        except SlicerError as error:
            self._fail(error)
        return True

    def _send(self) -> None:
        batch, jobs = os.urandom(6).hex(), [tracked.job_id for tracked in self._sent]
        for position, tracked in enumerate(self._sent):
            tracked.batch, tracked.position = batch, position
            self._exchange.write(f"{tracked.job_id}.order", tracked.order)
        faults.point("queue-slurm-ordered")
        text = script.batch(self._exchange.path, jobs)
        self._exchange.write_batch(batch, jobs, text)
        faults.point("queue-slurm-submitting")
        about = (f"--job-name=slicer-{batch}", f"--comment={batch}", f"--array=0-{len(jobs) - 1}")
        self._commands.start([*_ALWAYS, *about, *self._sent[0].arguments], text)

    def take(self) -> bool:
        """Whether sbatch has ended; then :meth:`take_failed` and the tasks are known."""
        done = self._commands.take("sbatch")
        if done is None:
            return False
        faults.point("queue-slurm-submitted")
        array = parsing.array_of(done.output) if not done.code else ""
        if not array:
            self._fail(_error(done))
            return True
        for tracked in self._sent:
            tracked.task = SlurmTask(array, tracked.position, "PENDING", "", "")
        self._sent = []
        return True

    def _fail(self, error: SlicerError) -> None:
        self._failed += [(tracked, error) for tracked in self._sent]
        self._sent = []

    def take_failed(self) -> list[tuple[Tracked, SlicerError]]:
        found, self._failed = self._failed, []
        return found


def _error(done: CompletedCommand) -> SlicerError:
    why = parsing.last_words(done.error) or f"it ended with {done.code}"
    if parsing.is_refusal(done.error):
        return RefusedError(f"Slurm refuses it: {why}")
    return BackendError(f"sbatch: {why}")
