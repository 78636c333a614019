"""What foreign processes used at most, shared by a file."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

import pytest

from slicer.gpu.foreign_peaks import ForeignPeaks, format_peaks, parse_peaks
from slicer.gpu.snapshot import ProcessOnGpu
from slicer.model import Lease
from slicer.state.directory import Directory
from tests.unit.gpu.made_up import G0, G1, IN_A, A, seen, snapshot

KEY = (4, 5000, G0)


def opened(path: Path) -> Directory:
    """For the length of a test; the descriptor ends with it."""
    made = Directory(os.open(path, os.O_RDONLY | os.O_DIRECTORY), str(path))
    weakref.finalize(made, os.close, made.fd)
    return made


def looked(tmp_path: Path, *processes: ProcessOnGpu, leases: tuple[Lease, ...] = (A,)) -> ForeignPeaks:
    """A newcomer's knowledge after one look."""
    peaks = ForeignPeaks(opened(tmp_path))
    assert peaks.update(snapshot(*processes), leases) is None
    return peaks


def test_the_peak_of_a_foreign_process_is_kept_for_all(tmp_path: Path) -> None:  # E3
    assert looked(tmp_path, seen(4, used=900), seen(5, used=70, cgroup=IN_A)).mib == {KEY: 900}
    assert looked(tmp_path, seen(4, used=100)).mib == {KEY: 900}
    assert looked(tmp_path, seen(4, used=1000)).mib == {KEY: 1000}
    assert looked(tmp_path, seen(4, used=100)).mib == {KEY: 1000}
    assert os.listdir(tmp_path) == ["foreign"]


def test_a_jobs_process_beside_its_lease_has_a_peak_too(tmp_path: Path) -> None:  # E3
    assert looked(tmp_path, seen(4, G1, 900, cgroup=IN_A)).mib == {(4, 5000, G1): 900}


def test_who_has_left_the_gpu_is_forgotten_and_the_last_takes_the_file_along(tmp_path: Path) -> None:  # A2
    looked(tmp_path, seen(4, used=900), seen(5, used=10), seen(4, G1, 30))
    assert looked(tmp_path, seen(5, used=10)).mib == {(5, 5000, G0): 10}
    assert looked(tmp_path, seen(5, used=10, started=6000)).mib == {(5, 6000, G0): 10}  # another process
    assert looked(tmp_path, seen(5, used=10, cgroup=IN_A)).mib == {}  # it got a lease
    assert os.listdir(tmp_path) == []


def test_small_changes_are_not_written(tmp_path: Path) -> None:
    looked(tmp_path, seen(4, used=1000))
    written = os.stat(tmp_path / "foreign").st_ino
    peaks = looked(tmp_path, seen(4, used=1049))
    assert peaks.mib == {KEY: 1049}
    peaks.update(snapshot(seen(4, used=1)), (A,))
    assert peaks.mib == {KEY: 1049}  # who saw it knows it
    assert os.stat(tmp_path / "foreign").st_ino == written
    assert looked(tmp_path, seen(4, used=1051)).mib == {KEY: 1051}
    assert os.stat(tmp_path / "foreign").st_ino != written


def test_a_look_at_some_gpus_leaves_the_others_peaks(tmp_path: Path) -> None:
    looked(tmp_path, seen(4, G0, 900), seen(4, G1, 30), seen(5, G1, 40))
    peaks = ForeignPeaks(opened(tmp_path), (G1,))
    here = snapshot(seen(4, G1, 20))
    assert peaks.is_stale(here, (A,))
    assert peaks.update(here, (A,)) is None
    assert peaks.mib == {KEY: 900, (4, 5000, G1): 30}
    assert not peaks.is_stale(here, (A,))
    assert looked(tmp_path, seen(4, G0, 1), seen(4, G1, 1)).mib == {KEY: 900, (4, 5000, G1): 30}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"SLICER_FOREIGN=1\n",
        b"SLICER_FOREIGN=1\nPEAK=4 5000 GPU-0 9",
        b"SLICER_FOREIGN=1\nPEAK=4 5000 GPU-0 9000\n",
        b"SLICER_FOREIGN=2\nPEAK=4 5000 GPU-0 9000\nEND=\n",
        b"SLICER_FOREIGN=1\nPEAK=4 5000 GPU-0\nEND=\n",
        b"SLICER_FOREIGN=1\nPEAK=4 5000 GPU-0 -9000\nEND=\n",
        b"SLICER_FOREIGN=1\nPEAK=x 5000 GPU-0 9000\nEND=\n",
        b"SLICER_FOREIGN=1\nPEAK=4 5000 GPU-0 9000 1\nEND=\n",
        b"SLICER_FOREIGN=1\nEVIL=4 5000 GPU-0 9000\nEND=\n",
        b"SLICER_FOREIGN=1\nPEAK=4 5000 GPU-0 " + b"9" * 5000 + b"\nEND=\n",
        b"\xff\xfe\0\n" * 1000,
    ],
)
def test_a_torn_or_foreign_file_counts_for_nothing_and_is_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "foreign").write_bytes(content)
    assert looked(tmp_path, seen(4, used=7)).mib == {KEY: 7}
    assert parse_peaks((tmp_path / "foreign").read_bytes()) == {KEY: 7}


@pytest.mark.parametrize("kind", ["link", "hard link", "fifo"])
def test_what_is_no_file_of_ours_is_not_read_but_replaced(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "state"
    place.mkdir()
    bait = tmp_path / "bait"
    bait.write_bytes(format_peaks({KEY: 9000}))
    if kind == "fifo":
        os.mkfifo(place / "foreign")
    elif kind == "link":
        (place / "foreign").symlink_to(bait)
    else:
        os.link(bait, place / "foreign")
    (place / "foreign.new").symlink_to(bait)  # a trap in the way of the writer
    assert looked(place, seen(4, used=7)).mib == {KEY: 7}
    assert bait.read_bytes() == format_peaks({KEY: 9000})
    assert os.listdir(place) == ["foreign"]


def test_what_a_killed_writer_left_is_cleared_away(tmp_path: Path) -> None:  # A2
    (tmp_path / "foreign.new").write_bytes(b"half")
    looked(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_directory_that_cannot_be_written_is_said_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    peaks = ForeignPeaks(opened(tmp_path))
    said = peaks.update(snapshot(seen(4, used=7)), (A,))
    assert said is not None
    assert "foreign" in said
    assert "\n" not in said
    assert peaks.mib == {KEY: 7}


# S9
def test_nobody_else_can_read_the_peaks_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        looked(tmp_path, seen(4, used=900))
    finally:
        os.umask(before)
    assert os.stat(tmp_path / "foreign").st_mode & 0o777 == 0o600


# S7
def test_peaks_that_somebody_else_wrote_count_for_nothing_and_are_replaced(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a file away")
    (tmp_path / "foreign").write_bytes(format_peaks({KEY: 9000}))
    os.chown(tmp_path / "foreign", 65534, 65534)
    assert looked(tmp_path, seen(4, used=7)).mib == {KEY: 7}
    assert (tmp_path / "foreign").stat().st_uid == 0


def test_without_a_state_directory_peaks_are_known_to_who_looks_alone() -> None:
    peaks = ForeignPeaks(None)
    assert peaks.update(snapshot(seen(4, used=900)), (A,)) is None
    assert peaks.update(snapshot(seen(4, used=7)), (A,)) is None
    assert peaks.mib == {KEY: 900}
