"""``slicer run --dry-run``: what would be done, with the source of every value. Changes nothing."""

from __future__ import annotations

import os

from slicer import launch, placement, profiles, scope
from slicer.cli import output, say
from slicer.cli.output import Column, Line
from slicer.model import Request
from slicer.profile_report import settings
from slicer.quantity import format_duration
from slicer.status import Status, existing_ledger, look

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.backend import Backend
    from slicer.launch import Ask, Plan
    from slicer.model import ScopeSpec
    from slicer.placement import Busy, Granted, Infeasible

_ID = "<id>"  # of a job that does not come to be


def show(ask: Ask) -> None:
    """Print the plan of a job. Raises what running it would raise before its lease."""
    settled = launch.plan(ask, os.environ, existing_ledger(os.environ, say.line))
    for warning in settled.config.warnings:
        say.line(warning)
    backend = launch.choose_backend(settled)
    backend.prepare()
    backend.close()
    output.show(lines(settled, backend, look(os.environ, say.line)))


def lines(settled: Plan, backend: Backend, status: Status) -> list[Line]:
    """The plan for people."""
    spec = scope.spec(settled.profile, backend.manager, _ID, settled.ask.name, settled.ask.command)
    granted = _decision(settled, status)
    gpus = granted.gpus if isinstance(granted, placement.Granted) else ()
    return [
        *output.pairs(_overview(settled, backend, spec, status, granted)),
        Line(""),
        *_properties(settled, backend, spec),
        Line(""),
        *_environment(settled, gpus),
    ]


def _decision(settled: Plan, status: Status) -> Granted | Busy | Infeasible:
    """What the ledger would say now."""
    ask = settled.ask
    request = Request(_ID, ask.name, ask.command, settled.need_gpus, settled.need_cpu_slots, ask.expect_s)
    inventory = placement.Inventory(tuple(gpu.uuid for gpu in status.gpus), settled.config.slots_cpu)
    return placement.decide(request, inventory, status.leases, status.tickets)


def _overview(
    settled: Plan, backend: Backend, spec: ScopeSpec, status: Status, granted: Granted | Busy | Infeasible
) -> list[tuple[str, str]]:
    profile, ask = settled.profile, settled.ask
    limit = "none" if profile.timeout_s is None else format_duration(profile.timeout_s)
    leftovers = (
        "waited for"
        if profile.linger
        else f"ended, SIGKILL after {format_duration(scope.stop_timeout_s(profile))}"
    )
    chosen = (
        "--profile" if ask.profile is not None else f"default: {settled.config.sources['default_profile']}"
    )
    rows = [
        ("command", scope.describe(ask.command, limit=100_000)),
        ("program", settled.program),
        ("name", ask.name or "none"),
        ("profile", f"{profile.name} ({chosen})"),
        ("backend", _backend(settled, backend)),
        ("unit", _unit(settled, backend, spec)),
        ("lease", _lease(settled, status, granted)),
        ("timeout", f"{limit} ({profile.sources['timeout_s']})"),
        ("leftovers", f"{leftovers} ({profile.sources['linger']})"),
        ("threads", f"{profile.threads} ({profile.sources['threads']})"),
    ]
    if backend.notice:
        rows.append(("note", backend.notice))
    return rows


def _backend(settled: Plan, backend: Backend) -> str:
    if backend.name == "inner":
        return "none of its own: inside a job that holds what it needs"
    if backend.name == "plain":
        return "plain: limits are best effort"
    return f"systemd, {'your own' if backend.manager == 'user' else 'the system'} manager"


def _unit(settled: Plan, backend: Backend, spec: ScopeSpec) -> str:
    if backend.name == "inner":
        outer = settled.held.leases[-1]
        return f"{outer.unit or 'none'} (of the job around it, {outer.job})"
    return "none" if backend.name == "plain" else f"{spec.unit} in {spec.slice}"


def _lease(settled: Plan, status: Status, granted: Granted | Busy | Infeasible) -> str:
    wanted = say.describe_resources(settled.need_gpus, settled.need_cpu_slots)
    if settled.nested:
        return "nothing more than the job around it holds"
    if settled.skip_gpu_lock and settled.profile.gpus:
        wanted += " (the GPU lock is skipped)"
    if not settled.need_gpus and not settled.need_cpu_slots:
        return wanted
    if isinstance(granted, placement.Infeasible):
        why = f": {status.no_gpus}" if granted.kind == "gpu" and status.no_gpus else ""
        return f"{wanted}: never, {granted.total} in this machine{why}"
    if isinstance(granted, placement.Granted):
        known = [status.gpu(uuid) for uuid in granted.gpus]
        which = ", ".join(f"GPU {gpu.index} {gpu.name}" for gpu in known if gpu)
        return f"{wanted}: free now{f' ({which})' if which else ''}"
    holders = ", ".join(f"{lease.name or lease.command} ({lease.job})" for lease in granted.holders)
    behind = f", {granted.ahead} ahead" if granted.ahead else ""
    return f"{wanted}: busy{f', held by {holders}' if holders else ''}{behind}"


def _properties(settled: Plan, backend: Backend, spec: ScopeSpec) -> list[Line]:
    """What systemd is told. What acts is judged by the manager's own cgroup: the scope is not there yet."""
    uid = os.geteuid()
    top = f"/user.slice/user-{uid}.slice/user@{uid}.service" if backend.manager == "user" else ""
    acting, idle = backend.enforced(spec, top)
    means = {name.partition(" ")[0]: name.partition(" ")[2].strip("()") for name in acting}
    sources = {
        setting.name: setting.source
        for setting in settings(settled.config, settled.ask.profile, settled.ask.overrides)
    }
    sources |= {"RuntimeMaxSec": settled.profile.sources["timeout_s"]}
    rows = [
        (
            made.name,
            ", ".join(made.text.split("\n")),
            "no" if made.name in idle else means[made.name] or "yes",
            sources.get(made.name, "built-in"),
        )
        for made in spec.properties
    ]
    return output.table((Column("PROPERTY"), Column("VALUE", cap=40), Column("ACTS"), Column("FROM")), rows)


def _environment(settled: Plan, gpus: tuple[str, ...]) -> list[Line]:
    """The variables that the command finds other than slicer did, and why."""
    profile = settled.profile
    made = launch.environment(settled, gpus, _ID)
    threads = profiles.thread_env(profile.threads)
    rows = []
    for name, value in made.items():
        if settled.environ.get(name) == value:
            continue
        if name in profile.env:
            source = profile.sources[f"env.{name}"]
        elif name in threads:
            source = f"threads: {profile.sources['threads']}"
        elif name == "SLICER_LEASE":
            source = "marks the job's processes"
        else:
            source = "the lease" if gpus else f"slice {profile.slice}: {profile.sources['slice']}"
        rows.append((name, value or '""', source))
    return output.table((Column("ENVIRONMENT"), Column("VALUE", cap=44), Column("FROM")), rows)
