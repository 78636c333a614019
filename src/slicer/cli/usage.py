"""``slicer usage``: who used how much of the machine."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import click

from slicer.backend import broker_socket
from slicer.broker.protocol.messages import Usage, UsageRow
from slicer.cli import output, say
from slicer.cli.common import since as began_since
from slicer.columns import Line
from slicer.errors import BrokerError, SlicerError, TooManyError
from slicer.kernel.users import group_name, user_name
from slicer.quantity import format_duration
from slicer.record import as_dict

_HOUR_S = 3600.0
_AGAIN_S = 1.0


@click.command(
    "usage",
    short_help="Show who used how much of the machine.",
    epilog="""\
\b
Examples:
  slicer usage
      What your jobs used, of each profile; for root: what each user's did.
  sudo slicer usage --since 30d --by group
      What each group used in the last 30 days.
  slicer usage --json | jq '.rows[].gpu_s'
      GPU-seconds, for a script.

\b
The broker keeps the accounts (slicer install --broker). They count what
was held, also while it idled: a whole GPU as one, a job that declared its GPU
memory (--vram) as that part of one. VRAM is in GiB-hours, and a whole GPU
counts with all its memory. CPU time is that of jobs that have ended.
The form of --json is in docs/json.md.""",
)
@click.option("--since", metavar="DURATION", help="Only what was used within this time (8h, 30d).")
@click.option(
    "--by", type=click.Choice(("user", "group", "profile")),
    help="One line each. Default: user for root, else profile.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(since: str | None, by: str | None, as_json: bool) -> None:
    """Show who used how much: GPU time, GPU memory, CPU time, and how long it waited.

    Root sees everybody's jobs, a user its own. Those that run count so far.
    """
    after = began_since(since)
    by = by or ("profile" if os.geteuid() else "user")
    rows = find(after, by)
    if as_json:
        output.show_json({"by": by, "since": after, "rows": [row_json(row, by) for row in rows]})
    elif rows:
        output.show(table(rows, by))
    else:
        output.show([Line("Nothing yet." if since is None else f"Nothing since {since} ago.")])


def find(after: float | None, by: str) -> Sequence[UsageRow]:
    """Usage since then (seconds since 1970): of everybody for root, else of oneself.

    Raises BrokerError, StateError.
    """
    path = broker_socket(os.environ)
    is_root = os.geteuid() == 0
    if path:
        try:
            return _asked(path, Usage(after, by))
        except BrokerError as error:
            if not is_root:
                raise
            say.line(f"{error}; without jobs that run")
    elif not is_root:
        hint = "slicer history has your own jobs; sudo slicer install --broker"
        raise SlicerError("nobody keeps accounts here: there is no broker", hint=hint)
    from slicer.broker.accounts import PATH, usage

    return usage(PATH, after, by)


def _asked(path: str, call: Usage) -> Sequence[UsageRow]:
    from slicer.broker.client.calls import ask

    try:
        rows: tuple[UsageRow, ...] = ask(path, call).rows
    except TooManyError:  # a user's calls have to be some time apart
        time.sleep(_AGAIN_S)
        rows = ask(path, call).rows
    return rows


def table(rows: Sequence[UsageRow], by: str) -> list[Line]:
    """One line a user, group or profile; below them, if there are several, their sum."""
    heads = f"{by.upper()} | JOBS> | RUNNING> | GPU HOURS> | VRAM GiB HOURS> | CPU HOURS> | WAITED>"
    names = [_name(row.of, by) for row in rows]
    if len(rows) > 1:
        numbers = {name: sum(getattr(row, name) for row in rows) for name in as_dict(rows[0]) if name != "of"}
        names, rows = [*names, "all"], [*rows, UsageRow("", **numbers)]
    hours = (
        _hours([row.gpu_s for row in rows]), _hours([row.vram_mib_s / 1024 for row in rows]),
        _hours([row.cpu_s for row in rows]),
    )  # fmt: skip
    cells = [
        (
            name, str(row.jobs), str(row.running) if row.running else "-", *used,
            format_duration(row.waited_s) if row.waited_s >= 0.1 else "-",
        )
        for name, row, used in zip(names, rows, zip(*hours, strict=True), strict=True)
    ]  # fmt: skip
    return output.table(heads, cells)


def _hours(seconds: Sequence[float]) -> list[str]:
    """A column of hours, all with as many digits as the largest needs to tell something."""
    most = max(seconds) / _HOUR_S
    digits = 1 if most >= 10 else 2 if most >= 1 else 3
    return [f"{each / _HOUR_S:.{digits}f}" if each else "-" for each in seconds]


def _name(of: str, by: str) -> str:
    if by == "profile":
        return of or "-"
    return user_name(int(of)) if by == "user" else group_name(int(of))


def row_json(row: UsageRow, by: str) -> dict[str, Any]:
    data = {name: value for name, value in as_dict(row).items() if name != "of"}
    data = {name: round(value, 3) if isinstance(value, float) else value for name, value in data.items()}
    if by == "profile":
        return {"profile": row.of, **data}
    return {by: _name(row.of, by), "uid" if by == "user" else "gid": int(row.of), **data}
