"""When the queue looks at its journal again (E7)."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from slicer.queue.state import folding
from slicer.queue.state import register as register_module
from slicer.queue.state.register import Register


# E7: what is to last is written at once, also where nothing else wakes the queue
def test_what_is_not_yet_written_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    register = Register("logs", fresh=False)
    try:
        assert register.left_s() is None
        register.do(folding.seen("key", 1, "true", ""), durable=False)
        assert register.left_s() is None
        register.do(folding.refused("key", "infeasible", "never", 1))
        assert register.left_s() == 0
        assert register.save()
        assert register.left_s() is None
        Path("logs/journal.jsonl").unlink()
        Path("logs/journal.jsonl").mkdir()
        register.do(folding.refused("key", "infeasible", "never", 1))
        assert not register.save()
        assert 0 < (register.left_s() or 0) <= 1
    finally:
        register.close()


# E7: on a disk that stays almost full, not one job after the other stalls the queue
def test_it_goes_on_once_there_is_room_for_more_than_one_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = [0]

    def allocate(fd: int, offset: int, length: int) -> None:
        if length > room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", allocate)
    monkeypatch.setattr(register_module, "_AGAIN_S", 0.0)
    register = Register("logs", fresh=False)
    try:
        assert not register.reserve("job")
        assert "nothing is started until there is room" in register.problem
        for room[0], is_enough in ((0, False), (8 << 10, False), (64 << 10, False), (256 << 10, True)):
            assert register.save()
            assert (not register.problem) == is_enough
        assert register.log_dir.attempts.names() == []
        room[0] = 8 << 10
        assert register.reserve("job")
    finally:
        register.close()
