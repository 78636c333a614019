"""A ledger for tests, in a directory of its own, with jobs of this process.

As a pytest plugin (``pytest_plugins = ["tests.unit.ledger.box"]``) it offers the fixture ``box``.

PYTEST_DONT_REWRITE: tests import names from here before pytest loads it as a plugin.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from slicer.gpu.observer import GpuObserver
from slicer.kernel import proc
from slicer.ledger.held_lease import HeldLease
from slicer.ledger.ledger import Ledger, Queued
from slicer.ledger.waiting import WaitingTicket
from slicer.model import Busy, Gpu, Lease
from slicer.placement.devices import Device
from slicer.state import statefile
from slicer.state.statedir import locate
from tests.unit import made_up


@contextmanager
def leaving(waiting: WaitingTicket) -> Iterator[WaitingTicket]:
    """It leaves the queue at the end of the block."""
    try:
        yield waiting
    finally:
        waiting.leave()


class UnusedGpus(GpuObserver):
    """GPUs of 80 GiB each that nobody uses, without a driver."""

    def __init__(self, gpus: tuple[str, ...]) -> None:
        super().__init__(None)
        self._uuids = gpus
        self.gpus = tuple(Gpu(i, uuid, "Test GPU", 81920, i) for i, uuid in enumerate(gpus))

    def open(self) -> None:
        """There is no driver."""

    def devices(self, leases: tuple[Lease, ...]) -> tuple[Device, ...] | None:
        return tuple(Device(uuid, 81920, 0, {}, 0, ()) for uuid in self._uuids) or None


class LedgerBox:
    """A ledger in a directory of its own, and the warnings that it gave."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.warnings: list[str] = []
        self.ledger = Ledger(locate({"SLICER_STATE_DIR": str(path)}, os.geteuid()), self.warnings.append)

    def lease(self, job: str = "0123456789ab", **changes: object) -> Lease:
        mine = {
            "pid": os.getpid(), "pid_start": proc.start_time(os.getpid()) or 0, "keeper": 0, "unit": "",
            "boot_id": proc.boot_id(), "uid": os.geteuid(), "backend": "plain", "cgroup": "", "name": "",
        }  # fmt: skip
        return made_up.lease(job, **{**mine, **changes})

    def observer(self, *gpus: str) -> GpuObserver:
        return UnusedGpus(gpus)

    def ask(
        self,
        job: str = "0123456789ab",
        gpus: int = 0,
        slots: int = 1,
        limit: int = 1,
        of: tuple[str, ...] = (),
    ) -> HeldLease | Queued | Busy:
        request = made_up.request(job, gpus=gpus, cpu_slots=slots, cpu_limit=limit, arrived_s=proc.now_s())
        return self.ledger.acquire(request, self.lease(job), self.observer(*of))

    def take(self, *wants: Any, **more: Any) -> HeldLease:
        """As :meth:`ask`, for what is free."""
        held = self.ask(*wants, **more)
        assert isinstance(held, HeldLease)
        return held

    def queue(
        self, job: str, priority: int = 0, slots: int = 1, **fields: object
    ) -> HeldLease | WaitingTicket:
        draft = self.lease(job)
        ticket = made_up.ticket(
            job, priority=priority, cpu_slots=slots, cpu_limit=1, arrived_s=round(proc.now_s(), 6),
            pid=draft.pid, pid_start=draft.pid_start, boot_id=draft.boot_id, uid=draft.uid, **fields,
        )  # fmt: skip
        observer = self.observer()
        found = self.ledger.acquire(ticket, draft, observer, queues=True)
        return (
            found
            if isinstance(found, HeldLease)
            else WaitingTicket(self.ledger, ticket, draft, observer, found)
        )

    def waits(self, *wants: Any, **more: Any) -> AbstractContextManager[WaitingTicket]:
        """As :meth:`wait`, until the end of the block."""
        return leaving(self.wait(*wants, **more))

    def wait(self, job: str, priority: int = 0, **fields: object) -> WaitingTicket:
        waiting = self.queue(job, priority, **fields)
        assert isinstance(waiting, WaitingTicket)
        return waiting

    def try_again(self, waiting: WaitingTicket) -> HeldLease | None:
        """What a waiter does when it is woken."""
        return waiting.look()

    def left(self) -> list[str]:
        """The leases, tickets and bells in the directory."""
        folders = ("leases", "tickets", "bells")
        return [f"{folder}/{name}" for folder in folders for name in os.listdir(self.path / folder)]

    def put(self, lease: Lease, folder: str = "leases", name: str = "") -> Path:
        """A lease file without an owner, as kill -9 leaves it."""
        path = self.path / folder / (name or lease.job)
        path.write_bytes(statefile.encode(lease))
        return path


@pytest.fixture
def box(tmp_path: Path) -> Iterator[LedgerBox]:
    made = LedgerBox(tmp_path / "state")
    yield made
    made.ledger.close()
    assert open_below(tmp_path) == []


def open_below(directory: Path) -> list[str]:
    """What this process has open there, and watches. Other threads open what they need meanwhile."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        if target.startswith(f"{directory}/") or "inotify" in target:
            found.append(target)
    return found
