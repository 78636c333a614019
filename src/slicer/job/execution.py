"""``slicer run --exec``: slicer becomes the command, with neither supervisor nor keeper."""

from __future__ import annotations

import os

from slicer.job.job import tell_ineffective, tell_start
from slicer.job.program import become, cannot_execute

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from slicer.backend import Backend
    from slicer.job.job import Job, Listener
    from slicer.ledger.held_lease import HeldLease


class Execution:
    """Replaces the supervisor: enters the scope and becomes the command, which keeps the lease."""

    def __init__(self, job: Job, backend: Backend, listener: Listener, mask: frozenset[int]) -> None:
        self._job = job
        self._backend = backend
        self._listener = listener
        self._mask = mask
        self._cgroup: str | None = None

    def start_scope(
        self, descriptors: tuple[int, ...], private: tuple[int, ...] = ()
    ) -> tuple[int, dict[str, Any]]:
        """Enter the scope. Returns -1 (no keeper could die), and the lease's fields. Raises BackendError."""
        self._cgroup = self._backend.start(self._job.spec, os.getpid(), _load_words)
        self._backend.close()
        return -1, {"cgroup": self._cgroup}

    def import_ending(self) -> None:
        """Nothing to do: the command replaces this process."""

    def abandon(self) -> None:
        """There will be no job. Nothing to undo: the scope ends with this process."""

    def stand_by(self, held: HeldLease) -> int:
        """Nothing: the scope can only be started together with the command."""
        return -1

    def run(self, held: HeldLease, waited_s: float) -> NoReturn:
        """Start the command. Never returns. Raises SlicerError; then the lease is released."""
        try:
            if self._job.fence is not None:
                from slicer.job.fencing import fenced

                starter = self._backend if self._cgroup is not None else None
                self._job = fenced(self._job, held.lease.gpus, starter)
            job = self._job
            if self._cgroup is None or job.broker:
                held.update(**self.start_scope(held.descriptors)[1])
            held.do_postponed()
            held.do_postponed_slow()
            tell_start(job, held.lease, waited_s)
            idle = self._backend.enforced(job.spec, held.lease.cgroup)[1]
            tell_ineffective(job, held, self._backend.name, idle, self._listener)
            if job.sharing is not None:
                from slicer.job import sharing

                # No process of slicer stays to remove this file. The next sharing job sweeps it.
                sharing.prepare(job, held, self._backend.why_no_cap)
            env = job.variables(held)
            for fd in (*held.descriptors, *held.joined):
                os.set_inheritable(fd, True)
            become(job.program, job.command, env, self._mask)
        except BaseException as error:
            if self._job.has_share_file:
                from slicer.job import sharing

                sharing.remove_file(self._job, held)
            held.release()
            if isinstance(error, OSError):
                raise cannot_execute(self._job.program, error.errno or 0) from error
            raise


def _load_words() -> None:
    """Import the code that reports the start to the journal, while systemd is busy."""
    from slicer.job import words
    from slicer.outcome import journal

    del journal, words
