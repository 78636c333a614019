"""The jobs file belongs to its user, who saves it in every way there is while the queue runs (E6)."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.patience import until
from tests.process.harness import Box, gone
from tests.process.queue_box import QueueBox, Running


@pytest.fixture
def queues(make_box: Callable[[int], Box]) -> QueueBox:
    return QueueBox(make_box(4), gpus=1)


@contextmanager
def watching(queues: QueueBox, *options: str, **more: str) -> Iterator[Running]:
    """A queue that stays; asked to leave and checked in the end."""
    queue = queues.start("--watch", *options, **more)
    queue.event("opened")
    yield queue
    assert queue.process.poll() is None, queue.out + queue.err
    queue.send(signal.SIGTERM)
    assert queue.wait() in (0, 143), queue.out + queue.err
    assert not queue.err
    queues.assert_clean()


# E6: each way to save; what the line says is run, once
def by_append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def by_truncating(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def by_rename(path: Path, text: str) -> None:
    fresh = path.with_name("4913")
    fresh.write_text(path.read_text() + text)
    fresh.rename(path)


def by_backup(path: Path, text: str) -> None:
    before = path.read_text()
    path.rename(path.with_name("jobs.txt~"))
    path.write_text(before + text)


def by_emptying(path: Path, text: str) -> None:
    before = path.read_text()
    path.write_text("")
    path.write_text(before + text)


@pytest.mark.parametrize("save", [by_append, by_truncating, by_rename, by_backup, by_emptying])
def test_every_way_to_save(queues: QueueBox, save: Callable[[Path, str], None]) -> None:
    queues.write("job a")
    with watching(queues):
        queues.ended("a")
        for name in ("b", "c"):
            save(queues.file, f"job {name}\n")
            queues.ended(name)
    assert queues.starts() == {"a": 1, "b": 1, "c": 1}


# E6: what cannot be right leaves the queue as it was, is said once, and good again
@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"[vrma=2G] job x\n", "vrma"),
        (b"hold a\njob b # \xff\xfe\n", "not UTF-8"),
        (b"", "empty"),
        (b"\n \n", "empty"),
        (b"job \0 x\n", "NUL"),
        (None, "No such file"),
    ],
)
def test_a_bad_save_keeps_the_last_good_queue(queues: QueueBox, bad: bytes | None, said: str) -> None:
    queues.write("hold a", "job b")
    with watching(queues) as queue:
        queues.started("a")
        if bad is None:
            queues.file.unlink()
        else:
            queues.file.write_bytes(bad)
        assert said in queue.event("file-kept")["error"]
        queues.let("a")
        queues.ended("b")
        queues.write("hold a", "job b", "job c")
        queue.event("file-good")
        queues.ended("c")
    assert queues.starts() == {"a": 1, "b": 1, "c": 1}


# E6: a queue that does not watch neither ends because of it, nor with another code
@pytest.mark.parametrize("bad", [b"", b"\xff", b"[x=]\n", None])
def test_a_bad_file_ends_nothing(queues: QueueBox, bad: bytes | None) -> None:
    queues.write("hold a 3", "job b")
    queue = queues.start()
    queues.started("a")
    if bad is None:
        queues.file.unlink()
    else:
        queues.file.write_bytes(bad)
    queue.event("file-kept")
    queues.let("a")
    assert queue.wait() == 3
    assert queues.starts() == {"a": 1, "b": 1}
    queues.assert_clean()


# E1, E6: at the start there is nothing to keep
@pytest.mark.parametrize("bad", [b"\xff\n", b"[vram=x] a\n", None])
def test_a_bad_file_at_the_start(queues: QueueBox, bad: bytes | None) -> None:
    if bad is not None:
        queues.file.write_bytes(bad)
    queue = queues.run()
    assert queue.process.returncode == 2
    assert "jobs.txt" in queue.err
    assert not queues.starts()


# E6
def test_comments_only_takes_all_out(queues: QueueBox) -> None:
    queues.write("hold a", "job b")
    queue = queues.start()
    queues.started("a")
    queues.write("# later")
    assert queue.event("file-changed")["removed"] == 1
    queues.let("a")
    assert queue.wait() == 0
    assert queues.starts() == {"a": 1}


# E6: a writer that pauses in the middle of a line has not written it yet
def test_half_a_line_is_not_run(queues: QueueBox) -> None:
    queues.write("job a")
    with watching(queues) as queue:
        queues.ended("a")
        with queues.file.open("ab", buffering=0) as writer:
            writer.write(b"job b\njob ")
            queues.ended("b")
            queues.asleep(queue)
            writer.write(b"c\n")
            queues.ended("c")
            writer.write(b"job d")
        queues.ended("d")
    assert queues.starts() == {"a": 1, "b": 1, "c": 1, "d": 1}


# E6: the directory goes, and comes back
def test_in_a_directory_that_is_made_again(queues: QueueBox) -> None:
    directory = queues.root / "deep" / "lists"
    directory.mkdir(parents=True)
    queues.file = directory / "jobs.txt"
    queues.write("job a")
    with watching(queues, file="deep/lists/jobs.txt") as queue:
        queues.ended("a")
        for times, name in enumerate(("b", "c"), 1):
            directory.rename(queues.root / f"gone-{name}")
            until(functools.partial(missed, queue, times), "it is missed")
            directory.mkdir()
            queues.write("job a", f"job {name}")
            queues.ended(name)
    assert queues.starts() == {"a": 1, "b": 1, "c": 1}


def missed(queue: Running, times: int) -> bool:
    return len(queue.events("file-kept")) == times


# E6: no directory can be made there any more, for now
def test_a_parent_directory_becomes_a_file(queues: QueueBox) -> None:
    directory = queues.root / "deep" / "lists"
    directory.mkdir(parents=True)
    queues.file = directory / "jobs.txt"
    queues.write("hold a", "job b")
    with watching(queues, file="deep/lists/jobs.txt") as queue:
        queues.started("a")
        (queues.root / "deep").rename(queues.root / "gone")
        (queues.root / "deep").write_text("")
        (queues.root / "gone" / "lists").rename(queues.root / "gone" / "moved")
        queue.event("file-kept")
        queues.let("a")
        queues.ended("b")


# E6
def test_a_symbolic_link(queues: QueueBox) -> None:
    for name in ("one", "two"):
        (queues.root / name).mkdir()
    target = queues.root / "one" / "list"
    target.write_text("job a\n")
    queues.file.symlink_to(target)
    with watching(queues):
        queues.ended("a")
        by_append(target, "job b\n")
        queues.ended("b")
        by_rename(target, "job c\n")
        queues.ended("c")
        other = queues.root / "two" / "list"
        other.write_text("job d\n")
        fresh = queues.root / "link"
        fresh.symlink_to(other)
        fresh.rename(queues.file)
        queues.ended("d")
        by_append(other, "job e\n")
        queues.ended("e")
        by_rename(other, "job f\n")
        queues.ended("f")
    assert set(queues.starts().values()) == {1}


# E6: a link beside what it leads to, by way of another
def test_symbolic_links_in_one_directory(queues: QueueBox) -> None:
    (queues.root / "list").write_text("job a\n")
    (queues.root / "between").symlink_to("list")
    queues.file.symlink_to("between")
    with watching(queues):
        queues.ended("a")
        by_append(queues.root / "list", "job b\n")
        queues.ended("b")
        (queues.root / "other").write_text("job c\n")
        (queues.root / "fresh").symlink_to("other")
        (queues.root / "fresh").rename(queues.root / "between")
        queues.ended("c")
        by_append(queues.root / "other", "job d\n")
        queues.ended("d")


# E6: pending lines may be moved, changed and taken out
def test_pending_lines_are_edited(queues: QueueBox) -> None:
    queues.write("hold a", "job b", "job c", "job d", "[vram=100M] hold x")
    queue = queues.start("-j", "1")
    queues.started("a")
    queues.write("hold a", "job d", "[vram=2G] job c", "[vram=2G] job e")
    changed = queue.event("file-changed")
    assert (changed["added"], changed["removed"]) == (1, 2)
    queues.let("a")
    assert queue.wait() == 0
    assert [line.split()[1] for line in queues.box.lines() if line.startswith("start")] == list("adce")
    assert queues.journal()["job c"].vram_mib == 2048
    queues.assert_clean()


# E6: a line that runs is not touched by what becomes of it; what comes in its place is another job
def test_edits_to_a_running_line_do_nothing(queues: QueueBox) -> None:
    queues.write("[vram=2G] hold a")
    with watching(queues) as queue:
        queues.started("a")
        command = int(queues.box.started("a"))
        queues.write("[vram=20G gpus=1 timeout=1s retries=3 priority=5] hold a")
        queues.append("[vram=1G] job b")
        queues.ended("b")
        queues.write("[vram=1G] job c")
        queues.ended("c")
        assert not gone(command)
        assert queues.journal()["hold a"].vram_mib == 2048
        queues.let("a")
        until(lambda: queues.statuses()["hold a"] == ("ok", 0), "it ends by itself")
        assert not queue.events("cancelling")
    assert queues.starts() == {"a": 1, "b": 1, "c": 1}


# E6
def test_cancel(queues: QueueBox) -> None:
    queues.write("[vram=2G] hold a", "[vram=2G after=z] job b", "[vram=2G name=z] hold c")
    with watching(queues) as queue:
        queues.started("a", "c")
        command = int(queues.box.started("a"))
        queues.write(
            "[vram=2G cancel] hold a", "[vram=2G cancel after=z] job b", "[vram=2G name=z] hold c", "job d"
        )
        queue.event("cancelling")
        until(lambda: queues.statuses()["hold a"][0] == "cancelled", "it is cancelled")
        assert gone(command)
        assert queues.statuses()["job b"] == ("cancelled", 0)
        queues.let("c")
        queues.ended("d")
    assert queues.starts() == {"a": 1, "c": 1, "d": 1}


# E6: a deleted line with the same command as others: identity is command and occurrence
def test_the_same_command_again(queues: QueueBox) -> None:
    queues.write("job a", "job a")
    with watching(queues):
        until(lambda: queues.starts() == {"a": 2}, "both run")
        queues.append("job a")
        until(lambda: queues.starts() == {"a": 3}, "the third runs")
        queues.write("job a", "job b")
        queues.ended("b")
        queues.write("job b", "job a", "job a", "job a")
        queues.append("job c")
        queues.ended("c")
    assert queues.starts() == {"a": 3, "b": 1, "c": 1}


# E6: lines come all the time, from several writers
def test_a_stream_of_lines(queues: QueueBox) -> None:
    queues.write("job x")
    with watching(queues):
        for number in range(60):
            queues.append(f"[vram=100M] job {number}")
        queues.ended(*map(str, range(60)))
    assert set(queues.starts().values()) == {1}


# Q9: a queue reads what a program writes for it
def test_jobs_from_a_pipe(queues: QueueBox) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"job a\n[profile=light] job b 0 3\n")
    os.close(writing)
    queue = queues.start(file=f"/dev/fd/{reading}", pass_fds=(reading,))
    os.close(reading)
    assert queue.wait() == 3
    assert queues.starts() == {"a": 1, "b": 1}


# Q9: and is not held up by one that takes the file's place
def test_a_fifo_in_place_of_the_file(queues: QueueBox) -> None:
    queues.write("hold a", "job b 0 3")
    queue = queues.start("-j", "1")
    queues.started("a")
    queues.file.unlink()
    os.mkfifo(queues.file)
    queue.event("file-kept")
    queues.let("a")
    assert queue.wait() == 3
    assert queues.starts() == {"a": 1, "b": 1}
