"""``slicer bench``: what slicer does on this machine, in figures."""

from __future__ import annotations

import click

from slicer.cli.lazy import LazyGroup


@click.group(
    "bench",
    cls=LazyGroup,
    modules={"sharing": "bench.sharing"},
    short_help="Measure on this machine what slicer does.",
    epilog="""\
\b
Examples:
  slicer bench sharing               what --share does to jobs on a GPU
  slicer bench sharing --output out  the same, with table, JSON and plot""",
)
def command() -> None:
    """Measure what slicer does on this machine."""
