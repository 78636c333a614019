"""The commands of slicer, one below the other, as click knows them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import click

from slicer.cli.app import app

WIDTH = 1000  # so that click breaks no line of what is taken over from its help


@dataclass(frozen=True)
class Command:
    """A command and the words that call it: "slicer queue suggest"."""

    words: str
    command: click.Command

    @property
    def page(self) -> str:
        return self.words.replace(" ", "-")

    @property
    def about(self) -> str:
        """The command in one line, as for NAME."""
        short = self.command.get_short_help_str(WIDTH).rstrip(".")
        return short[:1].lower() + short[1:]

    def context(self, width: int = WIDTH) -> click.Context:
        """As click has it when it prints the help."""
        above = click.Context(app, **app.context_settings)  # of which commands inherit some
        return click.Context(self.command, above, self.words, max_content_width=width, terminal_width=width)


def subcommands(parent: Command) -> list[Command]:
    """The commands below one, hidden ones left out."""
    context = parent.context()
    listed = getattr(parent.command, "list_commands", None)
    found = []
    for name in listed(context) if listed else ():
        command = parent.command.get_command(context, name)  # type: ignore[attr-defined]
        if command is not None and not command.hidden:
            found.append(Command(f"{parent.words} {name}", command))
    return found


def all_commands() -> list[Command]:
    """Every command but slicer itself, each followed by those below it."""

    def below(parent: Command) -> Iterator[Command]:
        for command in subcommands(parent):
            yield command
            yield from below(command)

    return list(below(Command("slicer", app)))
