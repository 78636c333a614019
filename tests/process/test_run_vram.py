"""What jobs use on GPUs, seen through NVML (a fake library with the real pynvml): no GPU is needed.

The last test is for machines with a real one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slicer import gpu
from slicer.job.gpu_watch import FIRST_LOOKS_S
from slicer.model import Lease
from tests.fake_nvml import USE, FakeNvml
from tests.patience import until
from tests.process.harness import (
    SLICER,
    Box,
    Gate,
    children,
    kill_9,
    sleeps_in_read,
    text,
)
from tests.process.hot_path import imported

pytest_plugins = ["tests.fake_nvml"]

GPU_A = "GPU-00000000-0000-0000-0000-000000000000"
GPU_B = "GPU-11111111-1111-1111-1111-111111111111"


class Running:
    """A job on GPUs, whose shell goes on from gate to gate; what slicer says is in a file."""

    def __init__(self, box: Box, *options: str, script: str, name: str = "train") -> None:
        self.box = box
        self.name = name
        self._err = box.root / f"{name}.err"
        with self._err.open("wb") as err:
            self.process = box.start("--name", name, *options, "--", "sh", "-c", USE + script, stderr=err)
        until(lambda: self._leases() or self.process.poll() is not None, f"{name} has its lease")
        assert self.process.poll() is None, self.said()

    def _leases(self) -> list[Lease]:
        return [lease for lease in self.box.leases() if lease.name == self.name]

    def peak(self, *mib: int) -> None:
        """Wait until the lease knows of this peak."""
        until(lambda: self._peak() == mib, f"a peak of {mib}, not {self._peak()}: {self.said()}")

    def _peak(self) -> tuple[int, ...]:
        return next((lease.vram_peak_mib for lease in self._leases()), ())  # none while it is being written

    def said(self) -> str:
        return self._err.read_text()

    def warned(self, line: str) -> None:
        """Wait until slicer has said this line."""
        until(lambda: f"slicer: {line}\n" in self.said(), f"{line!r} in {self.said()!r}")

    def end(self) -> str:
        """All that slicer said."""
        self.process.wait()
        return self.said()


class Stranger:
    """A process of no job, on a GPU."""

    def __init__(self, gpus: FakeNvml, gpu: int, mib: int) -> None:
        self.process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        self.pid = self.process.pid
        gpus.add(f"live {gpu} {self.pid} {mib} compute")

    def end(self) -> None:
        self.process.communicate()


@pytest.fixture
def strangers(gpus: FakeNvml) -> Iterator[Any]:
    made: list[Stranger] = []

    def make(gpu: int, mib: int) -> Stranger:
        made.append(Stranger(gpus, gpu, mib))
        return made[-1]

    yield make
    for stranger in made:
        stranger.process.kill()
        stranger.end()


# -- the driver's library ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("gpus")
def test_an_end_that_comes_while_slicer_is_busy_is_not_missed(box: Box) -> None:  # A9
    """The driver's library has a thread in slicer, which must not take the signal that tells of the end."""
    faults = {"SLICER_FAULTS": f"{box.state}:supervisor-waiting~"}
    process = box.start("-q", "--gpus", "1", "--", "sh", "-c", 'echo ran >>"$LOG"', env=faults)
    until(box.lines, "the command has run")
    (keeper,) = children(process.pid)
    until(lambda: not children(keeper) and sleeps_in_read(keeper), "the keeper has told of the end")
    box.state.with_suffix(".go").touch()
    until(lambda: process.poll() is not None, "slicer has heard of the end")
    assert process.returncode == 0


# -- the peak ---------------------------------------------------------------------------------------------


# X2, X3, E5
@pytest.mark.usefixtures("gpus")
def test_the_peak_on_each_gpu_is_in_the_lease_and_in_the_outcome(
    box: Box, gate: Gate, second_gate: Gate
) -> None:
    job = Running(
        box, "--gpus", "2", "--outcome", "out.json",
        script=f"""
        use 1 300
        read x <{gate.path}
        sh -c '{USE} use 0 4000; use 1 50; read x <{second_gate.path}'
        """,
    )  # fmt: skip
    job.peak(0, 300)
    gate.open()
    job.peak(4000, 350)
    second_gate.open()
    job.end()
    (outcome,) = box.outcomes()
    assert (outcome.gpus, outcome.vram_mib, outcome.vram_peak_mib) == ((GPU_A, GPU_B), None, (4000, 350))
    written = json.loads((box.root / "out.json").read_text())
    assert (written["vram_mib"], written["vram_peak_mib"], written["forced"]) == (None, [4000, 350], False)
    shown = subprocess.run(
        [*box.prefix, *SLICER, "history"], env=box.env, capture_output=True, text=True, check=True
    ).stdout
    assert "3.9G" in shown.splitlines()[1].split()
    box.assert_clean()


# X2: without a cgroup the environment tells, and where it was cleared, who is above it
@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    "start",
    [
        "{} & wait",
        "setsid -w {}",
        "(setsid {} &) & read x <$MAIN",  # the double fork: its parent is the keeper
        "env -i FAKE_NVML_STATE=$FAKE_NVML_STATE GATE=$GATE {}",
        "(env -i FAKE_NVML_STATE=$FAKE_NVML_STATE GATE=$GATE setsid {} &) & read x <$MAIN",
        "env SLICER_LEASE=000000000000 {}",
    ],
)
def test_all_processes_of_a_job_count_however_they_were_started(
    box: Box, gate: Gate, second_gate: Gate, start: str
) -> None:
    child = box.root / "child"
    child.write_text(f"#!/bin/sh\n{USE} use 0 1000; read x <$GATE\n")
    child.chmod(0o755)
    box.env |= {"GATE": str(gate.path), "MAIN": str(second_gate.path)}
    job = Running(box, "--gpus", "1", script="use 0 100; " + start.format(child))
    job.peak(1100)
    gate.open()
    if "$MAIN" in start:
        second_gate.open()
    job.end()
    assert box.outcomes()[0].vram_peak_mib == (1100,)
    box.assert_clean()


# A3, X2
@pytest.mark.usefixtures("gpus")
def test_what_an_inner_job_uses_counts_for_the_job_that_holds_the_gpu(box: Box, gate: Gate) -> None:
    script = f"use 0 100; inner -p heavy -- sh -c '{USE} use 0 1000; read x <{gate.path}'"
    job = Running(box, "--gpus", "1", "-q", script=script)
    job.peak(1100)
    gate.open()
    job.end()
    outer, inner = box.outcomes()  # the newest first
    assert (inner.gpus, inner.cpu_slots, inner.vram_peak_mib) == ((), 1, ())
    assert (outer.gpus, outer.vram_peak_mib) == ((GPU_A,), (1100,))
    box.assert_clean()


# X2: two jobs share a GPU, each knows its own part
def test_jobs_that_share_a_gpu_are_told_apart(
    box: Box, gpus: FakeNvml, gate: Gate, second_gate: Gate
) -> None:
    first = Running(box, "--vram", "8G", script=f"use 0 5000; read x <{gate.path}", name="first")
    first.peak(5000)
    second = Running(box, "--vram", "4G", script=f"use 0 3000; read x <{second_gate.path}", name="second")
    second.peak(3000)
    assert {lease.gpus for lease in box.leases()} == {(GPU_A,)}
    gate.open()
    assert ", declared" not in first.end()
    second_gate.open()
    assert ", declared" not in second.end()
    found = {outcome.name: (outcome.vram_mib, outcome.vram_peak_mib) for outcome in box.outcomes()}
    assert found == {"first": (8192, (5000,)), "second": (4096, (3000,))}
    box.assert_clean()


# E13: the driver says n/a in containers
def test_a_peak_that_the_driver_does_not_say_is_what_nobody_else_accounts_for(
    box: Box, gpus: FakeNvml, gate: Gate
) -> None:
    script = f"""
    read me rest </proc/self/stat
    echo "live 0 $me n/a compute" >>"$FAKE_NVML_STATE"; echo "used 0 700" >>"$FAKE_NVML_STATE"
    read x <{gate.path}
    echo "used 0 0" >>"$FAKE_NVML_STATE"
    """
    job = Running(box, "--gpus", "1", script=script)
    job.peak(700)
    gate.open()
    job.end()
    assert box.outcomes()[0].vram_peak_mib == (700,)
    box.assert_clean()


# X3: the keeper writes what the supervisor knew
@pytest.mark.usefixtures("gpus")
def test_the_peak_outlives_slicer(box: Box, gate: Gate) -> None:
    job = Running(box, "--gpus", "1", script=f"use 0 4000; read x <{gate.path}")
    job.peak(4000)
    kill_9(job.process.pid)
    gate.open()
    (outcome,) = until(box.outcomes, "the keeper writes the outcome")
    assert (outcome.exit_code, outcome.vram_peak_mib) == (0, (4000,))
    box.assert_clean()


# E5
@pytest.mark.usefixtures("gpus")
def test_a_job_over_its_declaration_is_told_of_once_and_again_when_it_gets_worse(box: Box) -> None:
    gates = [Gate(box.root / f"gate-{step}") for step in range(4)]
    uses = (1000, 3072, 3300, 3400)
    script = "\n".join(f"use 0 {mib}; read x <{gate.path}" for mib, gate in zip(uses, gates, strict=True))
    job = Running(box, "--vram", "1G", script=script)
    job.peak(1000)
    assert "declared" not in job.said()
    gates[0].open()
    job.warned("train uses 3.0G of GPU 0, declared 1.0G")
    gates[1].open()
    job.peak(3300)  # 7% more
    gates[2].open()
    job.warned("train uses 3.3G of GPU 0, declared 1.0G")
    gates[3].open()
    assert job.end().count(", declared") == 2
    box.assert_clean()


def test_a_driver_that_fails_stops_no_job(box: Box, gpus: FakeNvml, gate: Gate) -> None:  # X3
    job = Running(box, "--gpus", "1", script=f"use 0 1000; read x <{gate.path}; exit 7")
    job.peak(1000)
    gpus.add("error nvmlDeviceGetCount 999")
    until(lambda: "can no longer be measured: " in job.said(), "slicer says so")
    gate.open()
    assert job.end().count("can no longer be measured") == 1
    assert job.process.returncode == 7
    assert box.outcomes()[0].vram_peak_mib == (1000,)
    gpus.remove("error nvmlDeviceGetCount 999")
    box.assert_clean()


def test_a_job_that_is_over_at_once_has_no_known_peak(box: Box, gpus: FakeNvml) -> None:
    """Not even a look at the GPUs is its price: but for the one at its end."""
    log = box.root / "nvml-log"
    gpus.add(f"log {log}")
    for _ in range(20):  # on a busy machine even `true` may last until the first look
        log.write_text("")
        assert box.run("--gpus", "1", "--", "true").returncode == 0
        if (last := box.outcomes()[0]).wall_s < FIRST_LOOKS_S[0]:
            break
    assert last.vram_peak_mib == ()
    calls = [line.split()[1] for line in log.read_text().splitlines()]
    assert calls.count("nvmlInit") == 2  # for the lease, and at the end
    box.assert_clean()


def test_a_job_without_gpus_pays_nothing_for_them(box: Box) -> None:
    found = imported(box, "--backend", "plain", "-p", "heavy", "--", "true")
    for_gpus = {
        "slicer.gpu.snapshot", "slicer.gpu.attribution", "slicer.gpu.nvml", "slicer.job.gpu_watch",
        "slicer.job.gpu_leftovers", "pynvml",
    }  # fmt: skip
    assert found.isdisjoint(for_gpus)


# -- what is left on a GPU --------------------------------------------------------------------------------


# B5
def test_who_came_on_the_gpu_during_the_job_is_named_and_left_alone(
    box: Box, gpus: FakeNvml, gate: Gate, strangers: Any
) -> None:
    strangers(0, 70)  # was there before
    job = Running(box, "--gpus", "1", script=f"read x <{gate.path}; exit 3")
    stranger = strangers(0, 3277)
    elsewhere = strangers(1, 3277)
    gate.open()
    said = job.end()
    assert f"slicer: left on GPU 0: pid {stranger.pid} (cat, 3.2G), not in this job's scope\n" in said
    assert said.count("left on GPU") == 1
    assert job.process.returncode == 3
    assert stranger.process.poll() is None
    assert elsewhere.process.poll() is None
    stranger.end()


# B5: the memory of a killed process may stay a while
def test_the_next_one_gets_the_gpu_only_when_the_memory_is_back(box: Box, gpus: FakeNvml, gate: Gate) -> None:
    box.env["GPU_PID"] = str(box.root / "pid")
    job = Running(box, "--gpus", "2", script=f"echo $$ >$GPU_PID; use 0 4000; read x <{gate.path}")
    job.peak(4000, 0)
    pid = Path(box.env["GPU_PID"]).read_text().strip()
    gpus.add(f"process 0 {pid} 4000 compute")  # the driver will go on listing it
    gate.open()
    until(lambda: not Path(f"/proc/{pid}").exists(), "the command has ended")
    assert box.run("--gpus", "2", "--no-wait", "--", "true").returncode == 75
    assert [lease.name for lease in box.leases()] == ["train"]
    gpus.remove(f"process 0 {pid} 4000 compute")
    assert "still" not in job.end()
    assert box.run("--gpus", "2", "--no-wait", "--", "true").returncode == 0
    box.assert_clean()


# B5
def test_memory_that_does_not_come_back_is_said_after_a_while(box: Box, gpus: FakeNvml, gate: Gate) -> None:
    box.env["GPU_PID"] = str(box.root / "pid")
    job = Running(box, "--gpus", "2", script=f"echo $$ >$GPU_PID; use 0 4000; read x <{gate.path}")
    job.peak(4000, 0)
    pid = Path(box.env["GPU_PID"]).read_text().strip()
    gpus.add(f"process 0 {pid} 4000 compute", "used 1 3277")
    gate.open()
    said = job.end()
    assert f"slicer: pid {pid} (sh, 3.9G) of this job still holds memory of GPU 0 5 s after its end\n" in said
    assert (
        "slicer: 3.2G of GPU 1 still in use 5 s after the job, by no process that the driver lists\n" in said
    )
    assert job.process.returncode == 0
    box.assert_clean()


# B5
@pytest.mark.usefixtures("gpus")
def test_leftovers_that_were_on_a_gpu_are_named(box: Box, gate: Gate, second_gate: Gate) -> None:
    script = f"sh -c '{USE} use 0 2048; read x <{second_gate.path}' & read x <{gate.path}"
    job = Running(box, "--gpus", "1", script=script)
    job.peak(2048)
    gate.open()
    said = job.end()
    (line,) = [line for line in said.splitlines() if "last seen" in line]
    assert line.startswith("slicer: 1 leftover process ended; last seen of this job: pid ")
    assert line.endswith(" (sh, 2.0G) on GPU 0")
    box.assert_clean()


# B5: the keeper does the same when the supervisor is dead
def test_the_keeper_waits_for_the_memory_too(box: Box, gpus: FakeNvml, gate: Gate) -> None:
    box.env["GPU_PID"] = str(box.root / "pid")
    job = Running(box, "--gpus", "2", script=f"echo $$ >$GPU_PID; use 0 4000; read x <{gate.path}")
    job.peak(4000, 0)
    gpus.add("used 1 3277")
    kill_9(job.process.pid)
    gate.open()
    pid = int(Path(box.env["GPU_PID"]).read_text())
    until(lambda: not Path(f"/proc/{pid}").exists(), "the command has ended")
    assert box.run("--gpus", "2", "--no-wait", "--", "true").returncode == 75
    assert [lease.name for lease in box.leases()] == ["train"]
    gpus.remove("used 1 3277")
    until(box.outcomes, "the keeper writes the outcome")
    assert box.run("--gpus", "2", "--no-wait", "--", "true").returncode == 0
    box.assert_clean()


# -- for a machine with a GPU -----------------------------------------------------------------------------

_ALLOCATED_MIB = 1024
_ALLOCATE = f"""
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")

def check(code):
    if code:
        sys.exit(f"CUDA error {{code}}")

context, memory = ctypes.c_void_p(), ctypes.c_uint64()
check(cuda.cuInit(0))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(cuda.cuCtxSetCurrent(context))
check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t({_ALLOCATED_MIB} << 20)))
print("allocated", flush=True)
sys.stdin.readline()
"""


def why_no_gpu() -> str:
    """Why the check below cannot run here; "" where it can."""
    code = "from slicer.gpu import open_gpus; open_gpus().close(); import ctypes; ctypes.CDLL('libcuda.so.1')"
    env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(os.path.dirname(gpu.__file__)))}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


# X2, on the real thing
def test_what_cuda_allocates_is_the_peak_of_the_job(box: Box) -> None:
    missing = why_no_gpu()
    if missing:
        pytest.skip(f"no NVIDIA GPU with CUDA here: {missing}")
    command = (sys.executable, "-c", _ALLOCATE)
    job = box.start("--gpus", "1", "--name", "cuda", "--", *command, stdin=subprocess.PIPE)
    assert job.stdin is not None
    assert job.stdout is not None
    assert job.stdout.readline() == b"allocated\n", job.communicate()

    def peak() -> int:
        return max(next((lease.vram_peak_mib for lease in box.leases()), ()), default=0)

    until(lambda: peak() >= _ALLOCATED_MIB, "slicer sees it")
    job.stdin.write(b"\n")
    _, err = job.communicate()
    (outcome,) = box.outcomes()
    assert outcome.exit_code == 0, text(err)
    # And the context: half a GiB or so.
    assert _ALLOCATED_MIB <= outcome.vram_peak_mib[0] <= 3 * _ALLOCATED_MIB
    assert "left on" not in text(err)
    assert "still" not in text(err)
    box.assert_clean()
