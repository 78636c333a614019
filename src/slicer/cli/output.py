"""Printing: aligned lines. Only on a terminal are they styled, and cut to its width."""

from __future__ import annotations

import os
import sys
from _locale import getencoding  # locale itself imports re, as json does
from itertools import repeat

from slicer import columns
from slicer.columns import ASCII, CODES, UNICODE, Column, Glyphs, Line, Section, aligned, clip
from slicer.record import as_dict
from slicer.text import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, TextIO

_FIRST_COLOUR = 30


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
    """:func:`slicer.columns.table` for stdout."""
    return columns.table(heads, cells, width(), glyphs(), least=least)


def section(
    heads: str, cells: Iterable[Sequence[str]], what: str, below: Iterable[tuple[Line, ...]] = repeat(()), *,
    least: int = 0,
) -> Section:  # fmt: skip
    """:func:`table` as a section. ``below``: what stands below each row."""
    head, *lines = table(heads, cells, least=least)
    return Section((head,), tuple((line, *more) for line, more in zip(lines, below, strict=False)), what)


def rows(cells: Iterable[Sequence[str]]) -> list[Line]:
    """One line a row, without a heading."""
    shown = [[visible(cell) for cell in row] for row in cells]
    return list(map(Line, aligned(shown, "l" * len(shown[0])))) if shown else []


def indented(lines: Iterable[Line]) -> list[Line]:
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
    at_most = width() if cuts else None
    for line in lines:
        print(fitted(line, at_most) if is_terminal() else visible(line.text))


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
