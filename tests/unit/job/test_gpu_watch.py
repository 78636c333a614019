"""What the supervisor notes of its job's GPU memory, look by look, over a made-up driver."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slicer import gpu
from slicer.errors import GpuError, NoGpu
from slicer.job import gpu_leftovers, gpu_watch
from slicer.job.gpu_watch import GpuWatch
from slicer.job.job import NOBODY
from slicer.kernel.signals import timed_wait
from slicer.ledger.held_lease import HeldLease
from slicer.ledger.ledger import Ledger
from slicer.model import Gpu, GpuMemory, GpuProcess
from slicer.record import replace
from slicer.state.statedir import locate
from tests.unit.made_up import lease

ME, OTHER = 4_194_305, 4_194_306  # no pids: nobody else's processes are looked at
G0, G1 = "GPU-0", "GPU-1"


class Driver:
    """Two GPUs, of which the second in PCI order has the lower UUID."""

    def __init__(self) -> None:
        self.listed: tuple[GpuProcess, ...] = ()
        self.used: dict[str, int] = {}
        self.asked: list[tuple[str, ...]] = []
        self.broken = False
        self.is_open = False

    def open(self) -> Driver:
        self.is_open = True
        return self

    def list(self) -> tuple[Gpu, ...]:
        return (Gpu(0, G1, "N", 80_000, 0), Gpu(1, G0, "N", 80_000, 1))

    def notes(self) -> tuple[str, ...]:
        return ()

    def utilisation(self, only: Any = ()) -> dict[str, int | None]:
        return dict.fromkeys(only, 70)

    def memory(self, only: Any = ()) -> tuple[GpuMemory, ...]:
        if self.broken:
            raise GpuError("the driver is gone")
        self.asked.append(tuple(only))
        seen = (uuid for uuid in (G1, G0) if uuid in (only or (G0, G1)))
        return tuple(GpuMemory(uuid, 80_000, self.used.get(uuid, 0)) for uuid in seen)

    def processes(self, only: Any = ()) -> tuple[GpuProcess, ...]:
        return tuple(process for process in self.listed if process.gpu_uuid in (only or (G0, G1)))

    def close(self) -> None:
        self.is_open = False


class Made:
    """A job's watch, and what comes of it."""

    def __init__(self, directory: Path, driver: Driver, **fields: Any) -> None:
        self.driver = driver
        self.said: list[str] = []
        self.told: list[dict[str, Any]] = []
        self.written: list[tuple[int, ...]] = []
        self.ledger = Ledger(locate({"SLICER_STATE_DIR": str(directory / "state")}, 0), self.said.append)
        held = lease(**{"gpus": (G0, G1), "pid": ME, "keeper": 0, "cgroup": "", "backend": "plain", **fields})
        self.held = HeldLease(self.ledger, held)
        update = self.held.update

        def noted(**changes: Any) -> None:
            self.written.append(changes["vram_peak_mib"])
            update(**changes)

        self.held.update = noted  # type: ignore[method-assign]
        job: Any = type("Job", (), {"name": "train", "id": held.job, "sharing": None, "look_s": 1.0})
        self.watch = GpuWatch(job, self.held, self.ledger, self.said.append, NOBODY)
        self.watch.leases = lambda: (self.held.lease,)  # type: ignore[method-assign]

    def use(self, *processes: tuple[int, str, int | None]) -> None:
        """The processes that the driver lists, (pid, GPU, MiB), and a look at them."""
        self.driver.listed = tuple(GpuProcess(uuid, pid, mib) for pid, uuid, mib in processes)
        self.watch.sample()

    @property
    def peak(self) -> tuple[int, ...]:
        return self.held.lease.vram_peak_mib


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(gpu, "open_gpus", made.open)
    return made


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """The events for the journal."""
    events: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(gpu_watch, "tell", lambda job, kind, **fields: events.append((kind, fields)))
    return events


@pytest.fixture
def made(tmp_path: Path, driver: Driver, told: Any) -> Iterator[Made]:
    one = Made(tmp_path, driver)
    yield one
    one.watch.observer.close()
    one.ledger.close()
    assert not driver.is_open


def test_the_driver_is_loaded_at_the_first_look_and_asked_for_the_jobs_gpus_only(
    made: Made, driver: Driver
) -> None:
    assert not driver.is_open
    left_s = made.watch.left_s()
    assert left_s is not None
    assert 0 < left_s <= gpu_watch.FIRST_LOOKS_S[0]
    made.watch.sample()
    left_s = made.watch.left_s()
    assert left_s is not None
    assert 0 < left_s <= made.watch.job.look_s
    assert driver.is_open
    assert set(driver.asked) == {(G0, G1)}


def test_a_first_look_is_noted_even_when_nothing_is_used(made: Made) -> None:  # X3
    made.use()
    assert made.written == [(0, 0)]
    made.use()
    assert made.written == [(0, 0)]


def test_the_peak_is_of_each_gpu_on_its_own(made: Made) -> None:  # E5
    made.use((ME, G1, 700), (ME, G0, 100))
    made.use((ME, G0, 900))
    assert made.peak == (900, 700)


def test_small_growth_does_not_cost_a_write_but_is_in_the_outcome(made: Made) -> None:  # E5
    made.use((ME, G0, 1000))
    made.use((ME, G0, 1010))
    made.use((ME, G0, 1020))
    assert made.written == [(1000, 0)]
    assert made.peak == (1020, 0)
    made.use((ME, G0, 1041))
    assert made.written == [(1000, 0), (1041, 0)]


def test_what_others_use_is_not_the_jobs(made: Made) -> None:  # X2
    made.use((ME, G0, 1000), (OTHER, G0, 5000))
    assert made.peak == (1000, 0)


def test_what_the_driver_does_not_say_is_not_guessed_among_several(made: Made, driver: Driver) -> None:  # E13
    driver.used = {G0: 5000}
    made.use((ME, G0, None), (OTHER, G0, None))
    assert made.peak == ()
    made.use((ME, G0, None), (OTHER, G0, 2000))
    assert made.peak == (3000, 0)


@pytest.mark.parametrize("declared", [None, 2000])
def test_within_its_declaration_nothing_is_said(
    tmp_path: Path, driver: Driver, told: Any, declared: int | None
) -> None:  # E5
    made = Made(tmp_path, driver, vram_mib=declared)
    made.use((ME, G0, 2000), (ME, G1, 2000))
    assert made.said == []
    assert told == []


def test_each_gpu_over_its_declaration_is_said_once(
    tmp_path: Path, driver: Driver, told: list[tuple[str, dict[str, Any]]]
) -> None:  # E5
    made = Made(tmp_path, driver, vram_mib=8192)
    made.use((ME, G0, 9318))
    made.use((ME, G0, 9318 * 11 // 10))
    made.use((ME, G0, 9318))
    assert made.said == ["train uses 9.1G of GPU 1, declared 8.0G"]
    made.use((ME, G1, 8193))
    assert made.said[1:] == ["train uses 8.0G of GPU 0, declared 8.0G"]
    made.use((ME, G0, 10_260))
    assert made.said[2:] == ["train uses 10.0G of GPU 1, declared 8.0G"]
    assert [kind for kind, _ in told] == ["over-limit"] * 3
    first = told[0][1]
    assert first.pop("lease").gpus == (G0, G1)
    message = made.said[0].removeprefix("train ")  # the name comes before it
    assert first == {"message": message, "over_gpu": G0, "declared_mib": 8192, "used_mib": 9318}


def test_a_gpu_without_a_lease_is_said_once(tmp_path: Path, driver: Driver, told: Any) -> None:  # E5
    made = Made(tmp_path, driver, gpus=(G0,))
    for _ in range(2 * gpu_watch.ALL_EACH):
        made.use((ME, G0, 500), (ME, G1, 900), (OTHER, G1, 900))
    (said,) = made.said
    assert said.startswith("train uses GPU 0, on which it has no lease: others may get it, too")
    assert sorted(set(driver.asked)) == [(), (G0,)]
    assert driver.asked.count(()) * gpu_watch.ALL_EACH == len(driver.asked)  # it costs more


def test_what_a_job_inside_uses_of_the_outer_jobs_is_leased(made: Made, driver: Driver) -> None:  # A3
    inner = lease("b" * 12, gpus=(G1,), pid=ME, keeper=0, cgroup="", backend="plain", since_s=99.0)
    made.held.lease = replace(made.held.lease, gpus=(G0,))
    made.watch.leases = lambda: (made.held.lease, inner)  # type: ignore[method-assign]
    for _ in range(gpu_watch.ALL_EACH):
        made.use((ME, G1, 900))
    assert made.said == []


def test_a_broken_driver_is_said_once_and_not_asked_again(made: Made, driver: Driver, told: Any) -> None:
    made.use((ME, G0, 1000))
    driver.broken = True
    made.watch.sample()
    assert made.watch.left_s() is None
    assert len(made.said) == 1
    assert "the driver is gone" in made.said[0]
    gpu_leftovers.check(made.watch, 1, 200)
    assert len(made.said) == 1
    assert made.peak == (1000, 0)


def test_a_driver_that_went_away_leaves_nothing_to_check(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:  # B5
    def none() -> Driver:
        raise NoGpu("no-driver", "not loaded", hint="load it")

    monkeypatch.setattr(gpu, "open_gpus", none)
    gpu_leftovers.check(made.watch, 0, 200)
    assert made.said == []


def test_a_driver_that_breaks_at_the_end_is_said(made: Made, driver: Driver) -> None:  # B5
    driver.broken = True
    gpu_leftovers.check(made.watch, 0, 200)
    assert len(made.said) == 1


def test_a_job_that_left_nothing_is_looked_at_once(made: Made, driver: Driver) -> None:  # B5
    gpu_leftovers.check(made.watch, 0, 200)
    assert len(driver.asked) == 1
    assert made.said == []


def test_the_wait_for_memory_ends_as_soon_as_it_is_back(
    made: Made, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:  # B5
    pauses: list[float] = []

    def wait(signals: frozenset[int], pause_s: float) -> None:
        if not pause_s:
            return
        pauses.append(pause_s)
        if len(pauses) == 3:
            driver.listed = ()
        if len(pauses) == 5:
            driver.used = {G1: 200}

    monkeypatch.setattr(gpu_leftovers, "timed_wait", wait)
    driver.listed = (GpuProcess(G0, ME, 500),)
    driver.used = {G1: 201}
    gpu_leftovers.check(made.watch, 0, 200)
    assert len(pauses) == 5
    assert pauses[0] == 0.05
    assert pauses == sorted(pauses)
    assert made.said == []


def test_ctrl_c_ends_the_wait_for_memory(
    made: Made, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:  # D14
    wait = timed_wait
    pauses: list[float] = []

    def press(signals: frozenset[int], pause_s: float) -> Any:
        if pause_s:
            pauses.append(pause_s)
            signal.raise_signal(signal.SIGINT)
        return wait(signals, pause_s)

    monkeypatch.setattr(gpu_leftovers, "timed_wait", press)
    driver.listed = (GpuProcess(G0, ME, 500),)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        signal.raise_signal(signal.SIGINT)  # this one was for the job
        gpu_leftovers.check(made.watch, 0, 200)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert len(pauses) == 1
    assert made.said == []


def test_a_sharers_memory_is_not_waited_for(
    tmp_path: Path, driver: Driver, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:  # B5
    made = Made(tmp_path, driver, vram_mib=8192)
    driver.used = {G0: 5000}
    waits = {"timed_wait": lambda _, pause_s: pytest.fail("waits") if pause_s else None}
    monkeypatch.setattr(gpu_leftovers, "timed_wait", waits["timed_wait"])
    gpu_leftovers.check(made.watch, 0, 200)
    assert made.said == []
    made.held.lease = replace(made.held.lease, vram_mib=None)
    with pytest.raises(pytest.fail.Exception):
        gpu_leftovers.check(made.watch, 0, 200)
