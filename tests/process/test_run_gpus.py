"""The GPU mutex over NVML (a fake library with the real pynvml): no GPU is needed."""

from __future__ import annotations

import json

import pytest

from tests.fake_nvml import FakeNvml
from tests.patience import until
from tests.process.harness import Box, Gate

pytest_plugins = ["tests.fake_nvml"]

GPU_A = "GPU-00000000-0000-0000-0000-000000000000"
GPU_B = "GPU-11111111-1111-1111-1111-111111111111"
SHOW = ("sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER $GPU_LOCK_HELD"')


def hold(box: Box, gate: Gate, *options: str) -> object:
    process = box.start(
        "-q", *options, "--", "sh", "-c", f'echo "start holder $$" >>"$LOG"; read x <"{gate.path}"'
    )
    until(lambda: box.started("holder") or process.poll() is not None, "the holder runs")
    assert process.poll() is None, process.communicate()
    return process


# A1
@pytest.mark.usefixtures("gpus")
def test_a_job_sees_the_gpus_of_its_lease_and_no_others(box: Box, gate: Gate) -> None:
    hold(box, gate, "-p", "gpu")
    (first,) = box.leases()
    assert first.gpus == (GPU_A,)
    assert box.run("-q", "-p", "gpu", "--", *SHOW).stdout == f"{GPU_B} PCI_BUS_ID 1\n"
    assert box.run("-q", "--", *SHOW, env={"CUDA_VISIBLE_DEVICES": "0"}).stdout == "  \n"
    gate.open()
    until(lambda: not box.snapshot().leases, "it ends")
    assert box.run("-q", "--gpus", "2", "--", *SHOW).stdout == f"{GPU_A},{GPU_B} PCI_BUS_ID 1\n"
    box.assert_clean()


# W9
@pytest.mark.usefixtures("gpus")
def test_a_command_that_takes_its_work_elsewhere_is_warned_of(box: Box) -> None:
    docker = box.root / "docker"
    docker.write_text("#!/bin/sh\n")
    docker.chmod(0o755)
    warned = box.run("--gpus", "1", "--", str(docker), "run", "image")
    assert "docker runs the command outside of this job" in warned.stderr
    assert "outside" not in box.run("--", str(docker), "run", "image").stderr  # it holds no GPU
    podman = docker.rename(box.root / "podman")
    plain = box.run("--", str(podman), "run", "image")
    assert "podman's containers leave this job, its GPUs and its limits: it has no scope" in plain.stderr
    assert "leave" not in box.run("--no-container", "--", str(podman), "run", "image").stderr
    box.assert_clean()


# B1
@pytest.mark.usefixtures("gpus")
def test_busy_names_the_gpu_holder(box: Box, gate: Gate) -> None:
    hold(box, gate, "--gpus", "2", "--name", "train", "--expect", "2h")
    busy = box.run("-q", "-p", "gpu", "--no-wait", "--", "true")
    assert busy.returncode == 75
    found = json.loads(busy.stderr)
    assert (found["error"], found["holder"]["name"]) == ("gpu-busy", "train")
    gate.open()
    until(lambda: not box.snapshot().leases, "it ends")
    box.assert_clean()


# Issue section 4: infeasible at once, not a wait for ever
@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("number", ["3", "64", "8192"])
def test_more_gpus_than_there_are(box: Box, gate: Gate, number: str) -> None:
    hold(box, gate, "-p", "gpu")
    done = box.run("-q", "--gpus", number, "--", "true")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"slicer: {number} GPUs were asked for, but this machine has 2 GPUs (")
    gate.open()
    until(lambda: not box.snapshot().leases, "it ends")
    box.assert_clean()


# Issue section 4: no GPU or no driver at all
@pytest.mark.parametrize("state", ["", "error nvmlInit 9\n", None])
def test_no_gpu_or_no_driver(box: Box, fake_nvml: FakeNvml, state: str | None) -> None:
    if state is not None:
        box.env.update(fake_nvml.env)
        fake_nvml.write(state)
    done = box.run("-q", "-p", "gpu", "--", "true")
    assert done.returncode in (2, 125), done
    (line,) = done.stderr.splitlines()
    assert line.startswith("slicer: ")
    assert line.endswith(")"), "no hint"
    assert box.run("-q", "-p", "heavy", "--", "true").returncode == 0  # the rest of slicer needs no GPU
    box.assert_clean()


# A3, A4
@pytest.mark.parametrize(
    "env", [{"SLICER_SKIP_GPU_LOCK": "1"}, {"PSRUN_SKIP_GPU_LOCK": "1"}, {"GPU_LOCK_HELD": "1"}]
)
def test_the_escape_hatch_takes_no_gpu_and_needs_no_driver(box: Box, env: dict[str, str]) -> None:
    done = box.run("-q", "-p", "gpu", "--", *SHOW, env={**env, "CUDA_VISIBLE_DEVICES": "1"})
    assert done.returncode == 0, done
    assert done.stdout.split()[0] == "1"
    box.assert_clean()


# A3
@pytest.mark.usefixtures("gpus")
def test_a_nested_gpu_job_runs_at_once_on_the_outer_jobs_gpu(box: Box) -> None:
    done = box.run("-q", "--gpus", "2", "--", "inner", "-p", "gpu", "--no-wait", "--", *SHOW)
    assert (done.returncode, done.stdout) == (0, f"{GPU_A},{GPU_B} PCI_BUS_ID 1\n")
    done = box.run("-q", "-p", "gpu", "--", "inner", "--gpus", "2", "--no-wait", "--", *SHOW)
    assert (done.returncode, done.stdout) == (0, f"{GPU_A},{GPU_B} PCI_BUS_ID 1\n")
    box.assert_clean()


# A1, A2
@pytest.mark.usefixtures("gpus")
def test_two_gpus_serve_two_jobs_at_a_time(box: Box) -> None:
    script = 'd="$LOG.$CUDA_VISIBLE_DEVICES"; mkdir "$d" || echo "VIOLATION" >>"$LOG"; sleep 0.05; rmdir "$d"'
    running = [box.start("-q", "-p", "gpu", "--", "sh", "-c", script) for _ in range(8)]
    assert [process.wait() for process in running] == [0] * 8
    assert box.lines() == []
    assert {outcome.gpus for outcome in box.outcomes()} == {(GPU_A,), (GPU_B,)}
    box.assert_clean()


# K3: a loader of 40 GB is not to be killed here and to live in a queue
@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("options", [("--gpus", "1"), ("--gpu", "0"), ("--vram", "8G")])
def test_gpus_without_a_profile_mean_the_profile_gpu(box: Box, options: tuple[str, ...]) -> None:
    assert box.run("-q", *options, "--", "true").returncode == 0
    assert box.run("-q", "--gpus", "0", "--", "true").returncode == 0
    config = box.root / "config.toml"
    config.write_text('default_profile = "heavy"\n')
    config.chmod(0o644)
    assert box.run("-q", *options, "--", "true", env={"SLICER_CONFIG": str(config)}).returncode == 0
    assert [outcome.profile for outcome in box.outcomes()] == ["heavy", "light", "gpu"]
    box.assert_clean()


# U18
@pytest.mark.usefixtures("gpus")
def test_a_choice_of_the_environment_is_said_not_to_be_heeded(box: Box) -> None:
    said = {"CUDA_VISIBLE_DEVICES": "1"}
    done = box.run("--gpus", "1", "--", *SHOW, env=said)
    assert (done.returncode, done.stdout.split()[0]) == (0, GPU_A)
    assert "CUDA_VISIBLE_DEVICES=1 is replaced by the lease's GPUs (--gpu LIST chooses them)" in done.stderr
    for options in (("--gpu", "1"), ()):
        assert "CUDA_VISIBLE_DEVICES" not in box.run(*options, "--", "true", env=said).stderr
    inner = box.run("-q", "--gpus", "1", "--", "inner", "-v", "--gpus", "2", "--", "true")
    assert "CUDA_VISIBLE_DEVICES" not in inner.stderr
    box.assert_clean()


# U18: programs that parse CUDA_VISIBLE_DEVICES as integers
@pytest.mark.usefixtures("gpus")
def test_gpus_by_index_for_programs_that_read_nothing_else(box: Box) -> None:
    show = ("sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER $SLICER_GPU_INDICES"')
    assert box.run("-q", "--gpu", "1", "--", *show).stdout == f"{GPU_B} PCI_BUS_ID 1\n"
    by_index = ("-q", "--gpu-ids", "index", "--gpu")
    assert box.run(*by_index, "1", "--", *show).stdout == "1 PCI_BUS_ID 1\n"
    assert box.run(*by_index, "1,0", "--", *show).stdout == "0,1 PCI_BUS_ID 0,1\n"
    assert box.run("-q", "--gpu", "1", "--", "inner", "-p", "light", "--", *show).stdout.split()[-1] == "1"
    # A job inside knows the lease around it by the ledger, whatever the variable has.
    around = (*by_index, "1", "--", "inner", "--gpus")
    assert box.run(*around, "1", "--no-wait", "--", *show).stdout == "1 PCI_BUS_ID 1\n"
    assert box.run(*around, "2", "--", *show).stdout.split()[0] == f"{GPU_B},{GPU_A}"
    box.assert_clean()
