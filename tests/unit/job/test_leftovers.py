"""What a command left behind is found, whatever ends and begins during the look."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

from slicer.job.leftovers import living
from slicer.kernel import proc


def looks(*found: list[int]) -> Callable[[], list[int]]:
    """What each look in turn lists, the last one again and again."""
    rest = list(found)
    return lambda: rest.pop(0) if len(rest) > 1 else rest[0]


def ended() -> int:
    """The pid of a process that is gone."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


# K2
def test_the_daemon_of_a_process_that_ended_during_the_look_is_left() -> None:
    mine = os.getpid()
    assert living(looks([ended()], [mine])) == [(mine, proc.start_time(mine))]
    assert living(looks([ended()], [ended()], [mine])) == [(mine, proc.start_time(mine))]


# K2
def test_nobody_is_left_when_a_look_finds_only_those_that_ended() -> None:
    assert living(looks([])) == []
    assert living(looks([ended()], [])) == []
    assert living(looks([ended()])) == []  # listed still: a leader that ended before its threads
