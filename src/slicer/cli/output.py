"""How commands print: aligned lines, styled and cut to the terminal's width only where a person looks."""

from __future__ import annotations

import json
import locale
import sys

from slicer.record import record
from slicer.text import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

HEADING = "bold"
FAINT = "dim"

_GAP = "  "


@record
class Line:
    """One line of output and its style (rich's words; "" for none)."""

    text: str
    style: str = ""


@record
class Column:
    """``cap`` is the most characters that a cell may have on a terminal; 0: any number."""

    title: str
    right: bool = False
    cap: int = 0


def cut(text: str, most: int) -> str:
    """Text of at most ``most`` characters (0: any number)."""
    mark = ellipsis()
    return text if not most or len(text) <= most else text[: max(0, most - len(mark))] + mark


def clip(text: str, cells: int) -> str:
    """As :func:`cut`, for ``cells`` columns of a terminal, of which some characters take two or none."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= cells:
        return text
    mark = ellipsis()
    return set_cell_size(text, max(0, cells - len(mark))) + mark[:cells]


def ellipsis() -> str:
    """What stands for text that is left out."""
    return "…" if is_utf8() else "..."


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> list[Line]:
    """A heading and one line a row, in columns as wide as they must be."""
    capped = is_terminal()
    cells = [[visible(cell) for cell in row] for row in rows]
    if capped:
        cells = [[cut(cell, column.cap) for cell, column in zip(row, columns, strict=True)] for row in cells]
    every = [[column.title for column in columns], *cells]
    widths = [max(len(row[i]) for row in every) for i in range(len(columns))]
    lines = []
    for row in every:
        placed = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ]
        lines.append(Line(_GAP.join(placed).rstrip()))
    return [Line(lines[0].text, HEADING), *lines[1:]]


def pairs(rows: Iterable[tuple[str, str]]) -> list[Line]:
    """A name and a value a line, the values aligned."""
    shown = [(name, visible(value)) for name, value in rows]
    width = max((len(name) for name, _ in shown), default=0)
    return [Line(f"{name.ljust(width)}{_GAP}{value}".rstrip()) for name, value in shown]


def is_terminal() -> bool:
    """Whether a person looks at stdout."""
    return sys.stdout.isatty()


def is_utf8() -> bool:
    """Whether stdout and the locale know more characters than ASCII has."""
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    return encoding == "utf8" and locale.getencoding().lower().replace("-", "") == "utf8"


def may_draw() -> bool:
    """Whether lines and blocks are drawn: for a person, at a terminal that has them."""
    return is_terminal() and is_utf8()


def encodable(text: str) -> str:
    """Text as stdout prints it: what its encoding lacks is escaped."""
    encoding = sys.stdout.encoding or "ascii"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def show(lines: Iterable[Line]) -> None:
    """Print the lines, each through the filter; on a terminal with their style, and cut to its width."""
    if not is_terminal():
        for line in lines:
            print(visible(line.text))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line in lines:
        text = clip(encodable(visible(line.text)), console.width)
        console.print(Text(text, style=line.style), no_wrap=True, overflow="crop")


def show_json(data: dict[str, Any], *, compact: bool = False) -> None:
    """Print one JSON document; ``compact``: in one line, and at once."""
    indent = None if compact else 2
    print(json.dumps({"version": 1, **data}, indent=indent), flush=compact)
