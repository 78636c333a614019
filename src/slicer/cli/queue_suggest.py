"""``slicer queue suggest``: the jobs file with declarations that fit what was seen."""

from __future__ import annotations

import sys

import click

from slicer.cli import say
from slicer.cli.queue import fraction
from slicer.errors import UsageError
from slicer.queue import folding, jobs_file, suggest
from slicer.queue.journal import Journal
from slicer.queue.options import DEFAULT_LOG_DIR, Options


@click.command("suggest", short_help="Print the jobs file with declarations that fit.")
@click.argument("file", type=click.Path())
@click.option(
    "--log-dir", metavar="DIR", default=DEFAULT_LOG_DIR, show_default=True, type=click.Path(),
    help="Of the queue that ran it.",
)  # fmt: skip
@click.option(
    "--tolerance", metavar="FRAC", type=float, callback=fraction, default=Options.tolerance,
    show_default=True, help="Correct declarations that differ from what was seen by more than this.",
)  # fmt: skip
def command(file: str, log_dir: str, tolerance: float) -> None:
    """Print FILE with a `vram=` for each job that says what it was seen to use, and a little more.

    All else stays as it is, comments too. How many lines were changed is said on stderr.
    """
    text = jobs_file.read(file, keep_newlines=True)
    jobs_file.parse(text, known=(), name=file)
    records = Journal.peek(f"{log_dir}/journal.jsonl")
    if records is None:
        raise UsageError("there is no journal", where=log_dir, hint="run the queue first, or give --log-dir")
    declared = suggest.proposals(folding.fold(records).values(), tolerance)
    keys = {entry.key for entry in jobs_file.parse(text, name=file)}
    declared = {key: mib for key, mib in declared.items() if key in keys}
    sys.stdout.write(suggest.corrected(text, declared))
    sys.stdout.flush()
    say.line(f"{len(declared)} of {len(keys)} declarations changed")
