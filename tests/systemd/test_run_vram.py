"""Whose GPU memory is whose, by real cgroups (X2), and what a job leaves on its GPUs (B5).

The GPUs are a fake library under the real pynvml; the processes on them are real.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.fake_nvml import USE, FakeNvml
from tests.patience import until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.jobs import Gate, Job, Slicer

pytest_plugins = ["tests.systemd.helpers.fixtures", "tests.fake_nvml"]
pytestmark = pytest.mark.systemd


def start(slicer: Slicer, nvml: FakeNvml, script: str, *options: str) -> Job:
    return slicer.start(*options, "--", "sh", "-c", USE + script, env=nvml.env)


def peak(job: Job, *mib: int) -> None:
    """Wait until the job's lease knows of this peak."""
    until(lambda: job.lease().vram_peak_mib == mib, f"a peak of {mib}: {job.stderr}")


def child_script(slicer: Slicer, gate: Gate, mib: int) -> Path:
    """A program that uses the GPU until the gate opens."""
    path = slicer.path("child")
    path.write_text(f"#!/bin/sh\n{USE}use 0 {mib}\n: < {gate}\n")
    path.chmod(0o755)
    return path


_CHILDREN = {
    "setsid": "setsid {} &",
    "double fork": "(setsid {} &) &",
    "pid namespace": "unshare --pid --fork {} &",
    "pid and mount namespace": "unshare --pid --fork --mount --propagation private {} &",
    "no environment": "env -i PATH=$PATH FAKE_NVML_STATE=$FAKE_NVML_STATE setsid {} &",
    "cgroup of its own": (
        'own=/sys/fs/cgroup$(sed s/^0:://p -n /proc/self/cgroup)/inner; mkdir "$own";'
        ' sh -c \'echo $$ > "$1/cgroup.procs"; exec {}\' sh "$own" &'
    ),
}


@pytest.mark.parametrize("how", _CHILDREN)
def test_a_process_counts_for_its_job_whatever_it_left(
    slicer: Slicer, fake_nvml: FakeNvml, how: str
) -> None:  # X2
    gate, childs_gate = slicer.gate(), slicer.gate()
    child = child_script(slicer, childs_gate, 1000)
    job = start(slicer, fake_nvml, f"use 0 100\n{_CHILDREN[how].format(child)}\n: < {gate}\n", "--vram", "8G")
    peak(job, 1100)
    # A newcomer sees it the same way: nothing there is foreign, and 8 of 79 GiB are taken.
    assert not slicer.is_busy("--vram", "60G", env=fake_nvml.env)
    childs_gate.open()
    gate.open()
    done = job.end()
    assert done.code == 0, done
    assert "left on" not in done.stderr
    assert slicer.outcome_of(done).vram_peak_mib == (1100,)


def test_jobs_on_one_gpu_are_told_apart_by_their_scopes(slicer: Slicer, fake_nvml: FakeNvml) -> None:  # X2
    gate, other_gate = slicer.gate(), slicer.gate()
    first = start(slicer, fake_nvml, f"use 0 5000; : < {gate}", "--vram", "8G")
    peak(first, 5000)
    second = start(slicer, fake_nvml, f"use 0 3000; : < {other_gate}", "--vram", "2G")
    second.said("uses 2.9G of GPU 0, declared 2.0G")
    peak(second, 3000)
    (entry,) = systemctl.journal("-t", "slicer", "SLICER_EVENT=over-limit", f"_PID={second.pid}")
    assert (entry["SLICER_DECLARED_MIB"], entry["SLICER_USED_MIB"]) == ("2048", "3000")
    assert entry["SLICER_OVER_GPU"] == second.lease().gpus[0]
    assert entry["SLICER_GPU"] == ["0", second.lease().gpus[0]]  # K7
    # The first one's 8 GiB and 1.1 times what the second really uses.
    assert not slicer.is_busy("--gpu", "0", "--vram", "68G", "--margin", "0", env=fake_nvml.env)
    assert slicer.is_busy("--gpu", "0", "--vram", "70G", "--margin", "0", env=fake_nvml.env)
    gate.open()
    other_gate.open()
    assert ", declared" not in first.end().stderr
    second.end()


def test_a_process_that_left_the_scope_is_reported_and_not_ended(
    slicer: Slicer, fake_nvml: FakeNvml
) -> None:  # B5
    gate, other_gate = slicer.gate(), slicer.gate()
    child = child_script(slicer, other_gate, 3277)
    given = " ".join(f"--setenv={name}" for name in fake_nvml.env)
    script = f"systemd-run --quiet --collect --unit=vram-escape {given} {child}\n: < {gate}\nexit 5"
    job = start(slicer, fake_nvml, script, "--gpus", "1")
    lines = until(lambda: _live(fake_nvml), "it is on the GPU")
    assert len(lines) == 1
    pid = int(lines[0].split()[2])
    assert "vram-escape.service" in Path(f"/proc/{pid}/cgroup").read_text()
    gate.open()
    done = job.end()
    assert done.code == 5
    line = f"left on GPU 0: pid {pid} (child, 3.2G), not in this job's scope"
    assert f"slicer: {line}\n" in done.stderr
    told = systemctl.journal("-t", "slicer", "SLICER_EVENT=error", f"_PID={done.pid}")
    assert [entry["MESSAGE"] for entry in told] == [f"sh: {line}"]
    # Nobody gets the GPU as a whole while it is there.
    assert slicer.is_busy("--gpu", "0", env=fake_nvml.env)
    other_gate.open()
    until(lambda: not Path(f"/proc/{pid}").exists(), "it has ended")
    assert not slicer.is_busy("--gpu", "0", env=fake_nvml.env)


def _live(nvml: FakeNvml) -> list[str]:
    return [line for line in nvml.state.read_text().splitlines() if line.startswith("live ")]


def test_leftovers_in_the_scope_are_ended_and_named(slicer: Slicer, fake_nvml: FakeNvml) -> None:  # B5
    gate, never = slicer.gate(), slicer.gate()
    child = child_script(slicer, never, 2048)
    job = start(slicer, fake_nvml, f"(setsid {child} &) &\n: < {gate}", "--gpus", "1")
    peak(job, 2048)
    gate.open()
    done = job.end()
    assert "1 leftover process ended; last seen of this job: pid " in done.stderr
    assert " (child, 2.0G) on GPU 0\n" in done.stderr
    assert not slicer.is_busy("--gpu", "0", env=fake_nvml.env)


def test_the_gpu_stays_held_until_its_memory_is_back_though_slicer_was_killed(
    slicer: Slicer, fake_nvml: FakeNvml
) -> None:  # B5, K2
    gate = slicer.gate()
    job = start(slicer, fake_nvml, f"use 0 4000; : < {gate}", "--gpus", "2")
    peak(job, 4000, 0)
    lease = job.lease()
    fake_nvml.add("used 1 3277")  # which no process accounts for
    job.kill(signal.SIGKILL)
    job.popen.wait()
    command = next(int(line.split()[2]) for line in _live(fake_nvml))
    gate.open()
    until(lambda: not Path(f"/proc/{command}").exists(), "the command has ended")
    # The scope is not empty: its keeper looks at the GPUs.
    assert slicer.is_busy("--gpus", "2", env=fake_nvml.env)
    os.kill(lease.keeper, 0)
    fake_nvml.remove("used 1 3277")
    assert slicer.outcome(lease.job).vram_peak_mib == (4000, 0)
    assert not slicer.is_busy("--gpus", "2", env=fake_nvml.env)


def test_with_exec_nobody_looks(slicer: Slicer, fake_nvml: FakeNvml) -> None:  # X2
    """As documented: there is no supervisor. For everybody else its processes are still its own."""
    slicer.dirty = True
    gate = slicer.gate()
    job = start(slicer, fake_nvml, f"use 0 4000; echo up; : < {gate}", "--exec", "--vram", "8G")
    job.said("up")
    assert not slicer.is_busy("--gpu", "0", "--vram", "70G", "--margin", "0", env=fake_nvml.env)
    assert job.lease().vram_peak_mib == ()
    gate.open()
    assert job.end().code == 0
