"""``slicer run --dry-run``: what would be done, with the source of every value. Changes nothing."""

from __future__ import annotations

import os

from slicer.cli import output, say
from slicer.cli.output import Column
from slicer.columns import Line
from slicer.config import profiles
from slicer.config.profile_report import NEEDS, settings
from slicer.errors import GpuError, InfeasibleError, NoGpu
from slicer.gpu.observer import GpuObserver
from slicer.job import launch, scope
from slicer.ledger import leasing
from slicer.ledger.status import existing_ledger
from slicer.model import Busy
from slicer.quantity import format_duration
from slicer.record import record
from slicer.text import command_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.backend import Backend
    from slicer.config.profile_report import Setting
    from slicer.job.launch import Invocation, Plan
    from slicer.ledger.ledger import Ledger
    from slicer.model import Gpu, ScopeSpec

_ID = "<id>"  # of a job that does not come to be


@record
class _Forecast:
    """What the ledger would say now, and the GPUs that the job would get."""

    text: str
    gpus: tuple[str, ...]


def show(ask: Invocation) -> None:
    """Print the plan of a job. Raises what running it would raise before its lease."""
    book = existing_ledger(os.environ, say.line)
    settled = launch.plan(ask, os.environ, book)
    for warning in settled.config.warnings:
        say.line(warning)
    backend = launch.choose_backend(settled)
    backend.prepare()
    backend.close()
    output.show(lines(settled, backend, _forecast(settled, backend, book)))


def lines(settled: Plan, backend: Backend, forecast: _Forecast) -> list[Line]:
    """The plan for people."""
    spec = scope.spec(settled.profile, backend.manager, _ID, settled.ask.name, settled.ask.command)
    values = settings(settled.config, settled.ask.profile, settled.ask.overrides)
    return [
        *output.pairs(_overview(settled, backend, spec, forecast, values)),
        Line(""),
        *_properties(settled, backend, spec, values),
        Line(""),
        *_environment(settled, forecast.gpus),
    ]


def _forecast(settled: Plan, backend: Backend, book: Ledger | None) -> _Forecast:
    if settled.nested:
        return _Forecast("nothing more than the job around it holds", ())
    vram_mib = settled.profile.vram_mib if settled.need_gpus else None
    what = say.describe_resources(settled.need_gpus, settled.need_cpu_slots, vram_mib)
    if settled.skip_gpu_lock and settled.profile.gpus:
        what += " (the GPU lock is skipped)"
    if not settled.need_gpus and not settled.need_cpu_slots:
        return _Forecast(what, ())
    try:
        found, gpus = _foresee(settled, backend, book)
    except (InfeasibleError, NoGpu) as never:
        return _Forecast(f"{what}: never: {never.message}", ())
    except GpuError as failed:
        return _Forecast(f"{what}: not known: {failed.message}", ())
    if isinstance(found, Busy):
        return _Forecast(f"{what}: busy: {say.describe_busy(found)}", ())
    names = ", ".join(f"GPU {gpu.index} {gpu.name}" for gpu in gpus if gpu.uuid in found)
    return _Forecast(f"{what}: free now{f' ({names})' if names else ''}", found)


def _foresee(
    settled: Plan, backend: Backend, book: Ledger | None
) -> tuple[tuple[str, ...] | Busy, tuple[Gpu, ...]]:
    """What the ledger would answer, and the GPUs there are. Raises InfeasibleError, NoGpu, GpuError."""
    spec = scope.spec(settled.profile, backend.manager, _ID, settled.ask.name, settled.ask.command)
    asker = launch.who(_ID, settled, backend, spec)
    directory = book.directory if book is not None else None
    wanted = leasing.prepare(asker, launch.needs_of(settled), GpuObserver(directory, settled.config.policy))
    try:
        return leasing.foresee(wanted, book), wanted.view.gpus
    finally:
        wanted.view.close()


def _overview(
    settled: Plan, backend: Backend, spec: ScopeSpec, forecast: _Forecast, values: tuple[Setting, ...]
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
        ("command", command_text(ask.command, limit=100_000)),
        ("program", settled.program),
        ("name", ask.name or "none"),
        ("profile", f"{profile.name} ({chosen})"),
        ("backend", _backend(settled, backend)),
        ("unit", _unit(settled, backend, spec)),
        ("lease", forecast.text),
        *((each.name, f"{each.value} ({each.source})") for each in values if _is_wanted(each)),
        ("timeout", f"{limit} ({profile.sources['timeout_s']})"),
        ("leftovers", f"{leftovers} ({profile.sources['linger']})"),
        ("threads", f"{profile.threads} ({profile.sources['threads']})"),
    ]
    if backend.notice:
        rows.append(("note", backend.notice))
    return rows


def _is_wanted(setting: Setting) -> bool:
    return setting.name in NEEDS and (setting.value != "0" or setting.name not in ("gpus", "cpu_slots"))


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


def _properties(settled: Plan, backend: Backend, spec: ScopeSpec, values: tuple[Setting, ...]) -> list[Line]:
    """What systemd is told. What acts is judged by the manager's own cgroup: the scope is not there yet."""
    uid = os.geteuid()
    top = f"/user.slice/user-{uid}.slice/user@{uid}.service" if backend.manager == "user" else ""
    acting, idle = backend.enforced(spec, top)
    means = {name.partition(" ")[0]: name.partition(" ")[2].strip("()") for name in acting}
    sources = {setting.name: setting.source for setting in values}
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
