"""The queue's journal: what is committed is there, whole and once (E7)."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slicer.errors import StateError
from slicer.queue.state import folding
from slicer.queue.state.journal import Journal, Record
from slicer.queue.state.log_dir import RULES
from slicer.state.directory import Directory, open_or_make

pytestmark = pytest.mark.both_pythons

HEADER = b'{"event":"journal","v":1}\n'
ONE: Record = {"event": "one", "text": "grün \udcff \n"}  # an argument that is no UTF-8, too
TWO: Record = {"event": "two", "n": [1, 2.5, None, True]}


def at(path: Path) -> Directory:
    """Where it lies, as it is now."""
    return open_or_make(str(path.parent), RULES)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


Opener = Callable[[], tuple[Journal, tuple[Record, ...]]]


@pytest.fixture
def opened(path: Path) -> Iterator[Opener]:
    """Opens the journal again and again, and closes them all."""
    made: list[Journal] = []

    def open_it() -> tuple[Journal, tuple[Record, ...]]:
        one, records = Journal.open(at(path))
        made.append(one)
        return one, records

    yield open_it
    for one in made:
        one.close()


def lines(*records: Record) -> bytes:
    return HEADER + b"".join(json.dumps(each).encode() + b"\n" for each in records)


def test_what_is_committed_is_read_back(opened: Opener, path: Path) -> None:
    first, records = opened()
    assert records == ()
    assert path.read_bytes() == HEADER
    first.add(ONE)
    first.add(TWO, durable=False)
    assert (first.pending, first.is_urgent, path.read_bytes()) == (True, True, HEADER)
    first.commit()
    assert (first.pending, first.is_urgent) == (False, False)
    second, records = opened()
    assert records == (ONE, TWO)
    assert second.warnings == ()
    second.add(TWO)
    second.commit()
    assert opened()[1] == (ONE, TWO, TWO)


def test_what_is_not_durable_may_wait(opened: Opener, path: Path) -> None:
    one, _ = opened()
    one.add(ONE, durable=False)
    assert (one.pending, one.is_urgent) == (True, False)
    one.add(TWO)
    assert one.is_urgent
    one.commit()
    assert opened()[1] == (ONE, TWO)  # in their order


def test_a_commit_is_one_write_and_then_on_the_disk(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = opened()
    calls: list[str] = []
    pwrite, fdatasync = os.pwrite, os.fdatasync
    monkeypatch.setattr(os, "pwrite", lambda *args: calls.append("write") or pwrite(*args))  # type: ignore[func-returns-value]
    monkeypatch.setattr(os, "fdatasync", lambda fd: calls.append("sync") or fdatasync(fd))  # type: ignore[func-returns-value]
    one.commit()
    assert calls == []
    for _ in range(100):
        one.add(ONE)
    one.commit()
    assert calls == ["write", "sync"]


def test_a_new_journal_and_its_name_are_on_the_disk(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    one, _ = opened()
    assert synced == ["journal.jsonl.tmp", os.path.basename(os.path.dirname(one.path))]


def test_cut_at_any_byte_of_its_last_record_it_is_as_without_it(opened: Opener, path: Path) -> None:
    history: list[Record] = [
        folding.seen("k#0", 1, "grün \udcff", ""),
        folding.begun(
            "k#0", "a1", boot_id="b", attempt=1, log="job0001.log", gpus=["GPU-0"], gpu_indices=[0],
            vram_mib=None, at=1.0,
        ),
        folding.refused("m#0", "infeasible", "no", 1),
        folding.interrupted("k#0", "a1", "the machine was restarted", 0),
    ]  # fmt: skip
    one, _ = opened()
    for record in history:
        one.add(record)
    one.commit()
    one.close()
    whole = path.read_bytes()
    start = whole[:-1].rfind(b"\n") + 1
    without = folding.fold(history[:-1])
    assert without != folding.fold(history)
    for end in range(start, len(whole)):
        path.write_bytes(whole[:end])
        again, records = opened()
        assert folding.fold(records) == without
        assert path.read_bytes() == whole[:start]  # repaired before anything is appended
        assert bool(again.warnings) == (end > start)
        again.add(history[-1])
        again.commit()
        again.close()
        assert path.read_bytes() == whole
    final, records = opened()
    assert folding.fold(records) == folding.fold(history)
    assert final.warnings == ()


@pytest.mark.parametrize(
    "tail",
    [b"{", b"\0" * 500, b"\0" * 500 + b"\n", b"nonsense\n", b"\xff\xfe\n", b"[1]\n", b"7\n", b"a\nb\nc\n",
     b"[" * 100_000 + b"\n", b"9" * 10_000 + b"\n", b"\n", json.dumps(ONE).encode()],
    ids=lambda tail: repr(tail[:12]),
)  # fmt: skip
def test_whatever_stands_behind_the_last_record_is_cut_off(opened: Opener, path: Path, tail: bytes) -> None:
    path.write_bytes(lines(ONE) + tail)
    one, records = opened()
    assert records == (ONE,)
    assert "an incomplete record" in one.warnings[0]
    one.add(TWO)
    one.commit()
    again, records = opened()
    assert records == (ONE, TWO)
    assert again.warnings == ()


def test_damage_in_the_middle_is_skipped_and_told(opened: Opener, path: Path) -> None:
    damage = [b"{{{\n", b"\0" * 4096 + b"\n", b"\xff\n", b'"text"\n'] * 4
    content = lines(ONE) + b"".join(damage) + json.dumps(TWO).encode() + b"\n"
    path.write_bytes(content)
    one, records = opened()
    assert records == (ONE, TWO)
    assert one.warnings == (
        f"{path}: skipped damaged lines: 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 6 more",
    )
    assert path.read_bytes() == content  # what somebody may want to look at


@pytest.mark.parametrize("beginning", [*range(len(HEADER)), "nul"])
def test_a_journal_that_was_never_finished_is_begun_anew(
    opened: Opener, path: Path, beginning: int | str
) -> None:
    path.write_bytes(b"\0" * 100 if isinstance(beginning, str) else HEADER[:beginning])
    one, records = opened()
    assert records == ()
    one.add(ONE)
    one.commit()
    assert opened()[1] == (ONE,)


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"key": "0123#0", "event": "seen", "no": 1, "command": "true"}\n', "is gpusched's journal"),
        (b"Dear diary,\n", "is not a journal of slicer queue"),
        (b"{}\n", "is not a journal of slicer queue"),
        (b"[]\n", "is not a journal of slicer queue"),
        (b'{"event":"journal"}\n', "is not a journal of slicer queue"),
        (b'{"event":"journal","v":true}\n', "is not a journal of slicer queue"),
        (b"\x7fELF" * 5000, "is not a journal of slicer queue"),
        (b"\0" * 5000 + b"a disk image", "is not a journal of slicer queue"),
    ],
    ids=lambda value: repr(value[:12]),
)
def test_what_is_not_ours_is_refused_and_left_alone(
    path: Path, content: bytes, message: str, fresh: bool
) -> None:
    path.write_bytes(content)
    with pytest.raises(StateError, match=message) as caught:
        Journal.open(at(path), fresh=fresh)
    assert "--log-dir" in caught.value.hint
    assert path.read_bytes() == content
    assert os.listdir(path.parent) == [path.name]


def test_a_newer_slicers_journal_is_refused_unless_a_fresh_one_is_wanted(path: Path) -> None:
    content = b'{"event":"journal","v":2,"how":"new"}\n{"event":"x"}\n'
    path.write_bytes(content)
    with pytest.raises(StateError, match="newer slicer") as caught:
        Journal.open(at(path))
    assert "--fresh" in caught.value.hint
    assert path.read_bytes() == content
    one, records = Journal.open(at(path), fresh=True)
    one.close()
    assert (records, path.read_bytes()) == ((), HEADER)


def test_fresh_forgets_what_was(opened: Opener, path: Path) -> None:
    path.write_bytes(lines(ONE, TWO))
    one, records = Journal.open(at(path), fresh=True)
    assert records == ()
    one.add(TWO)
    one.commit()
    one.close()
    assert opened()[1] == (TWO,)


@pytest.mark.parametrize("what", ["directory", "fifo", "link", "dangling", "hard link"])
def test_only_a_regular_file_is_opened(path: Path, tmp_path: Path, what: str) -> None:
    other = tmp_path / "other"
    if what == "directory":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "link":
        other.write_bytes(HEADER)
        path.symlink_to(other)
    elif what == "hard link":  # S6
        other.write_bytes(HEADER)
        path.hardlink_to(other)
    else:
        path.symlink_to(other)
    with pytest.raises(StateError):
        Journal.open(at(path))
    assert other.exists() == ("link" in what)


class Broken:
    """Makes a call of os fail, or do less than it was asked to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def fails(self, name: str, code: int) -> None:
        def fail(*_: object, **__: object) -> None:
            raise OSError(code, os.strerror(code))

        self._patch.setattr(os, name, fail)

    def writes_at_most(self, count: int, then: int = 0) -> None:
        """``count`` bytes a call; with ``then``, the second call fails with that errno."""
        real, calls = os.pwrite, iter(range(1 << 30))

        def pwrite(fd: int, data: memoryview, offset: int) -> int:
            if then and next(calls):
                raise OSError(then, os.strerror(then))
            return real(fd, data[:count], offset)

        self._patch.setattr(os, "pwrite", pwrite)

    def heal(self) -> None:
        self._patch.undo()


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Broken:
    return Broken(monkeypatch)


def test_a_short_write_is_continued(opened: Opener, path: Path, broken: Broken) -> None:
    one, _ = opened()
    broken.writes_at_most(3)
    one.add(ONE)
    one.commit()
    broken.heal()
    assert opened()[1] == (ONE,)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_commit_that_fails_leaves_nothing_and_is_tried_again(
    opened: Opener, path: Path, broken: Broken, code: int
) -> None:
    one, _ = opened()
    one.add(ONE)
    one.commit()
    before = path.read_bytes()
    one.add(TWO)
    for _ in range(3):
        broken.writes_at_most(5, then=code)
        with pytest.raises(StateError, match=os.strerror(code)) as caught:
            one.commit()
        broken.heal()
        assert caught.value.where == str(path)
        assert path.read_bytes() == before
        assert (one.pending, one.is_urgent) == (True, True)
    one.add(ONE)
    one.commit()
    assert opened()[1] == (ONE, TWO, ONE)


def test_what_was_not_synced_is_written_again(opened: Opener, path: Path, broken: Broken) -> None:
    """After a failed sync the kernel takes its pages for clean: only writing them anew helps."""
    one, _ = opened()
    one.add(ONE)
    broken.fails("fdatasync", errno.EIO)
    with pytest.raises(StateError):
        one.commit()
    assert path.read_bytes() == HEADER
    broken.heal()
    one.commit()
    assert opened()[1] == (ONE,)


def test_even_if_it_cannot_be_cut_back_at_once_nothing_is_there_twice(
    opened: Opener, path: Path, broken: Broken
) -> None:
    one, _ = opened()
    one.add(ONE)
    broken.writes_at_most(5, then=errno.EIO)
    broken.fails("ftruncate", errno.EIO)
    with pytest.raises(StateError):
        one.commit()
    broken.heal()
    assert path.read_bytes() != HEADER
    one.commit()
    again, records = opened()
    assert (records, again.warnings) == ((ONE,), ())


def test_a_record_that_json_cannot_say_is_refused_and_adds_nothing(opened: Opener) -> None:
    one, _ = opened()
    with pytest.raises(ValueError, match="JSON compliant"):
        one.add({"event": "x", "wall_s": float("nan")})
    with pytest.raises(TypeError):
        one.add({"event": "x", "who": object()})
    assert not one.pending


def test_it_is_seen_that_the_file_is_gone(opened: Opener, path: Path, tmp_path: Path) -> None:
    one, _ = opened()
    one.add(ONE)
    one.commit()
    assert not one.is_gone(at(path))
    path.write_bytes(b"")  # > journal.jsonl
    assert one.is_gone(at(path))
    one.rewrite(at(path), [ONE])
    assert not one.is_gone(at(path))
    path.rename(tmp_path / "away")
    assert one.is_gone(at(path))
    path.write_bytes(lines(ONE))
    assert one.is_gone(at(path))
    path.unlink()
    path.parent.rename(tmp_path.parent / f"{tmp_path.name}-away")
    assert one.is_gone(at(path))
    (tmp_path.parent / f"{tmp_path.name}-away").rename(tmp_path)


def test_a_deleted_journal_is_written_anew(opened: Opener, path: Path) -> None:
    one, _ = opened()
    one.add(ONE)
    one.commit()
    one.add(TWO)
    path.unlink()
    one.rewrite(at(path), [ONE, TWO])
    assert (one.is_gone(at(path)), one.pending) == (False, False)
    one.add(ONE)
    one.commit()
    assert opened()[1] == (ONE, TWO, ONE)
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("call", ["pwrite", "fsync", "rename"])
def test_a_rewrite_that_fails_loses_nothing(opened: Opener, path: Path, broken: Broken, call: str) -> None:
    one, _ = opened()
    one.add(ONE)
    one.commit()
    one.add(TWO)
    broken.fails(call, errno.ENOSPC)
    with pytest.raises(StateError, match="No space left"):
        one.rewrite(at(path), [ONE, TWO])
    broken.heal()
    assert one.pending
    assert os.listdir(path.parent) == [path.name]
    one.commit()
    assert opened()[1] == (ONE, TWO)


def test_what_a_killed_rewrite_left_is_no_obstacle(opened: Opener, path: Path) -> None:
    one, _ = opened()
    (path.parent / "journal.jsonl.tmp").write_bytes(b"half")
    one.rewrite(at(path), [ONE])
    assert opened()[1] == (ONE,)
    assert os.listdir(path.parent) == [path.name]


def test_no_descriptor_is_inherited_or_lost(path: Path) -> None:
    def mine() -> list[int]:
        found = []
        for fd in map(int, os.listdir("/proc/self/fd")):
            try:
                if os.readlink(f"/proc/self/fd/{fd}").startswith(str(path.parent)):
                    found.append(fd)
            except FileNotFoundError:
                continue
        return found

    directory = at(path)
    one, _ = Journal.open(directory)
    one.rewrite(directory, [ONE])
    assert [os.get_inheritable(fd) for fd in mine()] == [False, False]
    one.close()
    one.close()
    path.write_bytes(b"foreign\n")
    with pytest.raises(StateError):
        Journal.open(directory)
    directory.close()
    directory.close()
    assert mine() == []
