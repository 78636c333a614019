"""From the user's request to a plan: everything about a job that can be decided before its lease."""

from __future__ import annotations

import os

from slicer import backend as backends
from slicer.config import profiles
from slicer.errors import BackendError, UsageError
from slicer.gpu import has_nvidia
from slicer.job import scope
from slicer.job.job import OWN_OUTPUT, Job
from slicer.job.program import find_program
from slicer.kernel import cgroup, proc
from slicer.ledger import nesting
from slicer.ledger.leasing import Needs
from slicer.model import (
    KEEPER,
    LEASE_VARIABLE,
    PREEMPTIBLE,
    SLICE_VARIABLE,
    Demand,
    Host,
    Notify,
    Profile,
    ScopeSpec,
    is_in_job,
    manager_of,
)
from slicer.record import fields_for, record, replace
from slicer.state.allocation import slurm_job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from slicer.backend import Backend
    from slicer.config.profiles import Config, Overrides
    from slicer.job.again import Reruns
    from slicer.job.job import Attempt
    from slicer.ledger.ledger import Ledger
    from slicer.ledger.nesting import OuterJobs
    from slicer.share.environment import ShareOrder


@record
class Invocation:
    """A request of the user: the command line of ``slicer run``."""

    command: tuple[str, ...]
    profile: str | None
    overrides: Overrides
    name: str
    expect_s: float | None = None
    wait: bool = True
    backend: str = "auto"  # auto, systemd, plain
    exec: bool = False
    journal: bool = False
    outcome_path: str = ""
    hold: bool = False  # take only the lease, without scope and limits
    hints: bool = True  # show hints for beginners, once per boot
    queue: str = ""  # the path of the jobs file with its line
    route: str = ""  # the name of the route that started it
    program: str = ""  # to execute in place of the command's first word, which stays argv[0]
    output: tuple[int, int] = OWN_OUTPUT  # descriptors: the command's stdout and stderr
    job: str = ""  # the id to use; "": any
    log: str = ""  # the path of the output file; "" if the output is the terminal, or unchanged
    is_bounded: bool = False  # the log's beginning is freed as configured in [logs]
    container: bool = True  # containers stay in the job
    docker: bool = False  # it has a slice of its own, for those of dockerd that its command starts
    reruns: Reruns | None = None  # whether its process runs it again; None: never
    gave_way: int = 0  # how often it has given way
    directory: str = ""  # to run in; "": slicer's
    copy: str = ""  # of a work tree, in which that is; "": in none
    adopts: tuple[int, ...] = ()  # as in ScopeSpec: the process whose command this is
    # Of a queue's line:
    attempt: Attempt | None = None
    look_s: float = 1.0  # as in Job


@record
class Plan:
    """Everything that is decided before a job's lease. ``--dry-run`` shows the same."""

    invocation: Invocation
    config: Config
    profile: Profile
    host: Host
    program: str  # path to execute
    outer: OuterJobs  # with their leases
    missing: Demand  # beyond the holdings of the outer jobs
    nested: bool  # the outer jobs hold everything that this job needs, and it runs in their scope
    skip_gpu_lock: bool
    environ: Mapping[str, str]
    sharing: ShareOrder | None = None  # how its GPUs are shared; None: the driver's default
    broker: str = ""  # the socket of the broker that decides; "": the user's own ledger does

    def visible_gpus(self, gpus: tuple[str, ...]) -> tuple[str, ...]:
        """The GPUs that the command will see if its lease has these; they include those of outer jobs."""
        if not gpus and not self.profile.gpus:
            return ()
        return (*self.outer.gpus_for(self.profile.vram_mib), *gpus)


def plan_of(invocation: Invocation, environ: Mapping[str, str], ledger: Ledger | None) -> Plan:
    """Resolve the profile and determine what is missing. Raises SlicerError for an invalid request."""
    host = profiles.host()
    config = profiles.load(environ, host)
    profile = config.profile(invocation.profile, invocation.overrides)
    if invocation.hold:
        profile = profiles.without_limits(profile, invocation.overrides)
    name = "/bin/sh" if invocation.adopts else invocation.program or invocation.command[0]
    name = os.path.join(invocation.directory, name) if "/" in name else name
    program = find_program(name, {**environ, **profile.env})
    outer = outer_jobs(environ, ledger, in_scopes=invocation.backend != "plain" and backends.has_systemd())
    skip = nesting.skips_gpu_lock(environ)
    missing = nesting.missing(profile, outer, skip)
    broker = backends.broker_socket(environ, invocation.backend)
    has_joined = ledger is not None and bool(ledger.joined)  # the broker cannot see that we keep a lease
    nested = bool(outer.leases) and missing.is_nothing and not (broker and has_joined)
    if nested and invocation.exec:
        raise UsageError("--exec makes no sense inside another job, whose scope stays", where="--exec")
    mode = profile.properties.get("KillMode")
    if (invocation.exec or invocation.adopts) and mode is not None and mode.value == "mixed":
        raise UsageError("KillMode=mixed needs slicer to be the command's parent", where="KillMode")
    plan = Plan(
        invocation, config, profile, host, program, outer, missing, nested, skip, environ,
        broker="" if nested else broker,
    )  # fmt: skip
    if invocation.exec and profile.preemptible:
        raise UsageError("a preemptible job needs a process of slicer's that ends it", where="--exec")
    check_limits(plan)
    return with_sharing(plan, ledger.directory.path if ledger is not None else "")


def check_limits(plan: Plan) -> None:
    """Raise RefusedError for a limit that the broker would refuse, before the job waits for its turn."""
    if not plan.broker or not os.geteuid():
        return
    from slicer.broker.rules.allowed import are_plain

    properties = scope.limits(plan.profile)
    if not are_plain(properties):
        from slicer.broker.rules import limits

        limits.check(properties)


def with_sharing(plan: Plan, directory: str = "") -> Plan:
    """Add the order for sharing GPUs to the plan, if its profile requests that.

    ``directory``: the path of the state directory; "": there is none yet. Raises UsageError or ConfigError
    for a cap that cannot be applied, and for an option that makes no sense here.
    """
    profile = plan.profile
    if profile.share == "off" or plan.invocation.adopts:  # nothing can be preloaded any more
        return plan
    from slicer.share import planning

    if idle_sharing(plan):
        is_asked = profile.sources.get("share", "").startswith("--") and not plan.invocation.queue
        if plan.environ.get("SLICER_SIM") and is_asked:
            message = "simulated GPUs run nothing that could share them"
            raise planning.refusal(profile, message, "unset SLICER_SIM")
        return plan
    if plan.nested:
        return replace(plan, sharing=planning.order_inside(profile))
    from slicer.state import statedir

    path = directory or statedir.where(plan.environ, os.geteuid())
    environ, held = {**plan.environ, **profile.env}, plan.outer.gpus_for(profile.vram_mib)
    order = planning.order_of(profile, environ, plan.program, path, held, lambda: why_not_driver(plan))
    return replace(plan, sharing=order)


def why_not_driver(plan: Plan) -> str:
    """Why the driver cannot enforce a cap here; "": it may."""
    from slicer.gpu import driver_cap

    has_scope = plan.invocation.backend != "plain" and backends.has_systemd()
    return driver_cap.why_not_here(has_scope=has_scope, uid=0 if plan.broker else None)  # the broker is root


def idle_sharing(plan: Plan) -> str:
    """Why the profile's sharing has no effect here; "": it has an effect."""
    from slicer.share import environment

    if plan.profile.share == "off":
        return ""
    if environment.wanted(plan.profile) == "off":
        return "whole GPUs are not shared"
    if plan.environ.get("SLICER_SIM"):
        return "the GPUs are simulated"
    around = tuple(lease.job for lease in plan.outer.leases)
    if not plan.missing.gpus and environment.is_within(plan.environ, around):
        return "it takes part in the outer job's sharing"
    if not plan.missing.gpus and not plan.outer.gpus:
        return "it needs no GPU lease"
    return ""


def outer_jobs(
    environ: Mapping[str, str], ledger: Ledger | None, *, in_scopes: bool, known: Collection[str] = ()
) -> OuterJobs:
    """The jobs inside which this process runs. From now on the ledger holds their leases, too.

    ``in_scopes``: whether a job can be found by its cgroup. ``known``: as in :func:`nesting.outer_jobs`.
    """
    own = cgroup.of("self")
    above = frozenset() if in_scopes else proc.ancestors(os.getpid())
    keepers = frozenset(pid for pid in above if proc.comm(pid) == KEEPER)
    if ledger is None or not (keepers or known or nesting.may_be_nested(environ, own)):
        return nesting.outer_jobs(environ, own, frozenset(), ())
    with ledger.locked():
        found = nesting.outer_jobs(environ, own, keepers, ledger.leases(), known)
        ledger.join(
            lease for lease in found.leases if (lease.gpus or lease.slots) and not is_in_job(own, lease)
        )
    return found


def choose_backend(plan: Plan) -> Backend:
    """The backend for the plan's job. Raises BackendError, UsageError."""
    if plan.nested:
        from slicer.backend.nested import NestedBackend

        return NestedBackend(plan.outer.leases[-1])
    if plan.broker:
        from slicer.broker.client.backend import BrokerBackend

        return BrokerBackend(plan.broker)
    invocation = plan.invocation
    backend = backend_of("plain" if invocation.hold else invocation.backend)
    if invocation.hold:
        backend.notice = ""  # there are no limits that the notice could be about
    if invocation.exec and backend.name == "plain":
        raise UsageError("--exec needs systemd: without a scope nothing would hold the lease", where="--exec")
    return backend


def backend_of(wanted: str) -> Backend:
    """The backend for ``--backend wanted``: "auto" uses systemd if it runs. Raises BackendError."""
    uid, has_systemd = os.geteuid(), backends.has_systemd()
    if wanted == "systemd" and not has_systemd:
        hint = "use --backend auto or plain"
        raise BackendError("systemd does not run here", where="--backend systemd", hint=hint)
    if wanted == "plain" or not has_systemd:
        from slicer.backend.plain import LIMITS, PlainBackend

        plain = PlainBackend(uid)
        if slurm_job(os.environ):
            plain.notice = ""  # Slurm's own limits are there
        if wanted == "plain":
            plain.notice = f"without systemd, as asked: {LIMITS}"
        return plain
    from slicer.backend.systemd import SystemdBackend

    return SystemdBackend(manager_of(uid))


def spec_of(job_id: str, plan: Plan, backend: Backend) -> ScopeSpec:
    invocation = plan.invocation
    spec = scope.spec(plan.profile, backend.manager, job_id, invocation.name, invocation.command)
    if invocation.exec:
        spec = replace(spec, has_keeper=False)
    if invocation.adopts:
        spec = replace(spec, adopts=invocation.adopts)
    if plan.nested:  # its events belong to the scope in which it runs
        return replace(spec, unit=plan.outer.leases[-1].unit)
    if invocation.hold:
        spec = replace(spec, properties=())
    if not plan.broker:
        return spec
    from slicer.broker.rules.units import slice_of

    has_cap = plan.sharing is not None and plan.sharing.limit_mib > 0
    is_said = plan.profile.sources.get("fence", "default") != "default"
    return replace(
        spec, slice=slice_of(plan.profile.slice, os.geteuid()), share_cap=has_cap,
        fence=plan.profile.fence if is_said else "", devices=plan.profile.devices,
    )  # fmt: skip


def gives_way(plan: Plan) -> bool:
    """Whether its job gives way to others."""
    return plan.profile.preemptible and not plan.missing.is_nothing


def needs_of(plan: Plan) -> Needs:
    profile, invocation = plan.profile, plan.invocation
    then = "fail" if invocation.route else profile.then  # a route's max_jobs is a promise
    wanted = fields_for(Demand, plan.missing) | ({"priority": PREEMPTIBLE} if gives_way(plan) else {})
    return Needs(
        **wanted, slot_limits=plan.config.slots, expect_s=invocation.expect_s,
        limit_s=profile.timeout_s, wait=invocation.wait, max_wait_s=profile.max_wait_s, then=then,
        plain_lock=plan.config.compat_gpu_lock, adopts=invocation.adopts,
    )  # fmt: skip


def may_be_fenced(plan: Plan) -> bool:
    """Whether :mod:`slicer.job.fencing` may be needed for a job of this plan; never with a broker."""
    if plan.broker:
        return False
    return plan.profile.fence == "on" or (plan.profile.fence == "auto" and has_nvidia())


def job_of(job_id: str, plan: Plan, spec: ScopeSpec, backend: Backend) -> Job:
    from slicer.outcome.history import default_path

    invocation = plan.invocation
    path = invocation.outcome_path
    return Job(
        id=job_id, name=invocation.name, command=invocation.command, program=plan.program,
        env=lambda gpus: environment(plan, gpus, job_id), profile=plan.profile, spec=spec,
        outcome_path=os.path.abspath(path) if path else "", history_path=default_path(plan.environ),
        history_keep_s=plan.config.history_keep_s,
        with_git=plan.config.history_git and not invocation.adopts,  # that may be newer than its code
        with_journal=invocation.journal, policy=plan.config.policy, reruns=invocation.reruns,
        queue=invocation.queue, route=invocation.route, output=invocation.output, sharing=plan.sharing,
        broker=plan.broker, ends_with_caller=bool(invocation.program), notify=_notify(plan),
        log=invocation.log, log_mib=plan.config.log_mib if invocation.is_bounded else 0,
        directory=invocation.directory, copy=invocation.copy, attempt=invocation.attempt,
        look_s=invocation.look_s,
        keeps_containers=keeps_containers(plan, backend),
    )  # fmt: skip


def keeps_containers(plan: Plan, backend: Backend) -> bool | None:
    """Whether podman's containers are to stay in the job's scope. None: it has none of its own."""
    return (True if backend.name == "systemd" else None) if plan.invocation.container else False


def _notify(plan: Plan) -> Notify | None:
    """Who is notified of which events. A queue does that itself; with --exec no process stays to do it."""
    said = plan.profile.notify
    if (said is None and plan.config.notify is None) or plan.invocation.queue or plan.invocation.exec:
        return None
    from slicer.config.notify_keys import settle

    return settle(said, plan.config.notify, plan.profile.sources["notify"])


def environment(plan: Plan, gpus: tuple[str, ...], job_id: str) -> dict[str, str]:
    """The command's whole environment, with these GPUs."""
    profile = plan.profile
    jobs = [lease.job for lease in plan.outer.leases]
    gpu: dict[str, str] = {}  # a nested job sees the outer job's GPUs
    if not plan.nested:
        jobs.append(job_id)
        visible = plan.visible_gpus(gpus)
        skip = plan.skip_gpu_lock or plan.outer.foreign_gpu
        if visible or not plan.invocation.hold:
            gpu = scope.gpu_environment(profile, visible, skip)
    marker = ",".join(jobs)
    if plan.invocation.hold:  # the profile's threads and variables do not apply to it
        return {**plan.environ, **gpu, LEASE_VARIABLE: marker}
    made = scope.environment(plan.environ, profile, profiles.thread_env(profile.threads), gpu, marker)
    if not plan.nested:
        made.pop(SLICE_VARIABLE, None)  # an outer job's
    if plan.invocation.copy:
        from slicer.job import snapshot

        made = snapshot.environment(plan.invocation.copy, plan.invocation.directory, made)
    if plan.sharing is None and "SLICER_SHARE_FILE" not in made:
        return made
    from slicer.share import environment as sharing

    # The inherited file may belong to a sharing job that has ended.
    kept = made if os.path.lexists(made.get(sharing.FILE, "")) else sharing.without(made)
    return kept if plan.sharing is None else sharing.variables(kept, plan.sharing, job_id)
