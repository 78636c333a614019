"""``slicer run``, ``hold`` and ``route`` as click commands, for ``--help`` and completion.

They are built from the option table of the fast parser.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from slicer.cli import complete
from slicer.cli.commands import TwoPages
from slicer.cli.runoptions import GROUPS, OPTIONS, Option, defaults_of, options_of

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

_HELP = """\
Run a command in a transient systemd scope of its own.

The command gets the limits of a profile, and a lease on the GPUs and slots that the profile requests. It
waits until they are free, and keeps them until the scope's last process has exited. The command begins at the
first word that is not an option; `--` before it is optional.

Without systemd (containers) limits are best effort; `slicer run --dry-run` shows which ones act.
"""

_EPILOG = """\
\b
Examples:
  slicer run -- make -j8
      Under the default profile (light): no lease, low weight.
  slicer run --profile heavy --name backup --expect 20m -- tar cJf b.txz src
      Waits for a CPU slot; others see who holds it, and for how long.
  slicer run --gpus 2 --timeout 12h -- torchrun train.py
      Two whole GPUs, for at most 12 hours.
  slicer run --vram 8G --share both -- python infer.py
      8G on one GPU, which others may share if they fit. --share enforces the
      8G, and takes turns with others; without it, slicer trusts the job.
  slicer run --gpu 0,1 --gpus 1 --max-wait 1h --then fail -- ./eval
      One of the first two GPUs, or exit code 75 after an hour.
  slicer run --gpus 1 --no-wait -- ./infer || handle $?
      Exit code 75 if busy, with one line of JSON on stderr about the holder.
  slicer run --set MemoryMax=8G --set CPUQuota=200% -- ./job
      Limits as systemd names them; they override those of the profile.
  slicer run --profile gpu --dry-run -- python train.py
      What it would do, with the source of every value.

\b
Unless --quiet, slicer reports on stderr who holds what the job waits for,
when the job got it, and how it ended. The command's own output is unchanged.

\b
Exit codes: the command's own, 128+N if signal N ended it, or one of slicer's:
slicer help exit-codes. slicer help environment lists the variables.
"""

_HOLD = """\
Hold a lease while a command or a shell runs.

This is `slicer run` without a scope. The lease on GPUs and slots is the same, and others wait for it just as
long. But the command gets no limits, and its environment only has the lease's GPUs. Of a profile, the needs
apply, not the limits. Without COMMAND, slicer starts your shell ($SHELL); exit it to give everything back.
"""

_HOLD_EPILOG = """\
\b
Examples:
  slicer hold --gpus 1
      A shell that has a GPU to itself until you exit it.
  slicer hold --vram 8G --expect 30m --name notebook -- jupyter lab
      Part of a GPU; others see who holds it, and for how long.
  slicer hold --cpu-slots 1 --max-wait 10m -- ./build.sh
      A CPU slot; after ten minutes of waiting, build without one.
  slicer hold --protocol 1 --gpus 1
      For a program in any language: tells it in lines of JSON which GPU it
      has, until the program closes this one's standard input.

\b
Exit codes: the same as slicer run; see slicer help exit-codes.
"""

_ROUTE = """\
Run a command on the GPU or on the CPU, as its input decides.

NAME is a [routes.NAME] section of the configuration. The route's probe measures the command's input, and the
route compares the result with its thresholds. So it chooses a destination, which has its own arguments,
profile and limit on jobs at a time. One line on stderr says why. If the destination is busy, the job is
blocked: it does not wait, unless the route says so.

Options may come before or after NAME. Inside a job of the same route, or if its only argument is --help, -h,
--version or -V, COMMAND is executed at once, without a decision.
"""

_ROUTE_EPILOG = """\
\b
Examples:
  slicer route whisper -- whisper talk.mp4
      Decide, say why in one line, and run the job.
  slicer route whisper --dry-run -- whisper talk.mp4
      Only decide, and say whether the destination is free now.
  slicer route whisper --on-busy wait --max-wait 1h -- whisper talk.mp4
      Wait although the route says to fail.
  slicer route whisper -- whisper talk.mp4 || handle $?
      75 (or the route's exit_code) when blocked, with one line of JSON on
      stderr about the holder.

\b
Exit codes: those of slicer run (see slicer help exit-codes), and
    2  the job is too large for all destinations, or there is no such route
   75  blocked; exit_code in the route chooses another
  125  the input could not be found or measured
"""

_COMPLETIONS = {
    "profile": complete.profiles,
    "gpu": complete.gpus,
    "set": complete.properties,
    "share_mode": complete.share_modes,
    "slot": complete.slots,
}


# What ``-h`` shows.
_USUAL = (
    "--profile --gpus --vram --set --after --begin --no-wait --max-wait --name --detach --timeout"
    " --dry-run -h --help"
)


def _click_option(option: Option) -> click.Option:
    made: dict[str, Any] = {"help": option.help, "hidden": option.hidden}
    if option.metavar:
        made |= {"metavar": option.metavar, "type": str, "multiple": option.default == ()}
        if option.choices:
            made["type"] = click.Choice(option.choices)
        if option.field == "outcome":
            made["type"] = click.Path()
        if option.field in _COMPLETIONS:
            made["shell_complete"] = _COMPLETIONS[option.field]
    else:
        made |= {"is_flag": True, "flag_value": option.value, "type": click.UNPROCESSED}
    return click.Option([*option.names, option.field], default=None, **made)


def parsed(name: str, params: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The options and the command, as the fast parser returns them.

    click is not told the defaults: its versions treat a default of a flag with a value differently.
    """
    options = {
        field: params[field] if params.get(field) is not None else default
        for field, default in defaults_of(name).items()
    }
    return options, params["command"]


def fast_command(
    name: str, help: str, epilog: str, metavar: str, *,
    options_metavar: str = "[OPTIONS] [--]", completes: Complete = complete.command_line,
) -> click.Command:  # fmt: skip
    """A command whose fast parser is in the module of its name."""

    def callback(**params: Any) -> int:
        module = importlib.import_module(f"slicer.cli.{name}")
        code: int = module.perform(*parsed(name, params))
        return code

    words = click.Argument(
        ["command"], nargs=-1, type=click.UNPROCESSED, shell_complete=completes, metavar=metavar
    )
    options = options_of(name)
    own = [option for option in options if option not in OPTIONS]
    groups = {heading: [each for each in group if each in options] for heading, group in GROUPS.items()}
    groups = {"Its own": own, **groups}
    return TwoPages(
        name,
        usual=f"{' '.join(option.names[-1] for option in own)} {_USUAL}",
        groups={heading: [option.names[-1] for option in group] for heading, group in groups.items()},
        help=help,
        epilog=epilog,
        callback=callback,
        params=[*(_click_option(option) for option in options if option.field != "help"), words],
        context_settings={"allow_interspersed_args": False},
        options_metavar=options_metavar,
    )


_ADOPT = """\
Make a job of a process that runs already.

With all that it has started, it gets a scope with a profile's limits, and a lease: if you name no GPUs, on
those that it uses, which it gets whole or, with --vram, in part. It stays in its terminal, with its
environment and the memory that it has. Nobody sees its exit code: the job's is 125, for unknown.
"""

_ADOPT_EPILOG = """\
\b
Examples:
  slicer adopt 4711 --name train     with the GPUs that it uses
  slicer adopt 4711 --vram 20G       20G of each
"""

command = fast_command("run", _HELP, _EPILOG, "COMMAND [ARGUMENT]...")
adopt = fast_command(
    "adopt", _ADOPT, _ADOPT_EPILOG, "PID", options_metavar="[OPTIONS]", completes=lambda *_: []
)  # fmt: skip
hold = fast_command("hold", _HOLD, _HOLD_EPILOG, "[COMMAND [ARGUMENT]...]")
route = fast_command(
    "route", _ROUTE, _ROUTE_EPILOG, "NAME [--] COMMAND [ARGUMENT]...", options_metavar="[OPTIONS]",
    completes=complete.route_line,
)
