"""The queue's log directory and journal among several processes, full disks and kills (E7)."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicer.errors import StateError
from slicer.queue.state import folding
from slicer.queue.state.journal import Journal
from slicer.queue.state.log_dir import RULES, LogDir, QueueRunning
from slicer.state.directory import open_or_make
from tests.patience import LONGEST_S
from tests.process.harness import SRC

HOLD = """
import sys
from slicer.queue.state.log_dir import LogDir
LogDir(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""
WRITE = """
import os, sys
from slicer.queue.state.log_dir import RULES
from slicer.state.directory import open_or_make
from slicer.queue.state.journal import Journal
journal, _ = Journal.open(open_or_make(os.path.dirname(sys.argv[1]), RULES))
for number in range(1_000_000):
    journal.add({"event": "n", "n": number, "text": "x" * 300})
    journal.commit()
    print(number, flush=True)
"""
TOO_LARGE = """
import os, resource, sys
from slicer.errors import StateError
from slicer.queue.state.log_dir import RULES
from slicer.state.directory import open_or_make
from slicer.queue.state.journal import Journal
journal, _ = Journal.open(open_or_make(os.path.dirname(sys.argv[1]), RULES))
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
done = 0
try:
    while True:
        journal.add({"event": "n", "n": done, "text": "x" * 300})
        journal.commit()
        done += 1
except StateError as error:
    print(error, file=sys.stderr)
assert os.path.getsize(sys.argv[1]) < 4096
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.commit()
print(done)
"""


def python(code: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path)], env={**os.environ, "PYTHONPATH": SRC}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "logs"


@pytest.fixture
def holder(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Another queue that uses the directory."""
    with python(HOLD, directory) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_queue_is_told_who_has_the_directory(directory: Path, holder: subprocess.Popen[str]) -> None:
    for _ in range(3):
        with pytest.raises(QueueRunning, match=rf"already running \(pid {holder.pid}, since ") as caught:
            LogDir(str(directory))
        assert (caught.value.exit_code, caught.value.kind, caught.value.pid) == (75, "queue-busy", holder.pid)
    holder.kill()
    holder.wait()
    mine = LogDir(str(directory))  # nothing of the dead is in the way
    assert (directory / "lock").read_text() == f"{os.getpid()}\n"
    mine.close()
    assert (directory / "lock").read_text() == ""


def test_a_queue_that_closes_lets_others_have_it(directory: Path) -> None:
    first = LogDir(str(directory))
    with pytest.raises(QueueRunning, match=f"pid {os.getpid()}"):
        LogDir(str(directory))
    first.close()
    first.close()
    second = LogDir(str(directory))
    second.close()


def test_a_forked_supervisor_neither_keeps_nor_gives_away_the_lock(directory: Path) -> None:
    mine = LogDir(str(directory))
    asked, answer = os.pipe()
    closed, say_closed = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            mine.close()
            os.close(answer)
            os.write(say_closed, b"x")
            os.read(asked, 1)  # lives until the test is over
        finally:
            os._exit(0)
    os.close(asked)
    os.close(say_closed)
    try:
        assert os.read(closed, 1) == b"x"
        with pytest.raises(QueueRunning, match=f"pid {os.getpid()}"):
            LogDir(str(directory))
        mine.close()
        LogDir(str(directory)).close()
    finally:
        os.close(answer)
        os.close(closed)
        os.waitpid(child, 0)


def test_a_lock_that_a_child_forgot_to_close_ends_with_the_queues_own_close(directory: Path) -> None:
    mine = LogDir(str(directory))
    copy = os.dup(mine._fd)  # as a fork would have it
    mine.close()
    LogDir(str(directory)).close()
    os.close(copy)


def test_the_directory_is_made_again_when_somebody_deleted_it(directory: Path) -> None:
    mine = LogDir(str(directory))
    mine.restore()
    (directory / "lock").unlink()
    (directory / "attempts").rmdir()
    directory.rmdir()
    mine.restore()
    assert sorted(os.listdir(directory)) == ["attempts", "lock"]
    mine.restore()
    with pytest.raises(QueueRunning, match=f"pid {os.getpid()}"):
        LogDir(str(directory))
    (directory / "attempts").rmdir()
    (directory / "lock").unlink()
    mine.restore()
    assert sorted(os.listdir(directory)) == ["attempts", "lock"]
    mine.close()
    LogDir(str(directory)).close()


def test_where_another_queue_took_a_deleted_directory_it_is_not_taken_back(directory: Path) -> None:
    mine = LogDir(str(directory))
    (directory / "lock").unlink()
    other = LogDir(str(directory))
    with pytest.raises(QueueRunning):
        mine.restore()
    mine.close()
    other.restore()
    other.close()


def test_names_in_the_directory(directory: Path) -> None:
    mine = LogDir(f"{directory}/../logs/")
    assert mine.path == str(directory)
    assert (mine.log_name(7, 1), mine.log_name(7, 2), mine.log_name(123456, 11)) == (
        "job0007.log",
        "job0007.2.log",
        "job123456.11.log",
    )
    mine.close()


@pytest.mark.parametrize("what", ["lock link", "lock fifo", "lock directory", "attempts link", "file"])
def test_a_directory_with_something_odd_in_it_is_refused(directory: Path, tmp_path: Path, what: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    directory.mkdir(parents=True)
    match what:
        case "lock link":
            (directory / "lock").symlink_to(other / "new")
        case "lock fifo":
            os.mkfifo(directory / "lock")
        case "lock directory":
            (directory / "lock").mkdir()
        case "attempts link":
            (directory / "attempts").symlink_to(other)
        case _:
            directory.rmdir()
            directory.write_text("")
    with pytest.raises(StateError) as caught:
        LogDir(str(directory))
    assert "--log-dir" in caught.value.hint
    assert str(directory) in caught.value.where
    assert os.listdir(other) == []


# S6: what others may put into it, or take out of it, is not to be believed
@pytest.mark.parametrize(("name", "mode"), [("", 0o777), ("", 0o775), ("attempts", 0o770), ("", 0o1777)])
def test_a_directory_that_others_may_write_to_is_refused(directory: Path, name: str, mode: int) -> None:
    (directory / "attempts").mkdir(parents=True)
    (directory / name).chmod(mode)
    with pytest.raises(StateError, match="can be written to by others") as caught:
        LogDir(str(directory))
    assert f"chmod go-w {(directory / name)}" in caught.value.hint
    assert sorted(os.listdir(directory)) == ["attempts"]
    (directory / name).chmod(0o755)
    LogDir(str(directory)).close()


def test_nothing_of_it_is_inherited(directory: Path) -> None:
    mine = LogDir(str(directory))
    assert not any(map(os.get_inheritable, (mine._fd, mine.directory.fd, mine.attempts.fd)))
    mine.close()


def test_whenever_it_is_killed_every_commit_that_returned_is_there(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    told = 0
    for kills in range(1, 6):
        with python(WRITE, path) as process:
            assert process.stdout is not None
            for _ in range(7 * kills):
                process.stdout.readline()
                told += 1
            process.send_signal(signal.SIGKILL)
            told += len(process.stdout.read().split())
        journal, records = Journal.open(open_or_make(str(path.parent), RULES))
        journal.close()
        assert told <= len(records) <= told + kills  # one a kill may be there without having been told
        assert [record["text"] for record in records] == ["x" * 300] * len(records)


def test_on_a_full_disk_nothing_is_lost_or_there_twice(tmp_path: Path) -> None:
    """A limit on the file's size: the kernel takes a part of the last write, and then refuses."""
    path = tmp_path / "journal.jsonl"
    with python(TOO_LARGE, path) as process:
        out, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0, err
    assert f"{path}: cannot be written: {os.strerror(errno.EFBIG)}" in err
    journal, records = Journal.open(open_or_make(str(path.parent), RULES))
    journal.close()
    assert journal.warnings == ()
    assert int(out) > 5
    assert [record["n"] for record in records] == [*range(int(out) + 1)]


def test_a_hundred_thousand_jobs_are_read(tmp_path: Path) -> None:
    """Issue 4, the journal's part of it. A quadratic way takes longer than a test may."""
    path = tmp_path / "journal.jsonl"
    journal, _ = Journal.open(open_or_make(str(path.parent), RULES))
    for no in range(100_000):
        journal.add(folding.seen(f"{no:012x}#0", no, f"python train.py --seed {no}", ""), durable=False)
    journal.commit()
    journal.close()
    journal, records = Journal.open(open_or_make(str(path.parent), RULES))
    states = folding.fold(records)
    journal.close()
    assert len(states) == 100_000
