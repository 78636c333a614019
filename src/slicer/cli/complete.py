"""Words for the shell's completion. A failure only means that there are none."""

from __future__ import annotations

import os

from click.shell_completion import CompletionItem

from slicer.errors import SlicerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import click


def jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names and ids of the jobs that run or wait."""
    from slicer.status import existing_ledger

    try:
        book = existing_ledger(os.environ, lambda _: None)
        seen = book.snapshot() if book else None
    except SlicerError:
        return []
    if seen is None:
        return []
    words = [word for lease in seen.leases for word in (lease.name, lease.job)]
    words += [word for ticket in seen.tickets for word in (ticket.name, ticket.job)]
    return [word for word in words if word and word.startswith(incomplete)]


def profiles(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The names of the profiles."""
    from slicer.profiles import host, load

    try:
        names = load(os.environ, host()).names()
    except SlicerError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def gpus(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The indices of the GPUs, one more after each comma."""
    from slicer.gpu import GpuError, open_gpus

    try:
        found = open_gpus()
        try:
            indices = [str(gpu.index) for gpu in found.list()]
        finally:
            found.close()
    except GpuError:
        return []
    before = incomplete.rpartition(",")[0]
    stem = f"{before}," if before else ""
    words = [stem + index for index in indices if index not in before.split(",")]
    return [word for word in words if word.startswith(incomplete)]


def command_line(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Of the command to be run: programs first, then whatever files there are."""
    if ctx.params.get("command") or "/" in incomplete:
        return [CompletionItem(incomplete, type="file")]
    found = {
        name
        for directory in os.get_exec_path()
        if os.path.isdir(directory)
        for name in os.listdir(directory)
        if name.startswith(incomplete)
    }
    return [CompletionItem(name) for name in sorted(found)]
