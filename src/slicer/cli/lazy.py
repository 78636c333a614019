"""Command groups that import each command only when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


def named(place: str) -> Any:
    """``MODULE``'s command, or its NAME for ``MODULE:NAME``. So no import ties the core to a feature."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(f"slicer.cli.{module}"), name or "command")


class LazyGroup(click.Group):
    """A group that imports its commands when they are used.

    ``modules`` maps a command's name to its module in ``slicer.cli``, in the order of the help. The command
    is the module's ``command``, or the name after a colon.
    """

    def __init__(self, *arguments: Any, modules: Mapping[str, str], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._modules:
            return None
        found: click.Command = named(self._modules[cmd_name])
        return found
