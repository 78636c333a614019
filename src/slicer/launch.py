"""From what the user asked for to a running job: profile, lease, scope, supervisor. Prints nothing."""

from __future__ import annotations

import os

from slicer import backend as backends
from slicer import cgroup, faults, ledger, proc, profiles, reentrancy, scope, statedir, supervisor
from slicer.errors import CannotExecute, CommandNotFound, SlicerError, UsageError
from slicer.job import Job
from slicer.ledger import HeldLease, Ledger
from slicer.model import Lease, Request
from slicer.placement import Inventory
from slicer.record import record, replace
from slicer.signals import hold_back, let_go

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    from slicer.backend import Backend
    from slicer.model import Gpu, Host, Outcome, Profile, ScopeSpec
    from slicer.placement import Busy
    from slicer.profiles import Config, Overrides
    from slicer.reentrancy import Held
    from slicer.statedir import StateDir

    class Observer(Protocol):
        """Hears what happens to a job while it happens, for people."""

        def notice(self, text: str) -> None:
            """Something worth knowing."""

        def warning(self, text: str) -> None:
            """Something that went wrong, but stops nothing."""

        def waiting(self, busy: Busy) -> None:
            """The job has to wait."""

        def acquired(self, lease: Lease, waited_s: float) -> None:
            """The job has its lease."""


@record
class Ask:
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


@record
class Plan:
    """Everything that is settled before the lease: what ``--dry-run`` shows."""

    ask: Ask
    config: Config
    profile: Profile
    host: Host
    program: str
    held: Held  # by the jobs around us
    need_gpus: int
    need_cpu_slots: int
    nested: bool  # everything is held already: runs inside the outer scope
    skip_gpu_lock: bool
    environ: Mapping[str, str]


def plan(ask: Ask, environ: Mapping[str, str], book: Ledger | None) -> Plan:
    """Resolve the profile and find out what is missing. Raises SlicerError for all that cannot be right."""
    host = profiles.host()
    config = profiles.load(environ, host)
    profile = config.profile(ask.profile, ask.overrides)
    program = find_program(ask.command, {**environ, **profile.env})
    held = _held(ask, environ, book)
    skip = reentrancy.skips_gpu_lock(environ)
    gpus, slots = reentrancy.missing(profile, held, skip)
    nested = bool(held.leases) and not gpus and not slots
    if nested and ask.exec:
        raise UsageError("--exec makes no sense inside another job, whose scope stays", where="--exec")
    return Plan(ask, config, profile, host, program, held, gpus, slots, nested, skip, environ)


def open_ledger(environ: Mapping[str, str], observer: Observer) -> Ledger:
    """This user's ledger. Raises StateError."""
    return Ledger(statedir.locate(environ, os.geteuid()), observer.warning)


def _held(ask: Ask, environ: Mapping[str, str], book: Ledger | None) -> Held:
    own = cgroup.of("self")
    in_scopes = ask.backend != "plain" and os.path.isdir(backends.BOOTED)
    if book is None or (in_scopes and not reentrancy.may_be_nested(environ, own)):
        return reentrancy.around(environ, own, frozenset(), ())
    ancestors = frozenset() if in_scopes else proc.ancestors(os.getpid())
    return reentrancy.around(environ, own, ancestors, book.snapshot().leases)


def run(ask: Ask, environ: Mapping[str, str], observer: Observer) -> Outcome:
    """Run one job to its end. Raises BusyError, InfeasibleError and other SlicerErrors; then nothing ran.

    Signals are for the job: those that end a program act only while this waits for the lease. When it
    returns they are blocked, so that a late one does not change how slicer ends.
    """
    environ = dict(environ)  # connecting to the user's bus may add to our own, which is not the job's
    job_id = os.urandom(6).hex()
    mask = hold_back()
    try:
        return _run(job_id, ask, environ, observer, mask)
    except SlicerError as failure:
        _journal_error(job_id, ask, failure)
        let_go()
        raise
    except BaseException:
        let_go()
        raise


def _journal_error(job_id: str, ask: Ask, failure: SlicerError) -> None:
    from slicer import journal

    journal.event(
        "error",
        job=job_id,
        name=ask.name or ask.command[0],
        unit=scope.unit_name(job_id),
        manager="system" if os.geteuid() == 0 else "user",
        message=str(failure),
        fields={"error": failure.kind, "exit_code": failure.exit_code},
    )


def _run(
    job_id: str, ask: Ask, environ: Mapping[str, str], observer: Observer, mask: frozenset[int]
) -> Outcome:
    book = open_ledger(environ, observer)
    book.mask = mask
    settled = plan(ask, environ, book)
    for warning in settled.config.warnings:
        observer.warning(warning)
    backend = choose_backend(settled)
    if ask.exec and backend.name == "plain":
        raise UsageError("--exec needs systemd: without a scope nothing would hold the lease", where="--exec")
    # Whatever does not need the lease happens before it: a waiting job starts with one D-Bus call.
    backend.prepare()
    if backend.notice:
        observer.notice(backend.notice)
    want = _want(job_id, settled, backend)
    held, waited_s = _acquire(settled, want, book, backend, observer)
    book.mask = None  # from here on signals are the job's, also while the ledger's lock is waited for
    faults.point("launch-acquired")
    try:
        job = _job(settled, want, held, waited_s)
    except BaseException:
        held.release()
        raise
    if ask.exec:
        supervisor.execute(job, backend, held, mask)
    return supervisor.run(job, backend, held, observer, mask)


@record
class _Want:
    """What is asked of the ledger, and for which scope. ``draft`` is the lease without its GPUs."""

    request: Request
    draft: Lease
    inventory: Inventory
    spec: ScopeSpec


def _want(job_id: str, settled: Plan, backend: Backend) -> _Want:
    ask = settled.ask
    gpus = _gpus() if settled.need_gpus else ()
    spec = scope.spec(settled.profile, backend.manager, job_id, ask.name, ask.command)
    if settled.nested:  # its events belong to the scope in which it really runs
        spec = replace(spec, unit=settled.held.leases[-1].unit)
    request = Request(job_id, ask.name, ask.command, settled.need_gpus, settled.need_cpu_slots, ask.expect_s)
    inventory = Inventory(tuple(gpu.uuid for gpu in gpus), settled.config.slots_cpu)
    return _Want(request, _draft(settled, backend, spec, request), inventory, spec)


def _job(settled: Plan, want: _Want, held: HeldLease, waited_s: float) -> Job:
    from slicer.history import default_path

    ask = settled.ask
    return Job(
        id=want.request.job,
        name=ask.name,
        command=ask.command,
        program=settled.program,
        env=environment(settled, held.lease.gpus, want.request.job),
        profile=settled.profile,
        spec=want.spec,
        waited_s=waited_s,
        outcome_path=os.path.abspath(ask.outcome_path) if ask.outcome_path else "",
        history_path=default_path(settled.environ),
        with_journal=ask.journal,
    )


def choose_backend(settled: Plan) -> Backend:
    """The backend for this plan. Raises BackendError."""
    if settled.nested:
        from slicer.backend.inner import InnerBackend

        return InnerBackend("system" if os.geteuid() == 0 else "user", settled.held.leases[-1])
    return backends.choose(settled.ask.backend, os.geteuid())


def _draft(settled: Plan, backend: Backend, spec: ScopeSpec, request: Request) -> Lease:
    pid = os.getpid()
    return Lease(
        job=request.job,
        name=request.name,
        command=scope.describe(request.command),
        pid=pid,
        pid_start=proc.start_time(pid) or 0,
        keeper=0,
        boot_id=proc.boot_id(),
        uid=os.geteuid(),
        backend=backend.name,
        manager=backend.manager,
        unit="" if backend.name == "plain" else spec.unit,
        cgroup="",
        gpus=settled.held.gpus if settled.nested else (),
        cpu_slots=settled.held.cpu_slots if settled.nested else 0,
        since_s=ledger.now_s(),
        expect_s=request.expect_s,
    )


def _acquire(
    settled: Plan, want: _Want, book: Ledger, backend: Backend, observer: Observer
) -> tuple[HeldLease, float]:
    """The lease and how long it took to get it, in seconds. Raises BusyError with --no-wait."""
    if settled.nested:
        return HeldLease(book, want.draft), 0.0
    began = ledger.now_s()
    if (settled.need_gpus or settled.need_cpu_slots) and not settled.environ.get("SLICER_STATE_DIR"):
        _say_whose(book.directory, observer)
    if not settled.ask.wait:
        held = ledger.raise_if_busy(book.acquire(want.request, want.draft, want.inventory))
    else:
        found = book.acquire_or_queue(want.request, want.draft, want.inventory)
        if isinstance(found, HeldLease):
            held = found
        else:
            observer.waiting(found.busy)
            journal_waiting(want.request, want.spec, found.busy)
            backend.close()  # a bus has room for some 256 connections, and a queue may be longer
            with found:
                held = found.wait()
    waited_s = ledger.now_s() - began
    if held.lease.gpus or held.lease.cpu_slots:
        observer.acquired(held.lease, waited_s)
    return held, waited_s


def _say_whose(directory: StateDir, observer: Observer) -> None:
    """Once a boot: that leases here exclude only this user's jobs, where that is so."""
    if directory.shared or not statedir.first_time(directory, "private-noticed"):
        return
    observer.notice(
        "your leases exclude only your own jobs: to share with others, "
        f"sudo slicer install-units and join the group {statedir.GROUP} (said once a boot)"
    )


def journal_waiting(request: Request, spec: ScopeSpec, busy: Busy) -> None:
    """Tell the journal that a job waits, and for whom."""
    from slicer import journal

    holders = ", ".join(lease.unit or lease.job for lease in busy.holders)
    name = request.name or request.command[0]
    journal.event(
        "waiting", job=request.job, name=name, unit=spec.unit, manager=spec.manager,
        fields={"holder": holders, "ahead": busy.ahead},
    )  # fmt: skip


def _gpus() -> tuple[Gpu, ...]:
    from slicer.gpu import open_gpus

    gpus = open_gpus()
    try:
        return gpus.list()
    finally:
        gpus.close()


def environment(settled: Plan, gpus: tuple[str, ...], job_id: str) -> dict[str, str]:
    """The command's whole environment."""
    profile = settled.profile
    jobs = [lease.job for lease in settled.held.leases]
    gpu: dict[str, str] = {}  # nested: what the outer job sees, it sees
    if not settled.nested:
        jobs.append(job_id)
        visible = (*settled.held.gpus, *gpus) if gpus or profile.gpus else ()
        skip = settled.skip_gpu_lock or settled.held.foreign_gpu
        gpu = scope.gpu_environment(profile, visible, skip)
    return scope.environment(
        settled.environ, profile, profiles.thread_env(profile.threads), gpu, ",".join(jobs)
    )


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
        raise CannotExecute(
            f"cannot execute: {reason}", where=denied, hint=f"chmod +x {scope.quote(denied)}?"
        )
    hint = "no such file" if "/" in name else "it is in no directory of PATH"
    raise CommandNotFound("command not found", where=scope.quote(name), hint=hint)
