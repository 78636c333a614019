"""The values of a profile's keys for sharing GPUs and for the device fence, and what they need beside them.

Imported only if one of them is set. Each reader raises the entry's error.
"""

from __future__ import annotations

from slicer import quantity
from slicer.config.properties import FENCE_DIRECTIVES
from slicer.config.values import check_beside, meant, parsed, refuse
from slicer.quantity import INFINITY, QuantityError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from slicer.config.values import Entry, Reader

_MODES = ("yield", "launches", "time", "each")
_DEFAULT_LAUNCHES = 10
_MOST_LAUNCHES = 1_000_000
_LONGEST_TURN_MS = 60_000
_MOST_SYNCS = 1_000_000

_NODES = ("/dev/nvidia", "char-nvidia")  # how the names of its devices begin
_NODE_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/_.-")
_LONGEST_NODE = 200
_MOST_NODES = 64
_EXAMPLE = '["/dev/nvidia-modeset"]'


def check(entries: Mapping[str, Entry], found: Mapping[str, Any], given: Collection[str]) -> None:
    """Refuse what has no effect beside the job's other needs, and a fence beside one of its own.

    ``found``: the fields of the profile; ``given``: the directives that it sets.
    """
    share, mode = entries.get("share"), entries.get("share_mode")
    if share and found["share"] != "off" and not found["vram_mib"]:
        message = "requires part of a GPU, and this job takes whole GPUs"
        check_beside(share, "share", message, "add --vram")
    if mode and found["share"] not in ("lock", "both"):
        message = "is a mode of the lock, and this job has no lock"
        check_beside(mode, "share_mode", message, "add --share lock")
    own = [name for name in FENCE_DIRECTIVES if name in given]
    if found["fence"] == "on" and own:
        message = f"{' and '.join(own)} of the profile replace it"
        raise refuse(entries["fence"], "fence", message, "remove them, or list what else to allow in devices")


def _mode(entry: Entry, label: str) -> str:
    """The end of a turn, in its one spelling: "yield", "launches=10", "time=5ms" or "each"."""
    value = entry[0]
    if not isinstance(value, str):
        raise refuse(entry, label, f'expected a text such as "launches=10", not {value!r:.40}')
    name, equals, argument = value.strip().partition("=")
    if name == "launches":
        return f"launches={_launches(entry, argument if equals else str(_DEFAULT_LAUNCHES))}"
    if name == "time":
        return f"time={_turn_ms(entry, argument)}ms"
    if name in _MODES:
        if equals:
            raise refuse(entry, label, f"{name} takes no value", f"write just {name}")
        return name
    hint = meant(name, _MODES) or "known: yield, launches=N, time=DURATION, each"
    raise refuse(entry, label, f"has no mode {value!r:.40}", hint)


def _launches(entry: Entry, text: str) -> int:
    what = f"a number of launches from 1 to {_MOST_LAUNCHES}, as in launches=10"
    limits = {"lowest": 1, "highest": _MOST_LAUNCHES}
    return parsed(entry, "share_mode", quantity.parse_count, text.strip(), **limits, what=what)


def _turn_ms(entry: Entry, text: str) -> int:
    """Whole milliseconds, because the library accepts nothing finer."""
    written = text.strip()
    hint = f"with its unit, from 1ms to {_LONGEST_TURN_MS // 1000}s: time=5ms"
    if not written or written.replace(".", "").isdigit():
        raise refuse(entry, "share_mode", f"expected a duration after time=, not {written!r:.40}", hint)
    try:
        found_us = quantity.parse_duration(written)
    except QuantityError as bad:
        raise refuse(entry, "share_mode", str(bad), hint) from None
    if found_us == INFINITY or found_us % 1000 or not 1 <= found_us // 1000 <= _LONGEST_TURN_MS:
        raise refuse(entry, "share_mode", f"a turn cannot last {written!r:.40}", hint)
    return found_us // 1000


def _syncs(entry: Entry, label: str) -> int:
    value = entry[0]
    what = f"a whole number from 0 to {_MOST_SYNCS}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise refuse(entry, label, f"expected {what}, not {value!r:.40}")
    if not 0 <= value <= _MOST_SYNCS:
        raise refuse(entry, label, f"{value!r:.40} is not {what}")
    return value


def devices(entry: Entry, label: str) -> tuple[str, ...]:
    """NVIDIA's nodes and groups that a job may open whatever GPUs it has."""
    value = entry[0]
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise refuse(entry, label, f"expected a list such as {_EXAMPLE}, not {value!r:.40}")
    if len(value) > _MOST_NODES:
        raise refuse(entry, label, f"{len(value)} are more than the {_MOST_NODES} that a job may have")
    for each in value:
        if not each.startswith(_NODES):
            hint = "every other device is open to a job in any case"
            raise refuse(entry, label, f"{each!r:.60} is not one of NVIDIA's nodes, /dev/nvidia…", hint)
        if len(each) > _LONGEST_NODE or not _NODE_CHARS.issuperset(each) or ".." in each or "//" in each:
            raise refuse(entry, label, f"{each!r:.60} cannot be a node", f"for example {_EXAMPLE}")
    return tuple(dict.fromkeys(value))


READERS: dict[str, Reader] = {"share-mode": _mode, "syncs": _syncs, "nvidia-devices": devices}
