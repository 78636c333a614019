"""``slicer wrap``: programs whose calls always go through a route."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

import click
from click.shell_completion import CompletionItem

from slicer import backend
from slicer.cli import common, complete, output, say
from slicer.columns import BAD, FAINT, GOOD, Line
from slicer.config import files, profiles, routes
from slicer.config.profiles import Config
from slicer.config.routes import Route
from slicer.doctor.facts import host
from slicer.errors import EX_OK, EX_PROBLEM, SlicerError, UsageError
from slicer.kernel.users import user_name
from slicer.route.probing import programs
from slicer.text import quote, visible
from slicer.wrap import look, records, wrapping
from slicer.wrap.planning import Keep
from slicer.wrap.terms import Step, WrapPlan, WrapRefused, WrapStatus

_DOING: dict[Step, str] = {
    "record": "record it",
    "link": "link {bin} as {real}",
    "exchange": "rename {bin} to {real}, replacing the file there",
    "divert": "dpkg-divert --local --no-rename --divert {diverted}-real --add {diverted}",
    "place": "put the shim at {bin}",
}  # fmt: skip


def completions(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The base names of wrapped programs; files, if the word is a path."""
    if "/" in incomplete:
        return [CompletionItem(incomplete, type="file")]
    with suppress(SlicerError):
        found = {os.path.basename(wrap.path) for wrap in records.read(os.environ)[0]}
        return [CompletionItem(name) for name in complete.harmless(sorted(found), incomplete)]
    return []


@click.group(
    "wrap",
    invoke_without_command=True,
    epilog="""\
\b
Examples:
  sudo slicer wrap install whisper --route whisper   route each call of it
  slicer wrap                                        what is wrapped
  sudo slicer wrap check --fix                       repair after upgrades
  sudo slicer wrap remove whisper                    put the program back

\b
BIN becomes BIN-real, and a shim of a few lines of sh takes its place. The
shim runs slicer route, so scripts and services need no change. A call from
inside the route runs the program at once. docs/wrap.md says what can be
wrapped, and what cannot.""",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Put a shim in place of a program, so that each call of it goes through a route."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_, as_json=as_json)
    else:
        ctx.default_map = {ctx.invoked_subcommand: {"as_json": as_json}}  # slicer wrap --json list


@command.command(
    "install",
    short_help="Put a shim in place of a program.",
    epilog="""\
\b
Examples:
  sudo slicer wrap install whisper --route whisper        found on PATH
  slicer wrap install ~/venv/bin/whisper --route whisper  one of your own
  slicer wrap install whisper --route whisper --dry-run   what it would do

\b
Safe to repeat: it completes what an upgrade or a crash left unfinished. BIN
can be executed at every moment. A file of a Debian package is diverted
(dpkg-divert), so an upgrade updates BIN-real and leaves the shim alone.""",
)
@click.argument("program", metavar="BIN", type=click.Path())
@click.option(
    "--route", required=True, metavar="NAME", help="The route: [routes.NAME] in the configuration.",
    shell_complete=complete.routes,
)  # fmt: skip
@click.option(
    "--slicer", "slicer_path", metavar="PATH", type=click.Path(),
    help="The slicer for the shim to call, instead of this one.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="If it is not clear that BIN is the program, assume so.")
@click.option("--dry-run", is_flag=True, help="Only print what would be done.")
def install(program: str, route: str, slicer_path: str | None, force: bool, dry_run: bool) -> None:
    """Move BIN to BIN-real and put a shim in its place that passes each call to a route."""
    config = common.config()
    found = routes.find(config, route)
    called = os.path.abspath(slicer_path) if slicer_path else look.own_path(sys.argv[0])
    plan = wrapping.install(
        program, route, os.environ, slicer=called, probes=programs(found), force=force, dry=dry_run
    )
    output.show(map(Line, _intended(plan) if dry_run and plan.steps else [_installed(plan)]), cuts=False)
    notes = (*plan.notes, *_reach(config, route), *_unmeasured(found), *_services())
    for note in notes if plan.steps else ():
        say.line(f"note: {note}")


def _reach(config: Config, route: str) -> tuple[str, ...]:
    """Warnings about callers that do not read the file with the route."""
    holding = [layer.path for layer in config.layers if route in routes.names((layer,))]
    if any(path.startswith(f"{files.SYSTEM_DIR}/") for path in holding):
        return ()
    if holding and os.geteuid() == 0:
        where = f"put it into {files.SYSTEM_DIR}/config.toml"
        return (f"the route is in {holding[-1]}, which other users' calls do not read: {where}",)
    if files.user_file(os.environ) not in holding:
        return (f"the route is in {holding[-1]}: calls without SLICER_CONFIG for that file do not know it",)
    return ()


def _unmeasured(route: Route) -> tuple[str, ...]:
    """A warning that calls fail if the route cannot measure their input."""
    if not route.probes or route.on_probe_error != "fail":
        return ()
    calls = "calls whose input cannot be measured (several files, -, a URL) fail with exit code 125"
    cure = f'on_probe_error = "cpu" in [routes.{route.name}]'
    return (f"{calls}; with {cure} they run on the CPU",)


def _services() -> tuple[str, ...]:
    """A warning that services cannot get a scope, unless that has been arranged."""
    uid = os.geteuid()
    if not backend.has_systemd() or backend.broker_socket({}) or (uid and host.gather_session(uid).lingers):
        return ()
    user = user_name(uid) if uid else "THAT-USER"
    whose = f"of {user}'s" if uid else "of a user other than root"
    return (
        f"a system service {whose} cannot ask systemd for a scope, so each call fails with exit code 125:"
        f" loginctl enable-linger {user}; or the broker, with allow_services in its policy",
    )


def _installed(plan: WrapPlan) -> str:
    wrap = plan.wrap
    if not plan.steps:
        return f"{quote(wrap.path)} is already wrapped by the route {wrap.route}"
    if plan.steps == ("record",):
        return f"{quote(wrap.path)} already has its shim; wrote a new record"
    return f"wrapped {quote(wrap.path)} by the route {wrap.route}; the program is now {quote(wrap.real)}"


def _intended(plan: WrapPlan) -> list[str]:
    wrap = plan.wrap
    names = {"bin": quote(wrap.path), "real": quote(wrap.real), "diverted": quote(wrap.diverted)}
    return [f"would {_DOING[step].format(**names)}" for step in plan.steps]


@command.command(
    "remove",
    short_help="Put a wrapped program back.",
    epilog="""\
\b
Examples:
  slicer wrap remove /usr/local/bin/whisper   put it back
  slicer wrap remove whisper                  by name, if only one wrap has it
  slicer wrap remove whisper --keep new       if an upgrade replaced the shim
  sudo slicer wrap remove --all               before you remove slicer itself

\b
The program is renamed back, and keeps its owner, mode, times and attributes.
If the shim was replaced, --keep chooses which of the two programs stays.""",
)
@click.argument("program", metavar="[BIN]", type=click.Path(), required=False, shell_complete=completions)
@click.option("--all", "everything", is_flag=True, help="Remove all of your wraps.")
@click.option(
    "--keep", type=click.Choice(["new", "real"]),
    help="If the shim was replaced: keep the new file at BIN (new), or BIN-real.",
)  # fmt: skip
def remove(program: str | None, everything: bool, keep: Keep | None) -> int:
    """Put a wrapped program back in its place, unchanged."""
    if (program is None) != everything:
        raise UsageError("needs a program, or --all" if program is None else "not with --all", where="BIN")
    codes = [EX_OK]
    wraps = wrapping.statuses(os.environ, None) if program is None else ()
    for each in (program,) if program is not None else [status.wrap.path for status in wraps]:
        try:
            _removed(wrapping.remove(each, os.environ, keep))
        except SlicerError as failure:  # go on with the others
            if program is not None:
                raise
            codes.append(say.error(failure))
    return max(codes)


def _removed(plan: WrapPlan) -> None:
    path = quote(plan.wrap.path)
    told = {
        "restore": f"unwrapped {path}",
        "unlink": f"removed the shim {path}",
        "drop": f"unwrapped {path}; {quote(plan.wrap.real)} is removed",
    }
    forgotten = f"there was no shim at {path}; the record is removed"
    text = next((text for step, text in told.items() if step in plan.steps), forgotten)
    output.show([Line(text)], cuts=False)
    for note in plan.notes:
        say.line(f"note: {note}")


@command.command(
    "list",
    short_help="Show what is wrapped, and its state.",
    epilog="""\
\b
Examples:
  slicer wrap list          your wraps
  sudo slicer wrap list     root's wraps
  slicer wrap list --json   for scripts""",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def list_(as_json: bool) -> None:
    """Show the programs that you have wrapped, their routes, and their state."""
    found = _statuses()
    if as_json:
        output.show_json({"wraps": [_data(status) for status in found]})
        return
    if not found:
        output.show([Line(_nothing())])
        return
    rows = [
        (each.wrap.path, each.wrap.route, each.state, each.wrap.package or "-", each.wrap.slicer)
        for each in found
    ]
    output.show(output.table("PROGRAM | ROUTE<20 | STATE | PACKAGE<20 | SLICER", rows))
    if any(each.problems for each in found):
        output.show([Line(""), Line("slicer wrap check says what is wrong, and how to fix it.", FAINT)])


@command.command(
    "check",
    short_help="Check wraps, and repair them.",
    epilog="""\
\b
Examples:
  slicer wrap check               what is wrong, and how to fix it
  slicer wrap check --fix         repair what can be repaired
  slicer wrap check whisper       only this program
  slicer wrap check --json        for scripts

\b
Exit codes:
    0  all wraps work (with --fix: after the repair)
    1  some do not
  125  slicer itself failed""",
)
@click.argument("programs", metavar="[BIN]...", nargs=-1, type=click.Path(), shell_complete=completions)
@click.option("--fix", is_flag=True, help="Repair what can be repaired.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def check(programs: tuple[str, ...], fix: bool, as_json: bool) -> int:
    """Check each wrap: whether the shim, program, slicer, route and diversion are in place."""
    found = _chosen(_statuses(), programs)
    if fix:
        for status in found:
            if any(problem.is_mendable for problem in status.problems):
                _mend(status)
        left = {status.wrap.path for status in found}
        found = tuple(status for status in _statuses() if status.wrap.path in left)
    if as_json:
        output.show_json({"wraps": [_data(status) for status in found]})
    else:
        output.show(_told(found), cuts=False)
    return EX_PROBLEM if any(status.problems for status in found) else EX_OK


def _nothing() -> str:
    return "nothing is wrapped" if os.geteuid() == 0 else "you have wrapped nothing (root: sudo slicer wrap)"


def _mend(status: WrapStatus) -> None:
    is_gone = any(problem.id == "slicer-gone" for problem in status.problems)
    slicer = look.own_path(sys.argv[0]) if is_gone else status.wrap.slicer
    path = status.wrap.path
    why = wrapping.mend(path, os.environ, slicer)
    say.line(f"could not repair {quote(path)}: {why}" if why else f"repaired {quote(path)}")


def _told(found: tuple[WrapStatus, ...]) -> list[Line]:
    if not found:
        return [Line(_nothing())]
    shown = []
    for status in found:
        if not status.problems:
            wrap = status.wrap
            shown.append(Line(f"{quote(wrap.path)}: ok, with the route {visible(wrap.route)}", GOOD))
        for problem in status.problems:
            shown.append(Line(f"{visible(problem.message)} [{problem.id}]", BAD))
            shown += [Line(f"    {line}") for line in problem.mend]
    return shown


def _statuses() -> tuple[WrapStatus, ...]:
    """The state of all wraps. Untrusted records and a broken configuration are reported on stderr."""
    for warning in records.read(os.environ)[1]:
        say.line(warning)
    known: tuple[str, ...] | None
    try:
        known = routes.names(profiles.load(os.environ, profiles.host()).layers)
    except SlicerError as error:
        say.line(f"cannot check whether the routes exist: {error}")
        known = None
    return wrapping.statuses(os.environ, known)


def _chosen(found: tuple[WrapStatus, ...], programs: tuple[str, ...]) -> tuple[WrapStatus, ...]:
    """The wraps that the words name, or all. Raises WrapRefused."""
    if not programs:
        return found
    chosen: dict[str, WrapStatus] = {}
    for word in programs:
        meant = look.canonical(word) if "/" in word else word
        fitting = [each for each in found if meant in (each.wrap.path, os.path.basename(each.wrap.path))]
        if not fitting:
            raise WrapRefused("is not wrapped", where=meant, hint="slicer wrap list shows what is")
        chosen |= {status.wrap.path: status for status in fitting}
    return tuple(chosen.values())


def _data(status: WrapStatus) -> dict[str, Any]:
    wrap = status.wrap
    return {
        "path": wrap.path, "program": wrap.real, "route": wrap.route, "slicer": wrap.slicer,
        "package": wrap.package or None, "diverted": wrap.diverted or None, "since": wrap.since_s,
        "state": status.state,
        "problems": [
            {"id": each.id, "message": each.message, "mend": list(each.mend), "mendable": each.is_mendable}
            for each in status.problems
        ],
    }  # fmt: skip
