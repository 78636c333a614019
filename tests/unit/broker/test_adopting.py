"""A request for a process that is on its GPUs already: what it has there is not in its way."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicer.broker.protocol.messages import Granted, Waiting
from slicer.gpu.sim.driver import SimulatedGpus, simulated_gpus
from slicer.kernel import cgroup, proc
from slicer.model import GpuMemory, GpuProcess
from tests.unit.broker.within import Within, acquire, within

GPU, OTHER = (each.uuid for each in simulated_gpus((24576, 24576)))


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Within]:
    with within(tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A process that uses the first GPU."""
    pid = os.fork()
    if not pid:
        signal.pause()
    used = {GPU: 6000}

    def memory(self: SimulatedGpus, only: object = ()) -> tuple[GpuMemory, ...]:
        return tuple(GpuMemory(each.uuid, each.memory_mib, used.get(each.uuid, 0)) for each in self.list())

    monkeypatch.setattr(SimulatedGpus, "processes", lambda self, only=(): (GpuProcess(GPU, pid, 6000),))
    monkeypatch.setattr(SimulatedGpus, "memory", memory)
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def wish(gpu: str, *adopts: int | None, **more: object) -> object:
    wanted = {"gpus": 1, "gpu_choice": (gpu,), "binding": "scope", "wait": False, **more}
    return acquire(**wanted, adopts=adopts)


def test_it_gets_its_gpu_ahead_of_who_waits_for_that(broker: Within, busy: int) -> None:  # U10
    waiting = broker.dial()
    assert isinstance(waiting.ask(wish(GPU, wait=True), more=True), Waiting)
    assert broker.dial().ask(wish(GPU)) == "Busy"
    found = broker.dial().ask(wish(GPU, busy, proc.start_time(busy)))
    assert isinstance(found, Granted)
    assert found.lease.gpus == (GPU,)


def test_nothing_else_goes_ahead(
    broker: Within, busy: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # U10, L3
    start, uid_of = proc.start_time(busy), proc.uid_of
    assert isinstance(broker.dial().ask(wish(OTHER)), Granted)
    assert broker.dial().ask(wish(OTHER, busy, start)) == "Busy", "it is another job's"
    assert broker.dial().ask(wish(GPU, busy, (start or 0) + 1)) == "Busy", "it was another process"
    for bad in ((busy,), (0, 1), (-1, 1), (1 << 40, 1), (busy, 1, 1)):
        assert broker.dial().ask(wish(GPU, *bad)) == "org.varlink.service.InvalidParameter", bad
    monkeypatch.setattr(proc, "uid_of", lambda pid: 4711 if pid == busy else uid_of(pid))
    assert broker.dial().ask(wish(GPU, busy, start)) == "Busy", "it is another user's"


def test_a_process_in_a_job_takes_no_further_place_in_the_line(
    broker: Within, busy: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # U10, L3
    """Otherwise a small job on a GPU would be a way past all who wait for more of it."""
    of = cgroup.of
    monkeypatch.setattr(
        cgroup, "of", lambda pid: "/gpu.slice/slicer-aaaaaaaaaaaa.scope" if pid == busy else of(pid)
    )
    assert broker.dial().ask(wish(GPU, busy, proc.start_time(busy))) == "Busy"


def test_slots_are_waited_for_in_the_line(broker: Within, busy: int) -> None:  # U10, L3
    start, slots = proc.start_time(busy), {"cpu": 1}
    waiting = broker.dial()
    assert isinstance(waiting.ask(wish(GPU, wait=True, slots=slots), more=True), Waiting)
    assert broker.dial().ask(wish(GPU, busy, start, slots=slots)) == "Busy"
    assert isinstance(broker.dial().ask(wish(GPU, busy, start)), Granted)


def test_a_gpu_that_it_does_not_use_is_waited_for_in_the_line(broker: Within, busy: int) -> None:  # U10, L3
    adopts = busy, proc.start_time(busy)
    both = acquire(gpus=2, gpu_choice=(GPU, OTHER), binding="scope", wait=False, adopts=adopts)
    assert broker.dial().ask(both) == "Busy"
