"""Holds back the lines of commands that only fail, and releases them."""

from __future__ import annotations

from collections.abc import Mapping

from slicer.queue.events import Events
from slicer.queue.judge import streaks
from slicer.queue.judge.log import last_line
from slicer.queue.model import Entry, QueueOptions, Streak
from slicer.queue.show.words import held_back
from slicer.queue.state import folding
from slicer.queue.state.register import Register
from slicer.record import replace


class HeldBack:
    """``told``: what is held back and why, by the commands' groups."""

    def __init__(self, register: Register, options: QueueOptions, events: Events) -> None:
        self._register = register
        self._options = options
        self._events = events
        self.told: dict[str, str] = {}

    def groups(self) -> set[str]:
        """Those that are to be held back."""
        known, rule = self._register.streaks, self._options.hold_back
        return {group for group, streak in known.items() if streaks.is_held_back(streak, rule)}

    @property
    def is_due(self) -> bool:
        """Whether :meth:`settle` has something to do although the lines are the same."""
        return self.told.keys() != self.groups()

    def settle(self, entries: tuple[Entry, ...]) -> Mapping[str, str]:
        """Hold groups back and release them, by the file's lines. Returns why, by the keys of held lines."""
        found: dict[str, str] = {}
        by_group: dict[str, list[Entry]] = {group: [] for group in self.groups()}
        for entry in entries if by_group else ():
            group = streaks.group_of(entry.command)
            if group in by_group:
                by_group[group].append(entry)
        for group, lines in by_group.items():
            count = sum(self._register.states[entry.key].status == "pending" for entry in lines)
            if self._holds(group, lines, count):
                self._tell(group, count)
                why = f"held back, {self._register.streaks[group].failures} failed in a row"
                found |= dict.fromkeys([entry.key for entry in lines], why)
        for group in self.told.keys() - self.groups():
            del self.told[group]
            self._events.add("released", group=group)
        return found

    def _holds(self, group: str, lines: list[Entry], count: int) -> bool:
        """Whether the group is held back: ``count`` jobs are pending, and no line of it has been edited."""
        streak = self._register.streaks[group]
        last_no = streak.last_no or self._register.last_no
        checksum = streaks.checksum(lines, self._register.states, last_no)
        now = replace(streak, last_no=last_no, checksum=checksum)
        holds = count > 0 and (now == streak or not streak.last_no)
        if not holds or now != streak:
            self._register.do(folding.streak(group, now if holds else Streak()))
        return holds

    def _tell(self, group: str, count: int) -> None:
        """Tell of the group, once."""
        options, streak = self._options, self._register.streaks[group]
        state = self._register.states.get(streak.key)
        log = state.log if state is not None else ""
        line = last_line(self._register.log_dir.directory, log)
        text = held_back(group, count, streak.failures, options.hold_back.within_s, line)
        if group not in self.told:
            self._events.add(
                "held-back", text=text, group=group, count=count, failures=streak.failures, log=log,
                last_line=line, jobs_file=options.jobs_file, log_dir=options.log_dir,
            )  # fmt: skip
        self.told[group] = text
