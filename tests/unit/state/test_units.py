"""The units of jobs: which names they have, and what is in a job."""

from __future__ import annotations

import pytest

from slicer.model import is_in_job, job_of_unit, slice_around
from slicer.record import replace
from slicer.state.statefile import is_job_unit, is_unit_of
from tests.unit import made_up

JOB = "0123456789ab"
OTHER = "ba9876543210"


@pytest.mark.parametrize(
    ("unit", "is_it"),
    [
        (f"slicer-{JOB}.scope", True),
        (f"gpu-{JOB}.slice", True),
        (f"gpu-1001-{JOB}.slice", True),
        (f"slicer-{OTHER}.scope", False),
        (f"gpu-{OTHER}.slice", False),
        (f"cpu-{JOB}.slice", False),  # runc does not find it
        (f"system-{JOB}.slice", False),
        (f"gpu-alice-{JOB}.slice", False),
        (f"gpu{JOB}.slice", False),
        (f"{JOB}.slice", False),
        ("gpu.slice", False),
        ("gpu-1001.slice", False),
        (f"gpu-{JOB}.scope", False),
        ("", False),
    ],
)
def test_a_jobs_unit_is_its_scope_or_a_slice_of_its_own(unit: str, is_it: bool) -> None:  # K2, U5
    assert is_unit_of(unit, JOB) == is_it
    assert (is_job_unit(unit) and job_of_unit(unit) == JOB) == is_it


@pytest.mark.parametrize("slice_name", ["gpu.slice", "gpu-1001.slice"])
def test_the_slice_of_a_jobs_own_has_its_name(slice_name: str) -> None:  # U5
    assert is_unit_of(slice_around(slice_name, JOB), JOB)


@pytest.mark.parametrize(
    ("there", "is_in"),
    [
        ("", True),
        (f"/slicer-{JOB}.scope", True),
        ("/docker-1.scope", True),
        ("/docker-1.scope/system.slice", True),
        ("x", False),
    ],
)
def test_what_is_below_a_leases_cgroup_is_in_the_job(there: str, is_in: bool) -> None:  # K2, U5
    unit = f"gpu-{JOB}.slice"
    lease = replace(made_up.lease(JOB), unit=unit, cgroup=f"/gpu.slice/{unit}")
    assert is_in_job(f"{lease.cgroup}{there}", lease) == is_in
    assert not is_in_job(there, lease)
    assert not is_in_job(f"/gpu.slice{there}", replace(lease, cgroup=""))
