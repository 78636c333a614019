"""The panels of the live view, which take the whole page: help, and what else there is. Pure."""

from __future__ import annotations

from slicer.columns import HEADING, Line, Section, joined

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


def panel(mode: str, more: tuple[Section, ...]) -> list[Line]:
    """All lines of a panel, "help" or "more"."""
    if mode == "help":
        return [Line("Keys and words", HEADING), Line(""), *map(Line, _HELP.splitlines())]
    return joined([section.lines for section in more]) or [Line("There is nothing more to show.")]


def panel_room(height: int) -> int:
    """The lines of a panel that a page of this height shows."""
    return max(1, height - 1)
