"""One ``slicer run``: the plan, the backend, the lease, the job to its end. Prints nothing."""

from __future__ import annotations

import os

from slicer import faults
from slicer.backend import Backend, broker_socket
from slicer.errors import (
    BackendError,
    BrokerError,
    BusyError,
    KeeperEnded,
    RefusedError,
    SlicerError,
)
from slicer.gpu import has_nvidia
from slicer.gpu.observer import GpuObserver
from slicer.job import granting, scope
from slicer.job.job import NOBODY, Follower, tell_wait
from slicer.job.plan import (
    Invocation,
    Plan,
    choose_backend,
    environment,
    idle_sharing,
    keeps_containers,
    may_be_fenced,
    plan_of,
)
from slicer.job.program import PODMAN_VARIABLE, runs_podman
from slicer.job.supervisor import Supervisor
from slicer.kernel import proc
from slicer.kernel.signals import block_interrupts, unblock_interrupts
from slicer.ledger import leasing
from slicer.ledger.held_lease import HeldLease
from slicer.ledger.leasing import CancelToken, Hooks, PreparedRequest
from slicer.ledger.ledger import Ledger
from slicer.model import Busy, Outcome, manager_of, unit_name
from slicer.record import replace
from slicer.state import statedir
from slicer.text import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from slicer.job.execution import Execution
    from slicer.job.job import Containers, Job, Listener, RunListener
    from slicer.kernel.terminal import Settings
    from slicer.state.statedir import StateDir


def open_ledger(environ: Mapping[str, str], listener: Listener, backend: str) -> Ledger:
    """This user's ledger, for ``--backend backend``. Raises StateError."""
    directory = statedir.locate(environ, os.geteuid())
    for note in directory.notes:
        listener.warning(note)
    ledger = Ledger(directory, listener.warning)
    ledger.tell = listener.notice
    ledger.broker_now = lambda: broker_socket(environ, backend)
    return ledger


def run(
    invocation: Invocation, environ: Mapping[str, str], listener: RunListener,
    follower: Follower = NOBODY, *, wait_first: Callable[[frozenset[int]], None] = lambda _: None,
) -> Outcome:  # fmt: skip
    """Run one job to its end. Raises BusyError, InfeasibleError and other SlicerErrors; then nothing ran.

    ``wait_first`` is called before anything is requested, with the signal mask to sleep with.
    Signals are for the job: those that end a program act only during the wait for the lease. They are blocked
    on return, so that a late one does not change slicer's exit.
    """
    environ = dict(environ)  # connecting to the user's bus may add variables that are not for the job
    job_id = invocation.job or os.urandom(6).hex()
    mask = block_interrupts()
    try:
        wait_first(mask)
        return _run(job_id, invocation, environ, listener, mask, follower)
    except BaseException as failure:
        if isinstance(failure, SlicerError):
            _journal_error(job_id, invocation, failure)
        unblock_interrupts()
        raise


def _run(
    job_id: str, invocation: Invocation, environ: Mapping[str, str], listener: RunListener,
    mask: frozenset[int], follower: Follower,
) -> Outcome:  # fmt: skip
    ledger = open_ledger(environ, listener, invocation.backend)
    ledger.mask = mask
    ledger.patience_s = None if invocation.wait else leasing.AT_ONCE_S
    try:
        plan = plan_of(invocation, environ, ledger)
    except BaseException:
        ledger.close()  # the error message may need its descriptors, if they are scarce
        raise
    _warn(plan, listener)
    return run_planned(job_id, plan, ledger, listener, mask, follower)


def run_planned(
    job_id: str, plan: Plan, ledger: Ledger, listener: RunListener, mask: frozenset[int], follower: Follower,
    ask: Callable[[PreparedRequest], PreparedRequest] = lambda wanted: wanted,
) -> Outcome:  # fmt: skip
    """As :func:`run`, for what is planned. ``ask`` may change the request."""
    try:
        return _run_planned(job_id, plan, ledger, listener, mask, follower, ask)
    except BrokerError as failure:
        if not plan.broker or not plan.missing.is_nothing or ledger.joined:
            raise
        listener.warning(f"{failure}; this job needs neither GPU nor slot, and runs without the broker")
    without = replace(plan, broker="")
    return _run_planned(job_id, without, ledger, listener, mask, follower, ask)


def _run_planned(
    job_id: str, plan: Plan, ledger: Ledger, listener: RunListener, mask: frozenset[int],
    follower: Follower, ask: Callable[[PreparedRequest], PreparedRequest],
) -> Outcome:  # fmt: skip
    """Run the planned job. Raises BrokerError only before the command starts."""
    ledger.mask = mask
    backend = choose_backend(plan)
    # All work that needs no lease comes before it, so a waiting job starts with one D-Bus call.
    backend.connect()
    if backend.notice:
        listener.notice(backend.notice)
    gpu_observer = GpuObserver(plan.config.policy)
    docker = containers_of(plan, backend, listener.warning)
    job, wanted = granting.prepare_job(job_id, plan, backend, gpu_observer, docker)
    wanted = ask(wanted)
    if wanted.needs.adopts:
        pid, gpus = wanted.needs.adopts[0], wanted.ticket.gpu_choice
        gpu_observer.adopting = replace(wanted.draft, pid=pid, gpus=gpus)
    for note in gpu_observer.notes:
        listener.notice(note)
    _say_no_gpu(plan, ledger.directory, listener)
    _say_no_fence(plan, backend, ledger.directory, listener)
    _say_containers_leave(plan, backend, ledger.directory, listener)
    runner: Supervisor | Execution
    if plan.invocation.exec:
        from slicer.job.execution import Execution

        runner = Execution(job, backend, listener, mask)
    else:
        runner = Supervisor(job, backend, ledger, listener, mask, follower)
    try:
        ledger.patience_s = leasing.patience_s(wanted.needs)
        held, waited_s = _acquire(plan, wanted, job, ledger, backend, runner, listener)
        ledger.patience_s = None  # from here on, wait for the ledger's lock however long it takes
    except BaseException:
        runner.abandon()
        raise
    held.postponed_slow.append(gpu_observer.close)
    ledger.mask = None  # from here on signals are the job's, even during a wait for the ledger's lock
    faults.point("launch-acquired")
    settings = _terminal_settings()
    try:
        follower.granted(job, held.lease, waited_s, lambda: runner.stand_by(held))
    except BaseException:
        runner.abandon()
        held.release()
        raise
    if job.notify is not None:
        from slicer.job.notifying import tell_wait as notify_of_wait

        notify_of_wait(job, held.lease, waited_s, listener.warning)
    outcome = runner.run(held, waited_s)
    if settings is not None and outcome.reason != "exited":
        settings.restore()
    return outcome


def _acquire(
    plan: Plan, wanted: PreparedRequest, job: Job, ledger: Ledger, backend: Backend,
    runner: Supervisor | Execution, listener: RunListener,
) -> tuple[HeldLease, float]:  # fmt: skip
    """The lease, and the seconds that the job waited for it. Raises BusyError."""
    if plan.nested and not plan.invocation.queue:  # a queue finds its jobs again by their leases
        return HeldLease(ledger, leasing.nested_lease(wanted.draft, plan.outer)), 0.0
    began_s = proc.now_s()
    nothing = wanted.needs.is_nothing
    is_ours = not plan.environ.get("SLICER_STATE_DIR") and not plan.invocation.queue
    if not nothing and not plan.broker and is_ours:
        _say_whose(ledger.directory, listener)
    # The time limit counts from the scope's start, the keeper must inherit the plain lock, and the driver
    # caps a scope on the GPUs of its lease.
    has_to_wait = (
        plan.profile.timeout_s is not None or (wanted.needs.plain_lock and wanted.needs.gpus)
        or job.spec.share_cap
    )  # fmt: skip

    def waits(busy: Busy) -> None:
        listener.waiting(busy)
        told = granting.told_of_ancestors(busy, os.getpid())
        if told:
            listener.warning(told)
        tell_wait(job, wanted, busy)
        backend.close()  # hundreds of jobs may wait, and a bus takes about 256 connections

    def reaches_front(
        descriptors: tuple[int, ...], private: tuple[int, ...]
    ) -> tuple[int, dict[str, Any]]:
        """Start the scope with only the keeper in it; then a message on a pipe starts the command.

        If that fails for now (D-Bus is being restarted), the scope is started once the job has its lease.
        """
        if has_to_wait:
            return -1, {}
        try:
            return runner.start_scope(descriptors, private)
        except (RefusedError, KeeperEnded):
            raise
        except (BackendError, BrokerError):
            backend.close()
            return -1, {}

    hooks = Hooks(waits, reaches_front, CancelToken(), listener.still_waiting)
    take = getattr(backend, "take_connection", None)  # the broker's backend uses it for the scope
    # The keeper shares what is loaded now, and systemd gets the CPUs later.
    held = granting.obtain(plan.broker, wanted, ledger, hooks, "scope", take, runner.import_ending)
    waited_s = proc.now_s() - began_s
    if not nothing:
        listener.acquired(held.lease, waited_s)
    return held, waited_s


def _terminal_settings() -> Settings | None:
    """The settings of the terminal at which the command will run; None without a terminal."""
    if not (os.isatty(0) and os.isatty(1)):  # in a pipeline, another program may use the terminal: less
        return None
    from slicer.kernel import terminal

    return terminal.remembered()


# -- messages on the way -----------------------------------------------------------------------------------


def _warn(plan: Plan, listener: Listener) -> None:
    for warning in plan.config.warnings:
        listener.warning(warning)
    if plan.profile.share != "off":
        _warn_of_sharing(plan, listener)
    if plan.missing.gpus:
        from slicer.job.outside import what_is_lost, what_is_replaced

        replaced = "" if plan.missing.gpu_choice else what_is_replaced(plan.environ)
        own = ("/docker", "/docker-compose") if plan.invocation.docker else "/docker"
        lost = "" if plan.program.endswith(own) else what_is_lost(plan.invocation.command)
        for warning in filter(None, (replaced, lost)):
            listener.warning(warning)


def _warn_of_sharing(plan: Plan, listener: Listener) -> None:
    if plan.sharing is not None:
        problem = plan.sharing.problem
        if problem and plan.sharing.limit_mib:
            what = "" if plan.sharing.wants == "cap" else ", and no turns are taken"
            listener.warning(f"only the driver enforces the cap{what}: {problem}")
        elif problem:
            listener.warning(f"no turns are taken: {problem}")
        return
    if plan.profile.sources.get("share", "").startswith("--"):
        listener.notice(f"--share has no further effect here: {idle_sharing(plan)}")


def _say_whose(directory: StateDir, listener: Listener) -> None:
    """Warn once per boot that another user can be granted the same, and that the ledger may be deleted."""
    if statedir.first_time(directory, "private-noticed"):
        whose = "root's" if os.geteuid() == 0 else "your"
        listener.notice(
            f"without the broker slicer keeps only {whose} own jobs apart:"
            " another user can be given the same GPU or slot (shown once per boot)"
        )
    is_emptied = statedir.may_be_emptied(directory.path, os.geteuid())
    if is_emptied and statedir.first_time(directory, "emptied-noticed"):
        listener.notice(
            f"logind deletes leases in {statedir.SHM} at your last logout, even of running jobs, unless it"
            " has RemoveIPC=no: slicer doctor has the cure (shown once per boot)"
        )


def _say_no_gpu(plan: Plan, directory: StateDir, listener: Listener) -> None:
    """Say once per boot that this job sees no GPU, if there are some and nobody asked for a job without."""
    invocation = plan.invocation
    is_chosen = invocation.profile is not None or invocation.overrides.gpus is not None
    has_gpus = bool(plan.environ.get("SLICER_SIM")) or has_nvidia()  # without the driver's slow library
    if is_chosen or plan.nested or not invocation.hints or not has_gpus:
        return
    sees_none = environment(plan, (), "").get("CUDA_VISIBLE_DEVICES") == ""
    if sees_none and statedir.first_time(directory, "no-gpu-noticed"):
        listener.notice("no GPU for this job; --gpus 1 requests one (shown once per boot)")


def _say_no_fence(plan: Plan, backend: Backend, directory: StateDir, listener: Listener) -> None:
    """Warn once per boot that the job could open GPUs that it has no lease on."""
    if not may_be_fenced(plan):
        return
    from slicer.job import fencing

    why = "" if plan.invocation.hold else fencing.why_not(plan, backend)
    if why and fencing.is_wanted(plan) and statedir.first_time(directory, "no-fence-noticed"):
        listener.notice(
            f"no device fence: {why}, so a job can open GPUs that it has no lease on (shown once per boot)"
        )


def containers_of(plan: Plan, backend: Backend, say: Callable[[str], None]) -> Containers | None:
    """What the command starts through dockerd, if that is to be in the job. Raises RefusedError."""
    if not plan.program.endswith("/docker") and not plan.invocation.docker:
        return None
    from slicer.job import docker_client

    return docker_client.found(plan, backend, say)


def _say_containers_leave(plan: Plan, backend: Backend, directory: StateDir, listener: Listener) -> None:
    """Say why podman's containers leave the job: each time if that runs podman, else once per boot."""
    is_podman = plan.program.endswith(("/podman", "/podman-compose"))
    is_set = PODMAN_VARIABLE in plan.environ or PODMAN_VARIABLE in plan.profile.env
    keeps, why = keeps_containers(plan, backend), "it has no scope" if is_podman else ""
    if not (is_podman or is_set) or keeps is False or plan.nested:
        return
    if keeps:
        from slicer.job import podman

        variables = {**plan.environ, **plan.profile.env}
        program = plan.program if plan.program.endswith("/podman") else ""
        why = podman.why_not(variables, program) if runs_podman(plan.program, variables) else ""
    if why and (is_podman or statedir.first_time(directory, "podman-noticed")):
        once = "" if is_podman else " (shown once per boot)"
        listener.notice(f"podman's containers leave this job, its GPUs and its limits: {why}{once}")


def _journal_error(job_id: str, invocation: Invocation, failure: SlicerError) -> None:
    if invocation.route and isinstance(failure, BusyError):
        return  # blocked, or sent to another destination: the route reports that
    from slicer.outcome import journal

    name = scope.label(invocation.name, invocation.command)
    journal.event(
        "error", job=job_id, name=name,
        unit=unit_name(job_id), manager=manager_of(os.geteuid()), message=f"{visible(name)}: {failure}",
        fields={
            "profile": invocation.profile, "route": invocation.route or None, "error": failure.kind,
            "exit_code": failure.exit_code,
        },
    )  # fmt: skip
