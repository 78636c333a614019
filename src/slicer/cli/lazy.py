"""Groups of commands, each imported only when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for.

    ``modules``: a command's name and its module in ``slicer.cli``, in the order of the help. The module has
    it as ``command``, or as what stands behind a colon.
    """

    def __init__(self, *arguments: Any, modules: Mapping[str, str], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._modules:
            return None
        module, _, name = self._modules[cmd_name].partition(":")
        found: click.Command = getattr(importlib.import_module(f"slicer.cli.{module}"), name or "command")
        return found
