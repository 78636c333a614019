"""Jobs that have their leases: what becomes of one whose command cannot be started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from slicer.errors import BackendError, SlicerError, StateError
from slicer.queue.start.starting import StartingJobs


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

    job: Any = SimpleNamespace(key="k#0", job_id="a1", is_unbound=False)
    job.is_ready, job.start_command = lambda: True, lambda: None
    job.abandon = lambda: done.append("abandoned")
    setattr(job, step, fail)
    starting: Any = StartingJobs.__new__(StartingJobs)
    starting._jobs = {"a1": job}
    starting._register = SimpleNamespace(
        do=lambda record: done.append(record["event"]), forget=lambda job_id: done.append(f"forgot {job_id}")
    )
    starting._has_turn = lambda job: True
    assert starting.start_commands() == ([], [("k#0", error)])
    assert done == ["abandoned", "unbegun", "forgot a1"]
    assert starting._jobs == {}
