"""From a profile to what systemd is told and what the command's environment is."""

from __future__ import annotations

import pytest

from slicer.config.profiles import thread_env
from slicer.config.properties import DEFAULT_STOP_TIMEOUT_S
from slicer.job import scope
from slicer.model import Profile, Property
from slicer.record import replace
from tests.unit import made_up

MEMORY = Property("MemoryMax", "MemoryMax", "t", 2**30, "1G")
DEVICES = Property("DeviceAllow", "DeviceAllow", "a(ss)", (("/dev/null", "rw"),), "/dev/null rw")
POLICY = Property("DevicePolicy", "DevicePolicy", "s", "closed", "closed")
STOP = Property("TimeoutStopSec", "TimeoutStopUSec", "t", 3_000_000, "3s")

PROFILE = made_up.profile(name="heavy", slice="cpu", cpu_slots=1, threads=3, properties={"MemoryMax": MEMORY})


def names(profile: Profile) -> list[str]:
    return [item.name for item in scope.spec(profile, "system", "0123456789ab", "", ("true",)).properties]


# K1
def test_a_scope_is_named_after_its_job_and_sits_in_the_profiles_slice() -> None:
    made = scope.spec(PROFILE, "user", "0123456789ab", "train", ("python3", "a b.py"))
    assert (made.unit, made.slice, made.manager) == ("slicer-0123456789ab.scope", "cpu.slice", "user")
    assert made.description == "train (1 CPU slot, profile heavy)"
    assert scope.spec(replace(PROFILE, slice="gpu"), "system", "1", "", ("true",)).slice == "gpu.slice"


# K6, S10: anybody may read it
@pytest.mark.parametrize(
    ("name", "command", "expected"),
    [
        ("", ("ls", "-l"), "ls"),
        ("", ("/home/me/my tools/train", "--token=x"), "train"),
        ("", ("/opt/it is/",), "'/opt/it is/'"),
        ("two\nlines", ("ls",), "'two\\nlines'"),
    ],
)
def test_the_description_is_the_name_or_the_programs_without_its_arguments(
    name: str, command: tuple[str, ...], expected: str
) -> None:
    made = scope.spec(PROFILE, "system", "1", name, command)
    assert made.description == f"{expected} (1 CPU slot, profile heavy)"


# K6
@pytest.mark.parametrize(
    ("gpus", "vram_mib", "cpu_slots", "expected"),
    [
        (0, None, 0, "profile heavy"),
        (1, None, 0, "1 GPU, profile heavy"),
        (2, 8192, 0, "8G on 2 GPUs, profile heavy"),
        (2, None, 2, "2 GPUs, 2 CPU slots, profile heavy"),
    ],
)
def test_the_description_tells_what_the_job_asked_for(
    gpus: int, vram_mib: int | None, cpu_slots: int, expected: str
) -> None:
    profile = replace(PROFILE, gpus=gpus, vram_mib=vram_mib, slots={"cpu": cpu_slots} if cpu_slots else {})
    assert scope.spec(profile, "system", "1", "train", ("ls",)).description == f"train ({expected})"


# X1
@pytest.mark.parametrize("order", [("DevicePolicy", "DeviceAllow"), ("DeviceAllow", "DevicePolicy")])
def test_devices_are_allowed_before_the_rest_is_denied(order: tuple[str, str]) -> None:
    given_order = {name: {"DevicePolicy": POLICY, "DeviceAllow": DEVICES}[name] for name in order}
    found = names(replace(PROFILE, properties=given_order))
    assert found.index("DeviceAllow") < found.index("DevicePolicy")


# K3
def test_the_time_limit_is_systemds_so_that_it_holds_without_slicer() -> None:
    made = scope.spec(replace(PROFILE, timeout_s=1.5), "system", "1", "", ("true",))
    assert [(p.dbus_name, p.signature, p.value) for p in made.properties] == [
        ("MemoryMax", "t", 2**30),
        ("TimeoutStopUSec", "t", 10_000_000),
        ("RuntimeMaxUSec", "t", 1_500_000),
    ]


def test_the_users_own_stop_timeout_is_not_doubled() -> None:
    chosen = replace(PROFILE, properties={"TimeoutStopSec": STOP})
    assert names(chosen) == ["TimeoutStopSec"]
    assert scope.stop_timeout_s(chosen) == 3.0
    assert scope.stop_timeout_s(PROFILE) == DEFAULT_STOP_TIMEOUT_S
    forever = Property("TimeoutStopSec", "TimeoutStopUSec", "t", 2**64 - 1, "infinity")
    assert 86400 <= scope.stop_timeout_s(replace(PROFILE, properties={"TimeoutStopSec": forever})) < 2**31


@pytest.mark.parametrize(
    ("slice_name", "wanted", "gpus", "skip", "expected"),
    [
        ("cpu", 0, (), False, {"CUDA_VISIBLE_DEVICES": ""}),
        ("gpu", 0, (), False, {}),
        ("cpu", 0, (), True, {}),  # A4: the lock is skipped, so nothing is said about GPUs
        ("gpu", 1, (), True, {}),
        ("gpu", 2, ("GPU-a", "GPU-b"), False,
         {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "GPU_LOCK_HELD": "1"}),
        ("cpu", 1, ("GPU-a",), False,
         {"CUDA_VISIBLE_DEVICES": "GPU-a", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "GPU_LOCK_HELD": "1"}),
    ],
)  # fmt: skip
def test_which_gpus_a_job_sees(
    slice_name: str, wanted: int, gpus: tuple[str, ...], skip: bool, expected: dict[str, str]
) -> None:
    profile = replace(PROFILE, slice=slice_name, gpus=wanted)
    assert scope.gpu_environment(profile, gpus, skip) == expected


# K4
def test_the_profiles_own_variables_win_over_derived_ones_and_the_marker_over_all() -> None:
    own = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "3", "SLICER_LEASE": "forged"}
    profile = replace(PROFILE, env=own)
    base = {"PATH": "/bin", "OMP_NUM_THREADS": "64", "MKL_NUM_THREADS": "64", "KEPT": "\udcff"}
    gpu = {"CUDA_VISIBLE_DEVICES": ""}
    made = scope.environment(base, profile, thread_env(3), gpu, "0123456789ab")
    assert made["OMP_NUM_THREADS"] == "1"
    assert made["MKL_NUM_THREADS"] == "3"
    assert made["CUDA_VISIBLE_DEVICES"] == "3"
    assert made["SLICER_LEASE"] == "0123456789ab"
    assert (made["PATH"], made["KEPT"]) == ("/bin", "\udcff")
    assert base["OMP_NUM_THREADS"] == "64"
