"""The administrator's policy and the accounts, as the broker's callers meet them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slicer.broker.accounts import all_totals
from slicer.broker.client.connection import Connection
from slicer.broker.protocol.messages import PastLease, Recent, Usage, UsageRow
from tests.broker_box import BrokerBox
from tests.patience import until


@pytest.fixture
def box(tmp_path: Path) -> Iterator[BrokerBox]:
    yield from BrokerBox.running(tmp_path, "policy.toml", "[users.root]\nmax_gpus = 1\n")


def usage(box: BrokerBox) -> tuple[UsageRow, ...]:
    connection = Connection(box.socket)
    try:
        rows: tuple[UsageRow, ...] = connection.ask(Usage(None, "user")).rows
    finally:
        connection.close()
    return rows


def recent(box: BrokerBox) -> tuple[PastLease, ...]:
    connection = Connection(box.socket)
    try:
        rows: tuple[PastLease, ...] = connection.ask(Recent(0.0)).rows
    finally:
        connection.close()
    return rows


def test_who_waits_for_a_cap_reads_why_and_goes_when_it_is_lifted(box: BrokerBox) -> None:  # L3
    holder = box.call(gpus=1)
    holder.await_("granted")
    waiter = box.call(gpus=1)  # the other GPU is free
    assert waiter.await_("waiting")["why"] == "root may hold 1 GPU at a time (policy.toml:2) and holds 1"
    refused = box.call(gpus=2)
    assert refused.await_("error")["name"] == "NotAllowed"
    (box.etc / "policy.toml").write_text("[users.root]\nmax_gpus = 2 # GPUs\n")
    waiter.await_("granted")


def test_a_bad_policy_changes_nothing_and_is_told(box: BrokerBox) -> None:  # L3
    holder = box.call(gpus=1)
    holder.await_("granted")
    (box.etc / "policy.toml").write_text("[users.root]\nmax_gpus = many\n")
    assert box.call(gpus=1).await_("waiting")["why"]
    assert "policy.toml:2" in box.log()


def test_a_job_is_booked_once_though_the_broker_is_killed_in_the_middle(box: BrokerBox) -> None:  # L5
    box.crash()
    box.start("broker-account-row")
    holder = box.call(gpus=1)
    holder.await_("granted")
    holder.say("release")
    assert until(box.stopped, "the row is written, and the rest not")
    box.crash()
    box.start()
    holder.close()

    def booked() -> tuple[UsageRow, ...]:
        return tuple(row for row in usage(box) if not row.running)

    [row] = until(booked, "the job is booked")
    assert (row.of, row.jobs) == ("0", 1)
    assert row.gpu_s > 0
    assert row.vram_mib_s == pytest.approx(row.gpu_s * 24576)
    ((past,), (total,)) = recent(box), all_totals(str(box.var / "usage.db"))
    assert (past.uid, len(past.gpus)) == (0, 1)
    assert past.held_s == pytest.approx(row.gpu_s)
    assert (total.jobs, total.gpu_s) == (1, pytest.approx(row.gpu_s))
