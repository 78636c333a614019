"""Inside a job of Slurm slicer sees what Slurm gave. (X9)"""

from __future__ import annotations

import pytest

from slicer.gpu.sim.driver import simulated_gpus
from slicer.record import replace
from slicer.state.allocation import allotted, slurm_job

INSIDE = {"SLURM_JOB_ID": "17", "SLURMD_NODENAME": "n1"}


def test_only_slurms_daemon_on_a_node_makes_an_allocation() -> None:  # X9
    assert slurm_job(INSIDE) == "17"
    assert slurm_job({"SLURM_JOB_ID": "17"}) == ""  # the shell of salloc, on the login node
    for number in ("", "../7", "17x", "9" * 11, "٣"):
        assert slurm_job({**INSIDE, "SLURM_JOB_ID": number}) == ""


# X9
@pytest.mark.parametrize(
    ("said", "minors", "seen"),
    [
        ({}, (0, 1, 2, 3), ()),
        ({"SLURM_JOB_GPUS": "1,3"}, (0, 1, 2, 3), (1, 3)),
        ({"SLURM_JOB_GPUS": "1,3", "SLURM_STEP_GPUS": "3"}, (0, 1, 2, 3), (3,)),
        ({"SLURM_JOB_GPUS": "1,3"}, (1, 3), (0, 1)),  # its cgroup hides the others
        ({"SLURM_JOB_GPUS": "2"}, (3, 2, 1, 0), (1,)),  # by the device's number, not by the place in the list
        ({"SLURM_JOB_GPUS": "x,,-1"}, (0, 1), ()),
    ],
)
def test_gpus_of_others_are_not_there(
    said: dict[str, str], minors: tuple[int, ...], seen: tuple[int, ...]
) -> None:
    gpus = [
        replace(gpu, minor=minor)
        for gpu, minor in zip(simulated_gpus((1024,) * len(minors)), minors, strict=True)
    ]
    assert allotted({**INSIDE, **said}, gpus) == tuple(gpus[number] for number in seen)
