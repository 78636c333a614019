"""When the queue looks at its journal again (E7)."""

from __future__ import annotations

from pathlib import Path

import pytest

from slicer.queue.state import folding
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
