"""``slicer client``: the file for programs that have slicer in PATH, and not in their own environment."""

from __future__ import annotations

from importlib import resources

import click

_EXAMPLES = """\
\b
Examples:
  slicer client > slicer_client.py
      Beside the program that imports it.
  slicer client | ssh gpubox 'cat > train/slicer_client.py'
      The same on another machine, whose slicer it talks to there.
"""


@click.command("client", short_help="Print slicer_client.py, for any Python program.", epilog=_EXAMPLES)
def command() -> None:
    """Print slicer_client.py, with which a program in any Python environment holds a lease.

    It needs Python 3.9 or later and the program slicer in PATH: no package, and not slicer's environment. Its
    docstring says how it is used. Programs in other languages talk to `slicer hold --protocol 1`, as it does.
    """
    click.echo(resources.files("slicer").joinpath("_client.txt").read_text("utf-8"), nl=False)
