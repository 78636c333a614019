"""The helper that looks at GPUs for root behind the fence of a job (X1). With a fence: tests/enforced."""

from __future__ import annotations

import os

import pytest

from slicer.errors import GpuError, NoGpu
from slicer.gpu.outside import OutsideGpus
from tests.fake_nvml import FakeNvml

pytest_plugins = ["tests.fake_nvml"]
DIRECTLY = ("/usr/bin/env",)  # in place of systemd-run


@pytest.fixture
def env(fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    for name, value in fake_nvml.env.items():
        monkeypatch.setenv(name, value)
    return fake_nvml


def test_the_helper_says_what_the_driver_says(env: FakeNvml) -> None:  # X1
    env.add(f"process 1 {os.getpid()} 512 compute", "mig 0 1 1")
    gpus = OutsideGpus(DIRECTLY)
    try:
        first, second = gpus.list()
        assert (first.minor, second.minor, second.memory_mib) == (0, 1, 81559)
        assert "MIG" in gpus.notes()[0]
        assert [each.used_mib for each in gpus.processes((second.uuid,))] == [512]
        assert [each.gpu_uuid for each in gpus.memory((first.uuid,))] == [first.uuid]
        assert set(gpus.utilisation()) == {first.uuid, second.uuid}
        env.add("error nvmlDeviceGetCount 999")
        with pytest.raises(GpuError):
            gpus.list()
    finally:
        gpus.close()
    gpus.close()


def test_without_a_driver_the_helper_says_why_and_ends(
    env: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:  # X1
    monkeypatch.delenv("FAKE_NVML_STATE")
    with pytest.raises(NoGpu) as caught:
        OutsideGpus(DIRECTLY)
    assert caught.value.reason == "no-driver"
    with pytest.raises(GpuError, match="no-such-program"):
        OutsideGpus(("/no-such-program",))


def test_a_helper_that_was_killed_is_told(env: FakeNvml) -> None:
    gpus = OutsideGpus(DIRECTLY)
    os.kill(gpus._pid, 9)
    try:
        os.waitid(os.P_PID, gpus._pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(GpuError, match="has ended"):
            gpus.list()
    finally:
        gpus.close()
