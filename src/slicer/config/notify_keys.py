"""The values of ``notify`` and of the table ``[notify]``. Imported only if one of them is set."""

from __future__ import annotations

import shlex

from slicer.config.values import listed, refuse, text
from slicer.errors import UsageError
from slicer.model import Notify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.config.values import Entry, Reader

EVENTS = ("done", "failed", "oom", "idle", "waited", "held-back", "queue-done")
DESKTOP = "desktop"  # a destination that needs no configuration
OFF = "off"
_USUAL = ("done", "failed")  # the events if only a destination is named
_WORDS = (*EVENTS, DESKTOP, OFF)


def words(entry: Entry, label: str = "notify") -> tuple[str, ...]:
    """Events and "desktop", or "off" alone, from a list or from one comma-separated text."""
    value = entry[0]
    found = listed(entry, label) if isinstance(value, str) else value
    if not isinstance(found, list) or not found or not all(isinstance(word, str) for word in found):
        raise refuse(entry, label, f'expected a list such as ["failed", "desktop"], not {value!r:.40}')
    found = [word.strip() for word in found]
    for word in found:
        if word not in _WORDS:
            raise refuse(entry, label, f"{word!r:.40} is not one of {', '.join(_WORDS)}")
    if OFF in found and found != [OFF]:
        raise refuse(entry, label, f"{OFF} cannot be combined with others")
    return tuple(found)


def table(
    on: tuple[str, ...] | None, command: tuple[str, ...] | None, urls: tuple[str, ...] | None
) -> Notify | None:
    """The table ``[notify]`` from its keys (None: not set); None if none is set."""
    if not (on or command or urls):
        return None
    events = tuple(word for word in on or () if word in EVENTS)
    return Notify(events, command or (), urls or (), desktop=DESKTOP in (on or ()))


def _command(entry: Entry, label: str) -> tuple[str, ...]:
    """A list of words, or one text, split as by a shell."""
    value = entry[0]
    try:
        found = value if isinstance(value, list) else shlex.split(text(entry, label))
    except ValueError as error:
        raise refuse(entry, label, f"{error}: {value!r:.60}") from None
    if not found or not all(isinstance(word, str) and "\0" not in word for word in found) or not found[0]:
        raise refuse(entry, label, f"expected a command, not {value!r:.40}")
    return tuple(found)


def _urls(entry: Entry, label: str) -> tuple[str, ...]:
    value = entry[0]
    if not isinstance(value, list) or not all(isinstance(url, str) and ":" in url for url in value):
        example = '["ntfy://my-topic"]'
        raise refuse(entry, label, f"expected a list such as {example}")
    return tuple(value)


def settle(said: tuple[str, ...] | None, table: Notify | None, source: str = "") -> Notify | None:
    """The events and destinations, from a profile or an option (None: not set) and ``[notify]``.

    Raises UsageError, with ``source``, for events without a destination.
    """
    if said is None:
        return table
    if said == (OFF,):
        return None
    usual = table.on if table is not None and table.on else _USUAL
    on = tuple(word for word in said if word in EVENTS) or usual
    desktop = DESKTOP in said or (table is not None and table.desktop)
    found = Notify(on, table.command if table else (), table.urls if table else (), desktop)
    if not (found.command or found.urls or found.desktop):
        hint = f'add "{DESKTOP}", or a command or urls to [notify] in the configuration'
        raise UsageError("there is no destination", where=source or "notify", hint=hint)
    return found


READERS: dict[str, Reader] = {"events": words, "command-line": _command, "urls": _urls}
