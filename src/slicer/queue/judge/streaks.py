"""Decides which commands are held back, because their attempts fail in a row, soon after their start. Pure.

Commands of the same program and script are one group, as where run lengths are estimated. All attempts count,
in the order of their ends.
"""

from __future__ import annotations

from binascii import crc32
from collections.abc import Iterable, Mapping

from slicer.placement.lengths import key_of
from slicer.queue.model import Entry, HoldBack, JobState, Status, Streak
from slicer.record import replace

_GROUP_CHARS = 80


def group_of(command: str) -> str:
    """As in "python train.py"; a command that names no program is a group of its own."""
    return key_of(command) or command[:_GROUP_CHARS]


def after(streak: Streak, key: str, status: Status, lasted_s: float, rule: HoldBack) -> Streak:
    """The streak when one more attempt of the group has ended, ``lasted_s`` seconds after its start.

    A group that is held back stays so until an attempt that still ran ends well.
    """
    if status == "failed" and lasted_s <= rule.within_s:
        return replace(streak, failures=streak.failures + 1, key=key)
    return streak if streak.last_no and status != "ok" else Streak()


def is_held_back(streak: Streak, rule: HoldBack) -> bool:
    return rule.failures > 0 and (streak.last_no > 0 or streak.failures >= rule.failures)


def checksum(entries: Iterable[Entry], states: Mapping[str, JobState], last_no: int) -> int:
    """Of a group's lines up to the job ``last_no`` that have not ended well: edits and removals change it.

    It stays the same if lines are moved, or added after them.
    """
    lines = (e for e in entries if states[e.key].no <= last_no and states[e.key].status != "ok")
    return sum(crc32(f"{entry.key} {entry.attributes}".encode()) for entry in lines) % (1 << 32)
