"""CUDA's numbers of a job's GPUs, by the kernel's list and the nodes that the job can open (U18)."""

from __future__ import annotations

from pathlib import Path

import pytest

from slicer.gpu.ordinals import numbered
from slicer.kernel import SYSROOT

# In PCI order they are A, B, C, D, which is neither that of their nodes nor that of a list of names.
PCI = {"A": "0000:0a:00.0", "B": "0000:1b:00.0", "C": "0000:1b:01.0", "D": "0001:01:00.0"}
MINOR = {"A": 3, "B": 2, "C": 0, "D": 1}


class Driver:
    """What NVIDIA's driver shows of four GPUs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "dev").mkdir()
        for name, address in PCI.items():
            folder = root / "proc/driver/nvidia/gpus" / address
            folder.mkdir(parents=True)
            (folder / "information").write_text(
                f"Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-{name}\nBus Location: \t {address}\n"
                f"Device Minor: \t {MINOR[name]}\nGPU Excluded:\t No\n"
            )
            (root / f"dev/nvidia{MINOR[name]}").write_text("")
            (root / f"proc/driver/nvidia/capabilities/gpu{MINOR[name]}/mig").mkdir(parents=True)

    def hide(self, name: str) -> None:
        (self.root / f"dev/nvidia{MINOR[name]}").unlink()

    def exclude(self, name: str) -> None:
        path = self.root / "proc/driver/nvidia/gpus" / PCI[name] / "information"
        path.write_text(path.read_text().replace("No", "Yes"))

    def split(self, name: str) -> None:
        (self.root / f"proc/driver/nvidia/capabilities/gpu{MINOR[name]}/mig/gi7").mkdir()


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    monkeypatch.setenv(SYSROOT, str(tmp_path))
    return Driver(tmp_path)


def indices(*names: str) -> str | None:
    shown = {"CUDA_VISIBLE_DEVICES": ",".join(f"GPU-{name}" for name in names)}
    return numbered(shown, "uuid", {"GPU-A": 7}).get("SLICER_GPU_INDICES")


def test_they_are_places_in_pci_order(driver: Driver) -> None:
    assert indices("A", "B", "C", "D") == "0,1,2,3"
    assert indices("D", "B") == "3,1"  # as CUDA_VISIBLE_DEVICES has them


def test_cuda_counts_only_what_the_job_can_open(driver: Driver) -> None:  # X1: behind a fence, in a container
    driver.hide("A")
    driver.exclude("C")
    assert indices("B", "D") == "0,1"
    assert indices("A") is None
    assert indices("B", "C") is None


def test_where_mig_is_on_uuids_are_all_that_counts(driver: Driver) -> None:
    driver.split("D")
    assert indices("A") is None
    driver.hide("D")
    assert indices("A") == "0"


def test_a_list_that_cannot_be_read_gives_no_numbers(driver: Driver) -> None:
    (driver.root / "proc/driver/nvidia/gpus" / PCI["B"] / "information").write_text("\n")
    assert indices("A") is None


def test_without_a_list_slicers_own_numbers_count(  # WSL
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SYSROOT, str(tmp_path))
    assert (indices("A"), indices("B")) == ("7", None)


def test_index_replaces_the_uuids_and_fixes_cudas_order(driver: Driver) -> None:
    shown = {"CUDA_VISIBLE_DEVICES": "GPU-B,GPU-C", "CUDA_DEVICE_ORDER": "FASTEST_FIRST", "HOME": "/"}
    assert numbered(shown, "index", {}) == {
        "CUDA_VISIBLE_DEVICES": "1,2", "SLICER_GPU_INDICES": "1,2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "HOME": "/",
    }  # fmt: skip


@pytest.mark.parametrize("shown", ["", "1", "-1", "NoDevFiles", "GPU-B", "GPU-B,GPU-X"])
def test_numbers_of_another_job_do_not_stay(driver: Driver, shown: str) -> None:
    made = numbered({"CUDA_VISIBLE_DEVICES": shown, "SLICER_GPU_INDICES": "0,3"}, "uuid", {})
    assert made.get("SLICER_GPU_INDICES") == ("1" if shown == "GPU-B" else None)
    assert made["CUDA_VISIBLE_DEVICES"] == shown


def test_inside_a_job_with_indices_its_numbers_stay(driver: Driver) -> None:
    outer = {"CUDA_VISIBLE_DEVICES": "0,3", "SLICER_GPU_INDICES": "0,3"}
    assert numbered(outer, "uuid", {}) == numbered(outer, "index", {}) == outer
