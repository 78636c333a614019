"""Which of the queue's jobs are paused or frozen, seen as it happens: one inotify for all of their scopes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slicer.errors import SlicerError, StateError
from slicer.job import pause
from slicer.job.freezes import Freezer
from slicer.kernel import cgroup, inotify
from slicer.kernel.sleep import soonest
from slicer.ledger import control_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.ledger.ledger import Ledger
    from slicer.model import Lease


class ScopeWatch:
    """The scopes of running jobs, by the jobs' ids. ``warn`` is told once if they cannot be watched."""

    def __init__(self, ledger: Ledger, warn: Callable[[str], None]) -> None:
        self._ledger = ledger
        self._warn = warn
        self._inotify: inotify.Inotify | None = None
        self._is_broken = False
        self._freezers: dict[str, Freezer] = {}
        self._watches: dict[int, str] = {}  # the job, by inotify's number

    def descriptors(self) -> list[int]:
        """Readable when a scope changes."""
        return [] if self._inotify is None else [self._inotify.fd]

    def left_s(self) -> float | None:
        """After how many seconds to :meth:`take` without an event; None: not at all."""
        return soonest(*(freezer.due_s() for freezer in self._freezers.values()))

    def follow(self, lease: Lease, limit_at: float | None) -> None:
        """The job runs. ``limit_at``: when systemd ends it (monotonic), None: never, or not known."""
        if not lease.cgroup or self._is_broken:
            return
        directory = cgroup.path_of(lease.cgroup)

        def say(kind: pause.SeenKind, text: str) -> None:
            pause.tell_seen(lease, kind, text)

        freezer = Freezer(lease.job, directory, self._ledger.directory, limit_at, say)
        try:
            if self._inotify is None:
                self._inotify = inotify.Inotify("/sys/fs/cgroup")
            watch = self._inotify.add(f"{directory}/cgroup.events", inotify.MODIFY)
        except StateError as error:
            self._is_broken = True
            self._warn(f"whether jobs are paused cannot be seen: {error}")
            return
        if watch is not None:
            self._watches[watch] = lease.job
            self._freezers[lease.job] = freezer
            freezer.look()

    def take(self) -> None:
        """Take up what has happened, and thaw jobs whose time is up."""
        for change in self._inotify.take() if self._inotify is not None else ():
            job = self._watches.get(change.watch, "")
            if change.mask & inotify.IGNORED:
                self._watches.pop(change.watch, None)
            elif job in self._freezers:
                self._freezers[job].look()
        for freezer in self._freezers.values():
            freezer.meet_deadline()

    def forget(self, job: str) -> None:
        """The job has ended. Its scope takes the watch along."""
        self._freezers.pop(job, None)


def thaw_to_end(lease: Lease, ledger: Ledger, warn: Callable[[str], None]) -> None:
    """Thaw a job that is told to end. Its keeper is frozen with it, and hears nothing."""
    try:
        if pause.is_frozen(lease):
            control_log.note(ledger, lease.job, "resume")
            pause.thaw(lease)
    except SlicerError as error:
        warn(f"job {lease.job} is frozen, and does not see that it is to end: {error}")
