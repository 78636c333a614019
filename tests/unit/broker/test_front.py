"""Scopes before their leases, in whatever order systemd, the queue and their owners come."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slicer.broker.protocol import messages
from slicer.broker.server import front as module
from slicer.broker.server.book import Book, Claim, EarlyScope
from slicer.broker.server.connection import Call
from slicer.broker.server.early import Early
from slicer.broker.server.front import Front
from slicer.broker.server.loop import Loop
from slicer.broker.server.refusal import Refusal
from slicer.broker.server.register import Holding, Register, Waiter
from slicer.broker.server.requests import draft_of
from slicer.broker.server.watch import ProcessWatch
from slicer.broker.server.wishes import Wish
from slicer.errors import BackendError
from slicer.kernel import proc
from slicer.model import Property, Ticket
from slicer.record import replace
from slicer.state.directory import open_trusted

JOB, UID = "0123456789ab", os.getuid()
UNIT = f"slicer-{JOB}.scope"
OPEN = (Property("DevicePolicy", "DevicePolicy", "s", "strict", "strict"),)
FAILED = BackendError("it broke")
START = messages.Start(JOB, "gpu", "a job", (), False, 0, 0)


class Peer:
    """A connection, and what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.peer = type("Peer", (), {"uid": UID})

    def send(self, message: Any, continues: bool = False) -> None:
        self.told.append(type(message).__name__)

    def fail(self, error: Any) -> None:
        self.told.append(error.name)


class Systemd:
    """Scopes, as a test has them answer."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.done: Any = None

    def cgroup_for(self, spec: Any) -> str:
        return f"/gpu.slice/gpu-{UID}.slice/{spec.unit}"

    def start(self, spec: Any, uid: int, pidfd: int, done: Any) -> None:
        self.asked.append("start")
        self.done = done

    def stop(self, unit: str, done: Any) -> None:
        self.asked.append("stop")
        self.done = done

    def set_properties(self, unit: str, properties: Any, done: Any) -> None:
        assert properties == OPEN
        self.asked.append("open")
        self.done = done


class Desk:
    """One ticket of ours that wants a GPU, and may start."""

    def __init__(self, path: Path) -> None:
        self.path, self.systemd, self.loop = path, Systemd(), Loop()
        self.caller, self.waiting = Peer(), Peer()
        self.max_hold_s: float | None = None
        self.serve()
        ticket = Ticket(
            job=JOB, name="", command="", pid=os.getpid(), pid_start=proc.start_time(os.getpid()) or 0,
            boot_id=proc.boot_id(), uid=UID, inside=(), priority=0, arrived_s=1.0, gpus=1, gpu_choice=(),
            vram_mib=None, margin_mib=0, slots={}, slot_limits={}, expect_s=None, profile="",
        )  # fmt: skip
        self.waiter = self.register.waiters[JOB] = Waiter(ticket, None, self.waiting)
        self.register.write_ticket(self.waiter)
        self.waiter.may_start = True
        self.keeper = os.fork()
        if not self.keeper:
            os.execvp("sleep", ["sleep", "inf"])

    def serve(self) -> None:
        """A broker begins, by what is in the files."""
        self.register = Register(
            Book(open_trusted(str(self.path)), str), self.loop, str, lambda: None, lambda _: None,
            lambda: None, lambda waiter: self.front.left(waiter),
        )  # fmt: skip
        self.register.load()
        fake: Any = self
        self.front = Front(self.register, fake.systemd, fake, fake, self.loop, str)

    # What the front asks of wishes and rulebook:

    def of(self, asked: Any, holding: Holding) -> Wish:
        assert not holding.lease.gpus
        return Wish(OPEN, ("DevicePolicy",), True, False, True)

    def fence(self, record: Any, holding: Holding) -> tuple[Property, ...]:
        assert holding.lease.gpus
        return OPEN

    def knows_nodes(self) -> bool:
        return True

    def groups(self, uid: int, gids: tuple[int, ...]) -> tuple[int, ...]:
        return gids

    def caps(self, uid: int, gids: tuple[int, ...]) -> Desk:
        return self

    # What happens:

    def start(self) -> None:
        caller: Any = self.caller
        named = replace(START, keeper=self.keeper, keeper_start=proc.start_time(self.keeper) or 0)
        self.front.start(Call(caller, named, False), self.waiter)

    def grant(self) -> Holding:
        """As the queue does."""
        lease = draft_of(self.waiter.ticket, (0,), ("GPU-0",), 2.0)
        early = self.front.standing(self.waiter)
        is_held = int(early is not None and not early.is_starting)
        lease = lease if early is None else early.named_in(lease)
        claim = Claim(JOB, "", "scope", is_held, 1.0, (), (), "gpu", 1.0, 0)
        process = ProcessWatch(self.loop, os.pidfd_open(os.getpid()), lambda: None)
        holding = self.register.add(lease, claim, process)
        holding.early, self.waiter.early = early, None
        self.register.leave(self.waiter)
        connection: Any = self.waiting
        self.front.grant(holding, connection)
        return holding

    def answer(self, answer: Any) -> None:
        done, self.systemd.done = self.systemd.done, None
        done(answer)

    @property
    def is_noted(self) -> bool:
        return (self.path / "commands" / f"{JOB}.early").exists()

    def close(self) -> None:
        os.kill(self.keeper, 9)
        os.waitpid(self.keeper, 0)
        for holding in self.register.holdings.values():
            holding.close()
        self.loop.close()


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A scope is populated as soon as it was started."""
    monkeypatch.setattr(Early, "watch", lambda *_: True)
    monkeypatch.setattr(Early, "is_populated", lambda self: not self.is_starting)
    monkeypatch.setattr(Register, "_watch_scope", lambda *_: True)
    made = Desk(tmp_path)
    yield made
    made.close()


def test_a_grant_of_what_stands_opens_its_gpus_first(desk: Desk) -> None:  # L1, X1
    desk.start()
    assert desk.is_noted
    desk.answer("there")
    assert desk.caller.told == ["StartedScope"]
    holding = desk.grant()
    assert (holding.lease.unit, holding.lease.keeper, holding.claim.held) == (UNIT, desk.keeper, 1)
    assert (desk.systemd.asked, desk.waiting.told) == (["start", "open"], [])
    desk.answer(None)
    assert desk.waiting.told == ["Granted"]
    assert desk.is_noted  # a broker that is killed now knows that it may be told again


def test_a_grant_while_it_is_started_is_told_once_it_stands(desk: Desk) -> None:  # L1
    desk.start()
    holding = desk.grant()
    assert (holding.is_starting, holding.claim.held, desk.waiting.told) == (True, 0, [])
    desk.answer("there")
    assert (desk.caller.told, holding.claim.held, desk.systemd.asked[-1]) == (["StartedScope"], 1, "open")
    desk.answer(None)
    assert desk.waiting.told == ["Granted"]


def test_a_start_that_fails_costs_neither_the_ticket_nor_the_lease(desk: Desk) -> None:  # L1
    desk.start()
    desk.answer(FAILED)
    assert (desk.caller.told, desk.waiter.early, desk.is_noted) == (["Broken"], None, False)
    desk.start()
    holding = desk.grant()
    desk.answer(FAILED)
    assert (holding.lease.cgroup, holding.claim.held, holding.is_starting) == ("", 0, False)
    assert (desk.waiting.told, desk.is_noted) == (["Granted"], False)


def test_gpus_that_cannot_be_opened_end_the_scope(desk: Desk) -> None:  # L1
    desk.start()
    desk.answer("there")
    desk.grant()
    desk.answer(FAILED)
    assert (desk.waiting.told, desk.systemd.asked) == (["Broken"], ["start", "open", "stop"])


@pytest.mark.parametrize("is_started", [False, True])
def test_a_ticket_that_goes_takes_its_scope_along(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, is_started: bool
) -> None:  # L1, S9
    monkeypatch.setattr(module, "_LEAVES_S", 0.0)
    desk.start()
    if is_started:
        desk.answer("there")
    desk.register.leave(desk.waiter)
    if not is_started:
        assert desk.systemd.asked == ["start"]
        desk.answer("there")
        assert desk.caller.told == ["NoSuchJob"]
    assert desk.systemd.asked == ["start"]  # its keeper leaves by itself, or else:
    assert desk.is_noted
    assert desk.front.is_busy
    with pytest.raises(Refusal, match="not near"):
        desk.start()
    desk.loop.turn(0.0)
    assert desk.systemd.asked == ["start", "stop"]
    desk.answer(None)
    assert not desk.is_noted
    assert not desk.front.is_busy


def test_a_limit_of_the_policy_counts_from_the_lease(desk: Desk) -> None:  # L2
    desk.max_hold_s = 60.0
    with pytest.raises(Refusal, match="time limit"):
        desk.start()


def test_a_restarted_broker_knows_whose_scopes_stand(desk: Desk) -> None:  # L1
    gone = EarlyScope("ba9876543210", UID, 1, f"/gpu.slice/gpu-{UID}.slice/slicer-x.scope", "gpu", "", (), 1)
    desk.register.book.add_early(gone)
    desk.start()
    desk.answer("there")
    desk.serve()
    (waiter,) = desk.register.waiters.values()
    assert waiter.early is not None
    assert (waiter.early.record.keeper, waiter.may_start) == (desk.keeper, True)
    assert desk.front.is_busy  # nobody waits with the other one any more
    waiter.close()
    desk.waiter = waiter
    desk.start()  # its owner asks again, and is told
    assert desk.caller.told == ["StartedScope"] * 2
    holding = desk.grant()
    desk.serve()
    (again,) = desk.register.holdings.values()
    assert again.early is not None
    assert again.lease == replace(holding.lease, command="")
    holding.close()
