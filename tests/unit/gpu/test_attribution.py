"""Whose a GPU's memory is: by cgroup, marker and ancestry, and where the driver does not say."""

from __future__ import annotations

from typing import Any

import pytest

from slicer.gpu.attribution import devices
from slicer.model import Lease
from slicer.placement.devices import headroom, is_idle
from slicer.placement.settings import Policy
from tests.unit.gpu.made_up import G0, G1, IN_A, PLAIN, TOTAL, A, B, loose, owner, scope, seen, snapshot
from tests.unit.made_up import lease

CASES = {
    "in the scope itself": ("/gpu.slice/slicer-aaa.scope", {}, "aaa"),
    "in a container's cgroup below the scope": ("/gpu.slice/slicer-aaa.scope/docker/f00/init", {}, "aaa"),
    "in a scope whose name begins like it": ("/gpu.slice/slicer-aaa.scope2", {}, ""),
    "in another job's scope": ("/gpu.slice/slicer-bbb.scope", {}, "bbb"),
    "in the slice, but in no scope": ("/gpu.slice", {}, ""),
    "in the same place of another hierarchy": ("/user.slice/gpu.slice/slicer-aaa.scope", {}, ""),
    "in the root cgroup": ("/", {}, ""),
    "outside our pid namespace": ("", {"started": 0, "name": ""}, ""),
    # A cgroup decides where there is one: who left it (systemd-run, docker) is not in the job any more.
    "left its scope, marker and all": ("/system.slice/x.service", {"jobs": ("aaa",)}, ""),
    "moved into another job's scope": ("/gpu.slice/slicer-bbb.scope", {"jobs": ("aaa",)}, "bbb"),
    # Without systemd.
    "marked": ("/x", {"jobs": ("ppp",)}, "ppp"),
    "marked by a job that ended": ("/x", {"jobs": ("old",)}, ""),
    "marked, below a job that ended": ("/x", {"jobs": ("ppp", "old")}, "ppp"),
    "the lease's own process": ("/x", {"pid": 50}, "ppp"),
    "below the keeper, with an empty environment": ("/x", {"above": (70, 51, 50, 1)}, "ppp"),
    "below somebody else": ("/x", {"above": (70, 1)}, ""),
}


@pytest.mark.parametrize("case", CASES)
def test_a_process_belongs_to(case: str) -> None:  # X2
    where, fields, job = CASES[case]
    assert owner(seen(**{"cgroup": where, **fields}), A, B, PLAIN) == job


@pytest.mark.parametrize(
    ("fields", "leases", "job"),
    [
        # A lease that a program took inside a scope, which is shared by memory.
        ({"cgroup": IN_A, "jobs": ("aaa", "ppp")}, (A, PLAIN), "ppp"),
        ({"cgroup": IN_A, "jobs": ("aaa",), "above": (50, 4212)}, (A, PLAIN), "aaa"),
        ({"cgroup": IN_A, "above": (50, 49, 4212, 4211)}, (A, PLAIN), "ppp"),
        # A scope that was started by a program with a lease of its own (`slicer hold -- slicer run …`).
        ({"cgroup": IN_A, "jobs": ("ppp", "aaa")}, (A, PLAIN), "aaa"),
        ({"cgroup": IN_A, "above": (4212, 4211, 51, 50)}, (A, PLAIN), "aaa"),
        # Two leases of one program: the younger one is inside the older.
        ({"pid": 50}, (PLAIN, loose("qqq", G0, pid=50, since_s=999.0)), "qqq"),
        # A scope inside a scope, as a container's systemd makes them.
        (
            {"cgroup": f"{IN_A}/inner.scope/x"},
            (A, scope("ccc", G0), lease("ddd", gpus=(G0,), cgroup=f"{IN_A}/inner.scope")),
            "ddd",
        ),
    ],
)
def test_of_several_leases_the_innermost_wins(
    fields: dict[str, Any], leases: tuple[Lease, ...], job: str
) -> None:  # X2
    assert owner(seen(**fields), *leases) == job
    assert owner(seen(**fields), *reversed(leases)) == job


@pytest.mark.parametrize(
    ("fields", "leases", "job"),
    [
        # An inner job that asked for a CPU slot alone uses the outer one's GPU.
        ({"cgroup": IN_A, "jobs": ("out", "aaa")}, (scope("aaa"), scope("out", G0)), "out"),
        ({"cgroup": IN_A, "above": (4212, 9, 8)}, (scope("aaa"), scope("out", G0, pid=8, keeper=9)), "out"),
        # Two leases of one program, on a GPU each.
        ({"pid": 50}, (PLAIN, loose("qqq", G1, pid=50, since_s=999.0)), "ppp"),
        # Nobody around it holds this GPU.
        ({"cgroup": IN_A, "jobs": ("out", "aaa")}, (scope("aaa", G1), scope("out", G1)), "aaa"),
    ],
)
def test_a_lease_counts_for_its_own_gpus(
    fields: dict[str, Any], leases: tuple[Lease, ...], job: str
) -> None:  # X2, A3
    assert owner(seen(**fields), *leases) == job


def test_the_process_of_a_job_is_its_use_and_others_are_foreign() -> None:  # X2, E3
    found, other = devices(
        snapshot(
            seen(1, G0, 1000, cgroup=IN_A),
            seen(2, G0, 500, cgroup=f"{IN_A}/nested"),
            seen(3, G0, 300, cgroup="/gpu.slice/slicer-bbb.scope"),
            seen(4, G0, 70),
            seen(5, G0, 5),
            used={G0: 2000},
        ),
        (A, B),
        {(4, 5000, G0): 900, (5, 4999, G0): 7000, (4, 5000, G1): 7000},
    )
    assert (found.total_mib, found.used_mib) == (TOTAL, 2000)
    assert found.used_by == {"aaa": 1500, "bbb": 300}
    assert found.foreign_mib == 900 + 5  # held at the peak of the same process on the same GPU
    assert found.foreign_pids == (4, 5)
    assert (other.uuid, other.used_mib, other.used_by, other.foreign_mib) == (G1, 0, {}, 0)


def test_a_jobs_process_on_a_gpu_that_it_does_not_hold_is_in_everybodys_way() -> None:  # X2, E3
    _, found = devices(snapshot(seen(7, G1, 9000, cgroup=IN_A)), (A,), {})
    assert found.used_by == {"aaa": 9000}
    assert (found.foreign_mib, found.foreign_pids) == (9000, (7,))
    assert not is_idle(found, (A,), Policy())
    assert headroom(found, (A,), Policy()) == TOTAL - 9900


@pytest.mark.parametrize(
    ("processes", "used_by", "foreign_mib"),
    [
        # All mute ones are of one job: the memory that nobody accounts for is its.
        ([("aaa", None), ("aaa", None)], {"aaa": 20_000}, 0),
        ([("aaa", None), ("bbb", 3000)], {"aaa": 17_000, "bbb": 3000}, 0),
        ([("aaa", None), ("aaa", 4000), ("", 1000)], {"aaa": 19_000}, 1000),
        # One of them is nobody's: it may be using all of it.
        ([("aaa", None), ("", None)], {"aaa": 0}, 20_000),
        ([("", None), ("", 2000)], {}, 20_000),
        # Several jobs: their declarations (8000 and 6000) are set aside anyway, the rest is not.
        ([("aaa", None), ("bbb", None)], {"aaa": 0, "bbb": 0}, 6000),
        ([("aaa", None), ("bbb", None), ("", 5000)], {"aaa": 0, "bbb": 0}, 5000 + 1000),
        # Nothing is left over.
        ([("aaa", None), ("bbb", 20_000)], {"aaa": 0, "bbb": 20_000}, 0),
        ([("aaa", None), ("bbb", 21_000)], {"aaa": 0, "bbb": 21_000}, 0),
        # All that is listed accounts for itself: contexts of the driver are nobody's.
        ([("aaa", 5000)], {"aaa": 5000}, 0),
    ],
)
def test_use_that_is_not_said(
    processes: list[tuple[str, int | None]], used_by: dict[str, int], foreign_mib: int
) -> None:  # E13
    leases = (scope("aaa", G0, vram_mib=8000), scope("bbb", G0, vram_mib=6000))
    listed = [
        seen(pid, G0, used, cgroup=f"/gpu.slice/slicer-{job}.scope" if job else "/x")
        for pid, (job, used) in enumerate(processes, 1)
    ]
    found, _ = devices(snapshot(*listed, used={G0: 20_000}), leases, {})
    assert (found.used_by, found.foreign_mib) == (used_by, foreign_mib)
    assert found.foreign_pids == tuple(pid for pid, (job, _) in enumerate(processes, 1) if not job)


def test_a_mute_process_on_a_gpu_that_its_job_does_not_hold_is_foreign_there() -> None:  # E13
    _, found = devices(snapshot(seen(7, G1, None, cgroup=IN_A), used={G1: 400}), (A,), {})
    assert (found.used_by, found.foreign_mib, found.foreign_pids) == ({"aaa": 400}, 400, (7,))
