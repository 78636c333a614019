"""The device fence: what systemd is told, and what that lets through (X1)."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from slicer import gpu
from slicer.gpu import device_nodes, fence
from slicer.kernel import bpf, cgroup
from slicer.model import Property

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.model import Fence

GROUPS = (
    "mem", "/dev/vc/0", "tty", "ttyS", "/dev/tty", "/dev/ptmx", "vcs", "misc", "input", "sound", "alsa",
    "drm", "nvme", "nvme-generic", "nvram", "ntb", "nbd", "nvme0", "nvidia", "nvidia-frontend", "nvidia-uvm",
    "nvidia-caps", "nvidia-nvswitch", "nvidia-caps-imex-channels", "nvidiactl", "nvidia-modeset",
)  # fmt: skip


def allowed(properties: tuple[Property, ...]) -> dict[str, str]:
    value = properties[0].value
    assert isinstance(value, tuple)
    return {str(node): str(access) for node, access in value}


def test_everything_but_nvidias_groups_is_allowed_whatever_is_loaded_later() -> None:  # X1
    patterns = [node[len("char-") :] for node in allowed(fence.properties(())) if node.startswith("char-")]
    passed = [group for group in GROUPS if any(fnmatchcase(group, pattern) for pattern in patterns)]
    assert passed == [group for group in GROUPS if not group.startswith("nvidia")]
    assert allowed(fence.properties(()))["block-*"] == "rwm"


def test_a_job_gets_its_own_gpus_and_what_cuda_needs_beside_them() -> None:  # X1
    nothing = allowed(fence.properties(()))
    of_gpu_1 = allowed(fence.properties((1,), caps=("/dev/char/508:3",)))
    own = {"/dev/char/195:1", "/dev/char/195:255", "char-nvidia-uvm", "/dev/char/508:3"}
    assert of_gpu_1.keys() - nothing.keys() == own
    assert set(of_gpu_1.values()) == {"rwm"}  # U5: a container's runtime makes nodes of its own
    assert "/dev/nvidia-modeset" in allowed(fence.properties((), extra=("/dev/nvidia-modeset",)))


def test_the_policy_comes_after_the_list() -> None:  # X1: else all devices are denied for a moment
    assert [each.name for each in fence.properties((0, 1))] == ["DeviceAllow", "DevicePolicy"]


@pytest.mark.parametrize(
    ("policy", "profile", "asks", "found"),
    [
        ("auto", None, False, "auto"), ("auto", "off", False, "off"), ("auto", "on", False, "on"),
        ("off", None, False, "off"), ("off", "auto", False, "auto"), ("on", "off", False, "on"),
        ("auto", None, True, "on"), ("off", "off", True, "on"),
    ],
)  # fmt: skip
def test_a_user_may_only_ask_for_more_than_the_administrator_says(
    policy: Fence, profile: Fence | None, asks: bool, found: Fence
) -> None:  # X1, L2
    assert fence.brokered(policy, profile, asks=asks) == found


DEVICES = """\
Character devices:
  1 mem
195 nvidia
508 nvidia-caps
509 nvidia-uvm

Block devices:
259 blkext
"""


def test_the_nodes_of_mig_instances_are_found(tmp_path: Path) -> None:  # X1
    for path, minor in {"gi1": 12, "gi1/ci0": 13, "gi2": 21, "gi2/ci0": 22}.items():
        folder = tmp_path / "gpu0" / "mig" / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "access").write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\n")
    (tmp_path / "gpu1" / "mig").mkdir(parents=True)
    devices = tmp_path / "devices"
    devices.write_text(DEVICES)
    expected = tuple(f"/dev/char/508:{minor}" for minor in (12, 13, 21, 22))
    assert device_nodes.caps_of((0, 1), str(tmp_path), str(devices)) == expected
    assert device_nodes.caps_of((1,), str(tmp_path), str(devices)) == ()
    assert device_nodes.caps_of((7,), str(tmp_path), str(tmp_path / "none")) == ()


def test_a_group_is_found_among_the_character_devices_only() -> None:
    assert device_nodes.major_of("nvidia-uvm", DEVICES) == 509
    assert device_nodes.major_of("blkext", DEVICES) is None


@pytest.mark.parametrize(
    ("own", "looked_at"),
    [
        ("/gpu.slice/slicer-0123456789ab.scope/in", "/gpu.slice/slicer-0123456789ab.scope"),
        ("/gpu.slice/gpu-0123456789ab.slice/slicer-0123456789ab.scope", "/gpu.slice/gpu-0123456789ab.slice"),
        ("/gpu.slice/gpu-1001.slice/slicer-a.scope", "/gpu.slice/gpu-1001.slice/slicer-a.scope"),
        ("/system.slice/cron.service", None),
    ],
)
def test_a_fence_is_looked_for_where_the_job_has_it(
    own: str, looked_at: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:  # X1, U5
    seen: list[str] = []
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.delenv("SLICER_SIM", raising=False)
    monkeypatch.setattr(cgroup, "of", lambda _: own)
    monkeypatch.setattr(bpf, "filters_devices", lambda path: bool(seen.append(path)) or True)
    assert gpu.is_fenced() == (looked_at is not None)
    assert seen == ([] if looked_at is None else [cgroup.path_of(looked_at)])
