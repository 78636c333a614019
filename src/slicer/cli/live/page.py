"""The page of the live view: which rows fit, and which of them are seen. Pure."""

from __future__ import annotations

from slicer.cli.live.panels import panel, panel_room
from slicer.cli.live.rows import details, table
from slicer.cli.live.view import Content, Kind, Row, View, place_of, rows
from slicer.cli.status_text import joined
from slicer.columns import CHOSEN, FAINT, HEADING, WARNING, Glyphs, Line, cell_count, clip
from slicer.record import record
from slicer.text import visible

_KINDS: tuple[Kind, ...] = ("gpu", "job", "waiting")
_TITLES = {"gpu": "GPUs", "job": "JOBS", "waiting": "WAITING"}
_HINTS = "q quit  ? help  / filter  k stop  p pause  l log  m more"
_ROOMY = 16  # lines from which the chosen row's details are shown


@record
class _Part:
    """The rows of one kind."""

    kind: Kind
    rows: tuple[Row, ...]
    total: int  # without the filter


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
    below = details(chosen, content) if chosen else []
    why = below[0].text if chosen and chosen.kind == "waiting" and height < _ROOMY else ""
    below = below[: 0 if height < _ROOMY else 2 if height < 2 * _ROOMY else 4]
    parts = _parts(content, found)
    room = height - len(head) - len(below) - 1
    sizes = _sizes([len(part.rows) for part in parts], room - len(parts))
    sections = [
        _section(part, size, chosen, content, width, mark) for part, size in zip(parts, sizes, strict=True)
    ]
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


def _parts(content: Content, found: tuple[Row, ...]) -> list[_Part]:
    status = content.status
    totals = (len(status.gpus), len(status.leases), len(status.tickets) + len(status.later))
    parts = [
        _Part(kind, tuple(row for row in found if row.kind == kind), total)
        for kind, total in zip(_KINDS, totals, strict=True)
    ]
    return [part for part in parts if part.total or part.kind != "waiting"]


def _sizes(wanted: list[int], room: int) -> list[int]:
    """How many rows of each kind are seen. Half of the room is the GPUs', and what others leave."""
    gpus, *others = wanted
    seen = min(gpus, max(1, room // 2, room - sum(others)))
    return [seen, *_shares(others, max(len(others), room - seen))]


def _shares(wanted: list[int], room: int) -> list[int]:
    """``room`` divided fairly: the largest shares are equal, and no share exceeds what is wanted."""
    shares = [0] * len(wanted)
    for served, index in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        shares[index] = min(wanted[index], room // (len(wanted) - served))
        room -= shares[index]
    return shares


def _section(
    part: _Part, size: int, chosen: Row | None, content: Content, width: int, mark: Glyphs
) -> list[Line]:
    """A heading with the number of rows, and the rows around the chosen one."""
    if not part.total:
        none = f"No GPUs: {content.status.no_gpus}" if part.kind == "gpu" else "No jobs are running."
        return [Line(none)]
    place = part.rows.index(chosen) if chosen in part.rows else 0
    start = max(0, min(place - size // 2, len(part.rows) - size))
    seen = part.rows[start : start + size]
    if not seen:
        return [Line(_title(part, 0, 0, content), HEADING)]
    head, *lines = table(part.kind, seen, content, width - 2, mark)
    title = _title(part, start, len(seen), content)
    shown = [Line(title + _after(head.text, len(title) - 2), HEADING)]
    for row, line in zip(seen, lines, strict=True):
        text = f"{mark.running if row is chosen else ' '} {line.text}"
        full = text + " " * (width - cell_count(text)) if row is chosen else text
        shown.append(Line(full, CHOSEN if row is chosen else line.style))
    return shown


def _after(heads: str, place: int) -> str:
    """The column heads from a place on. One that begins before it is blank."""
    rest = heads[place:]
    cut = 0 if heads[place - 1 : place].isspace() else rest.find(" ") if " " in rest else len(rest)
    return " " * cut + rest[cut:]


def _title(part: _Part, start: int, size: int, content: Content) -> str:
    """Text such as "JOBS 3-6/50", and with a filter "JOBS 1-4/7 of 50"; of GPUs how many are free."""
    count = len(part.rows)
    words = [f"{start + 1}-{start + size}/{count}" if size < count else str(count)]
    words += [f"of {part.total}"] if count < part.total else []
    if part.kind == "gpu":
        free = sum(state.is_idle for state in content.status.gpus)
        if size < count:
            return f"GPUs {start + 1}-{start + size}/{count}: {free} free"
        return f"GPUs: {free} of {count} free"
    return " ".join((_TITLES[part.kind], *words, ""))


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
