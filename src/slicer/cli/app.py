"""The commands other than ``slicer run``, each imported only when it is used, and their error messages."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Any

import click

from slicer.cli import output, say
from slicer.cli.lazy import LazyGroup, named
from slicer.errors import EX_OK, EX_SLICER, SlicerError, UsageError
from slicer.text import visible
from slicer.version import __version__

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_INTERRUPTED = 130  # 128 + SIGINT, as in a shell
_BROKEN_PIPE = 141  # 128 + SIGPIPE

# Each command's name and its module in this package, in the order of the help.
_COMMANDS = {
    "run": "run_help",
    "hold": "run_help:hold",
    "client": "client",
    "route": "run_help:route",
    "queue": "queue.run",
    "serve": "serve",
    "web": "web",
    "status": "status",
    "top": "status:top_command",
    "show": "show",
    "logs": "logs",
    "wait": "wait",
    "stop": "stop",
    "pause": "pause",
    "resume": "pause:resume_command",
    "set": "set",
    "history": "history",
    "usage": "usage",
    "report": "report",
    "reserve": "reserve",
    "metrics": "metrics",
    "policy": "policy",
    "wrap": "wrap",
    "profiles": "profiles",
    "routes": "routes.command",
    "doctor": "doctor",
    "install": "install",
    "completion": "complete",
    "simjob": "simjob",
}

# Commands that other programs have, and what does the same in slicer.
_ELSEWHERE = {
    "submit": "slicer run --detach -- COMMAND runs one job, slicer queue FILE the jobs in a file",
    "add": "slicer queue add FILE -- COMMAND appends a job to a jobs file; slicer queue FILE runs them",
    "sweep": "slicer queue add FILE --param lr=1,2 -- COMMAND {lr}, then slicer queue FILE",
    "log": "slicer logs JOB shows what it printed",
    "tail": "slicer logs -f JOB follows what it prints",
    "attach": "slicer logs -f JOB follows a job's output, slicer queue FILE the board of a running queue",
    "restart": "slicer queue retry FILE makes the failed jobs of a queue pending again",
    "proxy": "slicer serve gives a server a GPU only while it has requests",
    "background": "slicer run --detach and slicer queue FILE --detach run in the background",
}

_EPILOG = """\
\b
Examples:
  slicer run -- make -j8                    a small job, with low priority
  slicer run --profile heavy -- xz -T0 x    waits for a CPU slot
  slicer run --gpus 1 -- python train.py    waits for a whole GPU
  slicer run --vram 8G -- python infer.py   shares a GPU with jobs that fit
  slicer hold --gpus 1                      a shell that has a GPU
  slicer route whisper -- whisper a.mp4     on the GPU or CPU, by its input
  slicer serve ollama                       a server with a GPU while in use
  slicer run -d --gpus 1 -- ./train         in the background; prints its id
  slicer status                             who holds what, and what is free
  slicer top                                the same live, with keys to act
  slicer logs -f train                      what it prints, until it ends
  slicer stop train                         end the job named train
  slicer pause train                        pause it until slicer resume train
  slicer set train MemoryHigh=8G            change its limits while it runs
  slicer history -n 5                       how the last five jobs ended
  slicer doctor                             what does not work here, and why

\b
Exit codes other than those of a job's command:
    2  the command line is wrong             125  slicer itself failed
   75  busy, with --no-wait or --max-wait    126  cannot execute
  124  over a time limit                     127  not found

\b
Environment:
  SLICER_CONFIG      a further configuration file, which overrides all others
  SLICER_STATE_DIR   where leases are kept, instead of /run/slicer
  SLICER_BROKER=off  do not use the broker if there is one
  SLICER_SIM=2x24G   simulated GPUs instead of this machine's; see simjob
  SLICER_DEBUG=1     show a traceback with every error
"""


@click.group(
    cls=LazyGroup,
    modules=_COMMANDS,
    epilog=_EPILOG,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="slicer %(version)s")
@click.pass_context
def app(ctx: click.Context) -> None:
    """Run commands in systemd scopes, with GPUs and slots leased for as long as they live.

    See `slicer COMMAND --help` for each command.
    """
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
    hint = f"see {path} --help"
    message = failure.format_message().rstrip(".")
    where = path.partition(" ")[2]
    if isinstance(failure, click.NoSuchOption):
        message = f"no such option {failure.option_name!r}"
        hint = _meant_option(failure) or hint
    elif failure.ctx and failure.ctx.command is app:
        hint = _meant_command(failure) or hint
    return UsageError(message[:1].lower() + message[1:], where=where, hint=hint)


def _meant_option(failure: click.NoSuchOption) -> str:
    from slicer.cli.runoptions import OPTIONS

    if failure.ctx and failure.ctx.command is app:
        if any(failure.option_name in option.names for option in OPTIONS):
            return f"did you mean slicer run {failure.option_name}?"
        return ""
    return f"did you mean {failure.possibilities[0]}?" if failure.possibilities else ""


def _meant_command(failure: click.UsageError) -> str:
    from slicer.config.property_names import nearest

    _, _, rest = failure.message.partition("'")
    word = rest.partition("'")[0]
    close = nearest(word, _COMMANDS) if word not in _ELSEWHERE else ""
    return f"did you mean slicer {close}?" if close else _ELSEWHERE.get(word, "")
