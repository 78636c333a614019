"""``slicer run --dry-run``: what a run would do, with the source of every value. Changes nothing."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from slicer.backend import Backend
from slicer.cli import background, output, say
from slicer.columns import Line
from slicer.config import profiles
from slicer.config.profile_report import NEEDS, Setting, settings
from slicer.errors import BrokerError, GpuError, InfeasibleError, NoGpu
from slicer.gpu.observer import GpuObserver
from slicer.job import fencing, granting, podman, program, scope
from slicer.job import plan as plans
from slicer.job.launch import containers_of
from slicer.job.plan import Invocation, Plan
from slicer.job.words import describe_busy, describe_resources, length_words
from slicer.kernel.proc import now_s
from slicer.kernel.users import other_user
from slicer.ledger import leasing
from slicer.ledger.ledger import Ledger
from slicer.ledger.status import existing_ledger
from slicer.model import Busy, Gpu, ScopeSpec, slice_around
from slicer.quantity import format_duration
from slicer.record import record
from slicer.share.details import wants
from slicer.state import statedir
from slicer.text import command_text

_ID = "<id>"  # of the job that is not created


@record
class Forecast:
    """The ledger's answer at this moment, and the GPUs that the job would get.

    ``is_free`` is None if unknown. ``busy`` says what the job would wait for.
    """

    text: str
    gpus: tuple[str, ...]
    is_free: bool | None = True
    busy: Busy | None = None
    length: str = ""  # how long the job should run, and why; "" unknown, or without GPUs


def show(invocation: Invocation, options: dict[str, Any]) -> None:
    """Print the plan of a job. Raises what a run would raise before its lease.

    ``options`` may say that it begins later.
    """
    begins = background.begins(options, invocation)
    ledger = existing_ledger(os.environ, say.line)
    plan = plans.plan_of(invocation, os.environ, ledger)
    for warning in plan.config.warnings:
        say.line(warning)
    backend = usable_backend(plan)
    output.show(lines(plan, backend, forecast_of(plan, backend, ledger), begins))


def usable_backend(plan: Plan) -> Backend:
    """The backend that the job would use, after a test connection. Raises BackendError."""
    backend = plans.choose_backend(plan)
    backend.connect()
    backend.close()
    return backend


def lines(plan: Plan, backend: Backend, forecast: Forecast, begins: tuple[str, ...]) -> list[Line]:
    spec = plans.spec_of(_ID, plan, backend)
    values = settings(plan.config, plan.invocation.profile, plan.invocation.overrides)
    rows = [*_overview(plan, backend, spec, forecast, values), *(("begins", each) for each in begins)]
    return [
        *output.rows(rows),
        Line(""),
        *_properties(plan, backend, spec, values),
        Line(""),
        *_environment(plan, forecast.gpus),
    ]


def forecast_of(plan: Plan, backend: Backend, ledger: Ledger | None) -> Forecast:
    """Ask the ledger for its answer at this moment. Leases nothing."""
    if plan.nested:
        return Forecast("nothing more than the job around it holds", ())
    what = describe_resources(plan.missing.gpus, plan.missing.slots, plan.missing.vram_mib)
    if plan.skip_gpu_lock and plan.profile.gpus:
        what += " (the GPU lock is skipped)"
    if plan.missing.is_nothing:
        return Forecast(what, ())
    try:
        found, gpus, length = _preview(plan, backend, ledger)
    except (InfeasibleError, NoGpu) as never:
        return Forecast(f"{what}: impossible: {never.message}", (), is_free=False)
    except (GpuError, BrokerError) as failed:
        return Forecast(f"{what}: not known: {failed.message}", (), is_free=None)
    if isinstance(found, Busy):
        why = describe_busy(found, now_s(), other_user=other_user)
        return Forecast(f"{what}: busy: {why}", (), is_free=False, busy=found, length=length)
    names = ", ".join(f"GPU {gpu.index} {gpu.name}" for gpu in gpus if gpu.uuid in found)
    return Forecast(f"{what}: free now{f' ({names})' if names else ''}", found, length=length)


def _preview(
    plan: Plan, backend: Backend, ledger: Ledger | None
) -> tuple[tuple[str, ...] | Busy, tuple[Gpu, ...], str]:
    """The ledger's answer, the machine's GPUs, and how long the job should run, in words.

    Raises InfeasibleError, NoGpu, GpuError.
    """
    observer = GpuObserver(plan.config.policy)
    wanted = granting.request_of(_ID, plan, backend, plans.spec_of(_ID, plan, backend), observer)
    try:
        found = granting.preview(plan.broker, wanted, ledger)
        if plan.broker and found and not isinstance(found, Busy):
            with suppress(GpuError):
                observer.open()  # for the GPUs' names
        known = wanted if plan.broker or ledger is None else leasing.estimated(wanted, ledger)
        return found, observer.gpus, length_words(known.ticket)
    finally:
        wanted.observer.close()


def _overview(
    plan: Plan, backend: Backend, spec: ScopeSpec, forecast: Forecast, values: tuple[Setting, ...]
) -> list[tuple[str, str]]:
    profile, invocation = plan.profile, plan.invocation
    manager, unit = _place(plan, backend, spec)
    limit = "none" if profile.timeout_s is None else format_duration(profile.timeout_s)
    ended = f"ended, SIGKILL after {format_duration(scope.stop_timeout_s(profile))}"
    leftovers = "waited for" if profile.linger else ended
    why = plan.config.default_for(invocation.overrides)[1]
    chosen = why if invocation.profile is None else "--profile"
    rows = [
        ("command", command_text(invocation.command, limit=100_000)),
        ("program", plan.program),
        ("name", invocation.name or "none"),
        ("profile", f"{profile.name} ({chosen})"),
        ("backend", manager),
        ("unit", unit),
        ("lease", forecast.text),
        *([("length", forecast.length)] if forecast.length else []),
        *((each.name, f"{each.value} ({each.source})") for each in values if _is_wanted(each)),
        ("timeout", f"{limit} ({profile.sources['timeout']})"),
        ("leftovers", f"{leftovers} ({profile.sources['linger']})"),
        ("threads", f"{profile.threads} ({profile.sources['threads']})"),
    ]
    if plan.broker or plans.may_be_fenced(plan) or profile.fence == "off":
        rows.append(("fence", fencing.described(plan, backend)))
    rows += [("docker", line) for line in _docker(plan, backend, spec, forecast.gpus)]
    rows += [("podman", line) for line in _podman(plan, backend, forecast.gpus)]
    if profile.share != "off":
        rows.append(("sharing", _sharing(plan)))
    if backend.notice:
        rows.append(("note", backend.notice))
    return rows


def _sharing(plan: Plan) -> str:
    """The preloaded library, or the reason why none is."""
    order = plan.sharing
    if order is None:
        return f"nothing is preloaded: {plans.idle_sharing(plan)}"
    if not order.is_active:
        by_driver = ", and only the driver would enforce the cap" if order.limit_mib else ""
        return f"nothing is preloaded{by_driver}: {order.problem}"
    mode = f" ({order.mode})" if order.wants != "cap" else ""
    may_ask = order.limit_mib and not plans.why_not_driver(plan)
    asked = ", and the driver would enforce the cap, too" if may_ask else ""
    return f"{wants(order.wants, order.limit_mib)}{mode}, by {order.library} in {plan.program}{asked}"


def _podman(plan: Plan, backend: Backend, gpus: tuple[str, ...]) -> tuple[str, ...]:
    """The variable that the job would have for podman, and the lines of its file; or why there is none."""
    made, keeps = plans.environment(plan, gpus, _ID), plans.keeps_containers(plan, backend)
    if keeps is None or not program.runs_podman(plan.program, made):
        return ()
    if why := podman.why_not(made) if keeps else "--no-container":
        return (f"containers leave the job: {why}",)
    text = podman.settings(made.get("CUDA_VISIBLE_DEVICES", ""), has_numbers=plan.profile.gpu_ids == "index")
    path = podman.path_of(statedir.where(plan.environ, os.geteuid()), text)
    return (f"{program.PODMAN_VARIABLE}={path}", *text.splitlines()[1:])


def _docker(plan: Plan, backend: Backend, spec: ScopeSpec, gpus: tuple[str, ...]) -> tuple[str, ...]:
    """What the job would add for docker. Raises RefusedError."""
    notes: list[str] = []
    found = containers_of(plan, backend, notes.append)
    return tuple(notes) if found is None else found.added(slice_around(spec.slice, _ID), _ID, gpus)


def _is_wanted(setting: Setting) -> bool:
    if setting.name.startswith("slots."):
        return setting.value != "0"
    return setting.name in NEEDS and (setting.value != "0" or setting.name not in ("gpus", "cpu_slots"))


def _place(plan: Plan, backend: Backend, spec: ScopeSpec) -> tuple[str, str]:
    if backend.name == "inner":
        outer = plan.outer.leases[-1]
        unit = f"{outer.unit or 'none'} (of the job around it, {outer.job})"
        return "no scope of its own: inside a job that holds what it needs", unit
    if backend.name == "plain":
        return "plain: limits are best effort", "none"
    through = ", through the broker" if plan.broker else ""
    whose = "your own" if backend.manager == "user" else "the system"
    return f"systemd, {whose} manager{through}", f"{spec.unit} in {spec.slice}"


def _properties(plan: Plan, backend: Backend, spec: ScopeSpec, values: tuple[Setting, ...]) -> list[Line]:
    """The scope's properties. There is no scope yet, so the manager's own cgroup shows which of them act."""
    uid = os.geteuid()
    top = f"/user.slice/user-{uid}.slice/user@{uid}.service" if backend.manager == "user" else ""
    acting, idle = backend.enforced(spec, top)
    means = {name.partition(" ")[0]: name.partition(" ")[2].strip("()") for name in acting}
    sources = {setting.name: setting.source for setting in values}
    sources |= {"RuntimeMaxSec": plan.profile.sources["timeout"]}
    rows = [
        (
            made.name,
            ", ".join(made.text.split("\n")),
            "no" if made.name in idle else means[made.name] or "yes",
            sources.get(made.name, "built-in"),
        )
        for made in spec.properties
    ]
    return output.table("PROPERTY | VALUE<40 | ACTS | FROM", rows)


def _environment(plan: Plan, gpus: tuple[str, ...]) -> list[Line]:
    """The variables that the command gets with other values than slicer has, and their sources."""
    profile = plan.profile
    made = plans.environment(plan, gpus, _ID)
    threads = profiles.thread_env(profile.threads)
    rows = []
    for name, value in made.items():
        if plan.environ.get(name) == value:
            continue
        if name in profile.env:
            source = profile.sources[f"env.{name}"]
        elif name in threads:
            source = f"threads: {profile.sources['threads']}"
        elif name == "SLICER_LEASE":
            source = "marks the job's processes"
        elif name == "LD_PRELOAD" or name.startswith("SLICER_SHARE"):
            source = f"share: {profile.sources.get('share', '')}"
        elif gpus and name == "CUDA_VISIBLE_DEVICES" and profile.gpu_ids == "index":
            source = f"the lease, by index: {profile.sources['gpu_ids']}"
        else:
            source = "the lease" if gpus else f"slice {profile.slice}: {profile.sources['slice']}"
        rows.append((name, value or '""', source))
    return output.table("ENVIRONMENT | VALUE<44 | FROM", rows)
