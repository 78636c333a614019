"""``slicer help``: a command's whole help, or a topic's, a page at a time."""

from __future__ import annotations

import os

import click
from click.shell_completion import CompletionItem

from slicer.cli import elsewhere, output
from slicer.errors import UsageError
from slicer.version import __version__

_TOPICS = {
    "exit-codes": """\
slicer run, hold, route and wait exit with the command's own code, with 128+N
if signal N ended it, or with one of these:

    2  the command line is wrong, or names something that does not exist
   75  busy, with --no-wait or after --max-wait, or as a route says; or it
       gave way to another job (--preemptible)
  124  over a time limit
  125  slicer itself failed: configuration, state directory, systemd, driver
  126  the command cannot be executed
  127  the command is not found

Other commands exit with 0, 2 or 125, and say so where they have more. An error
is one line on stderr: what was wrong, where, and what to do; with --json, JSON.
""",
    "environment": """\
slicer reads:

  SLICER_CONFIG=FILE      a further configuration file, which overrides all others
  SLICER_STATE_DIR=DIR    where leases are kept: a directory of your own
  SLICER_BROKER=off       do not use the broker if there is one
  SLICER_SIM=2x24G        simulated GPUs instead of this machine's; see simjob
  SLICER_DEBUG=1          show a traceback with every error
  CPU_RUN_SLOTS=N         heavy CPU jobs at a time
  CPU_RUN_THREADS=N       threads of each job
  SLICER_SKIP_GPU_LOCK=1  take no lease on a GPU: the job does not use it
                          (also PSRUN_SKIP_GPU_LOCK)
  GPU_LOCK_HELD=1         a wrapper around slicer already holds the GPU
  GPU_LOCK_PATH=FILE      with a lease on a GPU, lock what scripts lock, too
  SLICER_SHARE_QUANTUM_MS=N, SLICER_SHARE_WINDOW_MS=N, SLICER_SHARE_DRAIN_MS=N
                          with --share: how long a turn lasts while others of
                          its priority wait (0: these take no turns), how much
                          work of lower priority is in flight (1), how long
                          the end of a turn may take (2000)

A job finds:

  CUDA_VISIBLE_DEVICES    its GPUs, or nothing
  SLICER_GPU_INDICES      their numbers, as nvidia-smi counts
  SLICER_LEASE            its id, behind those of the jobs around it
  SLICER_SNAPSHOT_OF      with --snapshot: the work tree that was copied
  SLICER_SLICE            with --docker: the parent cgroup for containers
  OMP_NUM_THREADS and the like: how many threads its libraries start
""",
    "units": """\
Each job is a systemd unit, slicer-ID.scope, below gpu.slice or cpu.slice:
root's jobs and those of the broker under the system manager, yours without the
broker under your own (then add --user to each line).

  systemctl status slicer-ID.scope       its processes and what they use
  systemctl stop slicer-ID.scope         the same as slicer stop ID
  systemctl set-property --runtime slicer-ID.scope MemoryHigh=8G
  systemd-cgls --unit gpu.slice          the jobs with a GPU, as a tree
  journalctl -u slicer-ID.scope          what happened to it; with --journal
                                         also what it printed
  journalctl -t slicer SLICER_NAME=train all jobs of that name

A detached queue is slicer-queue-ID.service, a server slicer-serve-NAME.service
with a socket; slicer-broker.service is the ledger of all users.
""",
}


def _words(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    found, context = _reached(ctx, ctx.params.get("words") or ())
    return [CompletionItem(name) for name in _below(found, context) if name.startswith(incomplete)]


@click.command(
    "help",
    epilog="""\
\b
Examples:
  slicer help run           all options of slicer run, in groups
  slicer help queue add     a command below a command
  slicer help exit-codes    what slicer's exit codes mean""",
)
@click.argument("words", nargs=-1, metavar="[COMMAND|TOPIC]", shell_complete=_words)
@click.pass_context
def command(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Show the whole help of a command, or of a topic: exit-codes, environment, units.

    Without words, it lists the commands. On a terminal a long text is shown in $PAGER.
    """
    if len(words) == 1 and words[0] in _TOPICS:
        _show(_TOPICS[words[0]])
        return
    found, context = _reached(ctx, words)
    _show(found.get_help(context) + "\n")


@click.command("version", hidden=True)
def version() -> None:
    """Show the version."""
    click.echo(f"slicer {__version__}")


def _reached(ctx: click.Context, words: tuple[str, ...]) -> tuple[click.Command, click.Context]:
    """The command that the words lead to; without words slicer itself. Raises UsageError."""
    assert ctx.parent is not None
    found, context = ctx.parent.command, ctx.parent
    for number, word in enumerate(words, start=1):
        below = _below(found, context)
        following = found.get_command(context, word) if word in below else None  # type: ignore[attr-defined]
        if following is None:
            above = " ".join(("slicer help", *words[: number - 1]))
            hint = elsewhere.command(word, below) or f"see {above}"
            raise UsageError(f"no such command or topic {word!r}", where="help", hint=hint)
        found, context = following, click.Context(
            following, ctx.parent, " ".join(words[:number]), **following.context_settings
        )
    return found, context


def _below(found: click.Command, context: click.Context) -> list[str]:
    """What can follow the words that lead to a command; at first also a topic."""
    listed = getattr(found, "list_commands", None)
    names = listed(context) if listed else []
    return [*names, *_TOPICS] if context.parent is None else names


def _show(text: str) -> None:
    """Print a text; on a terminal that is too small for it, through the user's pager."""
    if output.is_terminal() and text.count("\n") >= os.get_terminal_size(1).lines:
        os.environ.setdefault("LESS", "FRX")
        click.echo_via_pager(text)
    else:
        click.echo(text, nl=False)
