"""Chooses the next jobs by the file's entries and the jobs' states. Pure.

The order is by priority, then by the place in the file. Jobs of one kind have the same demand, so only the
first of them is requested. A long file has a handful of kinds.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain

from slicer.queue.model import Entry, JobState, Kind, Place, kind_of


def to_ask(
    heads: list[tuple[Kind, Entry]], needs: Callable[[Kind], tuple[int, int | None]], most: int
) -> list[tuple[Kind, Entry]]:
    """The jobs to request, among the first jobs of each kind, in their order.

    ``needs`` returns the number of GPUs that a kind needs, and the memory of each (None: all). Each waiting
    job has a ticket. So only the first ``most`` kinds with GPUs are requested, and of the rest the smallest
    of each form: if that does not fit, no other of its form does.
    """
    if len(heads) <= most:
        return heads
    chosen: set[Kind] = set()
    smallest: dict[tuple[object, ...], tuple[float, Kind]] = {}
    count = 0
    for kind, _ in heads:
        gpus, vram_mib = needs(kind)
        if gpus and count >= most:
            size, form = math.inf if vram_mib is None else vram_mib, (kind.profile, gpus, kind.slots)
            if form not in smallest or size < smallest[form][0]:
                smallest[form] = size, kind
            continue
        count += bool(gpus)
        chosen.add(kind)
    chosen.update(kind for _, kind in smallest.values())
    return [head for head in heads if head[0] in chosen]


class Pending:
    """The jobs that are still to be started. ``entries`` by their keys, in the file's order."""

    def __init__(
        self, entries: Iterable[Entry], states: Mapping[str, JobState],
        octave_of: Callable[[Entry], int | None] = lambda entry: None, early: Mapping[str, str] | None = None,
        held: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """``octave_of``: for :attr:`Kind.octave`. ``early``: when jobs begin. ``held``: why they are held."""
        self._octave_of = octave_of
        self._early = dict(early or {})
        self._held = held or {}
        self.entries = {entry.key: entry for entry in entries}
        self._states = states
        self.places: dict[str, Place] = {}  # the place of each job of the file
        self._queues: dict[Kind, list[tuple[Place, str]]] = {}  # the jobs that could start now, in order
        self._kinds: dict[str, Kind] = {}  # of the same jobs
        self._following: dict[str, Entry] = {}  # jobs that wait for other jobs
        self._named: dict[str, list[str]] = {}  # the keys of the file's jobs by their names
        self._followed: set[str] = set()  # the names in their after=
        self._postponed: set[str] = set()  # jobs that let others go first, for a while
        self.held_back: set[str] = set()  # jobs that could start, but for their commands' failures
        self.never: dict[str, str] = {}  # jobs that can never start, and why
        for position, entry in enumerate(self.entries.values()):
            self.places[entry.key] = (-(entry.attributes.kind.priority or 0), position)
            if entry.attributes.name:
                self._named.setdefault(entry.attributes.name, []).append(entry.key)
            state = states.get(entry.key)
            if entry.attributes.cancel or (state is not None and state.status != "pending"):
                continue
            if entry.attributes.after:
                self._following[entry.key] = entry
                self._followed.update(entry.attributes.after)
            else:
                self.put(entry)
        self.release()

    def __len__(self) -> int:
        return sum(map(len, self._parts()))

    def __iter__(self) -> Iterator[str]:
        return iter([*chain(*self._parts())])

    def __contains__(self, key: object) -> bool:
        return any(key in part for part in self._parts())

    def _parts(self) -> tuple[Collection[str], ...]:
        return self._kinds, self._postponed, self._following, self.held_back

    @property
    def can_start(self) -> int:
        """The number of jobs that wait only for their leases."""
        return len(self._kinds) + len(self._postponed)

    def put(self, entry: Entry, early: str = "") -> None:
        """The job may start (again), unless it is held back, or its time has not come (``early``: when)."""
        if early:
            self._early[entry.key] = early
        if entry.key in self._held:
            self.held_back.add(entry.key)
            return
        if entry.key in self._early:
            self._postponed.add(entry.key)
            return
        kind = self._kinds[entry.key] = self._kind_now(entry)
        insort(self._queues.setdefault(kind, []), (self.places[entry.key], entry.key))

    def _kind_now(self, entry: Entry) -> Kind:
        return kind_of(entry, self._states.get(entry.key))._replace(octave=self._octave_of(entry))

    def kind(self, key: str) -> Kind:
        return self._kinds.get(key) or self._kind_now(self.entries[key])

    def regroup(self, octave_of: Callable[[Entry], int | None]) -> None:
        """Sort the jobs into kinds anew: more is known of their lengths."""
        self._octave_of = octave_of
        for key, kind in list(self._kinds.items()):
            if kind.octave != octave_of(self.entries[key]):
                self._unqueue(key)
                self.put(self.entries[key])

    def take(self, key: str) -> None:
        """Do not start the job (any more)."""
        self._unqueue(key)
        self._postponed.discard(key)
        self.held_back.discard(key)
        self._following.pop(key, None)
        self.never.pop(key, None)

    def postpone(self, key: str) -> None:
        """Do not request the job until :meth:`resume`."""
        if self._unqueue(key):
            self._postponed.add(key)

    def resume(self, key: str) -> None:
        """Let the postponed job have its turn (again), if it is still to be started."""
        self._early.pop(key, None)
        if key in self._postponed:
            self._postponed.remove(key)
            self.put(self.entries[key])

    def _unqueue(self, key: str) -> bool:
        """Remove the job from those that could start now; whether it was one."""
        kind = self._kinds.pop(key, None)
        if kind is None:
            return False
        queue = self._queues[kind]
        del queue[bisect_left(queue, (self.places[key], key))]
        if not queue:
            del self._queues[kind]
        return True

    def heads(self) -> list[tuple[Kind, Entry]]:
        """The first job of each kind, in their order."""
        tops = sorted((queue[0], kind) for kind, queue in self._queues.items())
        return [(kind, self.entries[key]) for (_, key), kind in tops]

    def first(self, most: int) -> list[Entry]:
        """The first ``most`` jobs, in the order of their starts; last those that are held back."""
        keys = heapq.nsmallest(most, self, key=lambda key: (key in self.held_back, self.places[key]))
        return [self.entries[key] for key in keys]

    # -- after= ------------------------------------------------------------------------------------------

    def release(self, ended: Iterable[str] | None = None) -> None:
        """Find jobs that may start now, or never. ``ended``: jobs that ended since; None: unknown."""
        if not self._following:
            return
        if ended is not None and not any(self._states[key].name in self._followed for key in ended):
            return
        named = self._keys_of_followed()
        self.never = {}
        has_changed = True
        while has_changed:
            has_changed = False
            for key, entry in list(self._following.items()):
                if key in self.never:
                    continue
                verdicts = [self._verdict(name, named.get(name, [])) for name in entry.attributes.after]
                why = next((verdict for verdict in verdicts if verdict), None)
                if why is not None:
                    self.never[key] = why
                    has_changed = True
                elif all(verdict == "" for verdict in verdicts):
                    del self._following[key]
                    self.put(entry)

    def waits_for(self, key: str) -> str:
        """Why it can never start, the jobs before it, why it is held back, or its time; "" if none."""
        entry = self._following.get(key)
        after = "after " + ", ".join(entry.attributes.after) if entry is not None else ""
        return self.never.get(key) or after or self._held.get(key) or self._early.get(key, "")

    def _keys_of_followed(self) -> dict[str, list[str]]:
        """The keys of the jobs, by each name that is waited for."""
        wanted = {name for entry in self._following.values() for name in entry.attributes.after}
        found = {name: self._named[name] for name in wanted if name in self._named}
        others: dict[str, list[str]] = {name: [] for name in wanted - found.keys()}
        for state in self._states.values() if others else ():  # jobs of earlier runs
            if state.name in others:
                others[state.name].append(state.key)
        return found | others

    def _verdict(self, name: str, keys: list[str]) -> str | None:
        """Why the jobs with that name cannot all succeed; "" if they have, None if they still may."""
        if not keys:
            return f"there is no job named {name}, which it follows"
        is_over = True
        for key in keys:
            state, entry = self._states.get(key), self.entries.get(key)
            if key in self.never:
                return f"{name}, which it follows, was skipped"
            if state is not None and state.status == "ok":
                continue
            if state is not None and state.is_final:
                return f"{name}, which it follows, {_ended(state)}"
            if entry is not None and entry.attributes.cancel:
                return f"{name}, which it follows, is cancelled"
            is_over = False
        return "" if is_over else None


def _ended(state: JobState) -> str:
    """As in "failed (exit 3)"."""
    if state.status in ("failed", "oom"):
        return f"failed (exit {state.exit_code})"
    return {"timeout": "timed out", "infeasible": "can never start"}.get(
        state.status, f"was {state.status}"
    )
