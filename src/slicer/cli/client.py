"""``slicer client``: prints the client for programs with slicer in PATH but not in their environment."""

from __future__ import annotations

from importlib import resources

import click

_EXAMPLES = """\
\b
Examples:
  slicer client > slicer_client.py
      Beside the program that imports it.
  slicer client | ssh gpubox 'cat > train/slicer_client.py'
      The same on another machine, where it talks to that machine's slicer.
"""


@click.command("client", epilog=_EXAMPLES)
def command() -> None:
    """Print slicer_client.py, which lets a program in any Python environment hold a lease.

    It needs Python 3.9 or later and the program slicer in PATH, but no package and not slicer's environment.
    Its docstring explains its use. Programs in other languages can talk to `slicer hold --protocol 1`, too.
    """
    click.echo(resources.files("slicer").joinpath("_client.txt").read_text("utf-8"), nl=False)
