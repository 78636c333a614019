"""What an observer of GPUs finds out, from the driver and from /proc."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from slicer import gpu
from slicer.errors import GpuError, NoGpu
from slicer.gpu import snapshot
from slicer.gpu.observer import GpuObserver
from slicer.kernel import cgroup
from slicer.model import LEASE_VARIABLE, Gpu, GpuMemory, GpuProcess
from slicer.placement.devices import unexplained_mib
from slicer.placement.settings import Policy
from tests.unit.gpu.made_up import G0, G1, PLAIN, TOTAL, A, loose, owner, seen
from tests.unit.gpu.made_up import snapshot as made_snapshot


class MadeUpGpus:
    """A driver that says what it is told."""

    def __init__(self, *processes: GpuProcess) -> None:
        self.listed = [list(processes)]
        self.is_open = True

    def list(self) -> tuple[Any, ...]:
        return tuple(Gpu(number, uuid, "", TOTAL, number) for number, uuid in enumerate((G0, G1)))

    def notes(self) -> tuple[str, ...]:
        return ()

    def memory(self, only: Collection[str] = ()) -> tuple[GpuMemory, ...]:
        return tuple(GpuMemory(uuid, TOTAL, 0) for uuid in (G0, G1) if not only or uuid in only)

    def processes(self, only: Collection[str] = ()) -> tuple[GpuProcess, ...]:
        now = self.listed.pop(0) if len(self.listed) > 1 else self.listed[0]
        return tuple(each for each in now if not only or each.gpu_uuid in only)

    def close(self) -> None:
        self.is_open = False


class Child:
    """A process that waits to be told to end, with the marker of jobs in its environment."""

    def __init__(self, jobs: str) -> None:
        self.process = subprocess.Popen(
            ["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, LEASE_VARIABLE: jobs}
        )
        self.pid = self.process.pid
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"x")
        self.process.stdin.flush()
        self.process.stdout.read(1)  # it has executed

    def end(self) -> None:
        """It has ended, and nothing of it is in /proc."""
        self.process.communicate()


def observer(gpus: MadeUpGpus, only: tuple[str, ...] = ()) -> GpuObserver:
    """One that has opened these GPUs."""
    made = GpuObserver(only=only)
    made._driver = gpus  # type: ignore[assignment]
    return made


@pytest.fixture
def child() -> Any:
    made = Child("aaa,bbb")
    yield made
    if made.process.returncode is None:
        made.end()


def test_a_look_finds_what_tells_whose_a_process_is(child: Child) -> None:  # X2
    watch = observer(MadeUpGpus(GpuProcess(G0, child.pid, 5), GpuProcess(G1, child.pid, None)))
    found = watch.observe()
    assert [memory.gpu_uuid for memory in found.memory] == [G0, G1]
    on_0, on_1 = found.processes
    assert (on_0.gpu_uuid, on_0.pid, on_0.used_mib, on_0.name) == (G0, child.pid, 5, "cat")
    assert (on_1.gpu_uuid, on_1.pid, on_1.used_mib, on_1.name) == (G1, child.pid, None, "cat")
    assert on_0.jobs == ("aaa", "bbb")
    assert on_0.above[0] == os.getpid()
    assert on_0.cgroup == cgroup.of("self")
    assert on_0.started > 0


def test_a_look_may_be_at_some_gpus_only(child: Child) -> None:
    watch = observer(MadeUpGpus(GpuProcess(G0, child.pid, 5), GpuProcess(G1, child.pid, 6)), (G1,))
    found = watch.observe()
    assert [memory.gpu_uuid for memory in found.memory] == [G1]
    assert [process.used_mib for process in found.processes] == [6]


def test_in_a_job_of_slurm_there_are_only_its_own_gpus(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"ID": "7", "GPUS": "1"}.items():
        monkeypatch.setenv(f"SLURM_JOB_{name}", value)
    monkeypatch.setenv("SLURMD_NODENAME", "node")
    driver = MadeUpGpus(GpuProcess(G0, child.pid, 5), GpuProcess(G1, child.pid, 6))
    monkeypatch.setattr(gpu, "open_gpus", lambda: driver)
    watch = GpuObserver()
    found = watch.observe()
    assert [each.uuid for each in watch.gpus] == [G1]
    assert [memory.gpu_uuid for memory in found.memory] == [G1]
    assert [process.used_mib for process in found.processes] == [6]
    monkeypatch.setenv("SLURM_JOB_GPUS", "")
    with pytest.raises(NoGpu, match="Slurm gave this job no GPU"):
        GpuObserver().open()
    assert not driver.is_open


def test_a_process_that_ended_meanwhile_is_not_taken_for_a_foreign_one(child: Child) -> None:  # B5
    gone = GpuProcess(G0, child.pid, 5)
    child.end()
    gpus = MadeUpGpus()
    gpus.listed = [[gone], []]
    assert observer(gpus).observe().processes == ()


def test_a_process_that_ended_is_its_jobs_until_the_driver_frees_its_memory(child: Child) -> None:  # B5
    watch = observer(MadeUpGpus(GpuProcess(G0, child.pid, 5)))
    (before,) = watch.observe().processes
    child.end()
    for _ in range(2):
        (after,) = watch.observe().processes
        assert after == before
    assert owner(after, loose("bbb", G0)) == "bbb"


def test_a_foreign_process_counts_for_the_most_it_was_seen_to_use(child: Child) -> None:  # E3
    gpus = MadeUpGpus()
    watch = observer(gpus)

    def foreign_mib(*used_mib: int) -> int:
        gpus.listed = [[GpuProcess(G0, child.pid, each) for each in used_mib]]
        watch.observe()
        found = watch.devices((A,))
        assert found is not None
        return found[0].foreign_mib

    assert [foreign_mib(900), foreign_mib(100), foreign_mib(1000), foreign_mib(7)] == [900, 900, 1000, 1000]
    assert foreign_mib() == 0
    assert foreign_mib(7) == 7  # it had left the GPU


def test_a_process_that_proc_does_not_show_is_foreign() -> None:  # E13: we are in a pid namespace
    watch = observer(MadeUpGpus(GpuProcess(G0, 2**22 + 1, 5)))
    (found,) = watch.observe().processes
    assert (found.started, found.name, found.cgroup, found.jobs) == (0, "", "", ())
    assert owner(found, A, PLAIN) == ""


def test_a_pid_that_is_given_anew_is_another_process(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = observer(MadeUpGpus(GpuProcess(G0, child.pid, 5)))
    (before,) = watch.observe().processes
    real = snapshot._identity
    monkeypatch.setattr(snapshot, "_identity", lambda pid: (real(pid)[0] + 1, "other"))
    monkeypatch.setattr(snapshot, "_marker", lambda pid: ())
    (after,) = watch.observe().processes
    assert (before.name, before.jobs) == ("cat", ("aaa", "bbb"))
    assert (after.name, after.jobs, after.started) == ("other", (), before.started + 1)


def test_a_name_with_parentheses_and_spaces_is_read() -> None:
    code = "import sys; open('/proc/self/comm', 'w').write('a) b (c'); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        while Path(f"/proc/{process.pid}/comm").read_text() != "a) b (c\n":
            assert process.poll() is None
        assert snapshot._identity(process.pid)[1] == "a) b (c"
        process.communicate()


class Driver(MadeUpGpus):
    """One that counts how often it is opened and looked at, and fails when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = self.looks = 0
        self.fails = False

    def open(self) -> Driver:
        if self.fails:
            raise NoGpu("no-driver", "there is none", hint="")
        self.opened += 1
        self.is_open = True
        return self

    def memory(self, only: Collection[str] = ()) -> tuple[GpuMemory, ...]:
        if self.fails:
            raise GpuError("it is away")
        self.looks += 1
        return super().memory(only)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(gpu, "open_gpus", made.open)
    return made


def test_the_driver_is_opened_once_and_given_back(driver: Driver) -> None:
    watch = GpuObserver()
    watch.look()
    assert (driver.opened, driver.looks, watch.memory, watch.devices(())) == (0, 0, (), None)
    watch.open()
    watch.open()
    watch.look()
    assert (driver.opened, driver.looks, len(watch.memory)) == (1, 1, 2)
    watch.close()
    watch.close()
    assert (driver.is_open, watch.memory) == (False, ())
    watch.observe()
    assert driver.opened == 2


@pytest.mark.parametrize("is_wanted", [False, True])
def test_a_driver_that_fails_concerns_those_who_want_gpus(driver: Driver, is_wanted: bool) -> None:
    watch = GpuObserver()
    assert watch.try_open()
    assert not watch.try_open()
    if is_wanted:
        watch.open()
    watch.look()
    driver.fails = True
    if is_wanted:
        with pytest.raises(GpuError):
            watch.look()
    else:
        watch.look()
        assert watch.devices(()) is None


def test_who_can_do_without_gpus_tries_to_open_them_once(driver: Driver) -> None:
    driver.fails = True
    watch = GpuObserver()
    assert not watch.try_open()
    driver.fails = False
    assert not watch.try_open()
    assert driver.opened == 0


def test_root_behind_a_fence_asks_the_broker_and_else_says_what_it_sees(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:  # X1, L4
    monkeypatch.setattr(gpu, "is_fenced", lambda: True)
    theirs = Driver()
    watch = GpuObserver(otherwise=lambda: theirs)  # type: ignore[arg-type,return-value]
    watch.open()
    assert (driver.opened, watch.notes) == (0, theirs.notes())
    watch.close()

    def nobody() -> Any:
        raise GpuError("there is no broker to ask")

    watch = GpuObserver(otherwise=nobody)
    watch.open()
    assert (driver.opened, "behind a device fence" in watch.notes[-1]) == (1, True)


# U19: by index, UUID or its beginning; the driver's own words win
@pytest.mark.parametrize(
    ("words", "out"),
    [((), ["", ""]), (("1",), ["", "by the configuration"]), ((G0[:-1],), ["by the configuration"] * 2)],
)
def test_the_configuration_takes_gpus_out_of_service(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], out: list[str]
) -> None:
    monkeypatch.setattr(gpu, "open_gpus", MadeUpGpus)
    made = GpuObserver(Policy(out_of_service=tuple((word, "by the configuration") for word in words)))
    made.observe()
    assert [each.out for each in made.devices(()) or ()] == out
    made.close()


# U10: "silent": the driver reports no process's memory
@pytest.mark.parametrize(
    ("processes", "used_mib", "others_mib"),
    [
        ((seen(70, used=500), seen(71, used=300, above=(70, 1))), 800, 0),
        ((seen(70, used=500), seen(90, used=300)), 800, 300),
        ((seen(70, used=500), seen(90, used=300)), 900, 400),
        ((seen(70, used=None),), 800, 0),
        ((seen(70, used=None), seen(90, used=None)), 800, 800),
        ((seen(90, used=500, cgroup=A.cgroup), seen(70, used=300)), 800, 500),
    ],
    ids=["its own", "beside another", "unexplained", "silent", "both silent", "beside a job"],
)
def test_what_a_process_has_is_not_in_the_way_of_who_adopts_it(
    processes: tuple[snapshot.ProcessOnGpu, ...], used_mib: int, others_mib: int
) -> None:
    made = observer(MadeUpGpus())
    made.snapshot = made_snapshot(*processes, used={G0: used_mib})
    [before, _] = made.devices((A,)) or ()
    made.adopting = loose("new", G0, pid=70)
    [device, _] = made.devices((A,)) or ()
    assert device.used_mib == others_mib
    assert "new" not in device.used_by
    assert max(device.foreign_mib, unexplained_mib(device)) == others_mib - device.used_by.get("aaa", 0)
    made.adopting = None
    assert (made.devices((A,)) or ())[0] == before
