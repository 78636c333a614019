"""Why a job waits, as ``slicer status`` says it."""

from __future__ import annotations

import pytest

from slicer.cli.status_json import status_json
from slicer.cli.status_rows import reason
from slicer.gpu import attribution
from slicer.gpu.snapshot import GpuSnapshot
from slicer.ledger.halted import Halted
from slicer.model import PREEMPTIBLE, Lease, Ticket
from slicer.placement import decision
from slicer.record import replace
from tests.unit import made_up
from tests.unit.cli.made_up_status import (
    BACKUP,
    EVAL,
    FULL,
    NOW_S,
    POLICY,
    SERVE,
    TRAIN,
    A,
    B,
    C,
    made,
    process,
    row_of,
    snapshot,
    text,
)

SMALL = made_up.ticket("5a5a00000000", name="small", arrived_s=900.0, gpus=1, vram_mib=20 * 1024)
SLOT = made_up.ticket("51070000aaaa", name="", arrived_s=950.0, cpu_slots=1, cpu_limit=2)
LICENSED = replace(SLOT, slots={"matlab": 1, "ocr": 2}, slot_limits={"matlab": 1, "ocr": 2})
ALL = replace(TRAIN, gpus=(A, B, C), slots={})
FOREIGN = snapshot(process(A, 1, 70000), process(B, 2, 70000), process(C, 3, 75000))


@pytest.mark.parametrize(
    ("leases", "tickets", "seen", "why"),
    [
        ((ALL,), (EVAL,), snapshot(), "held by train (about 3m left)"),
        ((replace(ALL, expect_s=10.0),), (EVAL,), snapshot(), "held by train (overdue)"),
        ((replace(ALL, name="", expect_s=None),), (EVAL,), snapshot(), "held by 3f2a9c01b7de"),
        (
            (replace(ALL, expect_s=None, est_s=10_000.0, est_from="runs"),), (EVAL,), snapshot(),
            "held by train (about 1h11m left by earlier runs)",
        ),
        ((replace(ALL, expect_s=None, est_s=10.0, est_from="runs"),), (EVAL,), snapshot(), "held by train"),
        ((ALL,), (EVAL, replace(EVAL, job="b")), snapshot(), "held by train (about 3m left), behind 1 other"),
        (
            (replace(TRAIN, gpus=(A,)), SERVE, replace(SERVE, job="x", gpus=(C,))), (EVAL,), snapshot(),
            "held by train (about 3m left) and 2 others",
        ),
        (
            (), (SMALL,), FOREIGN,
            "needs 20G free, GPU 0 has most: 4.5G, processes outside slicer use GPUs 0,1,2",
        ),
        (
            (), (replace(SMALL, gpus=2, gpu_choice=(B, C), margin_mib=512),), FOREIGN,
            "needs 20.5G free on 2 GPUs, none has that, processes outside slicer use GPUs 1,2",
        ),
        ((BACKUP,), (SLOT,), snapshot(), "held by 9b1c22d0aa31 (overdue)"),
        # the first has waited for long enough to get what is free kept for it
        (
            (replace(TRAIN, gpus=(A, B)),), (replace(EVAL, arrived_s=100.0),), snapshot(),
            "next, with a reservation, held by train (about 3m left)",
        ),
        (
            (replace(TRAIN, gpus=(A, B)),), (replace(EVAL, arrived_s=100.0), replace(SMALL, gpu_choice=(C,))),
            snapshot(), "what is free is kept for eval, which waits longest",
        ),
        (
            (), (EVAL, replace(EVAL, job="b")), snapshot(), "behind 1 other",
        ),
        ((), (EVAL,), snapshot(), "about to start"),
        # of several slots the one that is missing is named
        (
            (replace(BACKUP, slots={"matlab": 1}), replace(SERVE, slots={"ocr": 1})), (LICENSED,), snapshot(),
            "lacks a matlab slot, held by 9b1c22d0aa31 (overdue)",
        ),
        (
            (), (replace(EVAL, gpus=4),), snapshot(),
            "can never be served: 4 GPUs were asked for, but this machine has 3 GPUs",
        ),
    ],
)  # fmt: skip
def test_why_the_last_waits(
    leases: tuple[Lease, ...], tickets: tuple[Ticket, ...], seen: GpuSnapshot, why: str
) -> None:  # B3
    status = made(leases, tickets, seen)
    assert reason(tickets[-1], status) == why
    found = status_json(status)["waiting"][-1]["why"]
    assert (found["text"] if found else "about to start") == why


@pytest.mark.parametrize(
    ("ticket", "wants"),
    [
        (EVAL, "2 GPUs, 1 CPU slot"),
        (SMALL, "20G on 1 GPU"),
        (replace(SMALL, gpus=2, gpu_choice=(A, C)), "20G on 2 GPUs (0,2)"),
        (replace(EVAL, gpus=1, gpu_choice=(C, "GPU-gone"), slots={"cpu": 2}), "1 GPU (2,?), 2 CPU slots"),
        (SLOT, "1 CPU slot"),
        (LICENSED, "1 matlab, 2 ocr"),
    ],
)
def test_what_is_wanted(ticket: Ticket, wants: str) -> None:  # B3
    shown = text(made((ALL,), (ticket,), snapshot()))
    assert f"  {wants}  " in row_of(shown, ticket.job)


def test_a_holder_that_stands_still_is_said_to() -> None:  # X6, B3
    status = made((ALL,), (EVAL,), snapshot(), halted=(Halted(ALL.job, "paused", NOW_S - 5),))
    assert reason(EVAL, status) == "held by train (paused)"


def test_priority_is_said_where_there_is_one() -> None:  # X4
    urgent = replace(EVAL, priority=5)
    assert "\n  priority +5, held by " in text(made((ALL,), (urgent,), snapshot()))
    patient = replace(EVAL, priority=PREEMPTIBLE)
    assert "\n  preemptible, held by " in text(made((ALL,), (patient,), snapshot()))
    assert "priority" not in text(FULL)


def test_the_start_is_worked_out_from_estimates() -> None:  # B2, B3
    second = replace(EVAL, job="b" * 12, arrived_s=800.0)
    third = replace(EVAL, job="c" * 12, arrived_s=810.0, expect_s=None)
    fourth = replace(EVAL, job="d" * 12, arrived_s=820.0)
    found = status_json(made((ALL,), (EVAL, second, third, fourth), snapshot()))
    assert [waiting["starts_in"] for waiting in found["waiting"]] == [180.0, 240.0, 300.0, None]
    assert [waiting["why"]["ahead"] for waiting in found["waiting"]] == [0, 1, 2, 3]


def test_thousands_that_wait_are_explained_in_time() -> None:
    many = tuple(
        made_up.ticket(
            f"{i:012x}", arrived_s=500.0 + i / 100, gpus=1 + i % 3, vram_mib=(None, 1024, 30000)[i % 3]
        )
        for i in range(3000)
    )
    status = made((ALL,), many, snapshot())
    assert [status.waits[ticket.job].busy.ahead for ticket in many] == list(range(3000))  # type: ignore[union-attr]


def test_each_is_explained_as_if_it_were_the_only_one_to_be() -> None:  # B3
    """The reasons are shared among those who ask for the same: they must be those that each would get."""
    shapes = [
        {"gpus": 1}, {"gpus": 2, "gpu_choice": (A, B)}, {"gpus": 1, "vram_mib": 9000}, {"cpu_slots": 2},
        {"gpus": 1, "vram_mib": 60000, "cpu_slots": 1}, {"gpus": 1, "gpu_choice": (C,)}, {"cpu_slots": 1},
    ]  # fmt: skip
    asked = [made_up.ticket(f"{i:012x}", arrived_s=600.0 + 10 * i, **shapes[i * 5 % 7]) for i in range(40)]
    leases = (replace(ALL, gpus=(A,)), SERVE, replace(BACKUP, slots={"cpu": 3}))
    seen = snapshot(process(C, 9, 30000))
    status = made(leases, tuple(asked), seen)
    devices = attribution.devices(seen, leases, {})
    granted = decision.decide(asked, devices, leases, POLICY, NOW_S).grants
    for ticket in asked:
        if ticket.job not in granted:
            busy = decision.Book(asked, devices, leases, POLICY, NOW_S).busy(ticket)
            assert status.waits[ticket.job].busy == busy
    assert len({wait.busy.reserved_for for wait in status.waits.values() if wait.busy}) > 1
