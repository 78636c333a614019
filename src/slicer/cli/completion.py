"""``slicer completion``: the script by which a shell completes slicer's command line."""

from __future__ import annotations

import click

from slicer.cli import complete
from slicer.errors import EX_OK


@click.command(
    "completion",
    short_help="Print the completion script for bash, zsh or fish.",
    epilog="""\
\b
Examples:
  eval "$(slicer completion bash)"           in ~/.bashrc
  eval "$(slicer completion zsh)"            in ~/.zshrc, after compinit
  slicer completion fish | source            in ~/.config/fish/config.fish

\b
`slicer install` puts all three where each shell looks by itself, and
`slicer install --user` does so for bash and fish.""",
)
@click.argument("shell", type=click.Choice(tuple(complete.SCRIPTS)), metavar="bash|zsh|fish")
def command(shell: str) -> int:
    """Print the script by which a shell completes slicer's command line.

    Completed are commands, options, profiles, GPUs, properties, and the names, ids and units of jobs. Words
    of a job's own command are completed as they would be without slicer.
    """
    click.echo(complete.script(shell), nl=False)
    return EX_OK
