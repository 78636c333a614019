"""The servers of ``slicer serve`` in ``slicer status``: state, requests, and how long each is idle."""

from __future__ import annotations

from slicer.cli import output
from slicer.cli.output import Column
from slicer.columns import FAINT, WARNING, Line
from slicer.quantity import format_duration
from slicer.text import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slicer.serve.model import Standing


def rows(servers: tuple[Standing, ...], now_s: float) -> tuple[tuple[Line], tuple[tuple[Line, ...], ...]]:
    """The heading, and for each server its lines. ``now_s``: the wall clock, in seconds since the epoch."""
    columns = (
        Column("SERVER", cap=18), Column("STATE"), Column("FOR", right=True), Column("REQUESTS", right=True),
        Column("SERVED", right=True), Column("IDLE", right=True), Column("JOB"),
    )  # fmt: skip
    cells = [
        (
            each.name, each.state, _since(each.since_s, now_s), str(each.requests), str(each.served),
            _since(each.idle_since_s, now_s), each.job or "-",
        )
        for each in servers
    ]  # fmt: skip
    head, *found = output.table(columns, cells)
    entries = tuple(_entry(row, each) for row, each in zip(found, servers, strict=True))
    return (head,), entries


def _entry(row: Line, server: Standing) -> tuple[Line, ...]:
    gap = " · " if output.may_draw() else " - "
    below = gap.join((server.kind, *server.listen, f"pid {server.pid}"))
    shown = (Line(row.text, WARNING if server.state == "stuck" else ""), Line(f"  {visible(below)}", FAINT))
    return (*shown, Line(f"  {visible(server.trouble)}", WARNING)) if server.trouble else shown


def _since(at_s: float | None, now_s: float) -> str:
    return "-" if at_s is None else format_duration(float(max(0, round(now_s - at_s))))


def server_json(server: Standing, now_s: float) -> dict[str, Any]:
    """A server for scripts: docs/json.md."""
    idle_s = server.idle_since_s
    return {
        "server": server.name,
        "kind": server.kind,
        "listen": list(server.listen),
        "state": server.state,
        "state_for": max(0.0, round(now_s - server.since_s, 1)),
        "requests": server.requests,
        "served": server.served,
        "idle_for": None if idle_s is None else max(0.0, round(now_s - idle_s, 1)),
        "job": server.job or None,
        "trouble": server.trouble or None,
        "pid": server.pid,
    }
