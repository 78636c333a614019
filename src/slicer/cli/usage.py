"""``slicer usage``: how much of the machine each user used; and the sums of ``slicer history --by``."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import click

from slicer.backend import broker_socket
from slicer.broker import accounts
from slicer.broker.client.calls import ask
from slicer.broker.protocol.messages import Usage, UsageRow
from slicer.cli import output, say
from slicer.cli.common import since as began_since
from slicer.columns import Line
from slicer.errors import BrokerError, SlicerError, TooManyError
from slicer.kernel.users import group_name, user_name
from slicer.outcome.sums import Sum
from slicer.quantity import format_duration, format_mib
from slicer.record import as_dict

_HOUR_S = 3600.0
_AGAIN_S = 1.0
_SUM_HEADS = "{}<22 | RUNS> | FAILED> | GPU HOURS> | CPU HOURS> | WAITED> | LONGEST> | VRAM> | OF VRAM>"
_SHORT_UUID = 12
_FIGURES = "runs failed gpu_s cpu_s waited_median_s waited_longest_s vram_peak_mib vram_mib vram_part"


@click.command(
    "usage",
    epilog="""\
\b
Examples:
  slicer usage
      What your jobs used, by profile; for root: everybody's, by user.
  sudo slicer usage --since 30d --by group
      What each group used in the last 30 days.
  slicer usage --json | jq '.rows[].gpu_s'
      GPU-seconds, for a script.

\b
The broker keeps the accounts (slicer install --broker). They count what jobs
held, even if it was idle: a whole GPU counts as one, a job that declared its
GPU memory (--vram) as that part of one. VRAM is in GiB-hours; a whole GPU
counts with all its memory. CPU time only includes jobs that have ended.
docs/json.md describes the output of --json.""",
)
@click.option("--since", metavar="TIME", help="Only use since then (8h, 30d, monday, 2026-11-20).")
@click.option(
    "--by", type=click.Choice(("user", "group", "profile")),
    help="Print one line for each. Default: user for root, otherwise profile.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(since: str | None, by: str | None, as_json: bool) -> None:
    """Show use by user, group or profile: GPU time, GPU memory, CPU time and waiting time.

    Root sees everybody's jobs, other users only their own. Running jobs count up to now.
    """
    after = began_since(since)
    by = by or ("profile" if os.geteuid() else "user")
    rows = find(after, by)
    if as_json:
        output.show_json({"by": by, "since": after, "rows": [row_json(row, by) for row in rows]})
    else:
        none = "Nothing yet." if since is None else "Nothing in that time."
        output.show(table(rows, by) if rows else [Line(none)])


def find(after: float | None, by: str) -> Sequence[UsageRow]:
    """Use since ``after`` (seconds since 1970): everybody's for root, otherwise the caller's.

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
            say.line(f"{error}; running jobs are not included")
    elif not is_root:
        hint = "slicer history shows your own jobs; sudo slicer install --broker starts accounting"
        raise SlicerError("there are no accounts without the broker", hint=hint)
    return accounts.usage(accounts.PATH, after, by)


def _asked(path: str, call: Usage) -> Sequence[UsageRow]:
    try:
        rows: tuple[UsageRow, ...] = ask(path, call).rows
    except TooManyError:  # the broker wants pauses between a user's calls
        time.sleep(_AGAIN_S)
        rows = ask(path, call).rows
    return rows


def table(rows: Sequence[UsageRow], by: str) -> list[Line]:
    """One line a user, group or profile; below several of them, their sum."""
    heads = f"{by.upper()} | JOBS> | RUNNING> | GPU HOURS> | VRAM GiB HOURS> | CPU HOURS> | WAITED>"
    names = [_name(row.of, by) for row in rows]
    if len(rows) > 1:
        numbers = {name: sum(getattr(row, name) for row in rows) for name in as_dict(rows[0]) if name != "of"}
        names, rows = [*names, "all"], [*rows, UsageRow("", **numbers)]
    used = (
        hours([row.gpu_s for row in rows]), hours([row.vram_mib_s / 1024 for row in rows]),
        hours([row.cpu_s for row in rows]),
    )  # fmt: skip
    cells = [
        (
            name, str(row.jobs), str(row.running) if row.running else "-", *used, waited(row.waited_s),
        )
        for name, row, used in zip(names, rows, zip(*used, strict=True), strict=True)
    ]  # fmt: skip
    return output.table(heads, cells)


def hours(seconds: Sequence[float]) -> list[str]:
    """A column of hours, with as many digits as its largest value needs."""
    most = max(seconds) / _HOUR_S
    digits = 1 if most >= 10 else 2 if most >= 1 else 3
    return [f"{each / _HOUR_S:.{digits}f}" if each else "-" for each in seconds]


def waited(seconds: float) -> str:
    """A time that somebody waited; "-": next to none."""
    return format_duration(seconds) if seconds >= 0.1 else "-"


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


# -- of a history -------------------------------------------------------------------------------------------


def show_sums(
    found: list[Sum], total: Sum, by: str, number: int, indices: dict[str, int], *, as_json: bool
) -> None:
    """Print ``number`` of the sums (0: all) and the total of all. ``indices``: of the GPUs, by UUID."""
    if by == "day":
        shown = sorted(found, key=lambda each: str(each.of))[-number if number else 0 :]
    else:
        shown = found[: number or None]
    has_more = len(shown) < len(found)
    if as_json:
        sums = [output.picked(each, f"of {_FIGURES}") for each in shown]
        for each in sums if by == "user" else ():
            each |= {"of": int(each["of"]), "user": user_name(int(each["of"]))}
        whole = output.picked(total, _FIGURES)
        output.show_json({"by": by, "sums": sums, "total": whole, "has_more": has_more})
        return
    rows = [*shown, total] if len(found) > 1 else shown
    output.show(_sums_table(rows, by, indices) if found else [Line("No such jobs.")])
    if has_more:
        what = "last" if by == "day" else "first"
        say.cut(f"the {what} {number} of {len(found)}, and the sum of all")


def _sums_table(rows: Sequence[Sum], by: str, indices: dict[str, int]) -> list[Line]:
    used = hours([each.gpu_s for each in rows]), hours([each.cpu_s for each in rows])
    cells = [
        (
            _sum_of(each.of, by, indices), str(each.runs), str(each.failed or "-"), *figures,
            waited(each.waited_median_s), waited(each.waited_longest_s), format_mib(each.vram_peak_mib),
            "-" if each.vram_part is None else f"{each.vram_part:.0%}",
        )
        for each, figures in zip(rows, zip(*used, strict=True), strict=True)
    ]  # fmt: skip
    return output.table(_SUM_HEADS.format(by.upper()), cells)


def _sum_of(of: str | None, by: str, indices: dict[str, int]) -> str:
    if of is None:
        return "all"
    if by == "user":
        return user_name(int(of))
    if by == "gpu":
        return f"{indices.get(of, '')} {of[:_SHORT_UUID]}".strip()
    return of or "-"
