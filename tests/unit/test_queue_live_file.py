"""What wakes a queue: its jobs file, and nothing that lies beside it (E6)."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicer.queue.live_file import LiveFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.txt"
    path.write_text("a\n")
    return path


@pytest.fixture
def live(path: Path) -> Iterator[LiveFile]:
    made = LiveFile(str(path), lambda: (), lambda entries: None)
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
    live = LiveFile(str(link), lambda: (), lambda entries: None)
    try:
        with path.open("ab", buffering=0) as file:
            file.write(b"b\n")
            assert commands(live) == ["a", "b"]
    finally:
        live.close()
