"""Arguments and options of the commands of ``slicer queue``, and the parsers of their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from slicer.cli.common import meant
from slicer.config.values import gpu_list
from slicer.errors import UsageError
from slicer.quantity import parse_duration, parse_mib
from slicer.queue.model import DEFAULT_LOG_DIR, HoldBack, QueueOptions

_FRACTION_MOST = 10

jobs_file = click.argument("file", type=click.Path())


def log_dir(about: str = "The LOG_DIR of the queue.") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--log-dir", metavar="DIR", default=DEFAULT_LOG_DIR, show_default=True, type=click.Path(), help=about
    )


def tolerance(about: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--tolerance", metavar="FRAC", type=float, callback=fraction, default=QueueOptions.tolerance,
        show_default=True, help=about,
    )  # fmt: skip


def mib(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    return None if value is None else meant(parse_mib, value, param.opts[0])


def seconds(ctx: click.Context, param: click.Parameter, value: str) -> float:
    found = meant(parse_duration, value, param.opts[0], "for example 5, 0.5 or 1m") / 1e6
    if not 0 < found < 86400:
        raise UsageError(f"{value}: expected a time above 0 and below one day", where=param.opts[0])
    return found


def fraction(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """A fraction: 0.1 is 10 %."""
    if value is not None and not 0 <= value <= _FRACTION_MOST:  # this also rejects NaN
        raise UsageError(
            f"{value}: expected a number from 0 to {_FRACTION_MOST}", where=param.opts[0], hint="0.1 is 10 %"
        )
    return value


def gpus(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    return () if value is None else gpu_list((value, "--gpu", UsageError), "gpu")


def hold_back(ctx: click.Context, param: click.Parameter, value: str) -> HoldBack:
    """As in 5/1m; off: never."""
    if value == "off":
        return HoldBack(0)
    failures, _, within = value.partition("/")
    if not (failures.isdecimal() and int(failures)):
        raise UsageError(f"{value!r:.40}: expected N/DURATION or off", where=param.opts[0], hint="5/1m")
    return HoldBack(int(failures), seconds(ctx, param, within))


def no_journal(log_dir: str) -> UsageError:
    return UsageError("there is no journal", where=log_dir, hint="run the queue first, or add --log-dir")
