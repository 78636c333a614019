"""systemd's resource properties of a scope: the one table behind ``--set`` and the keys of a profile.

A row says how a directive (``CPUQuota``) is written in a profile (``cpu_quota``), how StartTransientUnit
takes it (``CPUQuotaPerSecUSec``, ``t``), which cgroup controller enforces it and since which systemd a
scope has it. Names and signatures are those of systemd's dbus-cgroup.c, dbus-scope.c and dbus-kill.c.
"""

from __future__ import annotations

from slicer import quantity
from slicer.errors import SlicerError, UsageError
from slicer.model import Host, Property
from slicer.quantity import INFINITY, QuantityError
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.model import Value

    Parsed = tuple[str, str, Value]  # D-Bus name, signature, value


@record
class PropertyInfo:
    """One row of the table. ``controller`` is "" for what systemd does by itself (signals, timeouts)."""

    name: str
    key: str
    dbus_name: str
    signature: str
    kind: str
    controller: str
    since: int  # the first systemd whose scopes have it


# What user@.service is given by default (``Delegate=pids memory cpu``). The device policy is an eBPF
# program, which the user manager may not load: it fails open there.
USER_CONTROLLERS = ("cpu", "memory", "pids", "")

# Plain tuples: the compiler folds the whole table into one constant, so that importing it costs nothing.
_TABLE = (
    ("CPUQuota", "cpu_quota", "CPUQuotaPerSecUSec", "t", "quota", "cpu", 213),
    ("CPUQuotaPeriodSec", "cpu_quota_period", "CPUQuotaPeriodUSec", "t", "period", "cpu", 242),
    ("CPUWeight", "cpu_weight", "CPUWeight", "t", "cpu-weight", "cpu", 232),
    ("AllowedCPUs", "allowed_cpus", "AllowedCPUs", "ay", "cpus", "cpuset", 244),
    ("AllowedMemoryNodes", "allowed_memory_nodes", "AllowedMemoryNodes", "ay", "nodes", "cpuset", 244),
    ("MemoryMin", "memory_min", "MemoryMin", "t", "memory-any", "memory", 240),
    ("MemoryLow", "memory_low", "MemoryLow", "t", "memory-any", "memory", 231),
    ("MemoryHigh", "memory_high", "MemoryHigh", "t", "memory", "memory", 231),
    ("MemoryMax", "memory_max", "MemoryMax", "t", "memory", "memory", 231),
    ("MemorySwapMax", "memory_swap_max", "MemorySwapMax", "t", "memory-any", "memory", 232),
    ("MemoryZSwapMax", "memory_zswap_max", "MemoryZSwapMax", "t", "memory-any", "memory", 253),
    ("MemoryZSwapWriteback", "memory_zswap_writeback", "MemoryZSwapWriteback", "b", "bool", "memory", 256),
    ("TasksMax", "tasks_max", "TasksMax", "t", "tasks", "pids", 227),
    ("IOWeight", "io_weight", "IOWeight", "t", "weight", "io", 230),
    ("IODeviceWeight", "io_device_weight", "IODeviceWeight", "a(st)", "io-weights", "io", 230),
    ("IOReadBandwidthMax", "io_read_bandwidth_max", "IOReadBandwidthMax", "a(st)", "io-sizes", "io", 230),
    ("IOWriteBandwidthMax", "io_write_bandwidth_max", "IOWriteBandwidthMax", "a(st)", "io-sizes", "io", 230),
    ("IOReadIOPSMax", "io_read_iops_max", "IOReadIOPSMax", "a(st)", "io-sizes", "io", 230),
    ("IOWriteIOPSMax", "io_write_iops_max", "IOWriteIOPSMax", "a(st)", "io-sizes", "io", 230),
    (
        "IODeviceLatencyTargetSec",
        "io_device_latency_target",
        "IODeviceLatencyTargetUSec",
        "a(st)",
        "io-times",
        "io",
        240,
    ),
    ("DevicePolicy", "device_policy", "DevicePolicy", "s", "device-policy", "devices", 208),
    ("DeviceAllow", "device_allow", "DeviceAllow", "a(ss)", "devices", "devices", 208),
    # Debian's 252.39 has OOMPolicy on scopes too.
    ("OOMPolicy", "oom_policy", "OOMPolicy", "s", "oom-policy", "memory", 253),
    ("ManagedOOMSwap", "managed_oom_swap", "ManagedOOMSwap", "s", "oomd", "memory", 247),
    (
        "ManagedOOMMemoryPressure",
        "managed_oom_memory_pressure",
        "ManagedOOMMemoryPressure",
        "s",
        "oomd",
        "memory",
        247,
    ),
    (
        "ManagedOOMMemoryPressureLimit",
        "managed_oom_memory_pressure_limit",
        "ManagedOOMMemoryPressureLimit",
        "u",
        "pressure",
        "memory",
        247,
    ),
    (
        "ManagedOOMPreference",
        "managed_oom_preference",
        "ManagedOOMPreference",
        "s",
        "oomd-preference",
        "memory",
        248,
    ),
    ("RuntimeMaxSec", "runtime_max", "RuntimeMaxUSec", "t", "time", "", 244),
    ("TimeoutStopSec", "timeout_stop", "TimeoutStopUSec", "t", "time", "", 205),
    ("KillSignal", "kill_signal", "KillSignal", "i", "signal", "", 205),
    ("KillMode", "kill_mode", "KillMode", "s", "kill-mode", "", 205),
    ("SendSIGHUP", "send_sighup", "SendSIGHUP", "b", "bool", "", 207),
    ("SendSIGKILL", "send_sigkill", "SendSIGKILL", "b", "bool", "", 205),
)
_ROW_BY_NAME = {row[0]: row for row in _TABLE}
_NAME_BY_KEY = {row[1]: row[0] for row in _TABLE}
NAMES = tuple(_ROW_BY_NAME)
KEYS = tuple(_NAME_BY_KEY)

_CHOICES = {
    "device-policy": ("auto", "closed", "strict"),
    "oom-policy": ("continue", "stop", "kill"),
    "oomd": ("auto", "kill"),
    "oomd-preference": ("none", "avoid", "omit"),
    # "process" and "none" signal the main process only, and a scope has none: stopping would stop nothing.
    "kill-mode": ("control-group", "mixed"),
}
_LISTS = ("io-weights", "io-sizes", "io-times", "devices")
_SMALLEST_MEMORY = 2**20  # "MemoryMax=24" is a forgotten "G", and would kill the job at once


def find(name: str) -> PropertyInfo | None:
    """The row of a directive (``MemoryMax``), or None."""
    row = _ROW_BY_NAME.get(name)
    return PropertyInfo(*row) if row else None


def find_key(key: str) -> PropertyInfo | None:
    """The row of a profile key (``memory_max``), or None."""
    name = _NAME_BY_KEY.get(key)
    return find(name) if name else None


def controller(name: str) -> str:
    """The cgroup controller that enforces a directive: "cpu", "cpuset", "io", ..., or "" for none."""
    row = _ROW_BY_NAME.get(name)
    return row[5] if row else ""


def takes_list(name: str) -> bool:
    """Whether a directive may be given several times, each adding an entry (``DeviceAllow``)."""
    row = _ROW_BY_NAME.get(name)
    return row is not None and row[4] in _LISTS


def parse_property(
    name: str,
    text: str,
    host: Host,
    where: str,
    *,
    error: type[SlicerError] = UsageError,
    label: str = "",
) -> Property:
    """A directive and its text, as systemd is to get it.

    Entries of a list property are separated by newlines. ``where`` and ``label`` (the name the user wrote)
    go into the error. Raises ``error`` for a bad value and for a name that is not a resource property.
    """
    info = find(name)
    if info is None:
        raise _unknown(name, where, error)
    try:
        dbus_name, signature, value = _parse(info, text, host)
    except QuantityError as bad:
        raise error(f"{label or name}: {bad}", where=where) from None
    return Property(name, dbus_name, signature, value, text.strip())


def parse_assignment(assignment: str, host: Host, where: str) -> Property:
    """``MemoryMax=8G`` as a Property; raises UsageError."""
    name, text = split_assignment(assignment, where)
    return parse_property(name, text, host, where)


def split_assignment(assignment: str, where: str) -> tuple[str, str]:
    """``NAME=VALUE`` taken apart; raises UsageError."""
    name, equals, text = assignment.partition("=")
    if not equals or not name.strip():
        raise UsageError(
            f"expected PROPERTY=VALUE, not {assignment!r}", where=where, hint="for example MemoryMax=8G"
        )
    return name.strip(), text


def _parse(info: PropertyInfo, text: str, host: Host) -> Parsed:
    if info.kind in _CHOICES:
        return info.dbus_name, info.signature, _choice(text, _CHOICES[info.kind])
    if info.kind == "memory":
        return info.dbus_name, info.signature, _memory(text, host, _SMALLEST_MEMORY)
    if info.kind == "memory-any":
        return info.dbus_name, info.signature, _memory(text, host, 0)
    if info.kind == "cpus":
        return info.dbus_name, info.signature, _cpus(text, host)
    if info.kind == "tasks":
        return _tasks(text)
    return info.dbus_name, info.signature, _PARSERS[info.kind](text)


def _choice(text: str, choices: tuple[str, ...]) -> str:
    word = text.strip()
    if word not in choices:
        raise QuantityError(f"expected one of {', '.join(choices)}, not {word[:40]!r}")
    return word


def _memory(text: str, host: Host, smallest: int) -> int:
    if text.strip().endswith("%"):
        # As systemd does, of physical memory and in whole pages.
        value = host.memory_bytes * quantity.parse_percent(text) // 10000 // 4096 * 4096
    else:
        value = quantity.parse_size(text)
    if value < smallest:
        raise QuantityError(
            f'expected a size such as "8G" or "50%", not {text.strip()!r}: no job fits into less than 1M'
        )
    return value


def _quota(text: str) -> int:
    if text.strip() == "infinity":
        return INFINITY
    # Microseconds of CPU time per second: 1% is 10,000.
    value = quantity.parse_percent(text, most=quantity.MAX_CORES_PERCENT) * 100
    if not value:
        raise QuantityError(
            'expected a percentage of one CPU such as "300%", not 0%: the job could never run'
        )
    return value


def _period(text: str) -> int:
    value = quantity.parse_duration(text)
    if not 1000 <= value <= 1_000_000:
        raise QuantityError(f"expected a period from 1ms to 1s, not {text.strip()!r}: the kernel's limits")
    return value


def _cpu_weight(text: str) -> int:
    # cpu.idle: systemd sends it as weight 0.
    return 0 if text.strip() == "idle" else quantity.parse_weight(text)


def _cpus(text: str, host: Host) -> bytes:
    # The kernel refuses a whole list that names one CPU too many, and systemd only logs that.
    usable = set(quantity.parse_cpus(text)) & set(host.cpus)
    if not usable:
        raise QuantityError(
            f"none of the CPUs {text.strip()!r} is usable here, which are {quantity.format_cpus(host.cpus)}"
        )
    return quantity.cpus_to_mask(usable)


def _nodes(text: str) -> bytes:
    return quantity.cpus_to_mask(quantity.parse_cpus(text))


def _tasks(text: str) -> Parsed:
    stripped = text.strip()
    if stripped == "infinity":
        return "TasksMax", "t", INFINITY
    if stripped.endswith("%"):
        share = quantity.parse_percent(text)
        # systemd takes a share of 2**32 - 1, and neither of the two ends.
        if not 0 < share < 10000:
            raise QuantityError(f"expected more than 0% and less than 100%, not {stripped!r}")
        return "TasksMaxScale", "u", (share * (2**32 - 1) + 5000) // 10000
    what = 'a number of tasks such as "500", "10%" or "infinity"'
    return "TasksMax", "t", quantity.parse_count(text, lowest=1, highest=2**22, what=what)


def _time(text: str) -> int:
    value = quantity.parse_duration(text)
    if not value:
        raise QuantityError(
            'expected a duration such as "90s" or "2h", not 0: "infinity" is how to say no limit'
        )
    return value


def _pressure(text: str) -> int:
    return (quantity.parse_percent(text) * (2**32 - 1) + 5000) // 10000


def _signal(text: str) -> int:
    import signal

    word = text.strip().upper()
    if word.isascii() and word.isdigit() and len(word) < 3 and 1 <= int(word) < signal.NSIG:
        return int(word)
    found = getattr(signal, word if word.startswith("SIG") else f"SIG{word}", None)
    # SIG_DFL and SIG_IGN start with SIG as well.
    if not isinstance(found, signal.Signals):
        raise QuantityError(f'expected a signal such as "SIGTERM" or "15", not {text.strip()[:40]!r}')
    return int(found)


def _entries(text: str, example: str) -> list[tuple[str, str]]:
    entries = []
    for line in text.split("\n"):
        path, _, rest = line.strip().partition(" ")
        if path:
            entries.append((path, rest.strip()))
    if not entries:
        raise QuantityError(f"expected {example!r}, not {text!r}")
    return entries


def _by_device(text: str, read: Callable[[str], int], example: str) -> tuple[tuple[str, int], ...]:
    made = []
    for path, amount in _entries(text, example):
        # systemd refuses a path that is not normalised.
        if not path.startswith("/") or "//" in path or {".", ".."} & set(path.split("/")) or not amount:
            raise QuantityError(f"expected an absolute path and a value such as {example!r}, not {text!r}")
        made.append((path, read(amount)))
    return tuple(made)


def _io_weights(text: str) -> Value:
    return _by_device(text, quantity.parse_weight, "/dev/sda 200")


def _io_sizes(text: str) -> Value:
    return _by_device(text, _io_size, "/dev/sda 10M")


def _io_size(text: str) -> int:
    value = quantity.parse_size(text, base=1000)
    if not value:
        raise QuantityError('expected a rate such as "10M", not 0: the job could never read or write')
    return value


def _io_times(text: str) -> Value:
    return _by_device(text, _time, "/dev/sda 25ms")


def _devices(text: str) -> Value:
    made = []
    for node, access in _entries(text, "/dev/nvidia0 rw"):
        letters = access or "rwm"
        if not node.startswith(("/dev/", "char-", "block-")) or set(letters) - set("rwm"):
            raise QuantityError(
                f'expected a device and its access such as "/dev/nvidia0 rw" or "char-pts r", not {text!r}'
            )
        made.append((node, letters))
    return tuple(made)


_PARSERS: dict[str, Callable[[str], Value]] = {
    "quota": _quota,
    "period": _period,
    "cpu-weight": _cpu_weight,
    "nodes": _nodes,
    "weight": quantity.parse_weight,
    "bool": quantity.parse_bool,
    "time": _time,
    "pressure": _pressure,
    "signal": _signal,
    "io-weights": _io_weights,
    "io-sizes": _io_sizes,
    "io-times": _io_times,
    "devices": _devices,
}


def _unknown(name: str, where: str, error: type[SlicerError]) -> SlicerError:
    from slicer.config.property_names import refusal

    message, hint = refusal(name, NAMES)
    return error(message, where=where, hint=hint)
