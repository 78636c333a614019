"""The commands other than ``slicer run``, each imported only when it is used, and their error messages."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import click

from slicer.cli import output, say
from slicer.cli.commands import LazyGroup, named
from slicer.errors import EX_OK, EX_SLICER, SlicerError, UsageError
from slicer.text import visible
from slicer.version import __version__

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_INTERRUPTED = 130  # 128 + SIGINT, as in a shell
_BROKEN_PIPE = 141  # 128 + SIGPIPE

# Each command's place in this package, and what it is for, by the headings of the help.
_GROUPS = {
    "Run": {
        "run": ("run_help", "run one command"),
        "queue": ("queue.run", "run the jobs in a file"),
        "hold": ("run_help:hold", "hold GPUs for a program"),
        "adopt": ("run_help:adopt", "make a job of a process"),
        "route": ("run_help:route", "run on GPU or CPU, by input"),
        "wrap": ("wrap", "route a program's calls"),
        "client": ("client", "take GPUs inside a program"),
        "mcp": ("mcp", "tools for coding agents"),
    },
    "Change": {
        "stop": ("stop", "end jobs and queues"),
        "pause": ("pause", "pause jobs, keep their GPUs"),
        "resume": ("pause:resume_command", "let paused jobs go on"),
        "set": ("set", "change limits while it runs"),
    },
    "More": {
        "serve": ("serve", "a server, its GPU on demand"),
        "web": ("web", "the same as top, in browsers"),
        "help": ("help", "explain a command or a topic"),
        "simjob": ("simjob", "a job to try slicer with"),
    },
    "Look": {
        "top": ("top", "watch GPUs, jobs, who waits"),
        "status": ("status", "the same, printed once"),
        "show": ("show", "all about one job"),
        "logs": ("logs", "what a job has printed"),
        "wait": ("wait", "wait until jobs have ended"),
    },
    "Sum up": {
        "history": ("history", "how each job ended, and why"),
        "usage": ("usage", "what each user used"),
        "report": ("report", "a week of GPUs on one page"),
        "metrics": ("metrics", "figures for Prometheus"),
    },
    "Machine": {
        "doctor": ("doctor", "what does not work, and why"),
        "install": ("install", "set up units and the broker"),
        "profiles": ("profiles", "named limits and needs"),
        "routes": ("routes.command", "routes, and what they decide"),
        "reserve": ("reserve", "keep GPUs for a time to come"),
        "policy": ("policy", "check the rules for users"),
        "completion": ("complete", "for bash, zsh and fish"),
    },
}
_LISTED = {name: said for group in _GROUPS.values() for name, said in group.items()}
_COMMANDS = {**{name: place for name, (place, _) in _LISTED.items()}, "version": "help:version"}
_RIGHT = ("Look", "Sum up", "Machine")  # the column in which a group stands
_NAME, _COLUMN = 8, 40  # how wide a command's name is, and a column

class _Slicer(LazyGroup):
    """Its help is one screen of 24 rows: all commands, in groups."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        if found is not None and cmd_name in _LISTED:
            about = _LISTED[cmd_name][1]
            found.short_help = f"{about[0].upper()}{about[1:]}."
        return found

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        columns: tuple[list[str], list[str]] = ([], [])
        for heading, group in _GROUPS.items():
            column = columns[heading in _RIGHT]
            column.append(heading)
            column += [f"  {name:<{_NAME}}  {about}" for name, (_, about) in group.items()]
        formatter.write("Usage: slicer COMMAND ...      It gives each job its GPUs, in turn, and limits.\n\n")
        for left, right in zip_longest(*columns, fillvalue=""):
            formatter.write(f"{left:<{_COLUMN}}{right}".rstrip() + "\n")
        formatter.write(
            "\n`slicer run -h` lists the options that one uses, `slicer help run` all of them.\n"
            "`slicer help exit-codes`, `environment` and `units` are further topics.\n"
        )


@click.group(
    cls=_Slicer,
    modules=_COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="slicer %(version)s")
@click.pass_context
def app(ctx: click.Context) -> None:
    """Run commands in systemd scopes, with GPUs and slots leased for as long as they live."""
    if ctx.invoked_subcommand is None:
        named("overview:show")()


def main(arguments: list[str]) -> int:
    """Run one command line (without the program's name); returns the exit code and never raises."""
    output.escape_unprintable()
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return guarded(lambda: _dispatch(arguments), as_json="--json" in own)


def _dispatch(arguments: list[str]) -> Any:
    """Run or complete one command line. Returns its result and raises its errors."""
    if instruction := os.environ.get("_SLICER_COMPLETE"):
        from slicer.cli import complete

        return complete.answer(app, instruction, os.environ)
    with app.make_context("slicer", list(arguments)) as ctx:
        return app.invoke(ctx)


def guarded(action: Callable[[], Any], *, as_json: bool = False) -> int:
    """Run an action that prints; returns the exit code: the action's own result if that is a number."""
    try:
        code = action()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (head, less) has closed the pipe. Without this, Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _BROKEN_PIPE
    except (KeyboardInterrupt, click.Abort):
        return _INTERRUPTED
    except click.exceptions.Exit as leaving:  # --help
        return leaving.exit_code
    except Exception as failure:
        return report(failure, as_json=as_json)
    return code if isinstance(code, int) else EX_OK


def report(failure: Exception, *, as_json: bool = False) -> int:
    """Report the failure on stderr, as one line of text or of JSON. Returns the exit code."""
    if os.environ.get("SLICER_DEBUG") == "1":
        import traceback

        for line in "".join(traceback.format_exception(failure)).splitlines():
            print(visible(line), file=sys.stderr)
    told = failure if isinstance(failure, SlicerError) else _translated(failure)
    return say.error_json(told) if as_json else say.error(told)


def _translated(failure: Exception) -> SlicerError:
    """Any exception as a SlicerError."""
    if isinstance(failure, click.UsageError):
        return _usage(failure)
    if isinstance(failure, click.ClickException):
        return SlicerError(failure.format_message())
    if isinstance(failure, OSError) and failure.filename is None and failure.errno in _FULL:
        return SlicerError(f"cannot be written: {failure.strerror}", where="standard output")
    message = f"internal error: {type(failure).__name__}: {failure}"
    error = SlicerError(message, hint="please report it, with the output under SLICER_DEBUG=1")
    error.exit_code, error.kind = EX_SLICER, "internal"
    return error


def _usage(failure: click.UsageError) -> UsageError:
    """click's error about a command line, in slicer's form."""
    path = failure.ctx.command_path if failure.ctx else "slicer"
    hint = f"see slicer help {path.partition(' ')[2]}".rstrip()
    message = failure.format_message().rstrip(".")
    where = path.partition(" ")[2]
    if isinstance(failure, click.NoSuchOption):
        message = f"no such option {failure.option_name!r}"
        hint = _meant_option(failure) or hint
    elif failure.ctx and failure.ctx.command is app:
        hint = _meant_command(failure) or hint
    return UsageError(message[:1].lower() + message[1:], where=where, hint=hint)


def _meant_option(failure: click.NoSuchOption) -> str:
    from slicer.cli import elsewhere
    from slicer.cli.runoptions import OPTIONS

    if failure.ctx is None:
        return ""
    if failure.ctx.command is app and any(failure.option_name in option.names for option in OPTIONS):
        return f"did you mean slicer run {failure.option_name}?"
    shown = (each for each in failure.ctx.command.params if not getattr(each, "hidden", False))
    return elsewhere.option(failure.option_name, [name for each in shown for name in each.opts])


def _meant_command(failure: click.UsageError) -> str:
    from slicer.cli import elsewhere

    _, _, rest = failure.message.partition("'")
    return elsewhere.command(rest.partition("'")[0], _COMMANDS)
