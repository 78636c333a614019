"""``slicer install``: slices, journal catalog, completion and manual pages."""

from __future__ import annotations

import os

import click

from slicer.backend import feature_units
from slicer.backend.install_units import InstallPlan, closed_plan, configured, going, plan
from slicer.cli import complete, install_broker, install_feature, install_serve, output, say
from slicer.cli.install_words import Way, carry_out, together
from slicer.columns import Line
from slicer.config import files
from slicer.errors import EX_OK, SlicerError, UsageError
from slicer.kernel import on_host
from slicer.outcome import history


@click.command(
    "install",
    epilog="""\
\b
Examples:
  slicer install --dry-run            what it would do
  sudo slicer install                 for root and all users
  sudo slicer install --broker        one ledger for all users, enforced
  sudo slicer install --closed-shop   no GPU without a lease; asks first
  slicer install --user               for you alone, without root
  slicer install --user --serve ollama
                                      [serve.ollama], at its first request
  slicer install --user --slurm-commands
                                      sbatch and the like, for Slurm's users
  sudo slicer install --remove        remove all of it

\b
`slicer run` also works without these. They add: weights for gpu.slice and
cpu.slice as a whole; their limits from [slices.gpu] and [slices.cpu] in
/etc/slicer/config.toml (with --user: ~/.config/slicer/config.toml);
explanations for journalctl -x; completion for shells; these manual pages.""",
)
@click.option("--user", is_flag=True, help="For you alone: your user manager and your shells.")
@click.option(
    "--user-delegation", is_flag=True, help="Let user managers set IOWeight and AllowedCPUs (a drop-in)."
)
@click.option("--broker", is_flag=True, help="One ledger for all users: install and enable the broker.")
@click.option(
    "--closed-shop", is_flag=True, help="No GPU without a lease: close them to login sessions. Asks first."
)
@click.option(
    "--serve", "server", metavar="NAME", shell_complete=complete.servers,
    help="Only [serve.NAME]: a socket, and the service that the first request starts.",
)  # fmt: skip
@click.option("--as", "run_as", metavar="USER", help="With --serve: the user who runs the server.")
@click.option("--web", is_flag=True, help="Only the live board: a socket, and the service that it starts.")
@click.option("--metrics", is_flag=True, help="Only figures for Prometheus' node_exporter: a timer.")
@click.option(
    "--slurm-commands", is_flag=True,
    help="Only sbatch and the like, with --user: shims, in a folder for PATH.",
)  # fmt: skip
@click.option("--yes", is_flag=True, help="With --closed-shop: do not ask.")
@click.option("--remove", "removing", is_flag=True, help="Remove what was installed.")
@click.option("--force", is_flag=True, help="Also overwrite or remove files that somebody edited.")
@click.option("--dry-run", is_flag=True, help="Only print what would be done.")
def command(
    user: bool, user_delegation: bool, broker: bool, closed_shop: bool, server: str | None,
    run_as: str | None, web: bool, metrics: bool, slurm_commands: bool, yes: bool, removing: bool,
    force: bool, dry_run: bool,
) -> int:  # fmt: skip
    """Install slicer's systemd units, completion for shells, and manual pages. Safe to repeat.

    The files go below /usr/local; then systemd reloads its units. Files that somebody edited stay as they
    are. For lasting changes use `systemctl edit gpu.slice`, or edit the configuration and run `slicer
    install` again. With --broker, --closed-shop, --serve NAME, --web, --metrics or --slurm-commands, --remove
    removes only that.
    """
    way = Way(user, removing, force, dry_run)
    is_alone = not any((broker, closed_shop, user_delegation, yes))
    if slurm_commands:
        is_alone = is_alone and not (server or run_as or web or metrics)
        return install_feature.act_on_shims(way, is_alone=is_alone)
    if web or metrics:
        is_alone = is_alone and not (user or server or run_as or (web and metrics))
        return install_feature.act("web" if web else "metrics", way, is_alone=is_alone)
    if server is not None or run_as is not None:
        return install_serve.act(server, run_as, way, is_alone=is_alone)
    if user and broker:
        raise UsageError("the broker is for all users of the machine", hint="leave out --user")
    if yes and not closed_shop:
        raise UsageError("only valid with --closed-shop", where="--yes")
    if closed_shop and user:
        hint = "leave out --user"
        raise UsageError("a closed shop is for all users of the machine", where="--closed-shop", hint=hint)
    if closed_shop and removing:
        if broker:
            raise UsageError("removed one at a time", where="--broker --closed-shop", hint="leave out one")
        return install_broker.open_again(way)
    if closed_shop and not broker:
        return install_broker.close(way, yes=yes)
    code = _change(way, user_delegation=user_delegation, broker=broker)
    if closed_shop and code == EX_OK:
        output.show([Line("")])
        return install_broker.close(way, yes=yes)
    return code


def _change(way: Way, *, user_delegation: bool, broker: bool) -> int:
    """Install or remove everything but a closed shop; returns the exit code."""

    def after() -> list[Line]:
        if way.removing:
            return _left(user=way.is_user, only_broker=broker)
        return _next(user=way.is_user, user_delegation=user_delegation, broker=broker)

    return carry_out(_settled(way, user_delegation=user_delegation, broker=broker), way, after)


def _settled(way: Way, *, user_delegation: bool, broker: bool) -> InstallPlan:
    """The plan of the files to install or to remove. Prints warnings about the configuration."""
    user = way.is_user
    warnings: tuple[str, ...] = ()
    if way.removing:  # all that may ever have been installed; otherwise a drop-in would be left behind
        program = "" if user else feature_units.BROKER
        settled = plan(
            user=user, user_delegation=not user, limits={}, broker=program, program=feature_units.PROGRAM
        )
        settled = going(settled, only_broker=broker)
    else:
        has_broker = broker or (not user and feature_units.is_there("broker"))
        program = install_broker.program() if has_broker else ""
        settled, warnings = configured(
            environ=os.environ, user=user, user_delegation=user_delegation, broker=program,
            program=_for_queues(way),
        )  # fmt: skip
    if not (way.removing and broker):
        closed = () if user else (closed_plan(only_there=True),)
        for each in (*closed, *install_serve.there(way), *install_feature.there(way)):
            settled = together(settled, each)
    for warning in warnings:
        say.line(warning)
    return settled


def _for_queues(way: Way) -> str:
    """The slicer that resumes detached queues after a boot; "": none, and says why."""
    try:
        return install_serve.program(way)
    except SlicerError as error:
        say.line(f"{feature_units.QUEUES} is left out, so detached queues do not go on after a boot: {error}")
        return ""


def _next(*, user: bool, user_delegation: bool, broker: bool) -> list[Line]:
    if user:
        return [Line('next: new shells complete; zsh needs eval "$(slicer completion zsh)" in ~/.zshrc')]
    lines = ["next: users who are logged in run `systemctl --user daemon-reload` once, or log in again"]
    if user_delegation:
        lines.append("IOWeight and AllowedCPUs act for a user once user@UID.service has been restarted")
    lines.append("try: slicer run --profile heavy -- true; slicer history; systemctl status cpu.slice")
    return [*map(Line, lines), *(install_broker.next_lines() if broker else [])]


def _left(*, user: bool, only_broker: bool) -> list[Line]:
    """The users' own files, which stay. Nothing depends on them."""
    if user:
        past, settings = os.path.dirname(history.default_path()), os.path.dirname(files.user_file(os.environ))
    else:
        past, settings = on_host(history.SYSTEM_DIRECTORY), on_host(files.SYSTEM_DIR)
    kept = [] if only_broker else [(past, "history of jobs"), (settings, "configuration")]
    rows = [("stays", path, f"{what}; rm -r removes it") for path, what in kept if os.path.isdir(path)]
    gone = [] if user else install_broker.gone_lines(only_broker=only_broker)
    return [*output.rows(rows), *gone]
