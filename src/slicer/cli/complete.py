"""Words for the shell's completion. A failure only means that there are none.

A shell puts such a word on the command line as it is, and evaluates it at the next Enter. Other people choose
the names of jobs, profiles and programs. So only words that mean nothing to a shell are offered.
"""

from __future__ import annotations

import os
import string
from contextlib import closing, suppress

import click
from click.shell_completion import CompletionItem, get_completion_class

from slicer.errors import SlicerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_HARMLESS = frozenset(string.ascii_letters + string.digits + "._:@-")
_PLAIN = "plain"  # click's word for all but files, which the shell finds (and quotes) itself


def harmless(words: Iterable[str], incomplete: str) -> list[str]:
    """The words that begin with ``incomplete`` and mean nothing else to a shell or to an option parser."""
    return [
        word
        for word in words
        if word.startswith(incomplete) and word and word[0] != "-" and _HARMLESS.issuperset(word)
    ]


def sifted(items: Iterable[CompletionItem]) -> list[CompletionItem]:
    """The found items that may be offered. Options, lists (0,1) and "Property=" may, too."""
    allowed = _HARMLESS | {","}

    def is_fine(word: str) -> bool:
        return bool(word) and (allowed.issuperset(word) or (word[-1] == "=" and word[:-1].isalpha()))

    return [item for item in items if item.type != _PLAIN or is_fine(item.value)]


def answer(app: click.Command, variable: str, instruction: str) -> int:
    """Answer a shell's completion (``bash_complete``); returns the exit code."""
    shell, _, what = instruction.partition("_")
    kind = get_completion_class(shell)
    if kind is None or what not in ("source", "complete"):
        return 1
    asked = kind(app, {}, "slicer", variable)
    if what == "source":
        click.echo(asked.source())
        return 0
    found = sifted(asked.get_completions(*asked.get_completion_args()))
    click.echo("\n".join(map(asked.format_completion, found)))
    return 0


def jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names and ids of the jobs that run or wait."""
    from slicer.ledger.status import existing_ledger

    with suppress(SlicerError):
        ledger = existing_ledger(os.environ, lambda _: None)
        if ledger:
            seen = ledger.snapshot()
            words = [word for lease in seen.leases for word in (lease.name, lease.job)]
            words += [word for ticket in seen.tickets for word in (ticket.name, ticket.job)]
            return harmless(words, incomplete)
    return []


def live_properties(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The properties of a running job that can be changed, each with its "="."""
    from slicer.config.live import CHANGEABLE

    return [f"{name}=" for name in CHANGEABLE if name.startswith(incomplete)]


def profiles(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The names of the profiles."""
    from slicer.config.profiles import host, load

    with suppress(SlicerError):
        return harmless(load(os.environ, host()).names(), incomplete)
    return []


def gpus(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The indices of the GPUs, one more after each comma."""
    from slicer.gpu import open_gpus

    indices: list[str] = []
    with suppress(SlicerError), closing(open_gpus()) as found:
        indices = [str(gpu.index) for gpu in found.list()]
    before = incomplete.rpartition(",")[0]
    stem = f"{before}," if before else ""
    words = [stem + index for index in indices if index not in before.split(",")]
    return [word for word in words if word.startswith(incomplete)]


def command_line(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Words of the command to be run: programs first, then files."""
    if ctx.params.get("command") or "/" in incomplete:
        return [CompletionItem(incomplete, type="file")]
    found = {name for directory in os.get_exec_path() for name in harmless(_files(directory), incomplete)}
    return [CompletionItem(name) for name in sorted(found)]


def _files(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []  # PATH may name what is not there, or not for us
