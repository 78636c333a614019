"""A user's jobs leave user-UID.slice. So what limits that one has to limit the jobs' slices as well. Pure."""

from __future__ import annotations

from slicer.quantity import INFINITY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# Signature, and what systemd has where nothing is said, by the name on the bus. Weights are among them: what
# the administrator gave a user over others counts for its jobs, too.
COPIED: dict[str, tuple[str, Any]] = {
    "CPUQuotaPerSecUSec": ("t", INFINITY),
    "CPUQuotaPeriodUSec": ("t", INFINITY),
    "CPUWeight": ("t", INFINITY),
    "AllowedCPUs": ("ay", b""),
    "AllowedMemoryNodes": ("ay", b""),
    "MemoryHigh": ("t", INFINITY),
    "MemoryMax": ("t", INFINITY),
    "MemorySwapMax": ("t", INFINITY),
    "MemoryZSwapMax": ("t", INFINITY),
    "TasksMax": ("t", INFINITY),
    "IOWeight": ("t", INFINITY),
    "IODeviceWeight": ("a(st)", ()),
    "IOReadBandwidthMax": ("a(st)", ()),
    "IOWriteBandwidthMax": ("a(st)", ()),
    "IOReadIOPSMax": ("a(st)", ()),
    "IOWriteIOPSMax": ("a(st)", ()),
}


def changes(
    login: Mapping[str, Any], jobs: Mapping[str, Any], copied: Mapping[str, str]
) -> dict[str, Any]:
    """What is to be set for the slice of the jobs, by name.

    ``login`` and ``jobs`` are the properties of both slices as they are now. ``copied`` is what was copied
    before, as :func:`noted` says it. What else the jobs' slice has is the administrator's word and stays.
    """
    found = {}
    for name, (_, unset) in COPIED.items():
        if name not in login or name not in jobs:
            continue  # an older systemd
        is_ours = jobs[name] == unset or copied.get(name) == noted(jobs[name])
        if is_ours and jobs[name] != login[name]:
            found[name] = login[name]
    return found


def remembered(changed: Mapping[str, Any], copied: Mapping[str, str]) -> dict[str, str]:
    """What has been copied once ``changed`` was set, too."""
    both = {**copied, **{name: noted(value) for name, value in changed.items()}}
    return {name: text for name, text in both.items() if text != noted(COPIED[name][1])}


def noted(value: Any) -> str:
    """A value as a line of text."""
    if isinstance(value, bytes):
        return value.hex()
    return repr(value)
