"""Limits of all jobs in a slice together: ``[slices.gpu]`` and ``[slices.cpu]`` of a configuration.

They have the syntax of a profile and are checked by the same code. No job reads them: ``slicer install``
writes them for systemd.
"""

from __future__ import annotations

from slicer import quantity
from slicer.config import build, live
from slicer.config.check import check_keys
from slicer.config.files import Layer, read_files
from slicer.kernel.proc import read_text
from slicer.model import SLICES, Host
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicer.config.values import Entry
    from slicer.model import Property, SliceName

    Limits = Mapping[SliceName, tuple["Limit", ...]]

_ANY_CPUS = tuple(range(quantity.MAX_CPU + 1))
_POSSIBLE_CPUS = "/sys/devices/system/cpu/possible"


@record
class Limit:
    """One limit of a slice: a directive, its value as in a unit file, and its source."""

    name: str
    value: str
    source: str


def read(
    environ: Mapping[str, str], host: Host, *, user: bool = False
) -> tuple[Limits, tuple[str, ...]]:
    """The limits of the system manager's slices, or of the caller's own (``user``), and warnings.

    The system manager uses only ``/etc/slicer``, a user's manager only that user's files. Raises ConfigError.
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
    """The CPUs that a permanent file may name, including those that are off, or not for this process.

    The kernel refuses a whole list because of one more.
    """
    try:
        return quantity.parse_cpus(read_text(_POSSIBLE_CPUS))
    except FileNotFoundError:  # no /sys in a chroot
        return _ANY_CPUS


def settled(layers: tuple[Layer, ...], host: Host) -> Limits:
    """The limits from these files; later files win key by key. Raises ConfigError."""
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
    """A value in the spelling of systemd.resource-control(5). Nothing of the user's own text remains."""
    if isinstance(made.value, int) and made.text.endswith("%") and made.name != "CPUQuota":
        return quantity.percent_text(quantity.parse_percent(made.text))  # of the machine that reads it
    shown = live.value_text(made.name, made.value)
    return "" if made.name == "CPUQuota" and shown == "infinity" else shown  # empty: no quota
