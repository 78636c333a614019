"""A route's past as one table: each decision, its input, and how its job ended. Pure.

A refused caller may try again with the same input, many times. So calls and inputs are counted separately:
the same command with the same input is one input.
"""

from __future__ import annotations

from slicer.outcome.result import result_of
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Literal

    from slicer.outcome.decisions import DecisionRow, PastDecision, RoutedJob

    Ended = Literal["ok", "stopped", "failed", "ran-out", "unknown"]  # ran-out: of GPU memory

ENOUGH_JOBS = 10  # successful ones; fewer say nothing
_NAMELESS = ("", "-")  # inputs that can be told apart only by their metrics


@record
class PastJob:
    """A decision, whether or not it started a job."""

    row: DecisionRow
    job: RoutedJob | None
    input: tuple[object, ...]  # the same for decisions about the same input
    ended: Ended  # "unknown": it runs, or there was no job

    @property
    def is_out(self) -> bool:
        return self.ended == "ran-out"


@record
class DecisionCount:
    """The number of decisions, and of the different inputs among them."""

    calls: int
    inputs: int


def table(past: Iterable[PastDecision]) -> list[PastJob]:
    """The rows of one route, the oldest first. A job ran out of GPU memory if a CPU attempt followed it."""
    rows = list(past)
    ran_out = {each.row.after for each in rows if each.row.after}
    return [PastJob(each.row, each.job, _input(each.row), _ended(each, ran_out)) for each in rows]


def _input(row: DecisionRow) -> tuple[object, ...]:
    return row.command, row.input, row.metrics if row.input in _NAMELESS else ()


def _ended(past: PastDecision, ran_out: set[str]) -> Ended:
    if past.row.job in ran_out:
        return "ran-out"
    job = past.job
    return "unknown" if job is None else result_of(job.exit_code, job.reason, job.ended_by)


def count(past: Sequence[PastJob]) -> DecisionCount:
    return DecisionCount(len(past), len({each.input for each in past}))
