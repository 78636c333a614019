"""``slicer queue add``: append a job, or a sweep of jobs, to a jobs file."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from slicer.cli import common, complete, runoptions, say
from slicer.cli.common import meant
from slicer.cli.queue import parameters
from slicer.errors import SlicerError, UsageError
from slicer.queue import plans
from slicer.queue.control import client
from slicer.queue.file import adding, attributes
from slicer.queue.model import QueueOptions
from slicer.queue.state import folding
from slicer.queue.state.journal import Journal
from slicer.text import counted, quote, split_list, visible

_COMPLETED = {"profile": complete.profiles}


def _attributes(command: Callable[..., Any]) -> Callable[..., Any]:
    """An option for each attribute that a line can have."""
    known = {option.names[-1]: (option.names, option.metavar) for option in runoptions.OPTIONS}
    for key, example in reversed(attributes.EXAMPLES.items()):
        if key == "snapshot":  # made here
            continue
        names, metavar = known.get(f"--{key}", ((f"--{key}",), "VALUE"))
        more: dict[str, Any] = {"metavar": metavar, "shell_complete": _COMPLETED.get(key)}
        if key == "env":
            more = {"multiple": True, "metavar": "NAME=VALUE"}
        command = click.option(*names, help=f"As [{example}] in the file.", **more)(command)
    return command


class _Add(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, but what follows "--" is never FILE."""
        if "--" in args:
            ahead = self.make_parser(ctx).parse_args(args[: args.index("--")])[0]
            if not isinstance(ahead.get("file"), str):
                hint = "slicer queue add [OPTIONS] FILE -- COMMAND [ARGUMENTS]"
                raise UsageError("no FILE before the --", hint=hint)
        return super().parse_args(ctx, args)


@click.command(
    "add",
    cls=_Add,
    short_help="Append jobs to the jobs file.",
    epilog="""\
\b
Examples:
  slicer queue add jobs.txt --vram 18G -- python train.py --seed 1
      One job, with its GPU memory in brackets.
  slicer queue add jobs.txt -- 'python a.py && python b.py'
      One word is a shell's command line, as a line of the file is.
  slicer queue add jobs.txt --param lr=1,2 --param s=3,4 -- ./train {lr} {s}
      Four jobs: each value of lr with each of s.""",
)
@parameters.jobs_file
@click.argument("words", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@_attributes
@click.option(
    "--param", "params", metavar="NAME=VALUE,…", multiple=True,
    help="A line for each VALUE (1..6: numbers), in place of {NAME}; with several, for each combination.",
)  # fmt: skip
@click.option("--snapshot", "copies", is_flag=True, help="Run in a copy of the git work tree as it is now.")
@click.option("--dry-run", "only_prints", is_flag=True, help="Only print the lines.")
@parameters.log_dir("Of the queue that runs FILE: --after may name its earlier jobs.")
def command(
    file: str, words: tuple[str, ...], env: tuple[str, ...], params: tuple[str, ...], copies: bool,
    only_prints: bool, log_dir: str, **said: str | None,
) -> None:  # fmt: skip
    """Append a line that runs COMMAND to FILE. A running queue takes it up at once.

    The line is checked together with the whole file. If anything is wrong, nothing is added.
    """
    typed = [(key, value) for key, value in said.items() if value is not None]
    typed += [(f"env.{name}", value) for name, value in (_pair(each, "--env") for each in env)]
    lines = adding.lines([*typed, *[("snapshot", "PATH")] * copies], words, _parameters(params))
    profile = said["profile"]
    if profile is not None and not params:
        common.config().profile(profile)
    if only_prints:
        for line in lines:
            print(visible(line, "\t"))
        return
    config = common.config()
    shell = plans.shell_of(None, config, os.environ)
    doubts = plans.doubts(file, shell, config, QueueOptions.profile, os.environ)
    records = Journal.peek(log_dir) or ()
    known = {state.name for state in folding.fold(records).values() if state.name}
    place = ""
    if copies:
        from slicer.job import snapshot

        common.check_directory()
        place = snapshot.take(os.path.join(os.getcwd(), said["cwd"] or ""), os.environ, "queue-")
        lines = adding.lines([*typed, ("snapshot", place)], words, _parameters(params))
    try:
        first = adding.append(file, lines, known)
    except SlicerError:
        if place:
            snapshot.drop(snapshot.copy_of(place, os.environ), os.environ)
        raise
    where = f"line {first}" if len(lines) == 1 else f"lines {first} to {first + len(lines) - 1}"
    for doubt in doubts.of("\n" * (first - 1) + "\n".join(lines)):
        say.line(doubt)
    print(f"{counted(len(lines), 'job')} added to {quote(file)}, {where}; {_taken_by(file)}")


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{text!r:.60}: expected NAME=VALUE", where=option)
    return name, value


def _parameters(params: tuple[str, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, text in (_pair(each, "--param") for each in params):
        values = [value for word in meant(split_list, text, "--param") for value in adding.expanded(word)]
        if name in found:
            raise UsageError(f"{name} is given twice", where="--param", hint=f"--param {name}=1,2")
        if not all(values):
            raise UsageError(f"{name} has an empty value", where="--param", hint=f"--param {name}=1,2")
        found[name] = values
    return found


def _taken_by(file: str) -> str:
    """Ask the running queues of this file to read it; returns who will run the lines, or what to type."""
    try:
        with client.queues(os.environ) as found:
            path = os.path.realpath(file)
            ours = [each for each in found if each.queue and os.path.realpath(each.queue.file) == path]
            pids = [str(each.pid) for each in ours if each.send("look")]
    except SlicerError as error:  # the lines are in the file, whoever runs them
        say.line(str(error))
        pids = []
    return f"taken up by the queue of pid {', '.join(pids)}" if pids else f"next: slicer queue {quote(file)}"
