"""GPUs shared by memory, and with processes that slicer knows nothing of (the fake NVML, the real pynvml)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.fake_nvml import FakeNvml
from tests.patience import LONGEST_S, until
from tests.process.harness import Box, Gate, sleeps_in_poll, switches

pytest_plugins = ["tests.fake_nvml"]

GPU_A = "GPU-00000000-0000-0000-0000-000000000000"
GPU_B = "GPU-11111111-1111-1111-1111-111111111111"
SHOW = ("sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES"')


def hold(box: Box, gate: Gate, name: str, *options: str) -> subprocess.Popen[bytes]:
    script = f'echo "start {name} $$" >>"$LOG"; read x <"{gate.path}"'
    process = box.start("-q", "--name", name, *options, "--", "sh", "-c", script)
    until(lambda: box.started(name) or process.poll() is not None, f"{name} runs")
    assert process.poll() is None, process.communicate()
    return process


def gpus_of(box: Box, name: str) -> tuple[str, ...]:
    return next(lease.gpus for lease in box.leases() if lease.name == name)


# E2, E4: what fits shares the fuller GPU, so that whole ones stay whole
@pytest.mark.usefixtures("gpus")
def test_jobs_share_a_gpu_by_what_they_declare(box: Box, gate: Gate, second_gate: Gate) -> None:
    first = hold(box, gate, "first", "--vram", "30G")
    second = hold(box, second_gate, "second", "--vram", "40G")
    assert gpus_of(box, "first") == gpus_of(box, "second") == (GPU_A,)
    assert box.run("-q", "--vram", "20G", "--", *SHOW).stdout == f"{GPU_B}\n"
    assert box.run("-q", "--gpus", "1", "--", *SHOW).stdout == f"{GPU_B}\n"
    assert box.run("-q", "--vram", "8G", "--", *SHOW).stdout == f"{GPU_A}\n"
    assert box.run("-q", "--vram", "8G", "--gpus", "2", "--", *SHOW).stdout == f"{GPU_A},{GPU_B}\n"
    done = box.run("-q", "--gpus", "2", "--no-wait", "--", "true")
    assert (done.returncode, json.loads(done.stderr)["error"]) == (75, "gpu-busy")
    gate.open()
    second_gate.open()
    assert [first.wait(LONGEST_S), second.wait(LONGEST_S)] == [0, 0]
    box.assert_clean()


# E2: without a declaration, alone
@pytest.mark.usefixtures("gpus")
def test_a_whole_gpu_is_shared_with_nobody(box: Box, gate: Gate) -> None:
    whole = hold(box, gate, "whole", "--gpu", "0")
    assert gpus_of(box, "whole") == (GPU_A,)
    assert box.run("-q", "--vram", "1G", "--gpu", "0", "--no-wait", "--", "true").returncode == 75
    assert box.run("-q", "--vram", "1G", "--", *SHOW).stdout == f"{GPU_B}\n"
    gate.open()
    assert whole.wait(LONGEST_S) == 0
    box.assert_clean()


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("options", "seen"),
    [
        (("--gpu", "1"), GPU_B),
        (("--gpu", "GPU-1"), GPU_B),
        (("--gpu", GPU_B.lower()), GPU_B),
        (("--gpu", "1,0"), f"{GPU_A},{GPU_B}"),
        (("--gpu", "1,0", "--gpus", "1"), GPU_A),
        (("--gpu", "1", "--vram", "4G"), GPU_B),
    ],
)
def test_gpus_are_chosen_by_index_or_uuid(box: Box, options: tuple[str, ...], seen: str) -> None:
    assert box.run("-q", *options, "--", *SHOW).stdout == f"{seen}\n"
    box.assert_clean()


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--gpu", "2"), "--gpu: no such GPU: '2' (this machine has 0 (GPU-0000"),
        (("--gpu", "GPU-"), "--gpu: 'GPU-' could be 2 GPUs"),
        (("--gpu", "0,GPU-0"), "--gpu: 'GPU-0' is listed twice"),
        (
            ("--vram", "80G"),
            "80G + 512M margin fits on no GPU; the largest has 79.6G (see slicer status for the GPUs' sizes)",
        ),
        (
            ("--vram", "1T", "--gpus", "2"),
            "1T + 512M margin does not fit on 2 of the GPUs; the smallest has 79.6G",
        ),
        (("--vram", "79G", "--margin", "1G"), "79G + 1G margin fits on no GPU; the largest has 79.6G"),
    ],
)
def test_what_this_machine_can_never_give_is_refused_at_once(
    box: Box, options: tuple[str, ...], message: str
) -> None:
    done = box.run("-q", *options, "--", "true")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"slicer: {message}")
    box.assert_clean()


# E3, X4: a process that slicer did not start sends no event when it goes
def test_a_job_waits_until_processes_outside_slicer_are_gone(box: Box, gpus: FakeNvml) -> None:
    gpus.add("process 0 1 30000 compute", "process 1 1 30000 compute")
    shared = box.run("-q", "--vram", "40G", "--", *SHOW)
    assert shared.stdout == f"{GPU_A}\n"
    assert box.run("-q", "--vram", "50G", "--no-wait", "--", "true").returncode == 75
    waiter = box.start("--gpus", "1", "--", *SHOW)
    assert waiter.stderr is not None
    waiter.stderr.readline()  # that limits are best effort here
    line = waiter.stderr.readline().decode()
    assert line == "slicer: waiting for a GPU, in use by processes outside slicer\n"
    until(lambda: sleeps_in_poll(waiter.pid), "it waits")
    gpus.remove("process 1 1 30000 compute")
    assert waiter.wait(LONGEST_S) == 0
    assert waiter.stdout is not None
    assert waiter.stdout.read().decode() == f"{GPU_B}\n"
    box.assert_clean()


# X4: and where there is nothing to look for, nobody looks
@pytest.mark.usefixtures("gpus")
def test_a_gpu_waiter_sleeps_while_only_leases_are_in_its_way(box: Box, gate: Gate) -> None:
    holder = hold(box, gate, "holder", "--gpus", "2")
    waiters = [box.start("-q", "--gpus", "1", "--", "true") for _ in range(2)]
    until(lambda: len(box.tickets()) == 2, "both wait")

    def counted() -> list[int]:
        return [switches(process.pid) for process in waiters]

    def rests() -> bool:
        before = counted()
        holder_waits = subprocess.run(
            ["sleep", "1.5"], check=True
        )  # longer than a look at the GPUs would take
        return holder_waits.returncode == 0 and counted() == before

    until(rests, "both sleep soundly")
    gate.open()
    assert [process.wait(LONGEST_S) for process in (holder, *waiters)] == [0, 0, 0]
    box.assert_clean()


# E3: a job over its declaration counts for what it was seen to use
def test_a_job_over_its_declaration_is_no_longer_believed(box: Box, gpus: FakeNvml, gate: Gate) -> None:
    job = hold(box, gate, "liar", "--vram", "10G", "--gpu", "0")
    pid = box.started("liar")
    gpus.add(f"process 0 {pid} 61440 compute")
    until(lambda: any(lease.vram_peak_mib == (61440,) for lease in box.leases()), "its peak is known")
    gpus.remove(f"process 0 {pid} 61440 compute")
    gpus.add(f"process 0 {pid} 1024 compute")
    # 79.6G less 60G and a tenth of that: 13.6G, though it uses next to nothing now
    assert box.run("-q", "--vram", "14G", "--gpu", "0", "--no-wait", "--", "true").returncode == 75
    assert box.run("-q", "--vram", "12G", "--gpu", "0", "--no-wait", "--", "true").returncode == 0
    gate.open()
    assert job.wait(LONGEST_S) == 0
    (outcome,) = [outcome for outcome in box.outcomes() if outcome.name == "liar"]
    assert (outcome.vram_mib, outcome.vram_peak_mib) == (10240, (61440,))
    box.assert_clean()


# A8: a GPU job that has waited too long fails, unless it says otherwise
@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("then", ["run", None])
def test_a_gpu_job_that_waited_too_long(box: Box, gate: Gate, then: str | None) -> None:
    holder = hold(box, gate, "holder", "--gpus", "2")
    chosen = ("--then", then) if then else ()
    done = box.run("--gpus", "1", "--name", "late", "--max-wait", "300ms", *chosen, "--", *SHOW)
    if then == "run":
        assert (done.returncode, done.stdout) == (0, f"{GPU_A}\n")
        assert "slicer: 1 GPU not free after " in done.stderr
        assert [outcome.forced for outcome in box.outcomes() if outcome.name == "late"] == [1]
    else:
        assert done.returncode == 75
        assert json.loads(done.stderr.splitlines()[-1])["holder"]["name"] == "holder"
    gate.open()
    assert holder.wait(LONGEST_S) == 0
    box.assert_clean()


# A1, A5: scripts that know nothing of slicer take a lock of their own
@pytest.mark.usefixtures("gpus")
def test_scripts_with_a_plain_lock_and_jobs_exclude_each_other(
    box: Box, gate: Gate, second_gate: Gate, tmp_path: Path
) -> None:
    lock = tmp_path / "gpu.lock"
    box.env["GPU_LOCK_PATH"] = str(lock)
    plain = ["flock", "-n", str(lock), "true"]
    job = hold(box, gate, "job", "--gpus", "1")
    other = hold(box, second_gate, "other", "--gpus", "1")  # jobs do not exclude each other by it
    assert subprocess.run(plain, check=False).returncode == 1
    gate.open()
    assert job.wait(LONGEST_S) == 0
    assert subprocess.run(plain, check=False).returncode == 1
    second_gate.open()
    assert other.wait(LONGEST_S) == 0
    until(lambda: subprocess.run(plain, check=False).returncode == 0, "the lock is free")

    command = f'echo "start script $$" >>"{box.log}"; read x <"{gate.path}"'
    script = subprocess.Popen(["flock", str(lock), "sh", "-c", command], env=box.env)
    box.adopt(script)
    until(lambda: box.started("script"), "the script has the lock")
    busy = box.run("-q", "--gpus", "1", "--no-wait", "--", "true")
    assert busy.returncode == 75
    assert json.loads(busy.stderr)["holder"]["pid"] in (script.pid, int(box.started("script")))
    assert box.run("-q", "-p", "heavy", "--no-wait", "--", "true").returncode == 0
    waiter = box.start("--gpus", "1", "--", "true")
    assert waiter.stderr is not None
    waiter.stderr.readline()  # that limits are best effort here
    assert b"locked by pid " in waiter.stderr.readline()
    gate.open()
    assert [waiter.wait(LONGEST_S), script.wait(LONGEST_S)] == [0, 0]
    box.assert_clean()
