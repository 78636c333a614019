"""The queue's main loop.

One process sleeps until a descriptor is readable or something is due. A round processes what happened, starts
the scopes of all jobs that can be started, and writes the journal. Only then does it start the commands and
report the events: a record is on the disk before the act that it announces.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Mapping

from slicer import backend, faults
from slicer.errors import EX_TEMPFAIL, SlicerError, StateError
from slicer.job import launch
from slicer.kernel import cgroup
from slicer.kernel.signal_pipe import SignalPipe
from slicer.kernel.signals import INTERRUPTS, block_interrupts
from slicer.kernel.sleep import soonest, until_readable
from slicer.queue.control.answers import ACTS, Answers
from slicer.queue.control.server import ControlSocket
from slicer.queue.display import Display
from slicer.queue.engine.choice import open_engine
from slicer.queue.events import Events, Renderer
from slicer.queue.file import jobs_file
from slicer.queue.file.jobs_file import JobsFileError
from slicer.queue.file.live_file import LiveFile
from slicer.queue.judge import judging
from slicer.queue.judge.concluding import Conclusions
from slicer.queue.model import BoardState, Entry, Event, QueueOptions
from slicer.queue.plans import Plans
from slicer.queue.show import rows
from slicer.queue.start.dispatch import Dispatch
from slicer.queue.start.held_back import HeldBack
from slicer.queue.state.register import Register


class Queue:
    """One queue, from its jobs file and log directory to its exit code."""

    def __init__(self, options: QueueOptions, environ: Mapping[str, str], renderer: Renderer) -> None:
        """Open everything. Raises JobsFileError, QueueRunning, StateError, ConfigError, BackendError, …"""
        self._options = options
        self._environ = environ
        self._events = Events(renderer)
        is_own = not options.trust_file
        text = jobs_file.read(options.jobs_file, is_own=is_own)  # before anything is created in its directory
        self._ledger = launch.open_ledger(environ, self._events, options.backend)
        self._engine = open_engine(options, environ, self._ledger, self._events)
        plans = self._plans = Plans(options, environ, self._ledger, self._engine.broker)
        if options.notify is not None or plans.config.notify is not None:
            from slicer.queue.notifying import notifier

            self._events.notifier = notifier(options.notify, plans.config, options.jobs_file)
        self.register = Register(options.log_dir, fresh=options.fresh)
        self._engine.set_up(plans, self.register)
        self._events.use_of = self._engine.use_of
        self._file = LiveFile(
            options.jobs_file, text, self.register.known_names, self._check, options.poll_s, is_own=is_own
        )
        if not self._file.entries and not options.watch:
            raise JobsFileError(
                "contains no jobs", name=options.jobs_file, hint="--watch waits for new lines"
            )
        self._conclusions = Conclusions(
            self.register, options, plans.margin_mib, self._engine.largest_mib, self._events, plans.shell,
            plans.retry_of,
        )  # fmt: skip
        held_back = HeldBack(self.register, options, self._events)
        self._dispatch = Dispatch(
            self.register, plans, self._engine, self._events, self._ledger.broker_now, held_back
        )
        self._display = Display(
            self.register, self._engine, self._dispatch, options, self._events.renderers
        )
        answers = Answers(
            self.register, self._dispatch, self._display, self._file, self._load, self._leave_by_word,
            self._events.notice,
        )  # fmt: skip
        with self._ledger.locked():
            self._control = ControlSocket(self._ledger.directory.base, answers.by_question(), ACTS)
        self._events.renderers.append(self._control)
        self._summary: Event | None = None
        self._ready: frozenset[int] = frozenset()  # the descriptors that woke us
        self._signals: list[int] = []  # those that ask the queue to leave
        self._has_stopped = False  # whether it starts no more jobs
        self._concluded: list[str] = []  # attempts whose ends are not on the disk yet

    # -- from beginning to end -----------------------------------------------------------------------------

    def run(self) -> int:
        """Run until nothing is left to do, or somebody asks the queue to end; the exit code."""
        kept = (*INTERRUPTS, signal.SIGCONT)
        self._signal_pipe = SignalPipe((*kept, signal.SIGWINCH), unless_ignored=kept)
        try:
            self._events.begin()
            self._open()
            gc.freeze()  # these objects stay, and with a long file, scanning them takes long
            gc.enable()
            while True:
                self._round()
                if not self._is_over():
                    self._sleep()
                elif not self._finds_more():
                    break
            if not self._is_leaving:
                self._forget()
            return self._exit_code()
        finally:
            self._engine.keep(())
            block_interrupts()  # a late signal must neither delay the queue's end nor change its exit code
            self._signal_pipe.close()

    def close(self) -> None:
        """Write the rest of the journal and the last board, and release everything."""
        faults.point("queue-leaving")
        self._display.end()
        self._drop_snapshots()
        self.register.close()
        if self.register.problem:
            self._events.at_once("warning", text=self.register.problem)
        self._control.close(self._summary)
        for each in (self._file, self._engine, self._ledger):
            each.close()

    def _drop_snapshots(self) -> None:
        try:
            stays = self._dispatch.snapshots.drop(self._file.entries)
            told = [f"a snapshot stays, because jobs have changed it: {copy}" for copy in stays]
        except SlicerError as error:
            told = [str(error)]
        for text in told:
            self._events.at_once("notice", text=text)

    def summary(self) -> Event:
        """The summary; it is also kept for the watching clients."""
        self._summary = self._display.summary(self._exit_code())
        return self._summary

    def doubts(self) -> list[str]:
        """What is probably a mistake in the jobs file, and was not said before."""
        return self._plans.doubts.of(self._file.text)

    def _open(self) -> None:
        states, register, entries = self.register.states, self.register, self._file.entries
        register.see(entries)
        final = [states[entry.key] for entry in entries if states[entry.key].is_final]
        self._events.add(
            "opened", total=len(entries), pending=len(entries) - len(final), done=len(final),
            log_dir=self._options.log_dir, jobs_file=self._options.jobs_file,
            resumed=any(state.attempts or state.is_final for state in states.values()),
        )  # fmt: skip
        for warning in (*self._plans.config.warnings, *register.warnings, *self.doubts()):
            self._events.warning(warning)
        for notice in self._engine.notices():
            self._events.notice(notice)
        if register.set_aside:
            self._events.notice(f"earlier logs are in {self._options.log_dir}/{register.set_aside}")
        if final:
            self._events.add("skipped", count=len(final), counts=rows.counts(final))
        register.sweep()
        by_key = {entry.key: entry for entry in entries}
        for state in [state for state in states.values() if state.status == "running"]:
            attempt = self._engine.recover(state)
            if attempt is None:
                self._events.add("adopted", state)
            else:
                self._conclusions.conclude(attempt, by_key.get(state.key))
                self._concluded.append(attempt.job_id)
        self._dispatch.load(entries)
        self._dispatch.check()

    def _round(self) -> None:
        """Process what has happened, do what is possible now, and save it."""
        self._take_signals()
        self._take_ended()
        self._take_file()
        self._display.is_stale |= self._control.take(self._ready)
        self._engine.watch()
        if not self._signals:
            self._dispatch.start()
        if self._dispatch.is_over and not self._has_stopped:
            self._stop_starting()
        self._dispatch.give_up()
        is_saved = self.register.save()
        self._events.stalled(self.register.problem)
        while is_saved and self._concluded:  # the journal has it now
            self._engine.discard(self._concluded.pop())
        self._dispatch.start_commands(is_saved=is_saved)
        if is_saved:
            self._control.answer()
            self._events.flush()
        self._tell_if_idle()
        held = "; ".join(self._dispatch.held_back.told.values())
        problem = self.register.problem or self._file.problem or self._dispatch.trouble or held
        self._display.update(self._state_word(), problem, self._engine.job_count)

    def _sleep(self) -> None:
        watched, due_s = self._engine.watched()
        descriptors = [self._signal_pipe.fd, self._file.fd, *self._control.descriptors(), *watched]
        limits = [
            due_s, self._file.left_s(), self.register.left_s(), self._display.left_s(),
            None if self._is_leaving else self._dispatch.left_s(),
        ]  # fmt: skip
        self._ready = until_readable(descriptors, soonest(*limits), None)

    @property
    def _is_leaving(self) -> bool:
        """Whether no more jobs are started, although some may be pending."""
        return bool(self._signals) or self._dispatch.is_over

    def _is_over(self) -> bool:
        if self._engine.is_busy:
            return False
        if self._is_leaving:
            return True  # even with a full disk: the next queue reads the attempts' files
        is_done = not self._options.watch and not self._dispatch.pending.can_start
        return is_done and not self._events and not self.register.problem

    def _finds_more(self) -> bool:
        """Whether there is more to do after all, in lines that caused no event."""
        if self._is_leaving:
            return False
        self._take_file(is_last=True)
        return bool(self._events or self._dispatch.pending.can_start)

    def _exit_code(self) -> int:
        keys = {entry.key for entry in self._file.entries} | self._dispatch.touched
        code = judging.exit_code_of(self.register.states[key] for key in keys)
        if self._signals and len(self._dispatch.pending):
            return 128 + self._signals[0]
        if self._dispatch.is_over and len(self._dispatch.pending):
            return EX_TEMPFAIL
        return code or int(bool(self._dispatch.pending.held_back))

    def _check(self, entries: tuple[Entry, ...]) -> None:
        """Raise JobsFileError for a line that cannot run."""
        self._plans.check(entries)
        self._engine.check(entries)

    # -- what happened -------------------------------------------------------------------------------------

    def _take_signals(self) -> None:
        for signo in self._signal_pipe.take():
            if signo in INTERRUPTS:
                self._leave(signo)
            elif signo == signal.SIGCONT:
                self._events.begin()
            self._display.is_stale = True

    def _leave(self, signo: int) -> None:
        """The first time, start no more jobs; the second time, end the running ones."""
        self._signals.append(signo)
        if len(self._signals) == 1:
            self._stop_starting()
            if signo != signal.SIGTERM or not _is_shutdown():
                self._forget()
        elif len(self._signals) == 2:
            self._events.add("ending", running=self._engine.job_count)
            self._engine.stop()

    def _leave_by_word(self, ends_jobs: bool) -> None:
        """``slicer queue stop``."""
        self.register.log_dir.note_pause(is_paused=False)
        self._forget()
        while len(self._signals) < 1 + ends_jobs:
            self._leave(signal.SIGTERM)

    def _forget(self) -> None:
        """If it was detached, it does not go on after a boot: it has ended, or somebody wants it to."""
        from slicer.outcome import queue_files

        try:
            queue_files.forget(self._environ, os.path.realpath(self._options.log_dir))
        except StateError as error:
            self._events.at_once("warning", text=str(error))

    def _stop_starting(self) -> None:
        self._has_stopped = True
        self._dispatch.abandon()
        self._events.add("stopping", running=self._engine.job_count)

    def _take_file(self, *, is_last: bool = False) -> None:
        problem, before = self._file.problem, self._file.entries
        if not self._file.look(is_last=is_last):
            return
        if self._file.problem:
            self._events.add("file-kept", error=self._file.problem)
            return
        if problem:
            self._events.add("file-good")
        if self._file.entries is before:
            return
        for doubt in self.doubts():
            self._events.warning(doubt)
        old, new = self._load()
        if old != new:
            self._events.add("file-changed", added=len(new - old), removed=len(old - new))

    def _load(self) -> tuple[set[str], set[str]]:
        """Determine the pending jobs again; the keys of those before, and of those now."""
        old = set(self._dispatch.pending)
        self._dispatch.load(self._file.entries)
        new = set(self._dispatch.pending)
        self._engine.forget(old - new)
        return old, new

    def _take_ended(self) -> None:
        dispatch = self._dispatch
        ended = self._engine.take_ended(self._ready)
        for attempt in ended:
            key = attempt.key
            dispatch.touched.add(key)
            if self._conclusions.conclude(attempt, dispatch.entry(key)):
                dispatch.put_back(key)
            if attempt.how == "unbegun":
                dispatch.command_never_started(key)
            self._concluded.append(attempt.job_id)
        if ended:
            dispatch.pending.release([attempt.key for attempt in ended])
            dispatch.learn()
        if dispatch.held_back.is_due:
            self._load()

    # -- the current state ---------------------------------------------------------------------------------

    def _tell_if_idle(self) -> None:
        """Report once that nothing is left to do, or that all jobs wait."""
        pending = self._dispatch.pending
        is_idle = not self._is_leaving and not self._engine.is_busy
        self._events.drained(
            is_idle and not pending.can_start, watch=self._options.watch, held=len(pending.held_back)
        )
        self._events.nothing_can_start(self._display.why_waiting() if is_idle else None)
        if self.register.is_saved:
            self._events.flush()

    def _state_word(self) -> BoardState:
        if self._signals:
            return "ending" if len(self._signals) > 1 else "stopping"
        if self._dispatch.is_over:
            return "stopping"
        if self.register.problem:
            return "stalled"
        if self._dispatch.is_paused:
            return "paused"
        return "drained" if self._events.has_drained else "running"


def _is_shutdown() -> bool:
    """Whether systemd, which ends the queue, is about to end: the machine's, or the user's."""
    from slicer.backend.shutdown import is_shutting_down

    is_users = "/user@" in cgroup.of("self")
    return backend.has_systemd() and is_shutting_down("user" if is_users else "system")
