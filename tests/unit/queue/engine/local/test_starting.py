"""Jobs that have their leases: what becomes of one whose command cannot be started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from slicer.errors import BackendError, SlicerError, StateError
from slicer.queue.engine.local.starting import StartingJobs
from tests.unit import made_up


# D2: the lease of a job that will not run is given back, whatever went wrong
@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("is_ready", BackendError("its scope could not be started")),
        ("is_ready", StateError("its lease cannot be written: No space left on device")),
        ("start_command", BackendError("the keeper was ended before the command could start")),
    ],
)
def test_a_job_that_cannot_be_started_is_abandoned_once(step: str, error: SlicerError) -> None:
    done: list[str] = []

    def fail() -> None:
        raise error

    job: Any = SimpleNamespace(key="k#0", job_id="a1", may_be_early=False)
    job.is_ready, job.start_command = lambda: True, lambda: None
    job.abandon = lambda: done.append("abandoned")
    setattr(job, step, fail)
    starting: Any = StartingJobs.__new__(StartingJobs)
    starting._jobs = {"a1": job}
    starting._register = SimpleNamespace(
        do=lambda record: done.append(record["event"]), forget=lambda job_id: done.append(f"forgot {job_id}")
    )
    assert starting.start_commands() == ([], [("k#0", error)])
    assert done == ["abandoned", "unbegun", "forgot a1"]
    assert starting._jobs == {}


class _Running(list[None]):
    def __init__(self, count: int) -> None:
        super().__init__([None] * count)

    def unbound(self) -> int:
        return len(self)


# Q15: a time limit counts from the scope's start, so only the scopes of jobs without one may be early
@pytest.mark.parametrize(
    ("timeout_s", "running", "early", "may"),
    [
        (None, 2, 0, True),
        (None, 2, 7, True),
        (None, 2, 8, False),
        (5.0, 2, 0, False),
        (5.0, 1, 0, True),
        (5.0, 1, 1, False),  # it goes behind those that are ready
    ],
)
def test_a_scope_with_a_time_limit_is_started_when_it_is_the_jobs_turn(
    timeout_s: float | None, running: int, early: int, may: bool
) -> None:
    held = SimpleNamespace(lease=SimpleNamespace(gpus=(), slots={}))
    starting: Any = StartingJobs.__new__(StartingJobs)
    starting._jobs = {str(n): SimpleNamespace(held=held, may_be_early=True) for n in range(early)}
    starting._running = _Running(running)
    starting._lacks_descriptors = lambda: False
    starting._at_a_time, starting._most_unbound = None, 2
    plan: Any = SimpleNamespace(missing=made_up.profile(), profile=SimpleNamespace(timeout_s=timeout_s))
    assert starting.may_add(plan) is may
