"""What a job holds already through the jobs around it."""

from __future__ import annotations

import os

import pytest

from slicer.job import plan
from slicer.kernel import proc
from slicer.ledger import nesting
from slicer.ledger.nesting import OuterJobs
from slicer.model import Lease, Profile
from slicer.record import replace
from tests.unit import made_up
from tests.unit.ledger.box import LedgerBox

pytest_plugins = ["tests.unit.ledger.box"]

GPU_JOB = made_up.lease(
    "aaaaaaaaaaaa", pid=10, keeper=11, unit="slicer-aaaaaaaaaaaa.scope", gpus=("GPU-a",), since_s=5.0,
    cgroup="/gpu.slice/slicer-aaaaaaaaaaaa.scope",
)  # fmt: skip
CPU_JOB = replace(
    GPU_JOB, job="bbbbbbbbbbbb", keeper=21, unit="slicer-bbbbbbbbbbbb.scope", gpus=(), slots={"cpu": 2},
    since_s=4.0, cgroup="/cpu.slice/slicer-bbbbbbbbbbbb.scope",
)  # fmt: skip
PLAIN_JOB = replace(
    CPU_JOB, job="cccccccccccc", backend="plain", keeper=31, unit="", cgroup="", slots={"cpu": 1}
)
STARTING = replace(PLAIN_JOB, job="dddddddddddd", keeper=0)
LEASES = (GPU_JOB, CPU_JOB, PLAIN_JOB, STARTING)
NOBODY: frozenset[int] = frozenset()


# A3
@pytest.mark.parametrize(
    ("environ", "cgroup", "ancestors", "expected"),
    [
        ({}, "/user.slice/session-1.scope", NOBODY, ()),
        ({}, "", NOBODY, ()),
        ({}, "/", NOBODY, ()),
        ({"SLICER_LEASE": "aaaaaaaaaaaa"}, "/", NOBODY, (GPU_JOB,)),
        ({"SLICER_LEASE": "bbbbbbbbbbbb,aaaaaaaaaaaa"}, "/", NOBODY, (CPU_JOB, GPU_JOB)),  # outermost first
        ({"SLICER_LEASE": "ffffffffffff"}, "/", NOBODY, ()),  # a job that is over
        ({"SLICER_LEASE": ""}, "/", NOBODY, ()),
        ({"SLICER_LEASE": ",,"}, "/", NOBODY, ()),
        ({"SLICER_LEASE": "aaaaaaaaaaa"}, "/", NOBODY, ()),  # a part of an id is none
        # the environment was scrubbed: the cgroup tells
        ({}, "/gpu.slice/slicer-aaaaaaaaaaaa.scope", NOBODY, (GPU_JOB,)),
        ({}, "/gpu.slice/slicer-aaaaaaaaaaaa.scope/inner/deeper", NOBODY, (GPU_JOB,)),
        ({}, "/gpu.slice/slicer-aaaaaaaaaaaa.scopes", NOBODY, ()),
        ({}, "/gpu.slice", NOBODY, ()),
        # without scopes: the keeper above us; one that has not started yet is nobody's
        ({}, "/", frozenset({1, 31}), (PLAIN_JOB,)),
        ({}, "/", frozenset({0, 1}), ()),
        # found by two ways, counted once
        ({"SLICER_LEASE": GPU_JOB.job}, GPU_JOB.cgroup, frozenset({GPU_JOB.keeper}), (GPU_JOB,)),
    ],
)
def test_the_jobs_around_us(
    environ: dict[str, str], cgroup: str, ancestors: frozenset[int], expected: tuple[Lease, ...]
) -> None:
    assert nesting.outer_jobs(environ, cgroup, ancestors, LEASES) == OuterJobs(expected, False)


# A3
@pytest.mark.parametrize(
    ("environ", "cgroup", "expected"),
    [
        ({}, "/user.slice/session-1.scope", False),
        ({}, "", False),
        ({"SLICER_LEASE": "aaaaaaaaaaaa"}, "", True),
        ({}, "/gpu.slice/slicer-aaaaaaaaaaaa.scope", True),
        ({}, "/gpu.slice/slicer-aaaaaaaaaaaa.scope/inner", True),
    ],
)
def test_the_ledger_is_read_only_where_there_may_be_jobs_around(
    environ: dict[str, str], cgroup: str, expected: bool
) -> None:
    assert nesting.may_be_nested(environ, cgroup) is expected


# A3: a foreign wrapper's GPU_LOCK_HELD, as gpu-run scripts set it
@pytest.mark.parametrize(
    ("value", "leases", "expected"),
    [(None, (), False), ("", (), False), ("0", (), False), ("1", (), True), ("yes", (), True),
     ("1", (GPU_JOB,), False), ("1", (CPU_JOB,), True)],
)  # fmt: skip
def test_a_foreign_lock_counts_unless_it_is_our_own(
    value: str | None, leases: tuple[Lease, ...], expected: bool
) -> None:
    environ = {"SLICER_LEASE": ",".join(lease.job for lease in leases)}
    environ |= {} if value is None else {"GPU_LOCK_HELD": value}
    assert nesting.outer_jobs(environ, "/", NOBODY, leases).foreign_gpu is expected
    assert nesting.outer_jobs(environ, "/", NOBODY, ()).foreign_gpu is (expected and not leases)  # they ended


def wanting(gpus: int, cpu_slots: int) -> Profile:
    return made_up.profile(gpus=gpus, cpu_slots=cpu_slots)


# A3, A4
@pytest.mark.parametrize(
    ("profile", "held", "skip", "expected"),
    [
        (wanting(0, 0), OuterJobs((), False), False, (0, 0)),
        (wanting(1, 1), OuterJobs((), False), False, (1, 1)),
        (wanting(1, 0), OuterJobs((GPU_JOB,), False), False, (0, 0)),
        (wanting(2, 0), OuterJobs((GPU_JOB,), False), False, (1, 0)),
        (wanting(0, 1), OuterJobs((GPU_JOB,), False), False, (0, 1)),  # what the outer job does not hold
        (wanting(1, 1), OuterJobs((CPU_JOB,), False), False, (1, 0)),
        (wanting(1, 3), OuterJobs((CPU_JOB, PLAIN_JOB, GPU_JOB), False), False, (0, 0)),
        (wanting(0, 1), OuterJobs((CPU_JOB,), False), False, (0, 0)),  # holds more than it needs
        (wanting(1, 1), OuterJobs((), True), False, (0, 1)),  # a foreign wrapper holds the GPU, not the slot
        (wanting(4, 1), OuterJobs((), False), True, (0, 1)),  # the escape hatch is for the GPU alone
    ],
)
def test_what_is_missing(profile: Profile, held: OuterJobs, skip: bool, expected: tuple[int, int]) -> None:
    missing = nesting.missing(profile, held, skip)
    assert (missing.gpus, missing.slots) == (expected[0], {"cpu": expected[1]} if expected[1] else {})
    assert missing.is_nothing == (expected == (0, 0))


# A4
@pytest.mark.parametrize("name", ["SLICER_SKIP_GPU_LOCK", "PSRUN_SKIP_GPU_LOCK"])
@pytest.mark.parametrize(("value", "expected"), [("1", True), ("yes", True), ("", False), ("0", False)])
def test_the_escape_hatch(name: str, value: str, expected: bool) -> None:
    assert nesting.skips_gpu_lock({name: value}) is expected
    assert nesting.skips_gpu_lock({}) is False


def test_what_is_held_twice_counts_once_for_gpus_and_adds_up_for_slots() -> None:
    held = OuterJobs((GPU_JOB, replace(GPU_JOB, job="e", gpus=("GPU-a", "GPU-b")), CPU_JOB, PLAIN_JOB), False)
    assert held.gpus == ("GPU-a", "GPU-b")
    assert held.slots == {"cpu": 3}


# D18: a thousand at once would each read the leases of all others
def test_who_has_no_keeper_above_it_reads_no_lease(box: LedgerBox, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bool] = []
    monkeypatch.setattr(box.ledger, "leases", lambda: read.append(True) or ())
    monkeypatch.setattr(proc, "ancestors", lambda pid: frozenset({1, os.getpid()}))
    plan.outer_jobs({}, box.ledger, in_scopes=False)
    assert not read
    monkeypatch.setattr(proc, "comm", lambda pid: "slicer-keeper")
    plan.outer_jobs({}, box.ledger, in_scopes=False)
    plan.outer_jobs({"SLICER_LEASE": "0123456789ab"}, box.ledger, in_scopes=True)
    assert read == [True, True]
