"""What a profile says of the device fence: ``fence`` and ``devices``. Imported only for that."""

from __future__ import annotations

from slicer.config.values import refuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from slicer.config.values import Entry
    from slicer.model import Fence

_FENCES: tuple[Fence, ...] = ("auto", "on", "off")
DIRECTIVES = ("DeviceAllow", "DevicePolicy")  # what the fence itself consists of
_BEGINNINGS = ("/dev/nvidia", "char-nvidia")
_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/_.-")
_LONGEST = 200
_MOST = 64
_EXAMPLE = '["/dev/nvidia-modeset"]'


def fence(entry: Entry, given: Collection[str]) -> Fence:
    """Whether a job can open no GPUs but its own. ``given``: the directives that the profile sets.

    Raises the entry's error, as all here.
    """
    value = entry[0]
    for word in _FENCES:
        if value == word and isinstance(value, str):
            own = [name for name in DIRECTIVES if name in given]
            if word == "on" and own:
                message = f"{' and '.join(own)} of the profile take its place"
                raise refuse(entry, "fence", message, "leave them out, or say what else to allow in devices")
            return word
    instead = {True: 'say "on"', False: 'say "off"'}.get(value, "") if isinstance(value, bool) else ""
    raise refuse(entry, "fence", f'expected "auto", "on" or "off", not {value!r:.40}', instead)


def devices(entry: Entry) -> tuple[str, ...]:
    """Nodes and groups of NVIDIA's that a job may open whatever GPUs it has."""
    value = entry[0]
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise refuse(entry, "devices", f"expected a list such as {_EXAMPLE}, not {value!r:.40}")
    if len(value) > _MOST:
        raise refuse(entry, "devices", f"{len(value)} are more than the {_MOST} that a job can have")
    for each in value:
        if not each.startswith(_BEGINNINGS):
            hint = "every other device is open to a job in any case"
            raise refuse(entry, "devices", f"{each!r:.60} is none of NVIDIA's nodes, /dev/nvidia…", hint)
        if len(each) > _LONGEST or not _CHARS.issuperset(each) or ".." in each or "//" in each:
            raise refuse(entry, "devices", f"{each!r:.60} is no node's name", f"for example {_EXAMPLE}")
    return tuple(dict.fromkeys(value))
