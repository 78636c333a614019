"""How long others wait beside a queue of 10,000 lines, in virtual time: ``python -m bench.beside_queue``.

There are 8 GPUs. The queue is there when the day begins, and has a ticket for the first job of each kind.
Each of the others has a ticket from its arrival, as ``slicer run`` has. slicer's order is compared with first
come, first served (``[waiting] order = "arrival"``). Everything else is as in :mod:`bench.packing`.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from random import Random
from statistics import mean, quantiles

from bench.markdown import figures, table
from bench.packing import COMMANDS, DAY_S, MARGIN_MIB, MIXES, Job, Slicer, day, starts
from slicer.model import Request
from slicer.placement.policy import Policy
from slicer.queue.model import Kind

LINES, OTHERS, SEEDS = 10_000, 150, range(1, 3)
_SIZES_GIB = (4, 8, 16, 24)
_MEAN_S = 400.0  # of the queue's jobs: they fill the GPUs for most of the day
ORDERS = {False: "slicer's order", True: "first come, first served"}  # by Policy.by_arrival


def jobs(seed: int) -> list[Job]:
    """The queue's lines, which arrive at 0, and then the others' jobs."""
    random = Random(seed)
    lines = [
        Job(
            number, 0.0, random.lognormvariate(0, 1) / 1.65 * _MEAN_S, 1, random.choice(_SIZES_GIB) * 1024,
            number % COMMANDS, None,
        )
        for number in range(LINES)
    ]  # fmt: skip
    some = random.sample(day(seed, MIXES["a busy day"]), OTHERS)
    others = sorted(some, key=lambda job: job.arrives_s)
    return lines + [
        Job(
            LINES + number, job.arrives_s, min(job.lasts_s, DAY_S / 8), job.gpus, job.vram_mib,
            COMMANDS + job.command, job.limit_s,
        )
        for number, job in enumerate(others)
    ]  # fmt: skip


class Ledger(Slicer):
    """The queue's tickets, and one of each other job."""

    def __init__(self, *, by_arrival: bool) -> None:
        super().__init__("runs")
        self._by_arrival = by_arrival
        self._others: dict[str, Request] = {}
        self._known: dict[int, float | None] = {}  # estimates by command, as long as no run ends
        self._known_by = self._lengths

    def add(self, jobs: Iterable[Job]) -> None:
        new = list(jobs)
        if lines := [job for job in new if job.number < LINES]:
            super().add(lines)
        for job in new:
            if job.number >= LINES:
                key = f"{job.number:012x}"
                self._jobs[key] = job
                self._others[key] = Request(
                    job=key, priority=0, arrived_s=job.arrives_s, gpus=job.gpus, gpu_choice=(),
                    vram_mib=job.vram_mib, margin_mib=MARGIN_MIB, slots={}, slot_limits={},
                    est_s=self._estimate(job),
                )  # fmt: skip

    def _policy(self) -> Policy:
        return Policy(mean_job_s=self._lengths.mean_s, by_arrival=self._by_arrival)

    def _estimate(self, job: Job) -> float | None:
        if self._known_by is not self._lengths:
            self._known, self._known_by = {}, self._lengths
        if job.command not in self._known:
            self._known[job.command] = super()._estimate(job)
        return self._known[job.command]

    def _ask(self, now_s: float) -> None:
        self._asks = {kind: ask for kind, ask in self._asks.items() if kind.engine is None}
        super()._ask(now_s)
        self._asks |= {Kind(engine=key): ask for key, ask in self._others.items()}

    def _begun(self, ask: Request) -> None:
        if self._others.pop(ask.job, None) is None:
            super()._begun(ask)


def waits(seed: int, by_arrival: bool) -> tuple[list[float], float]:
    """Each other's wait in minutes, and when the queue has ended, in hours."""
    made = jobs(seed)
    began = starts(made, Ledger(by_arrival=by_arrival))
    ended_s = max(began[job.number] + job.lasts_s for job in made[:LINES])
    return [(began[job.number] - job.arrives_s) / 60 for job in made[LINES:]], ended_s / 3600


def main() -> None:
    """Print the table."""
    rows = []
    with ProcessPoolExecutor() as pool:
        for by_arrival, words in ORDERS.items():
            days = list(pool.map(waits, SEEDS, [by_arrival] * len(SEEDS)))
            found = [wait for of_day, _ in days for wait in of_day]
            shown = [mean(found), quantiles(found, n=20)[-1], max(found)]
            rows.append([words, *figures(shown, 0), f"{mean(end for _, end in days):.1f}"])
    heads = ["", "mean wait", "p95", "longest", "the queue ends after h"]
    title = (
        f"{OTHERS} jobs of others beside a queue of {LINES:,} lines, on 8 GPUs. Waiting in minutes; "
        f"{len(SEEDS)} days."
    )
    print(table(title, heads, rows, []))


if __name__ == "__main__":
    main()
