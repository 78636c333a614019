"""``slicer bench``: what slicer does on this machine, in figures."""

from __future__ import annotations

import importlib

import click

_SUBCOMMANDS = ("sharing",)  # modules of this package with a ``command``


class _Lazy(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _SUBCOMMANDS:
            return None
        found: click.Command = importlib.import_module(f"slicer.cli.bench.{cmd_name}").command
        return found


@click.group(
    "bench",
    cls=_Lazy,
    short_help="Measure on this machine what slicer does.",
    epilog="""\
\b
Examples:
  slicer bench sharing               what --share does to jobs on a GPU
  slicer bench sharing --output out  the same, with table, JSON and plot""",
)
def command() -> None:
    """Measure what slicer does on this machine."""
