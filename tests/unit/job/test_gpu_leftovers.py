"""What is left on the GPUs after a job."""

from __future__ import annotations

import pytest

from slicer.gpu.snapshot import ProcessOnGpu
from slicer.job import gpu_leftovers
from slicer.model import Lease
from tests.unit.gpu.made_up import G0, G1, IN_A, B, scope, seen, snapshot

WHOLE = scope("aaa", G0, since_s=100.0)
SHARER = scope("aaa", G0, since_s=100.0, vram_mib=8000)


def test_after_the_job_its_own_processes_are_told_from_the_rest() -> None:  # B5
    here = snapshot(seen(1, cgroup=IN_A), seen(2), seen(3, G1, cgroup=IN_A))
    left = gpu_leftovers.remains(here, WHOLE, 200)
    assert [process.pid for process in left.own] == [1]
    assert left.unexplained == {}


@pytest.mark.parametrize(
    ("held", "used", "processes", "odd"),
    [
        (WHOLE, 201, (), {G0: 201}),
        (WHOLE, 200, (), {}),  # no more than on an idle GPU
        (WHOLE, 5000, (seen(2, G0, 4000),), {}),  # there is somebody to blame
        (WHOLE, 5000, (seen(2, G1, 4000),), {G0: 5000}),
        (SHARER, 5000, (), {}),  # may be a sharer's: the driver lists none in some containers
    ],
)
def test_memory_without_a_process_is_odd_on_a_whole_gpu(
    held: Lease, used: int, processes: tuple[ProcessOnGpu, ...], odd: dict[str, int]
) -> None:  # B5
    assert gpu_leftovers.remains(snapshot(*processes, used={G0: used}), held, 200).unexplained == odd


@pytest.mark.parametrize(
    ("held", "process", "is_reported"),
    [
        (WHOLE, seen(2, started=10_001), True),  # began after the lease, at 100 s
        (WHOLE, seen(2, started=9_999), False),  # was there before
        (WHOLE, seen(2, started=10_001, gpu=G1), False),
        (WHOLE, seen(2, started=10_001, cgroup="/gpu.slice/slicer-bbb.scope"), False),
        (WHOLE, seen(2, started=10_001, cgroup=IN_A), False),
        (WHOLE, seen(2, started=0, cgroup=""), True),  # the GPU was empty
        (scope("aaa", G0, since_s=100.0, forced=1), seen(2, started=0, cgroup=""), False),
        (SHARER, seen(2, started=0, cgroup=""), False),  # may have been there before
        (SHARER, seen(2, started=10_001), True),
    ],
)
def test_who_came_during_the_job_and_is_in_no_job_is_reported(
    held: Lease, process: ProcessOnGpu, is_reported: bool
) -> None:  # B5
    found = gpu_leftovers.foreign_arrivals(snapshot(process), held, (held, B), 100)
    assert bool(found) == is_reported
