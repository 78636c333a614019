"""Text in a terminal's columns: its width, cutting it to fit, and the cells of a table. Pure.

A ``width`` is in columns; None is unlimited.
"""

from __future__ import annotations

import unicodedata

from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

GAP = "  "
_COMMAND = 200  # columns of a command where the width is unlimited

# Styles.
HEADING = "bold"
FAINT = "dim"
GOOD = "green"
WARNING = "yellow"
BAD = "red"
CHOSEN = "reverse"
CODES = {HEADING: 1, FAINT: 2, CHOSEN: 7, BAD: 31, GOOD: 32, WARNING: 33}  # the terminal's codes


@record
class Line:
    """One line and its style ("" for none)."""

    text: str
    style: str = ""


@record
class Glyphs:
    """The characters for drawing lines."""

    running: str = "▶"
    pending: str = "·"
    again: str = "↻"
    ok: str = "✓"
    bad: str = "✗"
    cancelled: str = "⊘"
    full: str = "█"
    part: str = "▒"
    empty: str = "░"
    dot: str = " · "
    ellipsis: str = "…"


UNICODE = Glyphs()
ASCII = Glyphs(">", ".", "r", "+", "x", "-", "#", "=", ".", " - ", "...")


def cell_count(text: str) -> int:
    """The text's width in columns of a terminal."""
    if text.isascii():
        return len(text)
    return sum(map(_cells, text))


def _cells(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def clip(text: str, width: int | None, glyphs: Glyphs) -> str:
    """At most ``width`` columns of the text (None: all of it)."""
    if width is None or cell_count(text) <= width:
        return text
    return (_first(text, width - len(glyphs.ellipsis)) + glyphs.ellipsis)[: max(0, width)]


def aligned(
    rows: Sequence[Sequence[str]], align: str, width: int | None = None, glyphs: Glyphs = UNICODE
) -> list[str]:
    """One line for each row, in columns that fit their widest cell. ``align``: "l" or "r" for each."""
    widths = [max((cell_count(row[i]) for row in rows), default=0) for i in range(len(align))]
    lines = []
    for row in rows:
        placed = []
        for cell, side, wide in zip(row, align, widths, strict=True):
            space = " " * (wide - cell_count(cell))
            placed.append(space + cell if side == "r" else cell + space)
        lines.append(clip(GAP.join(placed).rstrip(), width, glyphs))
    return lines


def fit(rows: Sequence[list[str]], width: int | None, glyphs: Glyphs, of: int = 1) -> int:
    """Shorten the last cell of each row, a command, to the columns left beside the others; returns those.

    The first row is the heading. ``of``: the commands get only one ``of``-th of those columns.
    """
    room = _COMMAND
    if width is not None:
        others = [max(cell_count(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
        left = width - sum(others) - len(GAP) * (len(others) + of - 1)
        room = max(8, left // of)
    commands = told_apart([row[-1] for row in rows[1:]], room, glyphs)
    for row, command in zip(rows[1:], commands, strict=True):
        row[-1] = command
    return room


def told_apart(texts: Sequence[str], width: int, glyphs: Glyphs) -> list[str]:
    """Each text in at most ``width`` columns. A longer one first loses what its neighbours share.

    The lines of a sweep differ in a word or two, anywhere.
    """
    shown = []
    for number, text in enumerate(texts):
        if cell_count(text) > width:
            beside = (*texts[max(0, number - 1) : number], *texts[number + 1 : number + 2])
            shown.append(_cut(text, _difference(text, beside, width), width, glyphs))
        else:
            shown.append(text)
    return shown


def _difference(text: str, others: Iterable[str], width: int) -> tuple[int, int]:
    """Where the text differs from the others, from start to end; (0, 0) if nowhere, or if it is too long."""
    found = []
    for other in others:
        start = _common(text, other)
        same = _common(text[start:][::-1], other[start:][::-1])
        start = text.rfind(" ", 0, start) + 1  # the whole word
        end = text.find(" ", len(text) - same)
        found.append((start, end if end >= 0 else len(text)))
    fitting = [(start, end) for start, end in found if cell_count(text[start:end]) <= width // 2]
    start, end = min(fitting, default=(0, 0))[0], max([end for _, end in fitting], default=0)
    return (start, end) if cell_count(text[start:end]) <= width // 2 else fitting[0]


def _common(one: str, other: str) -> int:
    """The length of their common beginning, in characters."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _cut(text: str, kept: tuple[int, int], width: int, glyphs: Glyphs) -> str:
    """The text in ``width`` columns: the part ``kept``, and as much as fits around it."""
    before, middle, after = text[: kept[0]], text[kept[0] : kept[1]], text[kept[1] :]
    room = width - cell_count(middle)
    if not middle:
        return _middle(text, width, glyphs)
    after_room = max(min(cell_count(after), room // 3), room - cell_count(before))
    return _middle(before, room - after_room, glyphs) + middle + clip(after, after_room, glyphs)


def _middle(text: str, width: int, glyphs: Glyphs) -> str:
    """The beginning and the end of the text, in at most ``width`` columns."""
    room = width - len(glyphs.ellipsis)
    if cell_count(text) <= width or room < 2:
        return clip(text, width, glyphs)
    end = _first(text[::-1], room // 2)[::-1]
    return _first(text, room - cell_count(end)) + glyphs.ellipsis + end


def _first(text: str, width: int) -> str:
    """The first characters that fit into ``width`` columns."""
    for number, character in enumerate(text):
        width -= _cells(character)
        if width < 0:
            return text[:number]
    return text
