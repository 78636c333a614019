"""What the queue's loop asks of an engine: to place, start, watch, end and adopt the attempts of its jobs.

The loop, the jobs file, the journal, the judging and the board are the same for every engine. A new engine
is one more folder beside this file, and one more line in :mod:`slicer.queue.engine.choice`.

An attempt's way: :meth:`Engine.ask` finds a place for it, and ``Begin`` records it in the register. Once the
register is on the disk, :meth:`Engine.start_commands` starts it. :meth:`Engine.take_ended` returns its end.
After a crash of the queue, :meth:`Engine.recover` finds it again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from slicer.errors import SlicerError
from slicer.job.gpu_use import GpuUse
from slicer.job.plan import Plan
from slicer.kernel.sleep import soonest
from slicer.queue.engine.ended_attempt import EndedAttempt
from slicer.queue.model import Entry, GpuRow, JobState, Kind, Place
from slicer.queue.plans import Plans
from slicer.queue.state.register import Register

# Begins the attempt that has a place; False: not now. Raises BackendError, StateError.
Begin = Callable[[JobState], bool]


class Engine(Protocol):
    """Keys are the jobs' in the queue; ids are the attempts'.

    The methods with a body say and do what the engines do that this one is made of. So they suit one without
    parts that has nothing of the kind.
    """

    parts: tuple[Engine, ...] = ()
    broker: str = ""  # the socket of the broker that decides; "" for none
    is_here: bool = True  # it places jobs on this machine, in whose ledger a broker may come between

    def set_up(self, plans: Plans, register: Register) -> None:
        """To be called once, before anything else but :meth:`close`. Raises UsageError, GpuError."""
        for part in self.parts:
            part.set_up(plans, register)

    def notices(self) -> list[str]:
        """What the user should know at the beginning."""
        return [notice for part in self.parts for notice in part.notices()]

    def check(self, entries: tuple[Entry, ...]) -> None:
        """Raise JobsFileError for a line that it could never run."""
        return

    @property
    def has_gpus(self) -> bool:
        """Whether GPUs were found, or nobody knows yet."""
        return True

    def open_gpus(self) -> None:
        """Find the GPUs. Raises NoGpu, GpuError."""
        return

    def close(self) -> None:
        """Release everything. The running jobs live on."""
        for part in self.parts:
            part.close()

    # -- places ------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """A round of :meth:`ask` follows."""
        return

    def may_add(self, plan: Plan) -> bool:
        """Whether one more attempt may begin, whatever is free."""

    def ask(self, kind: Kind, entry: Entry, plan: Plan, places: Mapping[str, Place]) -> Begin | None:
        """A place for the job, if there is one now; otherwise the engine remembers the request.

        Raises InfeasibleError if there can never be one, RequestCancelled if somebody withdrew the request,
        BrokerError, TooManyError, UsageError, GpuError, BackendError, StateError.
        """

    def keep(self, kinds: Collection[Kind]) -> None:
        """Withdraw the requests of all other kinds."""
        for part in self.parts:
            part.keep(kinds)

    def forget(self, keys: Collection[str]) -> None:
        """These jobs are no longer in the file."""
        for part in self.parts:
            part.forget(keys)

    @property
    def is_deciding(self) -> bool:
        """Whether it is not known yet if a request has to wait; the next round may know it."""
        return any(part.is_deciding for part in self.parts)

    def why(self, kind: Kind) -> str:
        """Why the jobs of a kind wait, in words; "" unknown."""
        return next((why for part in self.parts if (why := part.why(kind))), "")

    # -- attempts whose commands have not started ----------------------------------------------------------

    def start_commands(self, *, is_saved: bool) -> tuple[list[str], list[tuple[str, SlicerError]]]:
        """Start the commands that are ready, if the register ``is_saved``.

        Returns the keys of the jobs that run now, and of those that could not be started.
        """

    def unstarted(self, job_id: str) -> str | None:
        """The key of an attempt whose command has not started; None for any other."""
        return next((key for part in self.parts if (key := part.unstarted(job_id))), None)

    def why_unstarted(self, job_id: str) -> str:
        """Why such an attempt has not begun, in words; "" unknown."""
        return ""

    def outdated(self, entries: Mapping[str, Entry]) -> list[str]:
        """The ids of such attempts whose lines are gone or have changed. ``entries``: the lines, by key."""
        return [job_id for part in self.parts for job_id in part.outdated(entries)]

    def give_up(self, job_id: str) -> bool:
        """Withdraw such an attempt, which then does not count; False: it has begun just now."""

    # -- running attempts ----------------------------------------------------------------------------------

    @property
    def job_count(self) -> int:
        """The number of jobs that run or are being started."""
        return sum(part.job_count for part in self.parts)

    @property
    def is_busy(self) -> bool:
        """Whether something is left to wait for."""
        return any(part.is_busy for part in self.parts)

    def recover(self, state: JobState) -> EndedAttempt | None:
        """The end of an attempt that an earlier queue began; None: it still runs, and is adopted.

        Raises StateError if the attempt is another engine's.
        """

    def discard(self, job_id: str) -> None:
        """The attempt's end is on the disk: its files are of no more use."""
        for part in self.parts:
            part.discard(job_id)

    def watched(self) -> tuple[list[int], float | None]:
        """Descriptors that become readable, and the seconds until something is due without an event."""
        found = [part.watched() for part in self.parts]
        return [fd for descriptors, _ in found for fd in descriptors], soonest(*(due_s for _, due_s in found))

    def take_ended(self, ready: Collection[int]) -> list[EndedAttempt]:
        """Process events; the attempts that are over. ``ready``: the descriptors that woke the loop."""
        return [ended for part in self.parts for ended in part.take_ended(ready)]

    def watch(self) -> None:
        """Measure what the jobs use, if that is due."""
        for part in self.parts:
            part.watch()

    def stop(self, key: str | None = None) -> None:
        """Ask the job's attempt to end; without ``key`` all attempts, because the queue ends."""
        for part in self.parts:
            part.stop(key)

    # -- for people and the judge --------------------------------------------------------------------------

    def use_of(self, job_id: str) -> GpuUse | None:
        """The attempt's use of its GPUs so far; None unknown."""
        return next((use for part in self.parts if (use := part.use_of(job_id)) is not None), None)

    def gpu_rows(self, numbers: dict[str, int]) -> tuple[GpuRow, ...]:
        """The GPUs for the board. ``numbers`` maps the ids of this queue's attempts to the jobs' numbers."""
        return tuple(row for part in self.parts for row in part.gpu_rows(numbers))

    def largest_mib(self) -> int:
        """The memory of the largest GPU that the queue may use; 0 unknown."""
        return max((part.largest_mib() for part in self.parts), default=0)
