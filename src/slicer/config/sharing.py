"""How a profile shares its GPUs: ``share``, ``share_mode``, ``share_skip_syncs``, ``over_cap``.

Imported only where one of them is said.
"""

from __future__ import annotations

from slicer import quantity
from slicer.config.values import refuse
from slicer.errors import UsageError
from slicer.quantity import INFINITY, QuantityError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.config.values import Entry
    from slicer.model import OverCap, Share

_SHARES: tuple[Share, ...] = ("lock", "cap", "both", "off")
_OVER_CAPS: tuple[OverCap, ...] = ("warn", "end")
_MODES = ("yield", "launches", "time", "each")
_MODES_SHOWN = "yield, launches=N, time=DURATION, each"
DEFAULT_LAUNCHES = 10
MOST_LAUNCHES = 1_000_000
LONGEST_TURN_MS = 60_000
MOST_SYNCS = 1_000_000

_INSTEAD: dict[object, str] = {True: "both", False: "off", "none": "off", "all": "both", "on": "both"}


def share(entry: Entry, *, has_memory: bool) -> Share:
    """What of a GPU's sharing is wanted. ``has_memory``: the job takes a part of a GPU, not whole ones.

    Raises the entry's error, as all here.
    """
    found = _word(entry, "share", _SHARES)
    # A profile may have it in case --vram is added.
    if found != "off" and not has_memory and entry[2] is UsageError:
        message = "sharing is for a part of a GPU, and this job takes none: whole GPUs are shared with nobody"
        raise refuse(entry, "share", message, "add --vram")
    return found


def _word(entry: Entry, label: str, words: tuple[Share, ...]) -> Share:
    for word in words:
        if entry[0] == word and isinstance(entry[0], str):
            return word
    raise _no_word(entry, label, words)


def _no_word(entry: Entry, label: str, words: tuple[str, ...]) -> Exception:
    value = entry[0]
    shown = ", ".join(f'"{word}"' for word in words[:-1]) + f' or "{words[-1]}"'
    return refuse(entry, label, f"expected {shown}, not {value!r:.40}", _meant(value, words))


def _meant(value: object, words: tuple[str, ...]) -> str:
    from slicer.config.property_names import nearest

    close = nearest(value, words) if isinstance(value, str) else ""
    if not close and isinstance(value, bool | str):
        close = _INSTEAD.get(value, "")
    return f"did you mean {close}?" if close in words and close else ""


def over_cap(entry: Entry) -> OverCap:
    """What becomes of a job that was seen to use more than its cap."""
    for word in _OVER_CAPS:
        if entry[0] == word and isinstance(entry[0], str):
            return word
    raise _no_word(entry, "over_cap", _OVER_CAPS)


def mode(entry: Entry, wanted: Share) -> str:
    """When a turn ends, in its one spelling: "yield", "launches=10", "time=5ms" or "each"."""
    value = entry[0]
    if not isinstance(value, str):
        raise refuse(entry, "share_mode", f"expected a text such as \"launches=10\", not {value!r:.40}")
    # A profile may have it in case --share is added.
    if wanted not in ("lock", "both") and entry[2] is UsageError:
        message = "is how a lock is shared, and this job has none"
        raise refuse(entry, "share_mode", message, "add --share lock")
    name, equals, argument = value.strip().partition("=")
    if name == "launches":
        return f"launches={_launches(entry, argument if equals else str(DEFAULT_LAUNCHES))}"
    if name == "time":
        return f"time={_turn_ms(entry, argument)}ms"
    if name in _MODES:
        if equals:
            raise refuse(entry, "share_mode", f"{name} takes no value", f"write just {name}")
        return name
    hint = _meant(name, _MODES) or f"known: {_MODES_SHOWN}"
    raise refuse(entry, "share_mode", f"there is no mode {value!r:.40}", hint)


def _launches(entry: Entry, text: str) -> int:
    what = f"a number of launches from 1 to {MOST_LAUNCHES}, as in launches=10"
    try:
        return quantity.parse_count(text.strip(), lowest=1, highest=MOST_LAUNCHES, what=what)
    except QuantityError as bad:
        raise refuse(entry, "share_mode", str(bad)) from None


def _turn_ms(entry: Entry, text: str) -> int:
    """Whole milliseconds, because the library takes no others."""
    written = text.strip()
    hint = f"with its unit, from 1ms to {LONGEST_TURN_MS // 1000}s: time=5ms"
    if not written or written.replace(".", "").isdigit():
        raise refuse(entry, "share_mode", f"expected a duration after time=, not {written!r:.40}", hint)
    try:
        found_us = quantity.parse_duration(written)
    except QuantityError as bad:
        raise refuse(entry, "share_mode", str(bad), hint) from None
    if found_us == INFINITY or found_us % 1000 or not 1 <= found_us // 1000 <= LONGEST_TURN_MS:
        raise refuse(entry, "share_mode", f"a turn cannot last {written!r:.40}", hint)
    return found_us // 1000


def skip_syncs(entry: Entry) -> int:
    """Over how many synchronisations a turn is kept."""
    value = entry[0]
    what = f"a whole number from 0 to {MOST_SYNCS}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise refuse(entry, "share_skip_syncs", f"expected {what}, not {value!r:.40}")
    if not 0 <= value <= MOST_SYNCS:
        raise refuse(entry, "share_skip_syncs", f"{value!r:.40} is not {what}")
    return value
