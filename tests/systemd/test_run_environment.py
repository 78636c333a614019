"""What the command finds in its environment: thread caps, its GPUs, the marks of its lease."""

from __future__ import annotations

import pytest

from slicer.config.profiles import THREAD_VARIABLES
from tests.fake_nvml import FakeNvml
from tests.systemd.helpers.jobs import Slicer

pytest_plugins = ["tests.systemd.helpers.fixtures", "tests.fake_nvml"]
pytestmark = pytest.mark.systemd

GPU_0 = "GPU-00000000-0000-0000-0000-000000000000"
GPU_1 = "GPU-11111111-1111-1111-1111-111111111111"


def environment(slicer: Slicer, *options: str, env: dict[str, str] | None = None) -> dict[str, str]:
    """What ``env`` prints under ``slicer run OPTIONS``."""
    done = slicer.run(*options, "--", "env", "-0", env=env)
    assert done.code == 0, done
    return dict(entry.split("=", 1) for entry in done.stdout.split("\0") if entry)


def test_thread_caps_follow_the_quota(slicer: Slicer) -> None:  # K4
    assert {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"} < set(
        THREAD_VARIABLES
    )
    found = environment(slicer, "-p", "heavy", "--set", "CPUQuota=130%")
    assert {name: found[name] for name in THREAD_VARIABLES} == dict.fromkeys(THREAD_VARIABLES, "2")
    found = environment(slicer, "-p", "heavy", "--set", "AllowedCPUs=0")
    assert found["OMP_NUM_THREADS"] == "1"


def test_thread_caps_are_the_profiles_when_it_says(slicer: Slicer) -> None:  # K4
    config = slicer.path("config.toml")
    config.write_text('[profiles.five]\nthreads = 5\n[profiles.five.env]\nMKL_NUM_THREADS = "7"\n')
    found = environment(slicer, "-p", "five", env={"SLICER_CONFIG": str(config)})
    assert (found["OMP_NUM_THREADS"], found["MKL_NUM_THREADS"]) == ("5", "7")


def test_a_gpu_job_sees_the_gpus_of_its_lease_by_uuid(slicer: Slicer, fake_nvml: FakeNvml) -> None:  # K4
    found = environment(slicer, "--gpus", "1", env=fake_nvml.env)
    assert found["CUDA_VISIBLE_DEVICES"] == GPU_0
    assert found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert found["GPU_LOCK_HELD"] == "1"
    found = environment(slicer, "--gpus", "2", env=fake_nvml.env)
    assert found["CUDA_VISIBLE_DEVICES"] == f"{GPU_0},{GPU_1}"
    assert found["SLICER_GPU_INDICES"] == "0,1"
    found = environment(slicer, "--gpu", "1", "--gpu-ids", "index", "--exec", env=fake_nvml.env)  # U18
    assert found["CUDA_VISIBLE_DEVICES"] == found["SLICER_GPU_INDICES"] == "1"
    found = environment(slicer, "-p", "gpu", env=fake_nvml.env)
    assert found["CUDA_VISIBLE_DEVICES"] == GPU_0


def test_two_gpu_jobs_get_different_gpus(slicer: Slicer, fake_nvml: FakeNvml) -> None:  # A1, K4
    gate = slicer.gate()
    job = slicer.hold(gate, "-g1", env=fake_nvml.env)
    assert job.lease().gpus == (GPU_0,)
    assert environment(slicer, "-g1", env=fake_nvml.env)["CUDA_VISIBLE_DEVICES"] == GPU_1
    gate.open()
    assert job.end().code == 0


def test_the_lease_is_marked(slicer: Slicer) -> None:  # A3
    gate = slicer.gate()
    script = f'echo "lease=$SLICER_LEASE"; : < {gate}'
    job = slicer.start("--", "sh", "-c", script)
    job.said(f"lease={job.lease().job}\n")
    gate.open()
    assert job.end().code == 0
