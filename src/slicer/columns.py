"""Text in a terminal's columns: its width, cutting it to fit, and the cells of a table. Pure.

A ``width`` is in columns; None is unlimited.
"""

from __future__ import annotations

import unicodedata

from slicer.record import record
from slicer.text import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

GAP = "  "
_LEAST = 8  # columns of a command
_ZEROS = str.maketrans("123456789", "0" * 9)
_SCRAPS = 10  # columns, below which parts of several words tell nothing

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
        cut = (told_apart([row[i] for row in shown], column.cap, glyphs) for i, column in enumerate(made))
        shown = [list(row) for row in zip(*cut, strict=True)]
        if least:
            made, shown = _spared(made, shown, least, width, glyphs)
    align = "".join("r" if column.right else "l" for column in made)
    head, *texts = aligned([[column.title for column in made], *shown], align)
    return [Line(head, HEADING), *map(Line, texts)]


def _spared(
    columns: Sequence[Column], cells: list[list[str]], least: int, width: int, glyphs: Glyphs
) -> tuple[Sequence[Column], list[list[str]]]:
    """The columns for which there is room, and their cells; those that say nothing make room for commands."""
    shown = [[column.title for column in columns], *cells]
    wide = [max(cell_count(row[i]) for row in shown) + len(GAP) for i in range(len(columns))]
    kept = list(range(len(columns)))
    empty = [i for i in kept if all(row[i] == "-" for row in cells)]
    spare = sorted((i for i in kept if columns[i].spare), key=lambda i: (i not in empty, -columns[i].spare))
    for place in spare:
        room = width - sum(wide[i] for i in kept[:-1])
        if room < (max(least, wide[-1] - len(GAP)) if place in empty else least):
            kept.remove(place)
    room = max(_LEAST, width - sum(wide[i] for i in kept[:-1]))
    commands = told_apart([row[-1] for row in cells], room, glyphs)
    left = [[*(row[i] for i in kept[:-1]), command] for row, command in zip(cells, commands, strict=True)]
    return [columns[i] for i in kept], left


def told_apart(texts: Sequence[str], width: int | None, glyphs: Glyphs) -> list[str]:
    """Each text in at most ``width`` columns: its beginning; of those that begin alike also what differs.

    The lines of a sweep differ in a word or two, anywhere.
    """
    if width is None:
        return list(texts)
    cuts = {text: clip(text, width, glyphs) for text in texts}
    # Beginnings with other numbers are alike, too, as "jobs.txt#7: …". If cuts are alike, groups become one.
    for part, zeros in ((width, _ZEROS), (width // 2, str.maketrans("", ""))):
        alike: dict[str, list[str]] = {}
        for text, cut in cuts.items():
            if text != cut:
                alike.setdefault(clip(text, part, glyphs).translate(zeros), []).append(text)
        for some in alike.values():
            if len({cuts[text].translate(zeros) for text in some}) < len(some):
                before, after = _same(some)
                cuts.update((text, _cut(text, before, after, width, glyphs)) for text in some)
    return [cuts[text] for text in texts]


def _same(texts: Collection[str]) -> tuple[int, int]:
    """How many characters all texts have in common at their beginning, and at their end."""
    backwards = [text[::-1] for text in texts]
    return _common(min(texts), max(texts)), _common(min(backwards), max(backwards))


def _common(one: str, other: str) -> int:
    """The length of their common beginning, in characters."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (here, there) in pairs if here != there), min(len(one), len(other)))


def _cut(text: str, before: int, after: int, width: int, glyphs: Glyphs) -> str:
    """The text in ``width`` columns: its beginning, and what differs between so many characters at its ends.

    That is shown in whole words, behind the word before it (``--lr 0.1``), if half of the width is enough.
    Where only scraps of several words would fit, the beginning is worth more.
    """
    if width // 2 <= len(glyphs.ellipsis):
        return clip(text, width, glyphs)
    end = max(before, len(text) - after)
    word = text.rfind(" ", 0, before) + 1
    option, words_end = text.rfind(" ", 0, max(0, word - 1)) + 1, f"{text} ".index(" ", end)
    within = words_end if " " in text[before:end] else end
    for start, stop in ((option, words_end), (word, words_end), (before, within), (before, words_end)):
        differing, rest = text[start:stop], text[stop:]
        more = glyphs.ellipsis if rest else ""
        room = max(width // 2, width - cell_count(text[:start])) - len(more)
        if cell_count(differing) <= room:
            more = clip(rest, room - cell_count(differing) + len(more), glyphs)
            break
    else:
        if room < _SCRAPS and " " in differing:
            return clip(text, width, glyphs)
    tail = _middle(differing, room, glyphs) + more
    return clip(text[:start], width - cell_count(tail), glyphs) + tail


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
