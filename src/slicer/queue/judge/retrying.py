"""``slicer queue retry``: makes failed jobs pending again, and releases what is held back."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from slicer.queue.judge.judging import has_failed
from slicer.queue.judge.streaks import group_of
from slicer.queue.model import JobState, Streak
from slicer.queue.state import folding
from slicer.queue.state.register import Register


def retry(register: Register, keys: Iterable[str], words: Collection[str]) -> tuple[list[int], int] | str:
    """The numbers of the jobs that are pending again, and how many others are no longer held back.

    ``keys``: of the file's lines. Without ``words``, numbers or names, all jobs that failed are meant, and
    those that run again after a pause; with words also those that are held back or were cancelled. A word
    without such a job is returned.
    """
    known = [register.states[key] for key in keys if key in register.states]
    held = {group for group, streak in register.streaks.items() if streak.last_no}

    def may_be_meant(state: JobState) -> bool:
        is_pending, is_held = state.status == "pending", group_of(state.command) in held
        is_named_only = state.status == "cancelled" or (is_pending and is_held)
        return has_failed(state) or (is_pending and state.again_at > 0) or (bool(words) and is_named_only)

    chosen = sorted(filter(may_be_meant, known), key=lambda state: state.no)
    for word in words:
        if not any(word in (str(state.no), state.name) for state in chosen):
            return word
    if words:
        chosen = [state for state in chosen if {str(state.no), state.name} & set(words)]
    for state in chosen:
        register.do(folding.reconsidered(state.key))
    groups = {group_of(state.command) for state in chosen} if words else set(register.streaks)
    for group in groups & register.streaks.keys():
        register.do(folding.streak(group, Streak()))
    numbers = [state.no for state in chosen]
    others = (state for state in known if state.status == "pending" and state.no not in set(numbers))
    return numbers, sum(group_of(state.command) in groups & held for state in others)
