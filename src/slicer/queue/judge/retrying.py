"""``slicer queue retry``: makes failed jobs pending again, and releases what is held back."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from slicer.queue.judge import judging
from slicer.queue.judge.streaks import group_of
from slicer.queue.model import Streak
from slicer.queue.state import folding
from slicer.queue.state.register import Register


def retry(register: Register, keys: Iterable[str], words: Collection[str]) -> tuple[list[int], int] | str:
    """The numbers of the jobs that are pending again, and how many others are no longer held back.

    ``keys``: of the file's lines. ``words``: numbers or names; () all. A word without such a job is returned.
    """
    known = [register.states[key] for key in keys if key in register.states]
    held = {group for group, streak in register.streaks.items() if streak.last_no}
    chosen = judging.to_retry(known, words, held)
    if isinstance(chosen, str):
        return chosen
    for state in chosen:
        register.do(folding.reconsidered(state.key))
    groups = {group_of(state.command) for state in chosen} if words else set(register.streaks)
    for group in groups & register.streaks.keys():
        register.do(folding.streak(group, Streak()))
    numbers = [state.no for state in chosen]
    others = (state for state in known if state.status == "pending" and state.no not in set(numbers))
    return numbers, sum(group_of(state.command) in groups & held for state in others)
