"""The page of the live view: which rows fit, and which of them are seen. Pure."""

from __future__ import annotations

from slicer.cli.live.view import Content, View, panel, panel_room, place_of, rows
from slicer.cli.status_rows import Row, details
from slicer.cli.status_tables import Frame, Part, parts, table
from slicer.columns import CHOSEN, FAINT, HEADING, WARNING, Glyphs, Line, cell_count, clip, joined, shares
from slicer.text import visible

_HINTS = "q quit  ? help  / filter  k stop  p pause  l log  m more"
_ROOMY = 16  # lines from which the chosen row's details are shown


def page(view: View, content: Content, message: str, width: int, height: int, mark: Glyphs) -> list[Line]:
    """The page: ``height`` lines of at most ``width`` columns. ``message``: for the last line; "": hints."""
    if view.mode in ("help", "more"):
        shown = panel(view.mode, content.more)[view.top : view.top + panel_room(height)]
        end = Line("q returns; the arrow keys, PgUp and PgDn scroll", FAINT)
        return _cut([*_filled(shown, height - 1), end], width, height, mark)
    found = rows(content, view.filter)
    place = place_of(view, found)
    chosen = found[place] if place >= 0 else None
    head = [Line(content.title, FAINT), *_notes(content, max(1, height // 6))]
    below = details(chosen, content.status) if chosen else []
    why = below[0].text if chosen and chosen.kind == "waiting" and height < _ROOMY else ""
    below = below[: 0 if height < _ROOMY else 2 if height < 2 * _ROOMY else 4]
    kinds = parts(found, content.status)
    room = height - len(head) - len(below) - 1
    sizes = _sizes([len(part.rows) for part in kinds], room - len(kinds))
    frame = Frame(content.status, width - 2, mark)
    sections = [_section(part, size, chosen, frame, width) for part, size in zip(kinds, sizes, strict=True)]
    body = _filled(_spread(sections, content, room, mark), room)
    return _cut([*head, *body, *below, _last(view, chosen, message, why)], width, height, mark)


def _cut(lines: list[Line], width: int, height: int, mark: Glyphs) -> list[Line]:
    return [Line(clip(visible(line.text), width, mark), line.style) for line in lines[:height]]


def _filled(lines: list[Line], size: int) -> list[Line]:
    """The lines, and empty ones up to ``size``."""
    return [*lines, *[Line("")] * (size - len(lines))][: max(0, size)]


def _notes(content: Content, most: int) -> list[Line]:
    """The warnings; those for which there is no room are counted."""
    texts = [visible(note) for note in content.notes]
    if len(texts) > most:
        texts[most - 1 :] = [f"{texts[most - 1]} ({len(texts) - most} more warnings: slicer status)"]
    return [Line(text, WARNING) for text in texts]


def _last(view: View, chosen: Row | None, message: str, why: str) -> Line:
    """The last line: a question, the filter, a message, why the chosen job waits, or hints."""
    if view.mode == "stop" and chosen:
        return Line(f"stop {chosen.name}? y/n", HEADING)
    if view.mode == "filter":
        return Line(f"filter: {view.filter}_  (Enter keeps it, Esc ends it)", HEADING)
    if message:
        return Line(message, WARNING)
    if why:
        return Line(f"{chosen.name if chosen else ''}: {why.strip()}", FAINT)
    return Line(f"filter: {view.filter} (Esc ends it)  {_HINTS}" if view.filter else _HINTS, FAINT)


# -- what fits ----------------------------------------------------------------------------------------------


def _sizes(wanted: list[int], room: int) -> list[int]:
    """How many rows of each kind are seen. Half of the room is the GPUs', and what others leave."""
    gpus, *others = wanted
    seen = min(gpus, max(1, room // 2, room - sum(others)))
    return [seen, *shares(others, max(len(others), room - seen))]


def _section(part: Part, size: int, chosen: Row | None, frame: Frame, width: int) -> list[Line]:
    """A heading with the number of rows, and the rows around the chosen one."""
    place = part.rows.index(chosen) if chosen in part.rows else 0
    start = max(0, min(place - size // 2, len(part.rows) - size))
    head, *lines = table(part, start, size, frame, indent="  ")
    shown = [head]
    for row, line in zip(part.rows[start:], lines, strict=False):
        text = f"{frame.mark.running if row is chosen else ' '} {line.text}"
        full = text + " " * (width - cell_count(text)) if row is chosen else text
        shown.append(Line(full, CHOSEN if row is chosen else line.style))
    return shown


def _spread(sections: list[list[Line]], content: Content, room: int, mark: Glyphs) -> list[Line]:
    """The sections, apart if there is room for that; then what there is beside them."""
    spare = room - sum(map(len, sections)) - (len(sections) - 1)
    if spare < 0:
        return [line for section in sections for line in section]
    more = joined([section.lines for section in content.more])
    shown = joined(sections)
    if not more or spare < 2:
        return shown
    if len(more) > spare - 1:
        more[spare - 2 :] = [Line(f"{mark.ellipsis} {len(more) - spare + 2} more lines: m", FAINT)]
    return [*shown, Line(""), *more]
