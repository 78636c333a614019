"""``notify`` of a profile and the table ``[notify]``. Imported only where one of them is said."""

from __future__ import annotations

import shlex

from slicer.config.values import refuse, text
from slicer.errors import UsageError
from slicer.model import Notify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicer.config.values import Entry

EVENTS = ("done", "failed", "oom", "waited", "queue-done")
DESKTOP = "desktop"  # a destination that needs no configuration
OFF = "off"
_USUAL = ("done", "failed")  # what is told where only a destination is named
_WORDS = (*EVENTS, DESKTOP, OFF)


def words(entry: Entry, label: str = "notify") -> tuple[str, ...]:
    """Events and "desktop", or "off" alone, from a list or from one text with commas between them."""
    value = entry[0]
    found = value.split(",") if isinstance(value, str) else value
    if not isinstance(found, list) or not found or not all(isinstance(word, str) for word in found):
        raise refuse(entry, label, f'expected a list such as ["failed", "desktop"], not {value!r:.40}')
    found = [word.strip() for word in found]
    for word in found:
        if word not in _WORDS:
            raise refuse(entry, label, f"{word!r:.40} is not one of {', '.join(_WORDS)}")
    if OFF in found and found != [OFF]:
        raise refuse(entry, label, f"{OFF} cannot be combined with others")
    return tuple(found)


def table(settings: Mapping[str, Entry]) -> Notify | None:
    """``[notify]`` of the configuration, out of its settings; None where it says nothing."""
    on, command, urls = (settings.get(f"notify.{key}") for key in ("on", "command", "urls"))
    if not (on or command or urls):
        return None
    said = words(on, "notify.on") if on else ()
    return Notify(
        tuple(word for word in said if word in EVENTS), _command(command) if command else (),
        _urls(urls) if urls else (), desktop=DESKTOP in said,
    )  # fmt: skip


def _command(entry: Entry) -> tuple[str, ...]:
    """A list of words, or one text that is split as a shell would."""
    value = entry[0]
    try:
        found = value if isinstance(value, list) else shlex.split(text(entry, "notify.command"))
    except ValueError as error:
        raise refuse(entry, "notify.command", f"{error}: {value!r:.60}") from None
    if not found or not all(isinstance(word, str) and "\0" not in word for word in found) or not found[0]:
        raise refuse(entry, "notify.command", f"expected a command, not {value!r:.40}")
    return tuple(found)


def _urls(entry: Entry) -> tuple[str, ...]:
    value = entry[0]
    if not isinstance(value, list) or not all(isinstance(url, str) and ":" in url for url in value):
        example = '["ntfy://my-topic"]'
        raise refuse(entry, "notify.urls", f"expected a list such as {example}")
    return tuple(value)


def settle(said: tuple[str, ...] | None, table: Notify | None, source: str = "") -> Notify | None:
    """Who is told of what, by a profile or an option (None: it says nothing) and ``[notify]``.

    Raises UsageError, with ``source``, where there is something to tell and nobody to be told.
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
