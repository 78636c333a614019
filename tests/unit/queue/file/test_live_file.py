"""What wakes a queue: its jobs file, and nothing that lies beside it (E6)."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicer.kernel.inotify import Inotify
from slicer.queue.file import jobs_file
from slicer.queue.file.jobs_file import JobsFileError
from slicer.queue.file.live_file import LiveFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.txt"
    path.write_text("a\n")
    return path


@pytest.fixture
def live(path: Path) -> Iterator[LiveFile]:
    made = LiveFile(str(path), "", lambda: (), lambda entries: None, None)
    yield made
    made.close()


def wakes(live: LiveFile, timeout_s: float = 0.0) -> bool:
    return bool(select.select([live.fd], [], [], timeout_s)[0])


def commands(live: LiveFile) -> list[str]:
    """What the file is taken to say after all that happened."""
    while wakes(live) or live.left_s() is not None:
        wakes(live, live.left_s())
        live.look()
    return [entry.command for entry in live.entries]


def test_what_jobs_write_beside_the_file_wakes_nobody(live: LiveFile, path: Path) -> None:  # E6
    with (path.parent / "output").open("wb", buffering=0) as output:
        commands(live)  # it was made
        output.write(b"progress\n")
        assert not wakes(live)


def test_a_writer_that_keeps_the_file_open_is_heard(live: LiveFile, path: Path) -> None:  # E6
    with path.open("ab", buffering=0) as file:
        file.write(b"b\n")
        assert wakes(live)
        assert commands(live) == ["a", "b"]


def test_so_is_one_that_keeps_the_next_file_of_that_name_open(live: LiveFile, path: Path) -> None:  # E6
    for number in range(3):
        new = path.with_name("new")
        new.write_text(f"{number}\n")
        os.link(path, path.with_name(f"backup{number}"))  # whose watch is not to be mistaken for the file's
        new.rename(path)
        assert commands(live) == [f"{number}"]
        with path.with_name(f"backup{number}").open("ab", buffering=0) as old:
            old.write(b"x\n")
        assert commands(live) == [f"{number}"]
        with path.open("ab", buffering=0) as file:
            file.write(b"b\n")
            assert wakes(live)
            assert commands(live) == [f"{number}", "b"]


def test_and_through_a_symbolic_link(path: Path) -> None:  # E6
    (path.parent / "elsewhere").mkdir()
    link = path.parent / "elsewhere" / "link"
    link.symlink_to(path)
    live = LiveFile(str(link), "", lambda: (), lambda entries: None, None)
    try:
        with path.open("ab", buffering=0) as file:
            file.write(b"b\n")
            assert commands(live) == ["a", "b"]
    finally:
        live.close()


@pytest.fixture
def deaf(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveFile]:
    """A file that no event tells of, as on NFS; looked at as often as it is asked to."""
    monkeypatch.setattr(Inotify, "take", lambda self: [])
    made = LiveFile(str(path), "", lambda: (), lambda entries: None, 0.0)
    yield made
    made.close()


def says(live: LiveFile) -> list[str]:
    return [entry.command for entry in live.entries]


# Q6
def test_what_no_event_tells_of_is_seen_all_the_same(deaf: LiveFile, path: Path) -> None:
    assert not deaf.look()
    with path.open("a") as file:
        file.write("b\n")
    assert deaf.look()
    assert says(deaf) == ["a", "b"]
    new = path.with_name("new")
    new.write_text("c\n")
    new.rename(path)
    assert deaf.look()
    assert says(deaf) == ["c"]
    path.unlink()
    assert deaf.look()
    assert "No such file" in deaf.problem
    assert not deaf.look()
    path.write_text("d\n")
    assert deaf.look()
    assert (says(deaf), deaf.problem) == (["d"], "")


# Q6: half a line is no command, until nobody has gone on with it
def test_an_unheard_line_without_its_end_is_waited_for(deaf: LiveFile, path: Path) -> None:
    with path.open("a") as file:
        file.write("b\nrm -r x")
    assert deaf.look()
    assert says(deaf) == ["a", "b"]
    with path.open("a") as file:
        file.write("/old")
    deaf.look()
    assert says(deaf) == ["a", "b"]
    deaf.look()
    assert says(deaf) == ["a", "b", "rm -r x/old"]


# Q6
def test_before_the_queue_leaves_nothing_is_put_off(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Inotify, "take", lambda self: [])
    live = LiveFile(str(path), "", lambda: (), lambda entries: None, 3600)
    try:
        with path.open("a") as file:
            file.write("b\n")
        assert not live.look()
        assert live.look(is_last=True)
        assert says(live) == ["a", "b"]
    finally:
        live.close()


# Q9
def test_a_fifo_in_its_place_is_not_waited_for(live: LiveFile, path: Path) -> None:
    fifo = path.with_name("fifo")
    os.mkfifo(fifo)
    fifo.rename(path)
    assert commands(live) == ["a"]
    assert "is not a regular file" in live.problem


# Q9
def test_a_pipe_is_read_once() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"a\nb\n")
    os.close(writing)
    path = f"/dev/fd/{reading}"
    live = LiveFile(path, jobs_file.read(path), lambda: (), lambda entries: None, 0.0)
    try:
        assert not live.look()
        assert not live.look(is_last=True)
        assert (says(live), live.left_s(), live.problem) == (["a", "b"], None, "")
    finally:
        live.close()
        os.close(reading)


# Q9
@pytest.mark.parametrize("path", ["/dev/zero", "/dev", "/dev/tty"])
def test_what_is_neither_file_nor_pipe_is_not_read(path: str) -> None:
    with pytest.raises(JobsFileError):
        jobs_file.read(path)
