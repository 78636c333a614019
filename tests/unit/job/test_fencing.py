"""Which of root's jobs get a device fence, and what is behind it (X1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from slicer import gpu
from slicer.backend.nested import NestedBackend
from slicer.backend.plain import PlainBackend
from slicer.backend.systemd import SystemdBackend
from slicer.errors import RefusedError
from slicer.gpu.observer import GpuObserver
from slicer.job import fencing
from slicer.kernel import SYSROOT, bpf
from slicer.ledger.nesting import OuterJobs
from slicer.model import Gpu, Property
from slicer.record import replace
from tests.unit.job.test_plan import OUTER, PROFILE, plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.backend import Backend

SYSTEM, USER = SystemdBackend("system"), SystemdBackend("user")
INNER = NestedBackend(OUTER)
RULE = Property("DevicePolicy", "DevicePolicy", "s", "closed", "closed")


@pytest.fixture
def observer(monkeypatch: pytest.MonkeyPatch) -> GpuObserver:
    """A machine with three GPUs whose driver's files are there, and a kernel that filters devices."""
    monkeypatch.setattr(fencing, "has_nvidia", lambda: True)
    monkeypatch.setattr(bpf, "can_filter_devices", lambda: True)
    monkeypatch.setattr(bpf, "filters_devices", lambda directory: True)
    made = GpuObserver()
    made.gpus = tuple(Gpu(n, f"GPU-{name}", "", 1, 2 - n) for n, name in enumerate("abc"))
    monkeypatch.setattr(made, "open", lambda: None)
    return made


def opens(properties: tuple[Property, ...]) -> list[str]:
    """NVIDIA's nodes among what is allowed."""
    value = properties[0].value
    assert isinstance(value, tuple)
    return [str(node) for node, _ in value if "/195:" in str(node) or "/dev/nvidia" in str(node)]


@pytest.mark.parametrize(
    ("changes", "gpus", "expected"),
    [
        ({"gpus": 0}, (), []),
        ({"gpus": 1}, ("GPU-b",), ["/dev/char/195:1", "/dev/char/195:255"]),
        ({"gpus": 0, "devices": ("/dev/nvidia-modeset",)}, (), ["/dev/nvidia-modeset"]),
        (
            {"gpus": 2, "fence": "on"}, ("GPU-a", "GPU-c"),
            ["/dev/char/195:0", "/dev/char/195:2", "/dev/char/195:255"],
        ),
    ],
)  # fmt: skip
def test_a_job_opens_what_its_lease_has(
    observer: GpuObserver, changes: dict[str, object], gpus: tuple[str, ...], expected: list[str]
) -> None:  # X1
    made = fencing.fence_of(plan(replace(PROFILE, **changes)), SYSTEM, observer)
    assert made is not None
    assert opens(made(gpus)) == expected


def test_what_the_job_around_holds_is_open_where_the_job_sees_it(observer: GpuObserver) -> None:  # X1, K7
    outer = OuterJobs((OUTER,), False)  # GPU-a
    more = fencing.fence_of(plan(replace(PROFILE, gpus=2), outer), SYSTEM, observer)
    assert more is not None
    assert opens(more(("GPU-b",))) == ["/dev/char/195:1", "/dev/char/195:2", "/dev/char/195:255"]
    for slice_name, expected in (("cpu", []), ("gpu", ["/dev/char/195:2", "/dev/char/195:255"])):
        made = fencing.fence_of(plan(replace(PROFILE, gpus=0, slice=slice_name), outer), SYSTEM, observer)
        assert made is not None
        assert opens(made(())) == expected


@pytest.mark.parametrize(
    ("changes", "backend"),
    [
        ({"fence": "off"}, SYSTEM), ({"properties": {"DevicePolicy": RULE}}, SYSTEM), ({}, INNER), ({}, USER),
        ({}, PlainBackend(0)),
    ],
)  # fmt: skip
def test_who_gets_none(observer: GpuObserver, changes: dict[str, object], backend: Backend) -> None:  # X1
    assert fencing.fence_of(plan(replace(PROFILE, **changes)), backend, observer) is None


@pytest.mark.parametrize(("backend", "filters", "refused"), [
    (SYSTEM, True, False), (SYSTEM, False, True), (USER, True, True), (PlainBackend(0), True, True),
    (INNER, True, False), (INNER, False, True),
])  # fmt: skip
def test_on_means_no_job_without_it(
    observer: GpuObserver, monkeypatch: pytest.MonkeyPatch, backend: Backend, filters: bool, refused: bool
) -> None:  # X1
    monkeypatch.setattr(bpf, "can_filter_devices", lambda: filters)
    monkeypatch.setattr(bpf, "filters_devices", lambda directory: filters)
    outer = replace(OUTER, cgroup="/gpu.slice/slicer-a.scope")
    strict = replace(PROFILE, fence="on", sources={"fence": "config.toml:3"})
    asked = plan(strict, OuterJobs((outer,), False) if backend is INNER else None)
    if refused:
        with pytest.raises(RefusedError, match="the device fence is required"):
            fencing.fence_of(asked, backend, observer)
    else:
        assert (fencing.fence_of(asked, backend, observer) is None) == (backend is INNER)


def test_a_gpu_without_a_node_of_its_own_cannot_be_fenced(observer: GpuObserver) -> None:  # X1: WSL
    observer.gpus = tuple(replace(each, minor=-1) for each in observer.gpus)
    made = fencing.fence_of(plan(), SYSTEM, observer)
    assert made is not None
    assert made(("GPU-a",)) == ()
    strict = fencing.fence_of(plan(replace(PROFILE, fence="on")), SYSTEM, observer)
    assert strict is not None
    with pytest.raises(RefusedError):
        strict(("GPU-a",))


def test_a_machine_with_a_driver_has_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # W2
    monkeypatch.setenv(SYSROOT, str(tmp_path))
    assert not gpu.has_nvidia()
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").touch()
    assert gpu.has_nvidia()
