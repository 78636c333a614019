"""``slicer history --all-users``: the jobs of everybody, as the broker has booked them. For root."""

from __future__ import annotations

import os
import time
from typing import Any

from slicer.broker.accounts.reading import AccountRow, jobs
from slicer.cli import output
from slicer.cli.output import Column
from slicer.columns import Line
from slicer.kernel.users import group_name, user_name
from slicer.model import job_of_unit
from slicer.quantity import format_duration, format_size
from slicer.record import as_dict
from slicer.text import one_line, visible

_SHORT_ID = 8
_COMMAND = 32  # as in slicer.cli.history
_MOST_COMMAND = 160
_FULL_DATE_S = 300 * 86400


def find(path: str, word: str | None, **limits: Any) -> list[AccountRow]:
    """The jobs that ``word`` means, the newest first: an id or unit, a name, the beginning of an id.

    ``limits`` are arguments of :func:`slicer.broker.accounts.reading.jobs`. Raises StateError.
    """
    if word is None:
        return jobs(path, **limits)
    wanted = job_of_unit(word)
    by_id = jobs(path, job=wanted, **limits)
    exact = [each for each in by_id if each.job == wanted]
    if exact or limits.get("name"):
        return exact or by_id
    return jobs(path, **{**limits, "name": "".join(f"[{c}]" if c in "*?[" else c for c in word)}) or by_id


def table(found: list[AccountRow], now: float) -> list[Line]:
    """One line a job. ``now`` is in seconds since the epoch."""
    columns = (
        Column("STARTED"), Column("USER"), Column("JOB"), Column("ENDED"), Column("HELD", right=True),
        Column("GPUS", right=True), Column("CPU", right=True, spare=3), Column("MEMORY", right=True, spare=2),
        Column("VRAM", right=True, spare=1), Column("WAITED", right=True, spare=4), Column("NAME: COMMAND"),
    )  # fmt: skip
    cells = [
        (
            _when(each.granted_at, now), user_name(each.uid), each.job[:_SHORT_ID], ended(each),
            format_duration(each.held_s), str(len(each.gpus.split())) if each.gpus else "-",
            _time(each.cpu_s), format_size(each.memory_peak_bytes),
            "-" if each.vram_peak_mib is None else format_size(each.vram_peak_mib << 20),
            format_duration(each.waited_s) if each.waited_s >= 0.1 else "-", _what(each),
        )
        for each in found
    ]  # fmt: skip
    return output.table(columns, cells, least=_COMMAND)


def details(each: AccountRow) -> list[Line]:
    """Every field of one job."""
    gpus = [f"GPU {uuid}" for uuid in each.gpus.split()]
    started = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(each.granted_at))
    code = ended(each) if each.exit_code is None else f"{ended(each)}, exit code {each.exit_code}"
    return output.rows(
        [
            ("job", each.job),
            ("name", each.name or "-"),
            ("command", visible(each.command) or "-"),
            ("profile", each.profile or "-"),
            ("user", f"{user_name(each.uid)} ({each.uid})"),
            ("booked for", f"{group_name(each.gid)} ({each.gid})"),
            ("held", ", ".join([*gpus, *each.slots.split()]) or "nothing"),
            ("as GPUs", f"{each.gpu_rate:.2f}"),
            ("GPU memory", f"{format_size(each.vram_mib << 20)} held" if each.vram_mib else "-"),
            ("GPU peak", "-" if each.vram_peak_mib is None else format_size(each.vram_peak_mib << 20)),
            ("granted", started),
            ("waited", format_duration(each.waited_s)),
            ("ended", code),
            ("held for", format_duration(each.held_s)),
            ("CPU time", _time(each.cpu_s)),
            ("memory peak", format_size(each.memory_peak_bytes)),
        ]
    )


def ended(each: AccountRow) -> str:
    """How a job ended, in a word or two. Its client tells, so what it was killed together with is unknown."""
    if each.reason in ("oom-kill", "timeout", "stopped", "signal"):
        return each.reason
    if each.exit_code is None:
        return "unknown"
    return "ok" if each.exit_code == 0 else f"exit {each.exit_code}"


def row_json(each: AccountRow) -> dict[str, Any]:
    """One job in JSON's types."""
    data = {name: value for name, value in as_dict(each).items() if name != "grant_key"}
    data = {name: round(value, 6) if isinstance(value, float) else value for name, value in data.items()}
    slots = dict(word.rsplit("=", 1) for word in each.slots.split())
    return {
        **data, "user": user_name(each.uid), "group": group_name(each.gid), "gpus": each.gpus.split(),
        "slots": {name: int(count) for name, count in slots.items()},
    }  # fmt: skip


def _what(each: AccountRow) -> str:
    command = one_line(each.command, _MOST_COMMAND)
    if each.name == os.path.basename(each.command.partition(" ")[0]):
        return command  # it has got no name of its own
    return f"{each.name}: {command}" if each.name and command else each.name or command or "-"


def _when(at: float, now: float) -> str:
    form = "%m-%d %H:%M" if now - at < _FULL_DATE_S else "%Y-%m-%d"
    return time.strftime(form, time.localtime(at))


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(seconds)
