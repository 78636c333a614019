"""From what the user asked for to a running job: profile, lease, scope, supervisor. Prints nothing."""

from __future__ import annotations

import os

from slicer import backend as backends
from slicer import faults
from slicer.config import profiles
from slicer.errors import CannotExecute, CommandNotFound, SlicerError, UsageError
from slicer.gpu.observer import GpuObserver
from slicer.job import scope
from slicer.job.job import Job
from slicer.job.outer_half import OuterHalf
from slicer.kernel import cgroup, proc
from slicer.kernel.signals import block_interrupts, unblock_interrupts
from slicer.ledger import clock, leasing, nesting
from slicer.ledger.held_lease import HeldLease
from slicer.ledger.leasing import CancelToken, Hooks, Needs, PreparedRequest, Requester
from slicer.ledger.ledger import Ledger
from slicer.model import LEASE_VARIABLE
from slicer.record import record, replace
from slicer.state import statedir
from slicer.text import command_text, quote

TYPE_CHECKING = False
_AT_ONCE_S = 2.0  # what --no-wait and --max-wait 0 grant to those who decide just now

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicer.backend import Backend
    from slicer.config.profiles import Config, Overrides
    from slicer.job.execution import Execution
    from slicer.job.job import Observer, Watcher
    from slicer.kernel.terminal import Settings
    from slicer.ledger.nesting import OuterJobs
    from slicer.ledger.waiting import Waiting
    from slicer.model import Busy, Host, Outcome, Profile, ScopeSpec
    from slicer.state.statedir import StateDir

_DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidia0")


@record
class Invocation:
    """What the user asked for on the command line of ``slicer run``."""

    command: tuple[str, ...]
    profile: str | None
    overrides: Overrides
    name: str
    expect_s: float | None
    wait: bool
    backend: str  # auto, systemd, plain
    exec: bool
    journal: bool
    outcome_path: str
    hold: bool = False  # only the lease: no scope and no limits
    hints: bool = True  # what a beginner may not know is said, once a boot


@record
class Plan:
    """Everything that is settled before the lease: what ``--dry-run`` shows."""

    ask: Invocation
    config: Config
    profile: Profile
    host: Host
    program: str
    held: OuterJobs  # by the jobs around us
    need_gpus: int
    need_cpu_slots: int
    nested: bool  # everything is held already: runs inside the outer scope
    skip_gpu_lock: bool
    environ: Mapping[str, str]


def plan(ask: Invocation, environ: Mapping[str, str], book: Ledger | None) -> Plan:
    """Resolve the profile and find out what is missing. Raises SlicerError for all that cannot be right."""
    host = profiles.host()
    config = profiles.load(environ, host)
    profile = config.profile(ask.profile, ask.overrides)
    if ask.hold:
        profile = profiles.without_limits(profile, ask.overrides)
    program = find_program(ask.command, {**environ, **profile.env})
    held = held_around(environ, book, in_scopes=ask.backend != "plain" and has_scopes())
    skip = nesting.skips_gpu_lock(environ)
    gpus, slots = nesting.missing(profile.gpus, profile.vram_mib, profile.cpu_slots, held, skip)
    nested = bool(held.leases) and not gpus and not slots
    if nested and ask.exec:
        raise UsageError("--exec makes no sense inside another job, whose scope stays", where="--exec")
    return Plan(ask, config, profile, host, program, held, gpus, slots, nested, skip, environ)


def open_ledger(environ: Mapping[str, str], observer: Observer) -> Ledger:
    """This user's ledger. Raises StateError."""
    directory = statedir.locate(environ, os.geteuid())
    for note in directory.notes:
        observer.warning(note)
    return Ledger(directory, observer.warning)


def has_scopes() -> bool:
    """Whether jobs can have scopes here, and so be found by their cgroup."""
    return os.path.isdir(backends.BOOTED)


def held_around(environ: Mapping[str, str], book: Ledger | None, *, in_scopes: bool) -> OuterJobs:
    """What the jobs around this process hold. ``in_scopes``: whether a job can be found by its cgroup."""
    own = cgroup.of("self")
    if book is None or (in_scopes and not nesting.may_be_nested(environ, own)):
        return nesting.outer_jobs(environ, own, frozenset(), ())
    ancestors = frozenset() if in_scopes else proc.ancestors(os.getpid())
    return nesting.outer_jobs(environ, own, ancestors, book.snapshot().leases)


def run(ask: Invocation, environ: Mapping[str, str], observer: Watcher) -> Outcome:
    """Run one job to its end. Raises BusyError, InfeasibleError and other SlicerErrors; then nothing ran.

    Signals are for the job: those that end a program act only while this waits for the lease. When it
    returns they are blocked, so that a late one does not change how slicer ends.
    """
    environ = dict(environ)  # connecting to the user's bus may add to our own, which is not the job's
    job_id = os.urandom(6).hex()
    mask = block_interrupts()
    try:
        return _run(job_id, ask, environ, observer, mask)
    except SlicerError as failure:
        _journal_error(job_id, ask, failure)
        unblock_interrupts()
        raise
    except BaseException:
        unblock_interrupts()
        raise


def _journal_error(job_id: str, ask: Invocation, failure: SlicerError) -> None:
    from slicer.outcome import journal

    journal.event(
        "error",
        job=job_id,
        name=scope.label(ask.name, ask.command),
        unit=scope.unit_name(job_id),
        manager="system" if os.geteuid() == 0 else "user",
        message=str(failure),
        fields={"error": failure.kind, "exit_code": failure.exit_code},
    )


def _run(
    job_id: str, ask: Invocation, environ: Mapping[str, str], observer: Watcher, mask: frozenset[int]
) -> Outcome:
    book = open_ledger(environ, observer)
    book.mask = mask
    book.patience_s = None if ask.wait else _AT_ONCE_S
    settled = plan(ask, environ, book)
    for warning in settled.config.warnings:
        observer.warning(warning)
    if settled.need_gpus:
        from slicer.job.outside import what_is_lost

        lost = what_is_lost(ask.command)
        if lost:
            observer.warning(lost)
    backend = choose_backend(settled)
    if ask.exec and backend.name == "plain":
        raise UsageError("--exec needs systemd: without a scope nothing would hold the lease", where="--exec")
    # Whatever does not need the lease happens before it: a waiting job starts with one D-Bus call.
    backend.prepare()
    if backend.notice:
        observer.notice(backend.notice)
    spec = spec_of(job_id, settled, backend)
    view = GpuObserver(book.directory, settled.config.policy)
    wanted = leasing.prepare(who(job_id, settled, backend, spec), needs_of(settled), view)
    wanted.view.warn = observer.warning
    for note in wanted.view.notes:
        observer.notice(note)
    _say_no_gpu(settled, book.directory, observer)
    job = job_of(job_id, settled, spec)
    runner: OuterHalf | Execution = OuterHalf(job, backend, book, observer, mask)
    if ask.exec:
        from slicer.job.execution import Execution

        runner = Execution(job, backend, mask)
    try:
        book.patience_s = patience(wanted.needs)
        held, waited_s = _acquire(settled, wanted, spec, book, runner, observer)
        book.patience_s = None  # what follows has to be done, whoever is in the way
    except BaseException:
        runner.abandon()
        raise
    held.postponed_slow.append(wanted.view.close)
    book.mask = None  # from here on signals are the job's, also while the ledger's lock is waited for
    faults.point("launch-acquired")
    settings = _terminal_settings()
    outcome = runner.run(held, waited_s)
    if settings is not None and outcome.reason != "exited":
        settings.restore()
    return outcome


def _terminal_settings() -> Settings | None:
    """Those of the terminal at which the command will run; None where it runs at none."""
    if not (os.isatty(0) and os.isatty(1)):  # in a pipeline the terminal may be somebody else's: less
        return None
    from slicer.kernel import terminal

    return terminal.remembered()


def spec_of(job_id: str, settled: Plan, backend: Backend) -> ScopeSpec:
    """The scope for this plan."""
    ask = settled.ask
    spec = scope.spec(settled.profile, backend.manager, job_id, ask.name, ask.command)
    if settled.nested:  # its events belong to the scope in which it really runs
        return replace(spec, unit=settled.held.leases[-1].unit)
    return replace(spec, properties=()) if ask.hold else spec


def who(job_id: str, settled: Plan, backend: Backend, spec: ScopeSpec) -> Requester:
    """Who asks the ledger, for this plan."""
    unit = "" if backend.name == "plain" else spec.unit
    command = command_text(settled.ask.command)
    around = settled.held.leases
    return Requester(job_id, settled.ask.name, command, backend.name, backend.manager, unit, around)


def needs_of(settled: Plan) -> Needs:
    """What the plan still lacks, as the ledger is asked for it."""
    profile, ask = settled.profile, settled.ask
    return Needs(
        gpus=settled.need_gpus,
        gpu_words=profile.gpu_choice,
        vram_mib=profile.vram_mib,
        margin_mib=profile.margin_mib,
        cpu_slots=settled.need_cpu_slots,
        cpu_limit=settled.config.slots_cpu,
        priority=profile.priority,
        expect_s=ask.expect_s,
        wait=ask.wait,
        max_wait_s=profile.max_wait_s,
        then=profile.then,
        plain_lock=settled.config.compat_gpu_lock,
    )


def job_of(job_id: str, settled: Plan, spec: ScopeSpec) -> Job:
    """The job for this plan: all but its lease."""
    from slicer.outcome.history import default_path

    ask = settled.ask
    return Job(
        id=job_id,
        name=ask.name,
        command=ask.command,
        program=settled.program,
        env=lambda gpus: environment(settled, gpus, job_id),
        profile=settled.profile,
        spec=spec,
        outcome_path=os.path.abspath(ask.outcome_path) if ask.outcome_path else "",
        history_path=default_path(settled.environ),
        with_journal=ask.journal,
        idle_threshold_mib=settled.config.policy.idle_threshold_mib,
    )


def choose_backend(settled: Plan) -> Backend:
    """The backend for this plan. Raises BackendError."""
    if settled.nested:
        from slicer.backend.nested import NestedBackend

        return NestedBackend("system" if os.geteuid() == 0 else "user", settled.held.leases[-1])
    if settled.ask.hold:
        from slicer.backend.plain import PlainBackend

        backend = PlainBackend(os.geteuid())
        backend.notice = ""  # there are no limits that could be less than what was asked for
        return backend
    return backends.choose(settled.ask.backend, os.geteuid())


def _acquire(
    settled: Plan, wanted: PreparedRequest, spec: ScopeSpec, book: Ledger, runner: OuterHalf | Execution,
    observer: Watcher,
) -> tuple[HeldLease, float]:  # fmt: skip
    """The lease and how long it took to get it, in seconds. Raises BusyError."""
    if settled.nested:
        return HeldLease(book, leasing.lease_of_outer_jobs(wanted.draft, settled.held)), 0.0
    began = clock.now_s()
    nothing = wanted.needs.is_nothing
    if not nothing and not settled.environ.get("SLICER_STATE_DIR"):
        _say_whose(book.directory, observer)
    # The time limit counts from the scope's start; and the keeper must inherit the plain lock.
    has_to_wait = settled.profile.timeout_s is not None or (wanted.needs.plain_lock and wanted.needs.gpus)

    def waits(busy: Busy) -> None:
        observer.waiting(busy)
        journal_waiting(wanted.ticket.job, scope.label(settled.ask.name, settled.ask.command), spec, busy)
        runner.rest()

    def comes_first(waiting: Waiting) -> int:
        """Have the scope started with nothing but the keeper in it: then a pipe's word starts the command."""
        if has_to_wait:
            return -1
        waiting.tell_lease(runner.prepare(waiting.descriptors, waiting.private))
        return runner.watch()

    held = leasing.obtain(wanted, book, Hooks(waits, comes_first, CancelToken(), observer.still_waiting))
    waited_s = clock.now_s() - began
    if not nothing:
        observer.acquired(held.lease, waited_s)
    return held, waited_s


def patience(needs: Needs) -> float | None:
    """How long to wait for somebody who is deciding, in seconds: it is no waiting for what was asked for."""
    if not needs.wait:
        return _AT_ONCE_S
    return None if needs.max_wait_s is None else max(_AT_ONCE_S, needs.max_wait_s)


def _say_whose(directory: StateDir, observer: Observer) -> None:
    """Once a boot: that leases exclude only this user's jobs."""
    if statedir.first_time(directory, "private-noticed"):
        whose = "root's" if os.geteuid() == 0 else "your"
        observer.notice(f"leases exclude only {whose} own jobs, not those of other users (said once a boot)")


def _say_no_gpu(settled: Plan, directory: StateDir, observer: Observer) -> None:
    """Once a boot: that this job sees no GPU, where there are some and nobody said that it needs none."""
    ask = settled.ask
    is_chosen = ask.profile is not None or ask.overrides.gpus is not None
    if is_chosen or settled.nested or not ask.hints or not _has_gpus(settled.environ):
        return
    sees_none = environment(settled, (), "").get("CUDA_VISIBLE_DEVICES") == ""
    if sees_none and statedir.first_time(directory, "no-gpu-noticed"):
        observer.notice("no GPU for this job; --gpus 1 takes one (said once a boot)")


def _has_gpus(environ: Mapping[str, str]) -> bool:
    """Whether this machine has GPUs, without the driver's library, which takes its time to load."""
    return bool(environ.get("SLICER_SIM")) or any(map(os.path.exists, _DRIVER_FILES))


def journal_waiting(job_id: str, name: str, spec: ScopeSpec, busy: Busy) -> None:
    """Tell the journal that a job waits, and for whom."""
    from slicer.outcome import journal

    holders = ", ".join(lease.unit or lease.job for lease in busy.holders)
    journal.event(
        "waiting", job=job_id, name=name, unit=spec.unit, manager=spec.manager,
        fields={"holder": holders, "ahead": busy.ahead},
    )  # fmt: skip


def environment(settled: Plan, gpus: tuple[str, ...], job_id: str) -> dict[str, str]:
    """The command's whole environment."""
    profile = settled.profile
    jobs = [lease.job for lease in settled.held.leases]
    gpu: dict[str, str] = {}  # nested: what the outer job sees, it sees
    if not settled.nested:
        jobs.append(job_id)
        around = settled.held.gpus_for(profile.vram_mib)
        visible = (*around, *gpus) if gpus or profile.gpus else ()
        skip = settled.skip_gpu_lock or settled.held.foreign_gpu
        if visible or not settled.ask.hold:
            gpu = scope.gpu_environment(profile, visible, skip)
    marker = ",".join(jobs)
    if settled.ask.hold:  # what the profile says of limits is not for it
        return {**settled.environ, **gpu, LEASE_VARIABLE: marker}
    return scope.environment(settled.environ, profile, profiles.thread_env(profile.threads), gpu, marker)


def find_program(command: tuple[str, ...], environ: Mapping[str, str]) -> str:
    """The path to execute, found before anything is acquired. Raises CommandNotFound or CannotExecute."""
    name = command[0]
    if "/" in name:
        candidates = [name]
    else:
        path = environ.get("PATH", os.defpath)
        candidates = [f"{directory or '.'}/{name}" for directory in path.split(":")] if name else []
    denied = ""
    for candidate in candidates:
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
        if not denied and os.path.lexists(candidate):
            denied = candidate
    if denied:
        reason = "is a directory" if os.path.isdir(denied) else "is not executable"
        raise CannotExecute(f"cannot execute: {reason}", where=denied, hint=f"chmod +x {quote(denied)}?")
    hint = "no such file" if "/" in name else "it is in no directory of PATH"
    raise CommandNotFound("command not found", where=quote(name), hint=hint)
