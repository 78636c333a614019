"""The limits that users may ask the broker for, by name. On the hot path of ``slicer run``. Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from slicer.model import Property

ALLOWED = frozenset((
    "CPUQuota", "CPUQuotaPeriodSec", "CPUWeight", "AllowedCPUs", "AllowedMemoryNodes",
    "MemoryHigh", "MemoryMax", "MemorySwapMax", "MemoryZSwapMax", "MemoryZSwapWriteback", "TasksMax",
    "IOWeight", "IODeviceWeight", "IOReadBandwidthMax", "IOWriteBandwidthMax",
    "IOReadIOPSMax", "IOWriteIOPSMax",
    "OOMPolicy", "ManagedOOMSwap", "ManagedOOMMemoryPressure", "ManagedOOMMemoryPressureLimit",
    "RuntimeMaxSec", "TimeoutStopSec", "KillSignal", "KillMode", "SendSIGHUP",
))  # fmt: skip
LONGEST_STOP_S = 300.0
MOST_CHARS = 4000  # in a value


def are_plain(properties: Iterable[Property]) -> bool:
    """Whether nothing here can be refused. Otherwise :func:`.limits.checked` checks in detail."""
    return all(map(_is_plain, properties))


def _is_plain(each: Property) -> bool:
    if each.name == "TimeoutStopSec":
        return isinstance(each.value, int) and each.value <= LONGEST_STOP_S * 1e6
    is_short = len(each.text) <= MOST_CHARS
    return each.name in ALLOWED and not isinstance(each.value, tuple) and is_short
