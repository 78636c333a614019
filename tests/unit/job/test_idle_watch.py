"""A job's idle time, look by look: what counts besides work on the GPU."""

from __future__ import annotations

from typing import Any

import pytest

from slicer.job import idle_watch
from slicer.job.idle_watch import IdleNews, IdleWatch
from slicer.model import Lease
from slicer.record import replace
from slicer.share import arena
from slicer.share.arena import Turn
from tests.unit.made_up import lease


class Held:
    """A lease with limits, in no ledger."""

    directory = None

    def __init__(self, **fields: Any) -> None:
        self.lease: Lease = lease(cgroup="", keeper=0, pid=1, idle_warn_s=60.0, idle_end_s=120.0, **fields)

    def update(self, **changes: Any) -> None:
        self.lease = replace(self.lease, **changes)


class Watched:
    """Looks every ten seconds at a job whose turn is ``doing``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, shares: bool = False, **fields: Any) -> None:
        self._now_s = 1000.0
        self.doing = "nothing"
        monkeypatch.setattr(idle_watch, "now_s", lambda: self._now_s)
        monkeypatch.setattr(arena, "read", lambda *_: {self.held.lease.job: self._turn()})
        self.held: Any = Held(**fields)
        self._watch = IdleWatch(self.held, shares=shares)

    def _turn(self) -> Turn:
        return Turn(self.doing, 1.0, 0)  # type: ignore[arg-type]

    def look(self, number: int, used: bool | None = False, mib: int = 0) -> list[IdleNews]:
        found = []
        for _ in range(number):
            self._now_s += 10.0
            found.append(self._watch.look(used, (mib,)))
        return [each for each in found if each is not None]


def test_a_job_that_waits_for_its_turn_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:  # U4, X7
    watched = Watched(monkeypatch, shares=True)
    watched.look(4)
    watched.doing = "waiting"
    assert not watched.look(100)
    watched.doing = "nothing"
    assert [news.kind for news in watched.look(3)] == ["warned"]
    watched.doing = "waiting"
    assert not watched.look(100)
    watched.doing = "nothing"
    assert [news.kind for news in watched.look(6)] == ["ends"]


def test_what_is_told_is_how_long_it_has_been_idle_and_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    assert not watched.look(1)
    assert not watched.look(6, mib=5)  # its memory has changed
    (warned,) = watched.look(1, mib=5)
    assert (warned.idle_s, warned.left_s) == (60.0, 60.0)
    assert warned.words() == "has not used its GPU for 1m; it is ended in 1m, unless it does"
    assert watched.held.lease.idle_since_s == 1020.0
    (used,) = watched.look(1, used=True, mib=5)
    assert (used.words(), watched.held.lease.idle_since_s) == ("uses its GPU again", None)


def test_a_queue_that_takes_over_an_idle_job_warns_nobody_twice(  # U4
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(monkeypatch, idle_since_s=900.0)
    assert [news.kind for news in watched.look(5, mib=5)] == []
    assert [news.kind for news in watched.look(1, mib=5)] == ["ends"]


def test_that_nobody_can_tell_is_said_once_and_a_later_figure_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    assert [news.kind for news in watched.look(100, used=None)] == ["unknown"]
    assert [news.kind for news in watched.look(6)] == ["warned"]
