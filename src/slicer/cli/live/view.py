"""What the live view shows, and what a key does to that. Pure."""

from __future__ import annotations

from typing import Literal

from slicer.cli import status_rows
from slicer.cli.status_rows import Row
from slicer.columns import HEADING, Line, Section, joined
from slicer.kernel.users import user_name
from slicer.ledger.status import LedgerStatus
from slicer.record import record, replace

Mode = Literal["rows", "filter", "stop", "help", "more"]
Verb = Literal["leave", "say", "stop", "pause", "resume", "log"]

_LONGEST_FILTER = 60
_PANELS = {"?": "help", "m": "more"}  # they take the whole page
_HELP = """\
Up Down        choose a row: a GPU, a job or a waiting job
PgUp PgDn      half a page up or down
Home End       the first or the last row
k              stop the chosen job, as slicer stop does
p              pause the chosen job, or resume a paused, frozen or stopped one
l              show its log, as slicer logs -f does
/              show only jobs with this text in name, user, command or id; Esc: all
m              more: reservations, queues, servers, slots, users
?              this help
q              quit; so does Ctrl-C, and Ctrl-Z suspends the view

GPU memory     [███▒▒░░░]  used, reserved beyond that, free; in ASCII [###==...]
paused         by slicer pause
frozen         from outside (systemctl freeze)
stopped        by Ctrl-Z
idle           it has not used its GPU for longer than its idle_timeout
over           it uses more of a GPU than it declared
forced         it waited too long, and runs although what it holds is not free
later          it waits for other jobs (--after) or for its time (--begin)"""


@record
class Content:
    status: LedgerStatus
    more: tuple[Section, ...]  # queues, servers, slots, users
    notes: tuple[str, ...]  # warnings
    title: str
    uid: int  # the viewer
    at: float  # seconds since the epoch


@record
class View:
    """The state of the view. The rows that are seen follow from the chosen one."""

    chosen: str = ""  # the key of a row; "": the first job
    place: int = 0  # the chosen row's, last time: the row there follows one that has gone
    filter: str = ""  # only jobs with this text
    mode: Mode = "rows"  # "filter": it is being typed; "stop": asks; the others are panels
    top: int = 0  # the first line of a panel


@record
class Act:
    """Something for the edge to do."""

    verb: Verb
    job: str = ""
    text: str = ""  # the job's name for people; of "say": the message


def rows(content: Content, text: str = "") -> tuple[Row, ...]:
    """The rows in their order. ``text``: the filter."""
    found = status_rows.rows(content.status, content.uid, content.at)
    return tuple(row for row in found if row.has(text)) if text else found


def place_of(view: View, shown: tuple[Row, ...]) -> int:
    """The place of the chosen row; -1 without rows."""
    keys = [row.key for row in shown]
    if view.chosen in keys:
        return keys.index(view.chosen)
    if view.chosen:
        return min(view.place, len(shown) - 1)
    return next((place for place, row in enumerate(shown) if row.kind != "gpu"), min(0, len(shown) - 1))


def settled(view: View, content: Content) -> View:
    """The view on new content. A question about a job that has gone is dropped."""
    shown = rows(content, view.filter)
    place = place_of(view, shown)
    key = shown[place].key if place >= 0 else ""
    is_void = view.mode == "stop" and key != view.chosen
    return replace(view, chosen=key, place=max(0, place), mode="rows" if is_void else view.mode)


def step(view: View, key: str, content: Content, height: int) -> tuple[View, Act | None]:
    """The view after a key, and what is to be done. ``view`` is settled on the content."""
    if view.mode == "filter":
        return settled(_typed(view, key), content), None
    shown = rows(content, view.filter)
    place = place_of(view, shown)
    row = shown[place] if place >= 0 else None
    if view.mode == "stop":
        act = Act("stop", row.key, row.name) if row and key in ("y", "Y") else None
        return replace(view, mode="rows"), act
    if view.mode in ("help", "more"):
        room = panel_room(height)
        moved = _moved(key, view.top, max(1, len(panel(view.mode, content.more)) - room + 1), room)
        return replace(view, mode="rows", top=0) if moved is None else replace(view, top=moved), None
    if key in ("q", "Q"):
        return view, Act("leave")
    if key in _PANELS:
        return replace(view, mode=_PANELS[key], top=0), None
    if key == "/":
        return replace(view, mode="filter"), None
    if key == "esc":
        return settled(replace(view, filter=""), content), None
    if key in ("k", "p", "l"):
        return _about(view, key, row, content)
    moved = _moved(key, place, len(shown), max(1, height // 2))
    if moved is None or not shown:
        return view, None
    return replace(view, chosen=shown[moved].key, place=moved), None


def _moved(key: str, place: int, count: int, page: int) -> int | None:
    """The place to which a key moves; None: it moves nothing."""
    by = {"up": -1, "down": 1, "page up": -page, "page down": page, "home": -count, "end": count}.get(key)
    return None if by is None else max(0, min(count - 1, place + by))


def _typed(view: View, key: str) -> View:
    """The view with one key more in its filter. The first job that it leaves is chosen."""
    if key == "enter":
        return replace(view, mode="rows")
    if key == "esc":
        return replace(view, mode="rows", filter="", chosen="")
    if key == "backspace":
        return replace(view, filter=view.filter[:-1], chosen="")
    if len(key) > 1:
        return view
    return replace(view, filter=(view.filter + key)[:_LONGEST_FILTER], chosen="")


def _about(view: View, key: str, row: Row | None, content: Content) -> tuple[View, Act | None]:
    """Stop, pause or resume the chosen job, or show its log."""
    what = {"k": "stop", "p": "pause", "l": "show the log of"}[key]
    if row is None or row.kind == "gpu":
        return view, Act("say", text=f"choose a job to {what} with the arrow keys")
    if content.uid not in (0, row.uid):
        who = user_name(row.uid)
        return view, Act("say", text=f"{row.name} is a job of {who}: only {who} and root may {what} it")
    if key == "k":
        return replace(view, mode="stop"), None
    if key == "l":
        return view, Act("log", row.key, row.name)
    if row.kind != "job":
        return view, Act("say", text=f"{row.name} waits: only a job that runs can be paused")
    is_halted = content.status.halt(row.key) is not None
    return view, Act("resume" if is_halted else "pause", row.key, row.name)


def panel(mode: str, more: tuple[Section, ...]) -> list[Line]:
    """All lines of a panel, "help" or "more"."""
    if mode == "help":
        return [Line("Keys and words", HEADING), Line(""), *map(Line, _HELP.splitlines())]
    return joined([section.lines for section in more]) or [Line("There is nothing more to show.")]


def panel_room(height: int) -> int:
    """The lines of a panel that a page of this height shows."""
    return max(1, height - 1)
