"""The log directory among hostile neighbours (S6): what others put there is neither followed nor believed."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slicer.errors import StateError
from slicer.queue.model import STATE_FIELDS, Attributes, Entry
from slicer.queue.state import attempt, folding
from slicer.queue.state.log_dir import RULES, LogDir
from slicer.queue.state.register import Register
from slicer.state.directory import open_or_make
from tests.process.harness import Box
from tests.process.queue_box import QueueBox

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
NOBODY = 65534


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "logs"
    made.mkdir()
    return made


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A file that is not to change."""
    path = tmp_path / "victim"
    path.write_text("precious")
    yield path
    assert path.read_text() == "precious"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


# S6
@pytest.mark.parametrize("name", ["status.txt.tmp", "status.txt.new", "status.txt"])
@pytest.mark.parametrize("hard", [False, True])
def test_the_board_is_written_through_no_link(directory: Path, victim: Path, name: str, hard: bool) -> None:
    link = directory / name
    link.hardlink_to(victim) if hard else link.symlink_to(victim)
    mine = LogDir(str(directory))
    mine.write_status("the board")
    mine.close()
    assert (directory / "status.txt").read_text() == "the board"
    assert not (directory / "status.txt").is_symlink()


# S6
@pytest.mark.parametrize("hard", [False, True])
def test_a_jobs_log_is_written_through_no_link(directory: Path, victim: Path, hard: bool) -> None:
    link = directory / "job0001.log"
    link.hardlink_to(victim) if hard else link.symlink_to(victim)
    mine = LogDir(str(directory))
    log = attempt.Attempt(mine.attempts.fd, "0123456789ab", mine.directory.fd, "job0001.log")
    with open(os.dup(2), "wb") as stderr:  # the keeper's becomes the log
        log.begin()
        os.dup2(stderr.fileno(), 2)
    log.say("hello")
    mine.close()
    assert link.read_text() == "slicer: hello\n"
    assert not link.is_symlink()


# S6
@pytest.mark.parametrize("name", ["lock", "journal.jsonl", "journal.jsonl.tmp"])
@pytest.mark.parametrize("hard", [False, True])
def test_lock_and_journal_are_no_links(directory: Path, victim: Path, name: str, hard: bool) -> None:
    link = directory / name
    link.hardlink_to(victim) if hard else link.symlink_to(victim)
    if name.endswith(".tmp"):  # a dead queue's: it goes
        Register(str(directory), fresh=False).close()
        return
    with pytest.raises(StateError) as caught:
        Register(str(directory), fresh=False)
    assert caught.value.where == f"{directory}/{name}"
    assert "remove it" in caught.value.hint


# S6
def test_a_link_in_place_of_the_directory_is_refused(tmp_path: Path, directory: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(directory)
    with pytest.raises(StateError, match="is a symbolic link; not followed"):
        LogDir(str(link))
    assert os.listdir(directory) == []


# S6
@ROOT_ONLY
@pytest.mark.parametrize("name", [".", "attempts", "lock", "journal.jsonl"])
def test_what_belongs_to_somebody_else_is_refused(directory: Path, name: str) -> None:
    Register(str(directory), fresh=False).close()
    os.chown(directory / name, NOBODY, NOBODY)
    with pytest.raises(StateError, match=f"belongs to uid {NOBODY}"):
        Register(str(directory), fresh=False)


# S6: a directory above belongs to somebody who would lead us elsewhere
@ROOT_ONLY
def test_a_link_of_somebody_else_on_the_way_is_not_followed(tmp_path: Path) -> None:
    above, elsewhere = tmp_path / "above", tmp_path / "elsewhere"
    above.mkdir()
    elsewhere.mkdir()
    (above / "way").symlink_to(elsewhere)
    os.lchown(above / "way", NOBODY, NOBODY)
    with pytest.raises(StateError, match=f"leads through way, a symbolic link of uid {NOBODY}"):
        LogDir(f"{above}/way/logs")
    assert os.listdir(elsewhere) == []
    os.lchown(above / "way", 0, 0)
    mine = LogDir(f"{above}/way/logs")
    mine.close()
    assert os.listdir(elsewhere) == ["logs"]


def test_links_of_our_own_on_the_way_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "one").symlink_to("real/deep")
    (tmp_path / "two").symlink_to(f"{tmp_path}/one")
    (tmp_path / "circle").symlink_to("circle")
    monkeypatch.chdir(tmp_path)
    for path in ("two/logs", f"{tmp_path}/two/logs", "./one/logs/", "real/../one/logs"):
        LogDir(path).close()
    assert sorted(os.listdir(tmp_path / "real/deep/logs")) == ["attempts", "lock"]
    with pytest.raises(StateError):
        LogDir("circle/logs")


# S6: somebody who may write to the directory above puts another one in our directory's place
@ROOT_ONLY
def test_a_queue_stays_in_its_directory_when_somebody_puts_another_there(
    tmp_path: Path, directory: Path
) -> None:
    register = Register(str(directory), fresh=False)
    directory.rename(tmp_path / "moved")
    directory.mkdir()
    os.chown(directory, NOBODY, NOBODY)
    register.do(folding.seen("key", 1, "true", ""))
    assert register.save()
    register.log_dir.write_status("the board")
    assert register.reserve("0123456789ab")
    assert os.listdir(directory) == []
    assert (tmp_path / "moved" / "status.txt").read_text() == "the board"
    assert os.listdir(tmp_path / "moved" / "attempts") == ["0123456789ab"]
    register.close()


# S6: and so do its keepers
@ROOT_ONLY
def test_jobs_go_on_in_the_directory_that_they_began_in(make_box: Callable[[int], Box]) -> None:
    queues = QueueBox(make_box(2))
    queues.write("[vram=20G gpus=2] hold a 3", "[vram=20G gpus=2] echo from b; job b 0 4")
    queue = queues.start()
    queues.started("a")
    moved = queues.root / "moved"
    queues.logs.rename(moved)
    queues.logs.mkdir(0o777)
    os.chown(queues.logs, NOBODY, NOBODY)
    queues.let("a")
    assert queue.wait() == 4, queue.err
    assert os.listdir(queues.logs) == []
    assert (moved / "job0002.log").read_text() == "from b\n"
    assert os.listdir(moved / "attempts") == []
    again = queues.run()
    assert again.wait() == 125
    assert f"belongs to uid {NOBODY}" in again.err
    assert queues.starts() == {"a": 1, "b": 1}


# S6: who can open a file can flock it
def test_nobody_else_can_open_the_lock(directory: Path) -> None:
    (directory / "lock").touch(0o644)
    LogDir(str(directory)).close()
    assert stat.S_IMODE((directory / "lock").stat().st_mode) == 0o600
    assert stat.S_IMODE((directory / "attempts").stat().st_mode) == 0o700


# Q11
def test_earlier_logs_are_kept_when_all_is_run_again(directory: Path) -> None:
    for name in ("job0001.log", "job0001.2.log", "job12345.log", "notes.log"):
        (directory / name).write_text(name)
    register = Register(str(directory), fresh=True)
    register.close()
    aside = directory / register.set_aside
    assert sorted(os.listdir(aside)) == ["job0001.2.log", "job0001.log", "job12345.log"]
    assert (aside / "job0001.log").read_text() == "job0001.log"
    assert (directory / "notes.log").exists()
    register = Register(str(directory), fresh=True)
    register.close()
    assert register.set_aside == ""


def test_a_directory_of_attempts_that_holds_odd_things_is_swept(directory: Path) -> None:
    register = Register(str(directory), fresh=False)
    attempt.reserve(register.log_dir.attempts.fd, "0123456789ab")
    (directory / "attempts" / "link").symlink_to("/etc/passwd")
    os.mkfifo(directory / "attempts" / "fifo")
    register.sweep()
    register.close()
    assert os.listdir(directory / "attempts") == []


JOURNAL = b'{"event":"journal","v":1}\n'
ODD: list[object] = ["k", "ok", "../../x", "/etc/passwd", 0, -1, 10**40, 1.5, True, None, [], [1]]
RECORDS = st.lists(
    st.one_of(
        st.binary(max_size=100).map(lambda data: data.replace(b"\n", b"")),
        st.just(b'{"event":' + b"[" * 100_000),
        st.fixed_dictionaries(
            {"event": st.sampled_from(["seen", "begun", "ended", "state", "refused", "unbegun"])},
            optional={
                name: st.sampled_from(ODD) for name in ("key", "no", "status", "attempts", *STATE_FIELDS)
            },
        ).map(lambda record: json.dumps(record).encode()),
    ),
    max_size=5,
)


# S6, S7: bad records cost their own jobs; a queue opens its directory, and works in it alone
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(RECORDS)
def test_any_journal_is_read(directory: Path, records: list[bytes]) -> None:
    (directory / "journal.jsonl").unlink(missing_ok=True)
    (directory / "journal.jsonl").write_bytes(JOURNAL + b"\n".join([*records, b""]))
    register = Register(str(directory), fresh=False)
    try:
        for state in register.states.values():
            assert "/" not in state.log + state.job
            register.forget(state.job)
        register.sweep()
        register.see([Entry(1, "fresh", "true", Attributes())])
        assert register.save()
        assert not register._journal.is_gone(register.log_dir.directory)
    finally:
        register.close()


def test_a_directory_can_be_closed_twice(directory: Path) -> None:
    opened = open_or_make(str(directory), RULES)
    opened.close()
    opened.close()
