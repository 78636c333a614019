"""Slurm as the queue's engine. Its only state on the disk is in :mod:`slicer.queue.engine.slurm.exchange`."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping
from functools import cache, partial

from slicer.config.slurm import settings
from slicer.errors import BackendError, InfeasibleError, SlicerError, StateError, UsageError
from slicer.job.plan import Plan
from slicer.kernel.sleep import soonest
from slicer.model import CPU
from slicer.queue.engine import ended_attempt
from slicer.queue.engine.ended_attempt import EndedAttempt
from slicer.queue.engine.engine import Begin, Engine
from slicer.queue.engine.slurm import commands, mapping, parsing, script, tracking
from slicer.queue.engine.slurm.asking import Questions, Tasks
from slicer.queue.engine.slurm.commands import Commands
from slicer.queue.engine.slurm.exchange import Exchange, refuse_if_running
from slicer.queue.engine.slurm.submitting import Submissions
from slicer.queue.engine.slurm.tracking import Tracked
from slicer.queue.events import Events
from slicer.queue.file.jobs_file import refused
from slicer.queue.model import Entry, JobState, Kind, Place, QueueOptions
from slicer.queue.plans import Plans
from slicer.queue.state import folding
from slicer.queue.state.register import Register
from slicer.record import replace

NAME = "slurm"
_MOST = 2000  # attempts in Slurm at a time: its controllers allow 10,000 jobs of all users
_ANY_MIB = 1 << 30


class SlurmEngine(Engine):
    """One question to Slurm covers all attempts; they are rarer while nothing changes.

    What waits, waits in Slurm, which alone knows the GPUs. The attempts measure themselves.
    """

    is_here = False

    def __init__(self, options: QueueOptions, environ: Mapping[str, str], events: Events) -> None:
        """Raises UsageError, StateError."""
        environ = commands.slurms(environ)
        if options.gpus and options.engine == NAME:
            hint = "leave one of them out: Slurm chooses the GPUs"
            raise UsageError("cannot be combined with --engine slurm", where="--gpu", hint=hint)
        if options.fresh:
            refuse_if_running(options.log_dir)
        self._options = options
        self._commands = Commands(mapping.environment(environ))
        self._events = events
        self._directory = os.getcwd()
        self._tracked: dict[str, Tracked] = {}
        self._ended: list[EndedAttempt] = []
        self._started: list[str] = []
        self._slurm = Questions(self._commands, self._tracked)
        self._told = ""  # the last problem that was reported

    def set_up(self, plans: Plans, register: Register) -> None:
        self._settings = cache(partial(settings, plans.config))  # by profile
        self._register = register
        self._exchange = Exchange(register.log_dir)
        self._submissions = Submissions(self._exchange, self._commands)
        self._exchange.sweep([state.job for state in register.states.running.values()])
        self._slurm.find_nodes(waits=True)
        wanted = self._settings(self._options.profile).partition
        if self._slurm.nodes and wanted and not self._slurm.has_partition(wanted):
            raise UsageError(_no_partition(wanted, self._slurm.nodes), where="[engine.slurm]")

    def check(self, entries: tuple[Entry, ...]) -> None:
        for entry in entries:
            kind = entry.attributes.kind
            if kind.slots:
                message = "slots are counted on one machine, and Slurm has many"
                raise refused(entry, message, "leave slots= out", "slots")
            if kind.share not in (None, "off"):
                message = "jobs that Slurm places cannot share turns or caps"
                raise refused(entry, message, "leave share= out", "share")
            if entry.attributes.snapshot:
                raise refused(entry, "a snapshot is on this machine alone", "leave snapshot out", "snapshot")
            if kind.preemptible:
                message = "Slurm itself decides which jobs it preempts"
                raise refused(entry, message, "leave preemptible out", "preemptible")

    def close(self) -> None:
        self._commands.close()
        self._exchange.close()

    # -- places ------------------------------------------------------------------------------------------

    def may_add(self, plan: Plan) -> bool:
        most = min(_MOST, self._options.at_a_time or _MOST)
        return len(self._tracked) < most

    def ask(self, kind: Kind, entry: Entry, plan: Plan, places: Mapping[str, Place]) -> Begin | None:
        if not self._slurm.nodes:
            self._slurm.find_nodes()
            raise StateError(self._slurm.problem)
        wanted = self._settings(plan.profile.name)
        slots = [name for name in plan.profile.slots if name != CPU]
        if slots:
            raise InfeasibleError(f"slot {slots[0]} is counted on one machine, and Slurm has many")
        if wanted.partition and not self._slurm.has_partition(wanted.partition):
            raise InfeasibleError(_no_partition(wanted.partition, self._slurm.nodes))
        needs = mapping.needs_of(plan.profile, wanted, exclusive=self._options.exclusive)
        why = mapping.why_never(needs, self._slurm.nodes, wanted.partition)
        if why:
            raise InfeasibleError(why)
        arguments = mapping.arguments(needs, wanted)
        return lambda state: self._begin(entry, plan, arguments, wanted.slicer, state)

    def _begin(
        self, entry: Entry, plan: Plan, arguments: tuple[str, ...], slicer: str, state: JobState
    ) -> bool:
        job_id, attempt = os.urandom(6).hex(), state.attempts + 1
        log = self._register.log_dir.log_name(state.no, attempt)
        self._register.do(
            folding.submitted(
                state.key, job_id, engine=NAME, attempt=attempt, log=log, vram_mib=plan.profile.vram_mib,
                at=time.time(),
            )
        )  # fmt: skip
        said = entry.attributes
        tracked = self._tracked[job_id] = Tracked(state.key, job_id, said)
        tracked.arguments = arguments
        tracked.order = script.order(
            plan, job_id, slicer=slicer, directory=os.path.join(self._directory, said.cwd),
            log=f"{os.path.realpath(self._register.log_dir.path)}/{log}", exchange=self._exchange.path,
            env=said.env,
        )  # fmt: skip
        self._submissions.add(tracked)
        return True

    def why(self, kind: Kind) -> str:
        return f"{len(self._tracked)} jobs are with Slurm" if self._tracked else ""

    # -- attempts whose commands have not started ----------------------------------------------------------

    def start_commands(self, *, is_saved: bool) -> tuple[list[str], list[tuple[str, SlicerError]]]:
        if is_saved and self._submissions.start():
            self._slurm.soon()
        failed = []
        for tracked, error in self._submissions.take_failed():
            if self._withdraw(tracked):
                failed.append((tracked.key, error))
        started, self._started = self._started, []
        return started, failed

    def unstarted(self, job_id: str) -> str | None:
        tracked = self._tracked.get(job_id)
        return tracked.key if tracked is not None and not tracked.has_begun else None

    def why_unstarted(self, job_id: str) -> str:
        tracked = self._tracked.get(job_id)
        return tracked.why if tracked is not None else ""

    def outdated(self, entries: Mapping[str, Entry]) -> list[str]:
        found = []
        for tracked in self._tracked.values():
            entry = entries.get(tracked.key)
            is_same = entry is not None and tracked.attributes in (None, entry.attributes)
            if not tracked.has_begun and not is_same:
                found.append(tracked.job_id)
        return found

    def give_up(self, job_id: str) -> bool:
        return self._withdraw(self._tracked[job_id])

    def _withdraw(self, tracked: Tracked) -> bool:
        """Make sure that it never begins; False: it has, or nobody can tell now."""
        if not self._submissions.remove(tracked) and not self._take_order(tracked):
            return False
        del self._tracked[tracked.job_id]
        self._register.do(folding.unbegun(tracked.key, tracked.job_id))
        self._exchange.forget(tracked.job_id)
        self._slurm.cancel(tracked)  # its task would find no order, but waits in Slurm's queue
        return True

    def _take_order(self, tracked: Tracked) -> bool:
        try:
            return self._exchange.withdraw(tracked.job_id)
        except StateError as error:
            self._tell(str(error))
            return False

    # -- running attempts ----------------------------------------------------------------------------------

    @property
    def job_count(self) -> int:
        return sum(tracked.has_begun for tracked in self._tracked.values())

    @property
    def is_busy(self) -> bool:
        return bool(self._tracked or self._ended)

    def recover(self, state: JobState) -> EndedAttempt | None:
        if state.engine != NAME:
            hint = "start it again with --engine local, or auto"
            raise StateError(f"job {state.no} of an earlier queue is on this machine", hint=hint)
        tracked = self._tracked[state.job] = Tracked(state.key, state.job, None)
        tracked.batch, tracked.position = self._exchange.place(state.job)
        kinds = self._exchange.files().get(state.job, set())
        tracked.has_begun = not state.submitted
        self._see(tracked, kinds)
        has_begun = tracked.has_begun or "begun" in kinds
        if not tracked.batch and not has_begun and self._exchange.withdraw(state.job):
            why = "the queue ended before Slurm had it"
            self._end(tracked, EndedAttempt(state.key, state.job, "unbegun", why=why))
        self._slurm.soon()
        found = next((each for each in self._ended if each.job_id == state.job), None)
        if found is not None:
            self._ended.remove(found)
        return found

    def discard(self, job_id: str) -> None:
        self._exchange.forget(job_id)

    def watched(self) -> tuple[list[int], float | None]:
        due_s = soonest(self._slurm.left_s(), self._commands.left_s(), 0.0 if self._ended else None)
        return [self._exchange.fd, *self._commands.descriptors()], due_s

    def take_ended(self, ready: Collection[int]) -> list[EndedAttempt]:
        try:
            self._take_news()
        except (StateError, BackendError) as error:  # the directory cannot be read, or no process be started
            self._tell(str(error))
            self._slurm.later(has_changed=False)
        untold = set(self._started)  # of their beginnings
        ended = [each for each in self._ended if each.key not in untold]
        self._ended = [each for each in self._ended if each.key in untold]
        return ended

    def _take_news(self) -> None:
        if self._submissions.take():
            self._slurm.soon()
        answer = self._slurm.take()
        if isinstance(answer, str):
            self._tell(f"{answer}; jobs go on, and it is asked again")
            self._slurm.later(has_changed=False)
        elif answer is not None:
            self._take_tasks(answer)
        is_due = self._slurm.is_due
        news = self._exchange.files() if is_due else self._exchange.heard()
        for job_id, kinds in news.items():
            if job_id in self._tracked:
                self._see(self._tracked[job_id], kinds)
        if is_due:
            self._slurm.ask()

    def _tell(self, problem: str) -> None:
        """Report a problem once; "": it is over."""
        if problem and problem != self._told:
            self._events.warning(problem)
        elif self._told and not problem:
            self._events.notice("Slurm and the log directory can be used again")
        self._told = problem

    def _see(self, tracked: Tracked, kinds: set[str]) -> None:
        """Notice the attempt's beginning and end."""
        if kinds & {"node", "end"} and not tracked.has_begun:
            self._note_start(tracked, is_over="end" in kinds)
        if "end" not in kinds:
            return
        found = self._exchange.end(tracked.job_id)
        if found.outcome is not None:
            ended = ended_attempt.from_outcome(tracked.key, tracked.job_id, found.outcome, None)
            if tracking.was_stopped(ended) and not (tracked.is_stopping or tracked.missed):
                return  # Slurm still knows it, and has not said why it ended
            self._end(tracked, self._with_slurms_word(tracked, ended))
        elif found.code is not None:
            node, _ = self._exchange.node(tracked.job_id)
            self._end(tracked, tracking.ended_with_code(tracked, found.code, node))
        else:
            self._end(tracked, tracking.ended_without_word(tracked, ("begun",), self._exchange.path))

    def _with_slurms_word(self, tracked: Tracked, ended: EndedAttempt) -> EndedAttempt:
        if tracking.was_stopped(ended) and tracking.is_cut_by_slurm(tracked.task):
            said = tracking.ended_without_word(tracked, ("begun",), self._exchange.path)
            return replace(said, wall_s=ended.wall_s, vram_peak_mib=ended.vram_peak_mib)
        return ended

    def _note_start(self, tracked: Tracked, *, is_over: bool) -> None:
        state = self._register.states[tracked.key]
        node, numbers = self._exchange.node(tracked.job_id)
        if not node and not is_over:
            return  # it is being written
        tracked.has_begun = True
        if state.job != tracked.job_id or not state.submitted:
            return
        gpus = [f"{node}/{number}" for number in numbers]
        self._register.do(
            folding.started(state.key, state.job, node=node, gpus=gpus, gpu_indices=numbers, at=time.time())
        )
        self._started.append(tracked.key)

    def _end(self, tracked: Tracked, ended: EndedAttempt) -> None:
        del self._tracked[tracked.job_id]
        if tracked.is_stopping and tracking.was_stopped(ended):
            ended = replace(ended, reason="stopped", ended_by="slicer queue")
        self._ended.append(ended)

    def _take_tasks(self, tasks: Tasks) -> None:
        """Slurm's word on all attempts. Those that it does not run, and that left no end, are over."""
        files, has_changed = self._exchange.files(), False
        self._tell("")
        under_way = self._submissions.under_way()
        for tracked in [each for each in self._tracked.values() if each.job_id not in under_way]:
            task = tasks.get((tracked.batch, tracked.position))
            has_changed |= task != tracked.task
            tracked.task = task or tracked.task
            kinds = files.get(tracked.job_id, set()) | ({"begun"} if tracked.has_begun else set())
            if task is not None and task.is_active and not (task.is_stuck and "order" in kinds):
                tracked.missed = 0
                continue
            tracked.missed += 1
            has_changed |= tracked.missed <= tracking.MOST_MISSED
            if tracked.missed == 1:
                tracked.missed_s = time.monotonic()
            self._see(tracked, kinds)
            if tracked.job_id in self._tracked and tracking.is_over(tracked, kinds, time.monotonic()):
                self._give_up_hope(tracked, kinds)
        self._slurm.cancel_known(tasks, under_way)
        self._slurm.later(has_changed=has_changed)

    def _give_up_hope(self, tracked: Tracked, kinds: set[str]) -> None:
        """Slurm does not run it, and it left no end."""
        if "begun" not in kinds and not self._take_order(tracked):
            return  # it has begun just now
        self._slurm.cancel(tracked)
        self._end(tracked, tracking.ended_without_word(tracked, kinds, self._exchange.path))

    def stop(self, key: str | None = None) -> None:
        for tracked in [each for each in self._tracked.values() if key in (None, each.key)]:
            tracked.is_stopping |= key is None
            if not tracked.has_begun and self._take_order(tracked):
                self._submissions.remove(tracked)
                self._end(tracked, tracking.stopped(tracked))
            self._slurm.cancel(tracked, at_once=True)

    def largest_mib(self) -> int:
        return mapping.largest_mib(self._slurm.nodes, self._settings(self._options.profile)) or _ANY_MIB


def _no_partition(name: str, nodes: Iterable[parsing.Node]) -> str:
    known = ", ".join(sorted({node.partition for node in nodes}))
    return f"Slurm has no partition {name} (it has {known})"
