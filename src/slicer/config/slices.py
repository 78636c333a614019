"""Limits of a whole slice, all its jobs together: ``[slices.gpu]`` and ``[slices.cpu]`` of a configuration.

They are written as in a profile and checked by the same code. No job reads them: ``slicer install`` writes
them where systemd does.
"""

from __future__ import annotations

from slicer import quantity
from slicer.config import build, live
from slicer.config.check import check_keys
from slicer.config.files import read_files
from slicer.kernel.proc import read_text
from slicer.model import SLICES, Host
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicer.config.files import Layer
    from slicer.config.values import Entry
    from slicer.model import Property, SliceName

    Limits = Mapping[SliceName, tuple["Limit", ...]]

_ANY_CPUS = tuple(range(quantity.MAX_CPU + 1))
_POSSIBLE_CPUS = "/sys/devices/system/cpu/possible"


@record
class Limit:
    """One limit of a slice: a directive, its value as a unit file has it, and where it was said."""

    name: str
    value: str
    source: str


def read(
    environ: Mapping[str, str], host: Host, *, user: bool = False
) -> tuple[Limits, tuple[str, ...]]:
    """The limits of the system manager's slices, or of the caller's own (``user``), and warnings.

    The system manager follows ``/etc/slicer`` alone, a user's the files of that user alone.
    Raises ConfigError.
    """
    files = read_files(environ, only=("user", "explicit") if user else ("system",))
    for layer in files.layers:
        check_keys(layer)
    there = Host(_cpus(), host.memory_bytes)
    return settled(files.layers, there), files.warnings if user else ()


def check(layers: tuple[Layer, ...], host: Host) -> None:
    """Raise ConfigError for a value that no machine could have."""
    settled(layers, Host(_ANY_CPUS, host.memory_bytes))


def _cpus() -> tuple[int, ...]:
    """The CPUs that a file may name which stays: also those that are off, or not for this process.

    The kernel refuses a whole list that names one more.
    """
    try:
        return quantity.parse_cpus(read_text(_POSSIBLE_CPUS))
    except FileNotFoundError:  # no /sys in a chroot
        return _ANY_CPUS


def settled(layers: tuple[Layer, ...], host: Host) -> Limits:
    """The limits that these files come to; later files win key by key. Raises ConfigError."""
    found: dict[SliceName, tuple[Limit, ...]] = {}
    for name in SLICES:
        said: dict[str, Entry] = {}
        for layer in layers:
            said |= layer.entries("slices", name)
        limits = tuple(_limit(key, said[key], host) for key in build.SLICE_KEYS if key in said)
        if limits:
            found[name] = limits
    return found


def _limit(key: str, entry: Entry, host: Host) -> Limit:
    made = build.property_of(key, entry, host)
    return Limit(made.name, _unit_file_text(made), entry[1])


def _unit_file_text(made: Property) -> str:
    """A value as systemd.resource-control(5) spells it. Nothing of the user's own text is left in it."""
    if isinstance(made.value, int) and made.text.endswith("%") and made.name != "CPUQuota":
        return quantity.percent_text(quantity.parse_percent(made.text))  # of the machine that reads it
    shown = live.value_text(made.name, made.value)
    return "" if made.name == "CPUQuota" and shown == "infinity" else shown  # empty: no quota
