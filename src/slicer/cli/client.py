"""``slicer client``: prints the client for programs that are not in slicer's environment, or for agents."""

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
  slicer client --skill > ~/.claude/skills/slicer/SKILL.md
      For a coding agent. Others read ~/.agents/skills, or AGENTS.md.
"""


@click.command("client", epilog=_EXAMPLES)
@click.option("--skill", is_flag=True, help="Print a SKILL.md instead: how a coding agent runs jobs.")
def command(skill: bool) -> None:
    """Print slicer_client.py, which lets a program in any Python environment hold a lease.

    It needs Python 3.9 or later and the program slicer in PATH, but no package and not slicer's environment.
    Its docstring explains its use. Programs in other languages can talk to `slicer hold --protocol 1`, too.
    """
    name = "_skill.md" if skill else "_client.txt"
    click.echo(resources.files("slicer").joinpath(name).read_text("utf-8"), nl=False)
