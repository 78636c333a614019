"""The copies of work trees in which lines with ``snapshot`` run. Few queues have such lines."""

from __future__ import annotations

import os
from collections.abc import Iterable

from slicer.errors import SlicerError, UsageError
from slicer.job.plan import Plan
from slicer.queue.model import DONE, Entry
from slicer.queue.state import folding
from slicer.queue.state.register import Register
from slicer.record import replace


class Snapshots:
    def __init__(self, register: Register) -> None:
        self._register = register

    def take(self, entries: Iterable[Entry]) -> list[tuple[Entry, SlicerError]]:
        """Copy the work trees of new lines, each once. Returns the lines for which that failed."""
        made: dict[str, str | SlicerError] = {}
        failed = []
        for entry in entries:
            said, state = entry.attributes, self._register.states[entry.key]
            if said.snapshot is not True or state.snapshot or state.status != "pending":
                continue
            from slicer.job import snapshot

            place = os.path.join(os.getcwd(), said.cwd)
            if place not in made:
                try:
                    made[place] = snapshot.take(place, os.environ, "queue-")
                except SlicerError as error:
                    made[place] = error
            if isinstance(found := made[place], SlicerError):
                failed.append((entry, found))
            else:
                self._register.do(folding.copied(entry.key, found))
        return failed

    def _of(self, entry: Entry) -> str:
        """The directory in which it runs; "": in no copy."""
        said = entry.attributes.snapshot
        return self._register.states[entry.key].snapshot if said is True else said or ""

    def within(self, plan: Plan, entry: Entry) -> Plan:
        """The plan, in the line's copy. Raises UsageError."""
        if not (directory := self._of(entry)):
            return plan
        from slicer.job import snapshot

        copy = snapshot.copy_of(directory, os.environ)
        return replace(plan, invocation=replace(plan.invocation, directory=directory, copy=copy))

    def drop(self, entries: Iterable[Entry]) -> list[str]:
        """Remove the copies whose lines are all done; those that jobs have changed. Raises SlicerError."""
        done: dict[str, bool] = {}
        for entry in entries:
            if os.path.lexists(directory := self._of(entry)):
                from slicer.job import snapshot

                try:
                    copy = snapshot.copy_of(directory, os.environ)
                except UsageError:
                    continue  # the line names another directory
                done[copy] = done.get(copy, True) and self._register.states[entry.key].status in DONE
        return [copy for copy, is_done in done.items() if is_done and not snapshot.drop(copy, os.environ)]
