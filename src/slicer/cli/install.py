"""``slicer install``: slices, journal catalog, completion and manual pages for this machine."""

from __future__ import annotations

import os

import click

from slicer.backend import broker_units
from slicer.backend.install_units import (
    PREFIX,
    Plan,
    Report,
    apply,
    configured,
    going,
    plan,
    remove,
    states,
    unmade_settings,
)
from slicer.cli import complete, install_broker, install_closed, install_serve, output, say
from slicer.columns import Line
from slicer.config import files
from slicer.errors import EX_OK, EX_SLICER, UsageError
from slicer.outcome import history
from slicer.text import command_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicer.backend.unit_files import State

_DIRECTORY = click.Path(file_okay=False)
_SETTINGS = "for config.toml and policy.toml"


@click.command(
    "install",
    short_help="Install units, completion and manual pages.",
    epilog="""\
\b
Examples:
  slicer install --dry-run            what would be done
  sudo slicer install                 for root and all users
  sudo slicer install --broker        one ledger for all users, enforced
  sudo slicer install --closed-shop   no GPU without a lease; asks first
  slicer install --user               for you alone, without root
  slicer install --user --serve ollama
                                      [serve.ollama], at its first request
  sudo slicer install --remove        take it all away again

\b
`slicer run` works without these too. What they add: weights for gpu.slice
and cpu.slice as a whole, their limits of [slices.gpu] and [slices.cpu] in
/etc/slicer/config.toml (of ~/.config/slicer/config.toml with --user),
explanations for journalctl -x, completion for the shell, and these manual
pages.""",
)
@click.option("--user", is_flag=True, help="For you alone: your user manager, your shells.")
@click.option(
    "--user-delegation", is_flag=True, help="Let user managers set IOWeight and AllowedCPUs too (a drop-in)."
)
@click.option(
    "--broker", is_flag=True, help="One ledger for all users: the broker's socket and service, switched on."
)
@click.option(
    "--closed-shop", is_flag=True, help="No GPU without a lease: login sessions cannot open them. Asks first."
)
@click.option(
    "--serve", "server", metavar="NAME", shell_complete=complete.servers,
    help="Only [serve.NAME]: a socket, and the service that its first request starts.",
)  # fmt: skip
@click.option("--as", "run_as", metavar="USER", help="With --serve: the user that it all belongs to.")
@click.option("--undo", is_flag=True, help="With --closed-shop: take it back.")
@click.option("--yes", is_flag=True, help="With --closed-shop: do not ask.")
@click.option(
    "--root", metavar="DIR", type=_DIRECTORY, default="/", help="Install below DIR, for an image."
)
@click.option("--prefix", metavar="DIR", type=_DIRECTORY, help="In place of /usr/local: /usr for a package.")
@click.option("--remove", "removing", is_flag=True, help="Take away what was installed.")
@click.option("--force", is_flag=True, help="Overwrite, or remove, files that somebody edited as well.")
@click.option("--dry-run", is_flag=True, help="Only print what would be done.")
def command(
    user: bool,
    user_delegation: bool,
    broker: bool,
    closed_shop: bool,
    server: str | None,
    run_as: str | None,
    undo: bool,
    yes: bool,
    root: str,
    prefix: str | None,
    removing: bool,
    force: bool,
    dry_run: bool,
) -> int:
    """Install slicer's systemd units, completion for shells and manual pages. Safe to repeat.

    They go below /usr/local, and systemd is told. A file that somebody edited is left alone. Changes that
    stay are made with `systemctl edit gpu.slice`, or in the configuration before another `slicer install`.
    With --broker --remove only the broker goes, with --serve NAME --remove only that server.
    """
    if user and prefix is not None:
        raise UsageError("--user installs below your home directory", hint="leave out --prefix")
    if user and broker:
        raise UsageError("the broker is for all users of the machine", hint="leave out --user")
    where = PREFIX if prefix is None else prefix
    place = install_serve.Place(root, where, user)
    if server is not None or run_as is not None:
        is_alone = not any((broker, closed_shop, user_delegation, undo, yes))
        return install_serve.act(
            place, server, run_as, is_alone=is_alone, removing=removing, force=force, dry_run=dry_run
        )
    if (undo or yes) and not closed_shop:
        raise UsageError("goes with --closed-shop", where="--undo" if undo else "--yes")
    if closed_shop and (user or removing):
        hint = "--undo takes it back" if removing else "leave out --user"
        raise UsageError("a closed shop is for all users of the machine", where="--closed-shop", hint=hint)
    if undo:
        return install_closed.open_again(root, where, force=force, dry_run=dry_run)
    if closed_shop and not broker:
        return install_closed.close(root, where, yes=yes, force=force, dry_run=dry_run)
    if removing:
        # All that may ever have been installed goes, or a drop-in would be left behind.
        brokers = "" if user else broker_units.PROGRAM
        settled = plan(root, user=user, user_delegation=not user, prefix=where, limits={}, broker=brokers)
        settled = settled if user else going(settled, root, only_broker=broker)
        settled = settled if user or broker else install_closed.with_closed(settled, root, where)
        settled = settled if broker else install_serve.with_servers(settled, place, removing=True)
    else:
        has_broker = broker or (not user and install_broker.is_there(root))
        settled, warnings = configured(
            root, environ=os.environ, user=user, user_delegation=user_delegation, prefix=where,
            broker=install_broker.program(root) if has_broker else "",
        )  # fmt: skip
        settled = settled if user else install_closed.with_closed(settled, root, where)
        settled = install_serve.with_servers(settled, place)
        for warning in warnings:
            say.line(warning)
    if dry_run:
        output.show(_intended(settled, removing=removing, force=force), cuts=False)
        return EX_OK
    report = remove(settled, force=force) if removing else apply(settled, force=force)
    output.show(_done(report), cuts=False)
    if removing:
        gone = [] if user else install_broker.gone_lines(root, where, only_broker=broker)
        after = [*([] if broker else _left(root, user=user)), *gone]
    else:
        after = _next(settled, user=user, user_delegation=user_delegation)
        after += install_broker.next_lines() if broker and settled.live else []
    output.show([Line(""), *after] if after else [], cuts=False)
    edited = [done.action.destination for done in report.files if done.status == "edited"]
    if edited:
        verb = "remove" if removing else "overwrite"
        say.line(f"edited by somebody and left alone: {', '.join(edited)} (--force {verb}s)")
    if any(ran.exit_code for ran in report.commands):
        say.line("not all commands succeeded" + ("" if user else " (run it as root, or with --user)"))
        return EX_SLICER
    if closed_shop:
        output.show([Line("")])
        return install_closed.close(root, where, yes=yes, force=force, dry_run=dry_run)
    return EX_OK


def _intended(settled: Plan, *, removing: bool, force: bool) -> list[Line]:
    rows = []
    for action, state in states(settled):
        going = removing or action in settled.unwanted
        rows.append((_intention(state, going=going, force=force), action.destination, action.what))
    if not removing and (settings := unmade_settings(settled)):
        rows.append(("would create", settings, _SETTINGS))
    shown = output.rows(_folded(rows))
    when = "would run" if settled.live else "to be run on the target:"
    commands = (*(settled.stops if removing else ()), *settled.commands)
    return [*shown, *(Line(f"{when}  {command_text(ran)}") for ran in commands)]


def _folded(rows: Sequence[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """The rows, in which all manual pages that fare alike are one."""
    found: dict[tuple[str, str], tuple[str, str, str]] = {}
    pages: dict[tuple[str, str], int] = {}
    for status, path, what in rows:
        folder = os.path.dirname(os.path.dirname(path))
        key = (status, folder if what.startswith("manual page ") else path)
        pages[key] = pages.get(key, 0) + 1
        if pages[key] > 1:
            path, what = folder, f"{pages[key]} manual pages"
        found[key] = (status, path, what)
    return list(found.values())


def _intention(state: State, *, going: bool, force: bool) -> str:
    if state == "edited" and not force:
        return "edited, stays"
    if going:
        return "absent" if state == "missing" else "would remove"
    if state == "current":
        return "unchanged"
    verbs: dict[State, str] = {"missing": "install", "outdated": "update", "edited": "overwrite"}
    return f"would {verbs[state]}"


def _next(settled: Plan, *, user: bool, user_delegation: bool) -> list[Line]:
    """What is still to be done by hand; nothing for another system, whose commands were listed."""
    if not settled.live:
        return []
    if user:
        return [Line("next: new shells complete; zsh needs eval \"$(slicer completion zsh)\" in ~/.zshrc")]
    lines = ["next: whoever is logged in runs `systemctl --user daemon-reload` once, or logs in again"]
    if user_delegation:
        lines.append(
            "IOWeight and AllowedCPUs act for a user after the next start of user@UID.service (or of all)"
        )
    lines.append("try: slicer run --profile heavy -- true; slicer history; systemctl status cpu.slice")
    return [Line(line) for line in lines]


def _left(root: str, *, user: bool) -> list[Line]:
    """What removal does not touch: it is the users' own, and nothing depends on it."""
    if user:
        past, settings = (
            os.path.dirname(history.default_path()),
            os.path.dirname(files.user_file(os.environ)),
        )
    else:
        past, settings = history.SYSTEM_DIRECTORY, files.SYSTEM_DIR
    kept = ((past, "history of jobs"), (settings, "configuration"))
    found = [(os.path.join(root, path.lstrip("/")), what) for path, what in kept if path]
    rows = [("stays", path, f"{what}; rm -r to be rid of it") for path, what in found if os.path.isdir(path)]
    return output.rows(rows)


def _done(report: Report) -> list[Line]:
    rows = [(done.status, done.action.destination, done.action.what) for done in report.files]
    rows += [("created", path, _SETTINGS) for path in report.made]
    shown = output.rows(_folded(rows))
    return [*shown, *(Line(install_closed.ran_line(ran)) for ran in report.commands)]
