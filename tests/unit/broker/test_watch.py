"""What tells the broker that a job has ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slicer.broker.server.loop import CgroupWatch
from slicer.kernel import cgroup


class Silent:
    """A loop whose descriptors have no event, and whose time is over at once."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def watch(self, *_: object) -> None:
        """Nothing comes."""

    def forget(self, _: int) -> None:
        """Nothing came."""

    def after(self, _: float, act: Callable[[], None]) -> Any:
        self.due.append(act)
        return self

    def cancel(self) -> None:
        self.due.clear()


# L1: the kernel loses the event of a cgroup that is emptied and removed within 10 ms of another event
@pytest.mark.parametrize("is_removed", [False, True])
def test_an_end_of_which_the_kernel_tells_nothing_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_removed: bool
) -> None:
    monkeypatch.setattr(cgroup, "path_of", lambda _: str(tmp_path))
    events = tmp_path / "cgroup.events"
    events.write_text("populated 1\nfrozen 0\n")
    loop: Any = Silent()
    ended: list[int] = []
    watch = CgroupWatch(loop, "/x.scope", lambda: ended.append(1))
    watch._act(0)  # it was thawed
    assert len(loop.due) == 1
    events.write_text("" if is_removed else "populated 0\nfrozen 0\n")
    loop.due.pop()()
    assert ended == [1]
    watch.close()
    assert not loop.due
