"""Text in a terminal's columns: its width, cutting it to fit, and the cells of a table. Pure.

A ``width`` is in columns; None is unlimited.
"""

from __future__ import annotations

import unicodedata

from slicer.record import record
from slicer.text import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

GAP = "  "
_LEAST = 8  # columns of a command

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


def bar(cells: int, total: int, first: int, second: int, glyphs: Glyphs) -> str:
    """How much of the total is ``first``, and ``second`` beyond that. A total of 0 is unknown."""
    most = max(first, second)
    full, both = (min(cells, each * cells // total) if total else 0 for each in (first, most))
    return f"[{glyphs.full * full}{glyphs.part * (both - full)}{glyphs.empty * (cells - both)}]"


@record
class Section:
    head: tuple[Line, ...] = ()
    entries: tuple[tuple[Line, ...], ...] = ()  # the lines of each entry, the most important one first
    what: str = ""  # the noun for the entries, as in "3 more waiting"
    total: int = 0  # of the entries, if not all are here

    @property
    def lines(self) -> list[Line]:
        return [*self.head, *(line for entry in self.entries for line in entry)]

    def cut(self, glyphs: Glyphs, most: int | None = None, where: str = "") -> list[Line]:
        """At most so many lines: the first one of each entry. The last line counts those that are missing.

        ``where``: where they are shown.
        """
        count = len(self.entries)
        room = count + 1 if most is None else most - len(self.head)
        total = max(self.total, count)
        shown = count if total <= min(count, room) else min(count, room - 1)
        if shown < 0:
            return []
        more = f"{glyphs.ellipsis} {total - shown} more {self.what}{where}"
        rest = [Line(more, FAINT)] if total > shown else []
        return [*self.head, *(entry[0] for entry in self.entries[:shown]), *rest]


def joined(parts: list[list[Line]]) -> list[Line]:
    """The parts, with empty lines between them."""
    shown: list[Line] = []
    for part in parts:
        shown += [Line(""), *part] if shown else part
    return shown


def shares(wanted: Sequence[int], room: int) -> list[int]:
    """``room`` divided fairly: the largest shares are equal, and no share exceeds what is wanted."""
    found = [min(each, room) for each in wanted]
    while sum(found) > room:
        found[found.index(max(found))] -= 1
    return found


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


def aligned(rows: Sequence[Sequence[str]], align: str) -> list[str]:
    """One line for each row, in columns that fit their widest cell. ``align``: "l" or "r" for each."""
    widths = [max((cell_count(row[i]) for row in rows), default=0) for i in range(len(align))]
    lines = []
    for row in rows:
        placed = []
        for cell, side, wide in zip(row, align, widths, strict=True):
            space = " " * (wide - cell_count(cell))
            placed.append(space + cell if side == "r" else cell + space)
        lines.append(GAP.join(placed).rstrip())
    return lines


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


def table(
    heads: str | Sequence[Column], cells: Iterable[Sequence[str]], width: int | None,
    glyphs: Glyphs = UNICODE, *, least: int = 0,
) -> list[Line]:  # fmt: skip
    """A heading and one line a row. ``heads`` may be text for :func:`columns`. A width of None cuts no cell.

    ``least``: the columns to keep for the last cell, a command, by leaving out others.
    """
    made = columns(heads) if isinstance(heads, str) else heads
    shown = [[visible(cell) for cell in row] for row in cells]
    if width is not None:
        shown = [
            [clip(cell, column.cap, glyphs) for cell, column in zip(row, made, strict=True)] for row in shown
        ]
        if least:
            made, shown = _spared(made, shown, least, width, glyphs)
    align = "".join("r" if column.right else "l" for column in made)
    head, *texts = aligned([[column.title for column in made], *shown], align)
    return [Line(head, HEADING), *map(Line, texts)]


def _spared(
    columns: Sequence[Column], cells: list[list[str]], least: int, width: int, glyphs: Glyphs
) -> tuple[Sequence[Column], list[list[str]]]:
    """The columns for which there is room, and their cells, with shortened commands."""
    shown = [[column.title for column in columns], *cells]
    wide = [max(cell_count(row[i]) for row in shown) + len(GAP) for i in range(len(columns))]
    kept = list(range(len(columns)))
    for place in sorted(filter(lambda i: columns[i].spare, kept), key=lambda i: -columns[i].spare):
        if width - sum(wide[i] for i in kept[:-1]) >= least:
            break
        kept.remove(place)
    room = max(_LEAST, width - sum(wide[i] for i in kept[:-1]))
    commands = told_apart([row[-1] for row in cells], room, glyphs)
    left = [[*(row[i] for i in kept[:-1]), command] for row, command in zip(cells, commands, strict=True)]
    return [columns[i] for i in kept], left


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
