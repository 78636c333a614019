"""The keys of a profile for sharing GPUs, for the device fence, and for GPUs that are not used.

Imported only if one of them is set. Each reader raises the entry's error.
"""

from __future__ import annotations

from slicer import quantity
from slicer.config.properties import FENCE_DIRECTIVES
from slicer.config.values import check_beside, choice, parsed, refuse, seconds
from slicer.quantity import INFINITY, QuantityError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from slicer.config.values import Entry
    from slicer.model import Fence, GpuIds, OnIdle, OverCap, Share

_SHARES: tuple[Share, ...] = ("lock", "cap", "both", "off")
_OVER_CAPS: tuple[OverCap, ...] = ("warn", "end")
_ON_IDLES: tuple[OnIdle, ...] = ("warn", "stop")
_GPU_IDS: tuple[GpuIds, ...] = ("uuid", "index")
_FENCES: tuple[Fence, ...] = ("auto", "on", "off")
_MODES = ("yield", "launches", "time", "each")
_DEFAULT_LAUNCHES = 10
_MOST_LAUNCHES = 1_000_000
_LONGEST_TURN_MS = 60_000
_MOST_SYNCS = 1_000_000
_INSTEAD: dict[object, str] = {True: "both", False: "off", "none": "off", "all": "both", "on": "both"}

_NODES = ("/dev/nvidia", "char-nvidia")  # how the names of its devices begin
_NODE_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/_.-")
_LONGEST_NODE = 200
_MOST_NODES = 64
_EXAMPLE = '["/dev/nvidia-modeset"]'


def read(said: dict[str, Entry], given: Collection[str], *, has_memory: bool) -> dict[str, Any]:
    """Read the keys in ``said`` into fields of a profile.

    ``given``: the directives that the profile sets. ``has_memory``: the job takes part of a GPU.
    """
    found: dict[str, Any] = {}
    for key, entry in said.items():
        if key == "share":
            found[key] = _share(entry, has_memory=has_memory)
        elif key == "share_mode":
            found[key] = _mode(entry, found.get("share", "off"))
        elif key == "share_skip_syncs":
            found[key] = _skip_syncs(entry)
        elif key == "over_cap":
            found[key] = choice(entry, key, _OVER_CAPS, _meant(entry[0], _OVER_CAPS))
        elif key == "idle_timeout":
            found["idle_timeout_s"] = idle_timeout(entry)
        elif key == "on_idle":
            found[key] = on_idle(entry)
        elif key == "gpu_ids":
            found[key] = choice(entry, key, _GPU_IDS)
        else:
            found[key] = fence(entry, given) if key == "fence" else devices(entry)
    return found


def idle_timeout(entry: Entry) -> float | None:
    """How long a job may leave its GPUs unused; None for "infinity"."""
    found = seconds(entry, "idle_timeout")
    if found is not None and found <= 0:
        raise refuse(entry, "idle_timeout", f'expected a duration such as "45m", not {entry[0]!r:.40}')
    return found


def on_idle(entry: Entry) -> OnIdle:
    """What becomes of a job that has left its GPUs unused for ``idle_timeout``."""
    return choice(entry, "on_idle", _ON_IDLES)


def _share(entry: Entry, *, has_memory: bool) -> Share:
    found = choice(entry, "share", _SHARES, _meant(entry[0], _SHARES))
    if found != "off" and not has_memory:
        message = "requires part of a GPU, and this job takes whole GPUs"
        check_beside(entry, "share", message, "add --vram")
    return found


def _meant(value: object, words: tuple[str, ...]) -> str:
    """A hint for a value that is not one of the words."""
    if value in words:
        return ""
    from slicer.config.property_names import nearest

    close = nearest(value, words) if isinstance(value, str) else ""
    if not close and isinstance(value, bool | str):
        close = _INSTEAD.get(value, "")
    return f"did you mean {close}?" if close in words and close else ""


def _mode(entry: Entry, wanted: Share) -> str:
    """The end of a turn, in its one spelling: "yield", "launches=10", "time=5ms" or "each"."""
    value = entry[0]
    if not isinstance(value, str):
        raise refuse(entry, "share_mode", f"expected a text such as \"launches=10\", not {value!r:.40}")
    if wanted not in ("lock", "both"):
        message = "is a mode of the lock, and this job has no lock"
        check_beside(entry, "share_mode", message, "add --share lock")
    name, equals, argument = value.strip().partition("=")
    if name == "launches":
        return f"launches={_launches(entry, argument if equals else str(_DEFAULT_LAUNCHES))}"
    if name == "time":
        return f"time={_turn_ms(entry, argument)}ms"
    if name in _MODES:
        if equals:
            raise refuse(entry, "share_mode", f"{name} takes no value", f"write just {name}")
        return name
    hint = _meant(name, _MODES) or "known: yield, launches=N, time=DURATION, each"
    raise refuse(entry, "share_mode", f"has no mode {value!r:.40}", hint)


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


def _skip_syncs(entry: Entry) -> int:
    """The number of synchronisations over which a turn is kept."""
    value = entry[0]
    what = f"a whole number from 0 to {_MOST_SYNCS}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise refuse(entry, "share_skip_syncs", f"expected {what}, not {value!r:.40}")
    if not 0 <= value <= _MOST_SYNCS:
        raise refuse(entry, "share_skip_syncs", f"{value!r:.40} is not {what}")
    return value


def fence(entry: Entry, given: Collection[str] = ()) -> Fence:
    """Whether the kernel keeps a job from all GPUs but those of its lease. ``given`` as in :func:`read`."""
    instead = {True: 'use "on"', False: 'use "off"'}.get(entry[0], "") if isinstance(entry[0], bool) else ""
    found = choice(entry, "fence", _FENCES, instead)
    own = [name for name in FENCE_DIRECTIVES if name in given]
    if found == "on" and own:
        message = f"{' and '.join(own)} of the profile replace it"
        raise refuse(entry, "fence", message, "remove them, or list what else to allow in devices")
    return found


def devices(entry: Entry) -> tuple[str, ...]:
    """NVIDIA's nodes and groups that a job may open whatever GPUs it has."""
    value = entry[0]
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise refuse(entry, "devices", f"expected a list such as {_EXAMPLE}, not {value!r:.40}")
    if len(value) > _MOST_NODES:
        raise refuse(entry, "devices", f"{len(value)} are more than the {_MOST_NODES} that a job may have")
    for each in value:
        if not each.startswith(_NODES):
            hint = "every other device is open to a job in any case"
            raise refuse(entry, "devices", f"{each!r:.60} is not one of NVIDIA's nodes, /dev/nvidia…", hint)
        if len(each) > _LONGEST_NODE or not _NODE_CHARS.issuperset(each) or ".." in each or "//" in each:
            raise refuse(entry, "devices", f"{each!r:.60} cannot be a node", f"for example {_EXAMPLE}")
    return tuple(dict.fromkeys(value))
