"""Printing: aligned lines. Only on a terminal are they styled, and cut to its width."""

from __future__ import annotations

import os
import sys
from _locale import getencoding  # locale itself imports re, as json does

from slicer.columns import ASCII, CODES, GAP, HEADING, UNICODE, Glyphs, Line, aligned, cell_count, clip, fit
from slicer.record import as_dict, record
from slicer.text import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, TextIO

_FIRST_COLOUR = 30


@record
class Column:
    """``cap`` is the most terminal columns that a cell may take; None: any number.

    ``spare``: left out if the terminal is too narrow, the highest first; 0: never.
    """

    title: str
    right: bool = False
    cap: int | None = None
    spare: int = 0


def columns(heads: str) -> list[Column]:
    """The columns of "NAME<18 | CPU>!3": a cap follows <, a spare follows !, and > aligns to the right."""
    found = []
    for head in heads.split(" | "):
        rest, _, spare = head.partition("!")
        title, _, cap = rest.partition("<")
        right = title.endswith(">")
        found.append(Column(title.removesuffix(">"), right, int(cap) if cap else None, int(spare or 0)))
    return found


def escape_unprintable() -> None:
    """Print characters that the locale's encoding lacks as escapes from now on."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def glyphs(stream: TextIO | None = None) -> Glyphs:
    """The glyphs that both the stream (stdout) and the locale can show."""
    encodings = ((stream or sys.stdout).encoding or "", getencoding())
    is_utf8 = all(encoding.lower().replace("-", "") == "utf8" for encoding in encodings)
    return UNICODE if is_utf8 else ASCII


def table(heads: str | Sequence[Column], cells: Iterable[Sequence[str]], *, least: int = 0) -> list[Line]:
    """A heading and one line a row. ``heads`` may be text for :func:`columns`.

    ``least``: the terminal columns to keep for the last cell, a command, by leaving out others.
    """
    return table_in(width(), heads, cells, least=least, mark=glyphs())


def table_in(
    width: int | None, heads: str | Sequence[Column], cells: Iterable[Sequence[str]], *, least: int = 0,
    mark: Glyphs = UNICODE,
) -> list[Line]:  # fmt: skip
    """:func:`table` for a terminal of ``width`` columns (None: no cell is cut). Pure."""
    made = columns(heads) if isinstance(heads, str) else heads
    shown = [[visible(cell) for cell in row] for row in cells]
    if width is not None:
        shown = [
            [clip(cell, column.cap, mark) for cell, column in zip(row, made, strict=True)] for row in shown
        ]
        if least:
            made, shown = _spared(made, shown, least, width, mark)
    align = "".join("r" if column.right else "l" for column in made)
    head, *texts = aligned([[column.title for column in made], *shown], align)
    return [Line(head, HEADING), *map(Line, texts)]


def _spared(
    columns: Sequence[Column], cells: list[list[str]], least: int, width: int, mark: Glyphs
) -> tuple[Sequence[Column], list[list[str]]]:
    """The columns for which the terminal has room, and their cells, with shortened commands."""
    shown = [[column.title for column in columns], *cells]
    kept = list(range(len(columns)))
    for place in sorted(filter(lambda i: columns[i].spare, kept), key=lambda i: -columns[i].spare):
        others = (max(cell_count(row[i]) for row in shown) + len(GAP) for i in kept[:-1])
        if width - sum(others) >= least:
            break
        kept.remove(place)
    left = [[row[i] for i in kept] for row in shown]
    fit(left, width, mark)
    return [columns[i] for i in kept], left[1:]


def rows(cells: Iterable[Sequence[str]]) -> list[Line]:
    """One line a row, without a heading."""
    shown = [[visible(cell) for cell in row] for row in cells]
    return list(map(Line, aligned(shown, "l" * len(shown[0])))) if shown else []


def indented(lines: Iterable[Line]) -> list[Line]:
    """The lines, indented by two columns."""
    return [Line(f"  {line.text}", line.style) for line in lines]


def is_terminal() -> bool:
    """Whether stdout is a terminal, so that a person reads it."""
    return sys.stdout.isatty()


def width() -> int | None:
    """The columns of the terminal that is stdout; None: it is none."""
    if not is_terminal():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def may_draw() -> bool:
    """Whether to draw lines and blocks: on a terminal that can show them."""
    return is_terminal() and glyphs() is UNICODE


def dotted(parts: Iterable[str]) -> str:
    """The parts joined with dots, or with dashes if nothing is drawn."""
    return (UNICODE if may_draw() else ASCII).dot.join(parts)


def show(lines: Iterable[Line], *, cuts: bool = True) -> None:
    """Print the lines, filtered; on a terminal also styled and cut to its width.

    Without ``cuts`` the terminal wraps long lines, so that they can be copied whole.
    """
    columns = width() if cuts else None
    for line in lines:
        print(fitted(line, columns) if is_terminal() else visible(line.text))


def fitted(line: Line, width: int | None) -> str:
    """The line as a terminal of ``width`` columns shows it, with characters that stdout lacks escaped."""
    encoding = sys.stdout.encoding or "ascii"
    text = visible(line.text).encode(encoding, "backslashreplace").decode(encoding)
    return styled(clip(text, width, glyphs()), line.style)


def styled(text: str, style: str) -> str:
    """The text in its style. NO_COLOR leaves out only the colours; some terminals have no styles at all."""
    code = CODES.get(style, 0)
    has_style = os.environ.get("TERM") not in ("dumb", "unknown")
    if not code or not has_style or (code >= _FIRST_COLOUR and os.environ.get("NO_COLOR")):
        return text
    return f"\x1b[{code}m{text}\x1b[0m"


def picked(item: object, names: str) -> dict[str, Any]:
    """These attributes of the item, in JSON's types. One that is called with a ? is null if it is empty."""
    found = {}
    for word in names.split():
        name = word.removesuffix("?")
        value = getattr(item, name)
        found[name] = list(value) if isinstance(value, tuple) else value if value or name == word else None
    return found


def show_json(data: dict[str, Any], *, compact: bool = False) -> None:
    """Print one JSON document, with records as objects. ``compact``: on one line, and flushed."""
    import json

    indent = None if compact else 2
    print(json.dumps({"version": 1, **data}, indent=indent, default=as_dict), flush=compact)
