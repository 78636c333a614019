"""A job's file in the state directory: made, looked at, removed, swept."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicer.errors import StateError
from slicer.share import job_file, layout
from slicer.share.job_file import JobFile
from slicer.share.summary import sharing_of
from slicer.state.statedir import StateDir, locate
from tests.unit.share.test_environment import ORDER

pytestmark = pytest.mark.both_pythons

A, B = "a" * 12, "b" * 12
GPU = "GPU-00000000-0000-0000-0000-000000000000"
MIB = 1 << 20


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateDir]:
    made = locate({"SLICER_STATE_DIR": str(tmp_path / "state")}, os.geteuid())
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state" / "share"


def has_lease(state: StateDir, job: str) -> None:
    """There is a lease of that job."""
    os.close(state.leases.open(job, os.O_WRONLY | os.O_CREAT))


def lives(path: Path, row: int, *charged: int) -> int:
    """A process that has a row, as the library would have it; its descriptor."""
    fd = os.open(path, os.O_RDWR)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, row, 1, 0))
    os.pwrite(fd, struct.pack("@iI", 42, 0), layout.OFFSET_PROCESSES + row * layout.PROCESS_SIZE)
    for place, size in enumerate(charged):
        at = layout.OFFSET_PROCESSES + row * layout.PROCESS_SIZE + 8 + 8 * place
        os.pwrite(fd, layout.number(size), at)
    os.pwrite(fd, struct.pack("@I", row + 1), layout.OFFSET_SAID + 4)
    return fd


def test_it_is_made_for_its_user_alone(state: StateDir, folder: Path) -> None:  # X7
    before = os.umask(0o377)
    try:
        job_file.make(state, A, ORDER, (GPU,))
    finally:
        os.umask(before)
    info = (folder / A).stat()
    assert (info.st_mode & 0o7777, info.st_size, info.st_nlink) == (0o600, layout.SIZE, 1)
    assert info.st_blocks * 512 >= layout.SIZE  # no hole: it can be mapped when the disk is full
    assert folder.stat().st_mode & 0o7777 == 0o700
    said = JobFile(state, A).read()
    assert (said.job, said.wants, said.gpus, said.limit) == (A, "both", (GPU,), (8192 * MIB,))


def test_what_lives_is_counted_and_what_is_dead_is_not(state: StateDir, folder: Path) -> None:  # X7
    job_file.make(state, A, ORDER, (GPU,))
    first, second = lives(folder / A, 0, 100 * MIB), lives(folder / A, 2, 23 * MIB)
    file = JobFile(state, A)
    assert file.charges() == ((123 * MIB,), 2)
    os.close(first)
    assert file.charges() == ((23 * MIB,), 1)
    os.close(second)
    assert file.charges() == ((0,), 0)
    file.close()


def test_what_slicer_notes_stands_in_the_outcome(state: StateDir) -> None:  # X7
    job_file.make(state, A, ORDER, (GPU,), is_kept_by_driver=True)
    file = JobFile(state, A)
    file.set_overhead(0, 500 * MIB)
    file.set_got_past()
    found = sharing_of(ORDER, file.read())
    file.close()
    assert (found.wants, found.overhead_mib, found.got_past_cap) == ("both", (500,), 1)
    assert found.driver_cap == 1


def test_the_files_of_dead_jobs_are_swept_and_no_others(state: StateDir, folder: Path) -> None:
    for job in (A, B, "c" * 12):
        job_file.make(state, job, ORDER, (GPU,))
        has_lease(state, job)
    held = JobFile(state, B)
    held.hold()
    (folder / "arena-2").touch()
    (folder / ("d" * 12)).symlink_to("/etc/passwd")
    (folder / ("e" * 12)).mkdir()
    os.mkfifo(folder / ("f" * 12))
    for job in (A, B):
        state.leases.unlink(job)
    job_file.make(state, "9" * 12, ORDER, (GPU,))
    names = {path.name for path in folder.iterdir()}
    assert A not in names  # its lease is gone, and nobody holds it
    assert {B, "c" * 12, "9" * 12, "arena-2"} <= names
    held.close()
    job_file.make(state, "8" * 12, ORDER, (GPU,))
    assert not (folder / B).exists()


def test_it_is_removed_once_and_twice(state: StateDir, folder: Path) -> None:
    job_file.remove(state, A)  # there is no folder yet
    job_file.make(state, A, ORDER, (GPU,))
    job_file.remove(state, A)
    job_file.remove(state, A)
    assert list(folder.iterdir()) == []


def test_one_of_the_same_name_is_never_written_into(state: StateDir, folder: Path) -> None:
    has_lease(state, A)
    folder.mkdir(mode=0o700)
    (folder / A).write_text("mine")
    with pytest.raises(StateError, match="cannot be created"):
        job_file.make(state, A, ORDER, (GPU,))
    assert (folder / A).read_text() == "mine"


@pytest.mark.parametrize("kind", ["link", "second name", "short", "other job", "fifo", "none"])
def test_what_is_no_file_of_the_job_is_refused(state: StateDir, folder: Path, kind: str) -> None:  # S7
    job_file.make(state, A, ORDER, (GPU,))
    path = folder / A
    if kind == "link":
        path.rename(folder / "x")
        path.symlink_to("x")
    elif kind == "second name":
        os.link(path, folder / "x")
    elif kind == "short":
        os.truncate(path, 100)
    elif kind == "other job":
        path.write_bytes(layout.new(B, "both", 0, (GPU,), 0))
    else:
        path.unlink()
        if kind == "fifo":
            os.mkfifo(path)
    with pytest.raises(StateError):
        JobFile(state, A).read()


def test_a_file_that_was_cut_is_not_grown_again(state: StateDir, folder: Path) -> None:
    job_file.make(state, A, ORDER, (GPU,))
    file = JobFile(state, A)
    os.truncate(folder / A, 10)
    file.set_overhead(0, MIB)
    file.close()
    assert (folder / A).stat().st_size == 10


def test_a_folder_that_others_may_look_into_is_closed(state: StateDir, folder: Path) -> None:
    folder.mkdir(mode=0o755)
    job_file.make(state, A, ORDER, (GPU,))
    assert folder.stat().st_mode & 0o7777 == 0o700
