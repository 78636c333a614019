"""The queue itself: what happens when something happens.

One process, asleep until a descriptor is readable or something is due. A round takes the news, starts what
can be started, has the journal written, and only then lets the commands begin and tells what happened: what
must last is on the disk before the act that it announces.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from slicer import backend as backends
from slicer import faults
from slicer.gpu.observer import GpuObserver
from slicer.job import launch
from slicer.kernel.signals import INTERRUPTS
from slicer.kernel.sleep import until_readable
from slicer.queue.display import Display
from slicer.queue.events import Events
from slicer.queue.file import jobs_file
from slicer.queue.file.jobs_file import JobsFileError
from slicer.queue.file.live_file import LiveFile
from slicer.queue.judge import judging
from slicer.queue.judge.concluding import Conclusions
from slicer.queue.model import Event
from slicer.queue.run.gpu_use import Monitor
from slicer.queue.run.running import RunningJobs
from slicer.queue.run.starters import Starters
from slicer.queue.signal_pipe import SignalPipe
from slicer.queue.start.dispatch import Dispatch
from slicer.queue.start.plans import Plans
from slicer.queue.start.requests import LeaseRequests
from slicer.queue.state.register import Register

if TYPE_CHECKING:
    from slicer.backend import BatchBackend
    from slicer.model import Busy, Lease
    from slicer.queue.display import StateWord
    from slicer.queue.events import Shower
    from slicer.queue.options import Options

_USAGE_STEP_MIB = 256  # how much a peak has to grow to be told of


class Queue:
    """One queue, from its jobs file and log directory to its exit code."""

    def __init__(self, options: Options, environ: Mapping[str, str], shower: Shower) -> None:
        """Open everything. Raises JobsFileError, QueueRunning, StateError, ConfigError, BackendError, …"""
        self._options = options
        self._shower = shower
        self._news = Events(shower)
        text = jobs_file.read(options.jobs_file)  # before anything is made in its directory
        self._backend: BatchBackend = backends.choose(options.backend, os.geteuid())
        self._backend.preload()
        self._book = launch.open_ledger(environ, self)
        mask = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        self._starters = Starters(self._backend, self._book, mask)
        self._plans = Plans(options, environ, self._book)
        self._view = GpuObserver(self._book.directory, self._plans.policy, reuses=True)
        self._view.warn = self.warning
        self.register = Register(options.log_dir, fresh=options.fresh)
        self._file = LiveFile(
            options.jobs_file, text, self.register.known_names, self._plans.check, options.poll_s
        )
        if not self._file.entries and not options.watch:
            raise JobsFileError(
                "there are no jobs in it", name=options.jobs_file, hint="--watch waits for some"
            )
        idle_mib = self._plans.policy.idle_threshold_mib
        self._monitor = Monitor(self._view, self._book, options.poll_s, idle_mib, options.tolerance)
        self._news.monitor = self._monitor
        self._crew = RunningJobs(
            self._book, self._backend, self._starters, self._plans, self.register, self._monitor, self
        )
        self._desk = LeaseRequests(
            self._book, self._backend, self._view, options.gpus, exclusive=options.exclusive
        )
        self._desk.check()
        self._conclusions = Conclusions(
            self.register, options, self._plans.margin_mib, self._largest_mib, self._news
        )
        self._dispatch = Dispatch(
            options, self.register, self._plans, self._desk, self._crew, self._view, self._news
        )
        self._scene = Display(self.register, self._monitor, self._crew, self._desk, self._dispatch, options)
        self._signals: list[int] = []  # those that ask the queue to leave
        self._settled: list[str] = []  # attempts whose ends are not yet on the disk
        self._looked_mib: dict[str, int] = {}  # the peak last told of, by job id

    # -- what others tell us (slicer.job.launch.Observer) --------------------------------------------------

    def notice(self, text: str) -> None:
        self._news.notice(text)

    def warning(self, text: str) -> None:
        self._news.warning(text)

    def waiting(self, busy: Busy) -> None:
        """Not told: a queue waits most of the time."""

    def acquired(self, lease: Lease, waited_s: float) -> None:
        """Told as "started"."""

    # -- from beginning to end -----------------------------------------------------------------------------

    def run(self) -> int:
        """Until nothing is left to do, or somebody asks the queue to leave; the exit code."""
        self._wakeup = SignalPipe()
        try:
            self._shower.begin()
            self._open()
            gc.freeze()  # what is there now stays; with a long file, looking through it takes long
            gc.enable()
            while True:
                self._round()
                if not self._is_over():
                    self._sleep()
                elif not self._finds_more():
                    break
            return self._exit_code()
        finally:
            self._desk.keep(())
            self._wakeup.close()

    def close(self) -> None:
        """Write the last of the journal and the board, and give everything back."""
        faults.point("queue-leaving")
        self._scene.end()
        self.register.close()
        if self.register.problem:
            self._shower.event(Event("warning", time.time(), data={"text": self.register.problem}))
        self._file.close()
        self._view.close()
        self._starters.close()
        self._backend.close()
        self._book.close()

    def summary(self) -> Event:
        """The "summary" event."""
        return self._scene.summary(self._exit_code())

    def _open(self) -> None:
        states = self.register.states
        self.register.see(self._file.entries)
        final = [entry for entry in self._file.entries if states[entry.key].is_final]
        self._news.say(
            "opened", total=len(self._file.entries), pending=len(self._file.entries) - len(final),
            done=len(final), log_dir=self._options.log_dir, jobs_file=self._options.jobs_file,
            resumed=any(state.attempts or state.is_final for state in states.values()),
        )  # fmt: skip
        for warning in (*self._plans.config.warnings, *self.register.warnings):
            self.warning(warning)
        if self._backend.notice:
            self.notice(self._backend.notice)
        if self.register.set_aside:
            self.notice(f"earlier logs are in {self._options.log_dir}/{self.register.set_aside}")
        self._news.skipped([states[entry.key] for entry in final])
        self.register.sweep()
        entries = {entry.key: entry for entry in self._file.entries}
        for state in [state for state in states.values() if state.status == "running"]:
            landing = self._crew.recover(state)
            if landing is None:
                self._news.tell("adopted", state)
            else:
                self._conclusions.conclude(landing, entries.get(state.key), is_ending=False)
                self._settled.append(landing.job_id)
        self._dispatch.load(self._file.entries)
        self._dispatch.check()

    def _round(self) -> None:
        """Take up what has happened, do what can be done now, and make it last."""
        self._take_signals()
        self._end_flights()
        self._take_file()
        self._watch_gpus()
        if not self._is_stopping:
            self._dispatch.start()
        self._dispatch.give_up()
        is_saved = self.register.save()
        self._news.stalling(self.register.problem)
        if is_saved:
            while self._settled:  # the journal has it now
                self.register.forget(self._settled.pop())
            self._dispatch.let_go()
            self._news.flush()
        self._note_the_end()
        self._scene.show(self._shower, self._state_word(), self._problem())

    def _sleep(self) -> None:
        waiting, ask_s = self._desk.watched()
        descriptors = [self._wakeup.fd, self._file.fd, *self._crew.descriptors(), *waiting]
        limits = [
            ask_s, self._file.left_s(), self._crew.left_s(), self._monitor.left_s(), self.register.left_s(),
            self._scene.left_s(), None if self._is_stopping else self._dispatch.left_s(),
        ]  # fmt: skip
        due = [limit for limit in limits if limit is not None]
        self._ready = until_readable(descriptors, min(due) if due else None, None)
        self._desk.woken(self._ready)

    _ready: frozenset[int] = frozenset()

    def _is_over(self) -> bool:
        if not self._crew.is_empty:
            return False
        if self._signals:
            return True  # even with a full disk: who comes next finds out from the attempts' files
        is_done = not self._options.watch and not self._dispatch.pending.can_start
        return is_done and not self._news and not self.register.problem

    def _finds_more(self) -> bool:
        """Whether there is more to do after all: in lines that no event has told of."""
        if self._is_stopping:
            return False
        self._take_file(is_last=True)
        return bool(self._news or self._dispatch.pending.can_start)

    def _exit_code(self) -> int:
        keys = {entry.key for entry in self._file.entries} | self._dispatch.touched
        code = judging.exit_code_of(self.register.states[key] for key in keys)
        if self._signals and len(self._dispatch.pending):
            return 128 + self._signals[0]
        return code

    # -- signals -------------------------------------------------------------------------------------------

    @property
    def _is_stopping(self) -> bool:
        return bool(self._signals)

    @property
    def _is_ending(self) -> bool:
        return len(self._signals) > 1

    def _take_signals(self) -> None:
        for signo in self._wakeup.take():
            if signo in INTERRUPTS:
                self._leave(signo)
            elif signo == signal.SIGCONT:
                self._shower.begin()
            self._scene.is_stale = True

    def _leave(self, signo: int) -> None:
        self._signals.append(signo)
        if len(self._signals) == 1:
            self._dispatch.call_off()
            self._news.say("stopping", running=len(self._crew))
        elif len(self._signals) == 2:
            self._news.say("ending", running=len(self._crew))
            self._crew.stop_all()

    # -- the file ------------------------------------------------------------------------------------------

    def _take_file(self, *, is_last: bool = False) -> None:
        problem, before = self._file.problem, self._file.entries
        if not self._file.look(is_last=is_last):
            return
        if self._file.problem:
            self._news.say("file-kept", error=self._file.problem)
            return
        if problem:
            self._news.say("file-good")
        if self._file.entries is before:
            return
        dispatch, more = self._dispatch, self._file.appended
        if more is not None:
            had = len(dispatch.pending)
            dispatch.append(more)
            added, removed = len(dispatch.pending) - had, 0
        else:
            waiting = set(dispatch.pending)
            dispatch.load(self._file.entries)
            now = set(dispatch.pending)
            added, removed = len(now - waiting), len(waiting - now)
            self._desk.forget(waiting - now)
        if added or removed:
            self._news.say("file-changed", added=added, removed=removed)

    # -- jobs that end -------------------------------------------------------------------------------------

    def _end_flights(self) -> None:
        landings = self._crew.service(self._ready, self.warning)
        for landing in landings:
            self._dispatch.touched.add(landing.key)
            again = self._conclusions.conclude(
                landing, self._dispatch.entry(landing.key), is_ending=self._is_ending
            )
            if again:
                self._dispatch.put_back(landing.key)
            if landing.how == "unbegun":
                self._dispatch.could_not_begin(landing.key)
            self._settled.append(landing.job_id)
            self._looked_mib.pop(landing.job_id, None)
        if landings:
            self._dispatch.pending.release()

    def _watch_gpus(self) -> None:
        left_s = self._monitor.left_s()
        if left_s is None or left_s > 0:
            return
        before = self._monitor.problem
        for exceeded in self._monitor.look():
            state = self.register.states.by_job(exceeded.job)
            if state is not None:
                self._news.tell(
                    "exceeds", state, gpu=self._monitor.index(exceeded.gpu), used_mib=exceeded.used_mib,
                    declared_mib=exceeded.declared_mib,
                )  # fmt: skip
        if self._monitor.problem and self._monitor.problem != before:
            self.warning(f"what jobs use on their GPUs cannot be seen: {self._monitor.problem}")
        if self._options.verbose:
            self._tell_usage()
        self._scene.is_stale = True

    def _tell_usage(self) -> None:
        for job, use in self._monitor.uses():
            peak = max(use.peak_mib, default=0)
            state = self.register.states.by_job(job)
            if state is not None and peak >= self._looked_mib.get(job, 0) + _USAGE_STEP_MIB:
                self._looked_mib[job] = peak
                self._news.tell("usage", state)

    def _largest_mib(self) -> int:
        """The memory of the largest GPU that this queue may use."""
        allowed = self._desk.allowed()
        sizes = [each.total_mib for each in self._view.memory if each.gpu_uuid in allowed]
        return max(sizes, default=0)

    # -- telling -------------------------------------------------------------------------------------------

    def _note_the_end(self) -> None:
        """Say it once when nothing is left to do, or nothing but to wait."""
        pending = self._dispatch.pending
        is_idle = self._crew.is_empty and not self._is_stopping
        self._news.drained(is_idle and not pending.can_start, watch=self._options.watch)
        is_waiting = is_idle and pending.can_start > 0 and self._desk.is_waiting
        self._news.waiting(self._scene.why_waiting() if is_waiting else None)
        if self.register.is_saved:
            self._news.flush()

    def _problem(self) -> str:
        return self.register.problem or self._file.problem or self._dispatch.trouble

    def _state_word(self) -> StateWord:
        if self._is_ending:
            return "ending"
        if self._is_stopping:
            return "stopping"
        if self.register.problem:
            return "stalled"
        return "drained" if self._news.has_drained else "running"
