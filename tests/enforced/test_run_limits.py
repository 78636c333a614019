"""Limits of a job really act, and its outcome has the figures to show it (K3, X3)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from slicer.backend import scopes
from slicer.model import Outcome
from slicer.outcome import samples
from tests.fake_nvml import FakeNvml
from tests.machines.settings import ci
from tests.systemd.helpers import dockers, systemctl
from tests.systemd.helpers.containers import IMAGE, RUN, make_image, podman, remove_all
from tests.systemd.helpers.jobs import SYSTEM_HISTORY, Done, Slicer

pytest_plugins = ["tests.systemd.helpers.fixtures", "tests.fake_nvml"]
pytestmark = pytest.mark.enforced

MIB = 1 << 20
# slicer races with systemd, which removes an empty cgroup at once: this often, as each takes seconds here.
RACES = 4 if ci() else 2

# Takes memory and touches every page of it.
HUNGRY = "import sys; held = bytearray(int(sys.argv[1]) << 20); print('survived', flush=True)"


def python(code: str, *arguments: object) -> tuple[str, ...]:
    return sys.executable, "-c", code, *map(str, arguments)


def own_cgroup(*files: str) -> tuple[str, ...]:
    """A command that prints the first line of files of its own cgroup."""
    script = 'cd "/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)"; for f; do head -n1 "$f"; done'
    return "sh", "-c", script, "sh", *files


def run(slicer: Slicer, *arguments: str) -> tuple[Done, Outcome]:
    done = slicer.run(*arguments)
    return done, slicer.outcome_of(done)


@pytest.mark.core
def test_cpu_quota_throttles(slicer: Slicer) -> None:  # K3, X3
    burn = "import time\nwhile time.process_time() < 0.6: pass"
    done, outcome = run(slicer, "--set", "CPUQuota=20%", "--", *python(burn))
    assert done.code == 0
    usage = outcome.usage
    assert usage.cpu_s is not None
    assert usage.throttled_s is not None
    assert 0.5 < usage.cpu_s < 0.35 * outcome.wall_s  # a fifth of a CPU, and no more
    assert usage.throttled_s > 1.0
    assert "CPUQuota" in outcome.enforced
    assert set(outcome.not_enforced) <= {"IOWeight"}  # D11: the disk has to weigh, which this one may not
    found = samples.read(SYSTEM_HISTORY, [outcome.job])[outcome.job]  # X8
    assert all(value is not None and value > 0 for value in found.memory_mib)
    assert all(value is not None and value < 0.35 for value in found.cpu)


@pytest.mark.core
def test_memory_max_kills_and_says_so(slicer: Slicer) -> None:  # K2, K3, X3
    options = ("-p", "heavy", "--set", "MemoryMax=64M", "--set", "MemorySwapMax=0")
    done, outcome = run(slicer, *options, "--", *python(HUNGRY, 200))
    assert done.code == 137, done
    assert "survived" not in done.stdout
    assert "out of memory" in done.stderr
    assert (outcome.reason, outcome.exit_code, outcome.signal) == ("oom-kill", 137, 9)
    assert outcome.usage.oom_kills
    assert outcome.usage.memory_peak_bytes is not None
    assert 60 * MIB < outcome.usage.memory_peak_bytes <= 65 * MIB
    assert {"MemoryMax", "MemorySwapMax"} <= set(outcome.enforced)
    assert not slicer.is_busy("-p", "heavy")


def test_a_memory_kill_of_the_whole_scope_says_so_too(slicer: Slicer) -> None:  # K2, X3
    # memory.oom.group: the kernel kills slicer's own half in the scope together with the command.
    options = ("-p", "heavy", "--set", "MemoryMax=64M", "--set", "OOMPolicy=kill")
    for _ in range(RACES):
        done, outcome = run(slicer, *options, "--", *python(HUNGRY, 200))
        assert done.code == 137, done
        assert outcome.reason == "oom-kill"
        assert outcome.usage.oom_kills
    assert not slicer.is_busy("-p", "heavy")


WORKER = """\
import os, sys
worker = os.fork()
if not worker:
    held = bytearray(200 << 20)
    os._exit(0)
_, status = os.waitpid(worker, 0)
print("worker", os.waitstatus_to_exitcode(status), flush=True)
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.core
def test_a_killed_worker_is_the_jobs_own_affair_when_it_says_so(slicer: Slicer) -> None:  # X3
    options = ("--set", "MemoryMax=64M", "--set", "OOMPolicy=continue")
    done, outcome = run(slicer, *options, "--", *python(WORKER, 0))
    assert (done.code, done.stdout) == (0, "worker -9\n")
    assert (outcome.reason, outcome.usage.oom_kills) == ("exited", 1)
    done, outcome = run(slicer, *options, "--", *python(WORKER, 3))
    assert (done.code, outcome.reason) == (3, "oom-kill")  # why it failed


def test_a_killed_worker_ends_the_job_by_default(slicer: Slicer) -> None:  # X3
    # systemd's OOMPolicy=stop: the rest of the scope gets SIGTERM.
    waits = WORKER.replace("sys.exit(", "__import__('time').sleep(1000); sys.exit(")
    done, outcome = run(slicer, "--set", "MemoryMax=64M", "--", *python(waits, 0))
    assert done.code == 143, done
    assert outcome.reason == "oom-kill"
    assert outcome.usage.oom_kills == 1


def test_a_job_over_its_time_is_over_its_time_whoever_was_killed_before(slicer: Slicer) -> None:  # D9
    waits = WORKER.replace("sys.exit(", "__import__('time').sleep(1000); sys.exit(")
    options = ("--set", "MemoryMax=64M", "--set", "OOMPolicy=continue", "--timeout", "20s")
    done, outcome = run(slicer, *options, "--", *python(waits, 0))
    assert done.code == 124, done
    assert (outcome.reason, outcome.usage.oom_kills) == ("timeout", 1)


FORKS = """\
import os, time
count = 0
try:
    while count < 100:
        if not os.fork():
            time.sleep(1000)
        count += 1
except BlockingIOError:
    pass
print(count, *sorted(os.sched_getaffinity(0)), flush=True)
"""


@pytest.mark.core
def test_weights_tasks_and_cpus_reach_the_kernel(slicer: Slicer) -> None:  # K3
    files = ("cpu.weight", "io.weight", "memory.high", "cpuset.cpus.effective")
    options = ("--set=CPUWeight=33", "--set=IOWeight=44", "--set=MemoryHigh=300M", "--set=AllowedCPUs=1")
    done, outcome = run(slicer, *options, "--", *own_cgroup(*files))
    assert done.stdout.splitlines() == ["33", "default 44", str(300 * MIB), "1"]
    assert {"CPUWeight", "MemoryHigh", "AllowedCPUs"} <= set(outcome.enforced)
    assert ("IOWeight" in outcome.enforced) == scopes.io_is_weighed()  # D11: the disk has to heed it
    done, outcome = run(slicer, "--set=TasksMax=20", "--set=AllowedCPUs=1", "--", *python(FORKS))
    count, *cpus = map(int, done.stdout.split())
    assert 15 <= count < 20  # the command itself and slicer's half in the scope count too
    assert cpus == [1]
    assert outcome.leftovers == count


@pytest.mark.core
def test_figures_are_never_missing_however_short_the_command(slicer: Slicer) -> None:  # X3
    for _ in range(2 * RACES):  # a second a run in the emulated machine; the namespace machine does more
        _, outcome = run(slicer, "-q", "--", "true")
        usage = outcome.usage
        missing = [name for name in type(usage).__annotations__ if getattr(usage, name) is None]
        # cpu.stat has throttled_usec wherever the cpu controller is on.
        assert not missing, (missing, usage)
        assert usage.memory_peak_bytes is not None
        assert 100 << 10 < usage.memory_peak_bytes < 64 * MIB
        assert usage.cpu_s is not None
        assert 0 < usage.cpu_s < 30
        assert usage.oom_kills == 0


def test_memory_peak_and_bytes_of_io_are_right(slicer: Slicer) -> None:  # X3
    scratch = Path("/var/tmp/slicer-test-io")
    write = (
        "import os, sys; f = open(sys.argv[1], 'wb'); f.write(os.urandom(24 << 20)); f.flush(); os.fsync(f)"
    )
    try:
        done, outcome = run(slicer, "--", *python(write, scratch))
    finally:
        scratch.unlink(missing_ok=True)
    usage = outcome.usage
    assert done.code == 0
    assert usage.io_write_bytes is not None
    assert 24 * MIB <= usage.io_write_bytes < 40 * MIB
    assert usage.memory_peak_bytes is not None
    assert 24 * MIB < usage.memory_peak_bytes < 120 * MIB
    assert usage.pressure_io_s is not None
    assert 0 <= usage.pressure_io_s <= outcome.wall_s + 1


def test_the_limit_of_a_running_job_can_be_lowered(slicer: Slicer) -> None:  # K6, X6
    gate = slicer.gate()
    code = (
        "import sys; held = bytearray(20 << 20); print('up', flush=True); open(sys.argv[1]).read(); " + HUNGRY
    )
    path = slicer.path("outcome.json")
    options = ("--set", "MemoryMax=600M", "--outcome", str(path))
    job = slicer.start(*options, "--", *python(code.replace("argv[1]) <<", "argv[2]) <<"), gate, 200))
    job.said("up")
    unit = job.lease().unit
    systemctl.output("systemctl", "set-property", unit, "MemoryMax=80M", "MemorySwapMax=0")
    assert Path(f"/sys/fs/cgroup{job.lease().cgroup}/memory.max").read_text() == f"{80 * MIB}\n"
    gate.open()
    assert job.end().code == 137
    told = json.loads(path.read_text())
    assert told["reason"] == "oom-kill"
    assert 70 * MIB < told["usage"]["memory_peak_bytes"] <= 81 * MIB


def test_a_closed_device_policy_denies(slicer: Slicer) -> None:  # X1
    assert os.path.exists("/dev/fuse")
    probe = ("sh", "-c", ": < /dev/fuse && echo open")
    done, _ = run(slicer, "-q", "--", *probe)
    assert done.stdout == "open\n"
    done, outcome = run(slicer, "-q", "--set", "DevicePolicy=closed", "--", *probe)
    assert (done.code, done.stdout) == (2, ""), done
    assert "not permitted" in done.stderr
    assert "DevicePolicy" in outcome.enforced
    allowed = ("--set", "DevicePolicy=closed", "--set", "DeviceAllow=/dev/fuse r")
    assert run(slicer, "-q", *allowed, "--", *probe)[0].stdout == "open\n"


def test_a_container_has_the_jobs_memory(slicer: Slicer) -> None:  # K3, U5
    make_image()
    limits = ("--set", "MemoryMax=300M", "--set", "MemorySwapMax=0")
    done = slicer.run(*limits, "--", *RUN, IMAGE, "tail", "/dev/zero")
    assert done.code == 137, done
    outcome = slicer.outcome_of(done)
    assert outcome.reason == "oom-kill"
    assert 200 * MIB < (outcome.usage.memory_peak_bytes or 0) <= 301 * MIB  # the kernel counts in batches
    assert podman("ps", "--all", "--quiet") == ""
    remove_all()


def test_a_container_of_dockers_has_the_jobs_memory(slicer: Slicer, fake_nvml: FakeNvml) -> None:  # K3, U5
    limits = ("-g1", "--set", "MemoryMax=300M", "--set", "MemorySwapMax=0")
    with dockers.dockerd():
        done = slicer.run(*limits, "--", *dockers.RUN, dockers.IMAGE, "tail", "/dev/zero", env=fake_nvml.env)
    assert done.code == 137, done
    outcome = slicer.outcome_of(done)
    assert outcome.reason == "oom-kill"
    assert 200 * MIB < (outcome.usage.memory_peak_bytes or 0) <= 300 * MIB
    assert outcome.usage.cpu_s
