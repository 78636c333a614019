"""Kinds of commands: a group that imports its commands lazily, and one with help in two lengths."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

import click

_SHORT = "slicer.help.short"


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


def _short(ctx: click.Context, param: click.Parameter, is_set: bool) -> None:
    if is_set and not ctx.resilient_parsing:
        ctx.meta[_SHORT] = True
        click.echo(ctx.get_help())
        ctx.exit()


class TwoPages(click.Command):
    """Help in two lengths: ``-h`` for the options that one uses, ``--help`` for all of them, in groups.

    ``usual``: the options of ``-h``. ``groups``: the names of all, by their headings.
    """

    def __init__(
        self, name: str | None, *, usual: str, groups: Mapping[str, Iterable[str]],
        params: list[click.Parameter], context_settings: dict[str, Any] | None = None, **more: Any,
    ) -> None:  # fmt: skip
        short = click.Option(
            ["-h"], is_flag=True, is_eager=True, expose_value=False, callback=_short,
            help="Show the options that one uses.",
        )  # fmt: skip
        settings = {"help_option_names": ["--help"], **(context_settings or {})}
        super().__init__(name, params=[*params, short], context_settings=settings, **more)
        self._usual, self._groups = usual.split(), groups

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        found = super().get_help_option(ctx)
        if found is not None:
            found.help = "Show all options, in groups, and examples."
        return found

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        whole = self.help
        if _SHORT in ctx.meta and whole:
            self.help = whole.partition("\n\n")[0]
        super().format_help_text(ctx, formatter)
        self.help = whole

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found: dict[str, tuple[str, str]] = {}
        for each in self.get_params(ctx):
            shown = each.get_help_record(ctx)
            if shown is not None:
                found |= dict.fromkeys(each.opts, shown)
        groups = {"Options": self._usual} if _SHORT in ctx.meta else self._groups
        for heading, names in groups.items():
            listed = list(dict.fromkeys(found[name] for name in names if name in found))
            if listed:
                with formatter.section(heading):
                    formatter.write_dl(listed)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if _SHORT not in ctx.meta:
            super().format_epilog(ctx, formatter)
            return
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(f"All options, and examples: slicer help {ctx.info_name}")
