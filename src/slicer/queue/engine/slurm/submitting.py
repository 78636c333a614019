"""Submits attempts: jobs that ask for the same become one array. Its script and orders are written first."""

from __future__ import annotations

import os
from collections.abc import Mapping

from slicer import faults
from slicer.errors import BackendError, RefusedError, SlicerError
from slicer.job.plan import Plan
from slicer.queue.engine.slurm import parsing, script
from slicer.queue.engine.slurm.commands import CompletedCommand, SlurmCommand
from slicer.queue.engine.slurm.exchange import Exchange
from slicer.queue.engine.slurm.parsing import SlurmTask
from slicer.queue.engine.slurm.tracking import Tracked
from slicer.queue.model import Entry
from slicer.queue.state.register import Register
from slicer.record import record

_MOST_TASKS = 500  # in an array: Slurm's own limit is 1000, unless configured
# Whatever surrounds the queue, this is said to Slurm.
_ALWAYS = (
    "sbatch", "--parsable", "--no-requeue", "--nodes=1", "--ntasks=1", "--export=ALL", "--chdir=/",
    "--output=/dev/null", "--error=/dev/null",
)  # fmt: skip


@record
class Submission:
    """An attempt that the register has, and Slurm has not."""

    tracked: Tracked
    entry: Entry
    plan: Plan
    arguments: tuple[str, ...]  # of sbatch
    slicer: str
    log: str


class Submissions:
    """One sbatch runs at a time, so that arrays arrive in the order of their jobs."""

    def __init__(
        self, exchange: Exchange, register: Register, environ: Mapping[str, str], directory: str
    ) -> None:
        self._exchange = exchange
        self._register = register
        self._environ = environ
        self._directory = directory
        self._requests: list[Submission] = []
        self._sbatch: SlurmCommand | None = None
        self._sent: list[Tracked] = []  # with that sbatch
        self._failed: list[tuple[Tracked, SlicerError]] = []

    def add(self, request: Submission) -> None:
        self._requests.append(request)

    def remove(self, tracked: Tracked) -> bool:
        """Forget a request that was not sent; False if there is none."""
        before = len(self._requests)
        self._requests = [request for request in self._requests if request.tracked is not tracked]
        return len(self._requests) < before

    def under_way(self) -> set[str]:
        """The attempts of which it is not yet known whether Slurm has them."""
        return {tracked.job_id for tracked in (*self._sent, *(each.tracked for each in self._requests))}

    def start(self) -> bool:
        """Send the next array, if no other is being sent. The register must be saved."""
        if self._sbatch is not None or not self._requests:
            return False
        first = self._requests[0]
        together = [each for each in self._requests if each.arguments == first.arguments][:_MOST_TASKS]
        chosen = {id(each) for each in together}
        self._requests = [each for each in self._requests if id(each) not in chosen]
        self._sent = [each.tracked for each in together]
        try:
            self._send(together)
        except SlicerError as error:
            self._fail(error)
        return True

    def _send(self, together: list[Submission]) -> None:
        batch, jobs = os.urandom(6).hex(), [each.tracked.job_id for each in together]
        for position, each in enumerate(together):
            each.tracked.batch, each.tracked.position = batch, position
            self._exchange.write(f"{each.tracked.job_id}.order", self._order(each))
        faults.point("queue-slurm-ordered")
        text = script.batch(self._exchange.path, jobs)
        self._exchange.write_batch(batch, jobs, text)
        faults.point("queue-slurm-submitting")
        about = (f"--job-name=slicer-{batch}", f"--comment={batch}", f"--array=0-{len(jobs) - 1}")
        self._sbatch = SlurmCommand([*_ALWAYS, *about, *together[0].arguments], self._environ, text)

    def _order(self, request: Submission) -> str:
        said = request.entry.attributes
        return script.order(
            request.plan, request.tracked.job_id, slicer=request.slicer,
            directory=os.path.join(self._directory, said.cwd),
            log=f"{os.path.realpath(self._register.log_dir.path)}/{request.log}",
            exchange=self._exchange.path, env=said.env,
        )  # fmt: skip

    def take(self) -> bool:
        """Whether sbatch has ended; then :meth:`take_failed` and the tasks are known."""
        done = self._sbatch.take() if self._sbatch is not None else None
        if done is None:
            return False
        faults.point("queue-slurm-submitted")
        self._sbatch = None
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

    def running(self) -> list[SlurmCommand]:
        return [self._sbatch] if self._sbatch is not None else []

    def close(self) -> None:
        if self._sbatch is not None:
            self._sbatch.close()


def _error(done: CompletedCommand) -> SlicerError:
    why = parsing.last_words(done.error) or f"it ended with {done.code}"
    if parsing.is_refusal(done.error):
        return RefusedError(f"Slurm refuses it: {why}")
    return BackendError(f"sbatch: {why}")
