"""systemd's resource properties of a scope: the one table behind ``--set`` and the keys of a profile.

A row specifies the key of a directive (``CPUQuota``) in a profile (``cpu_quota``), the kind of its value, and
the cgroup controller that enforces it. Names and signatures are those of systemd's dbus-cgroup.c,
dbus-scope.c and dbus-kill.c.
"""

from __future__ import annotations

from slicer import quantity
from slicer.errors import SlicerError, UsageError
from slicer.model import Host, Property
from slicer.quantity import INFINITY, QuantityError
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from slicer.model import Value

    Kind = str | tuple[str, ...]  # of values: its name, or the words to choose from


@record
class PropertyInfo:
    """One row of the table. ``controller`` is "" for systemd's own work (signals, timeouts)."""

    name: str
    key: str
    kind: Kind
    controller: str

    @property
    def is_list(self) -> bool:
        """Whether it may be given several times, each adding an entry."""
        return self.kind in LISTS

    @property
    def dbus_name(self) -> str:
        """Its name in StartTransientUnit."""
        return _dbus_name(self.name)


# Plain tuples: the compiler folds the whole table into one constant, so that importing it costs nothing.
_TABLE = (
    ("CPUQuota", "cpu_quota", "quota", "cpu"),
    ("CPUQuotaPeriodSec", "cpu_quota_period", "period", "cpu"),
    ("CPUWeight", "cpu_weight", "cpu-weight", "cpu"),
    ("AllowedCPUs", "allowed_cpus", "cpus", "cpuset"),
    ("AllowedMemoryNodes", "allowed_memory_nodes", "nodes", "cpuset"),
    ("MemoryMin", "memory_min", "memory-any", "memory"),
    ("MemoryLow", "memory_low", "memory-any", "memory"),
    ("MemoryHigh", "memory_high", "memory", "memory"),
    ("MemoryMax", "memory_max", "memory", "memory"),
    ("MemorySwapMax", "memory_swap_max", "memory-any", "memory"),
    ("MemoryZSwapMax", "memory_zswap_max", "memory-any", "memory"),
    ("MemoryZSwapWriteback", "memory_zswap_writeback", "bool", "memory"),
    ("TasksMax", "tasks_max", "tasks", "pids"),
    ("IOWeight", "io_weight", "weight", "io"),
    ("IODeviceWeight", "io_device_weight", "io-weights", "io"),
    ("IOReadBandwidthMax", "io_read_bandwidth_max", "io-sizes", "io"),
    ("IOWriteBandwidthMax", "io_write_bandwidth_max", "io-sizes", "io"),
    ("IOReadIOPSMax", "io_read_iops_max", "io-sizes", "io"),
    ("IOWriteIOPSMax", "io_write_iops_max", "io-sizes", "io"),
    ("IODeviceLatencyTargetSec", "io_device_latency_target", "io-times", "io"),
    ("DevicePolicy", "device_policy", ("auto", "closed", "strict"), "devices"),
    ("DeviceAllow", "device_allow", "devices", "devices"),
    ("OOMPolicy", "oom_policy", ("continue", "stop", "kill"), "memory"),
    ("ManagedOOMSwap", "managed_oom_swap", ("auto", "kill"), "memory"),
    ("ManagedOOMMemoryPressure", "managed_oom_memory_pressure", ("auto", "kill"), "memory"),
    ("ManagedOOMMemoryPressureLimit", "managed_oom_memory_pressure_limit", "pressure", "memory"),
    ("ManagedOOMPreference", "managed_oom_preference", ("none", "avoid", "omit"), "memory"),
    ("RuntimeMaxSec", "runtime_max", "time", ""),
    ("TimeoutStopSec", "timeout_stop", "time", ""),
    ("KillSignal", "stop_signal", "signal", ""),
    # "process" and "none" signal the main process only, and a scope has none: stopping would stop nothing.
    ("KillMode", "kill_mode", ("control-group", "mixed"), ""),
    ("SendSIGHUP", "send_sighup", "bool", ""),
    ("SendSIGKILL", "send_sigkill", "bool", ""),
)
# The default time between SIGTERM and SIGKILL for a stopped job.
DEFAULT_STOP_TIMEOUT_S = 10.0
LONGEST_STOP_S = 365 * 86400.0  # "infinity" as a number that clocks accept
_ROW_BY_NAME = {row[0]: row for row in _TABLE}
_ROW_BY_KEY = {row[1]: row for row in _TABLE}
FENCE_DIRECTIVES = ("DeviceAllow", "DevicePolicy")  # the directives of the device fence
NAMES = tuple(_ROW_BY_NAME)
KEYS = tuple(_ROW_BY_KEY)

# Directives of these kinds may be given several times, each adding an entry.
LISTS = ("io-weights", "io-sizes", "io-times", "devices")
_SMALLEST_MEMORY = 2**20  # "MemoryMax=24" is a forgotten "G", and would kill the job at once


def find(name: str) -> PropertyInfo | None:
    """The row of a directive (``MemoryMax``), or None."""
    row = _ROW_BY_NAME.get(name)
    return PropertyInfo(*row) if row else None


def row_of(name: str) -> PropertyInfo:
    """The row of a directive that certainly has one."""
    return PropertyInfo(*_ROW_BY_NAME[name])


def in_order(properties: Iterable[Property]) -> list[Property]:
    """The properties in the order that systemd requires.

    DeviceAllow comes before DevicePolicy. Otherwise all devices are denied for a moment.
    """
    return sorted(properties, key=lambda each: each.name == "DevicePolicy")


def find_key(key: str) -> PropertyInfo:
    """The row of a profile key (``memory_max``), one of KEYS."""
    return PropertyInfo(*_ROW_BY_KEY[key])


def controller(name: str) -> str:
    """The cgroup controller that enforces a directive: "cpu", "cpuset", "io", ..., or "" for none."""
    return _ROW_BY_NAME[name][3] if name in _ROW_BY_NAME else ""


def property_with(name: str, value: Value, text: str = "") -> Property:
    kind = _ROW_BY_NAME[name][2]
    signature = "s" if isinstance(kind, tuple) else _KINDS[kind][0]
    return Property(name, _dbus_name(name), signature, value, text)


def time_limit(name: str, seconds: float) -> Property:
    """A directive that is a time, to the microsecond."""
    return property_with(name, int(seconds * 1e6), f"{seconds:.6f}".rstrip("0").rstrip(".") + "s")


def parse_property(
    name: str, text: str, host: Host, where: str, *, error: type[SlicerError] = UsageError, label: str = ""
) -> Property:
    """A directive and its text, parsed for systemd.

    Newlines separate the entries of a list property. ``where`` and ``label`` (the user's name for it) go into
    the error. Raises ``error`` for a bad value and for a name that is not a resource property.
    """
    info = find(name)
    if info is None:
        raise unknown(name, where, error)
    try:
        value = _parse(info.kind, text, host)
    except QuantityError as bad:
        raise error(f"{label or name}: {bad}", where=where) from None
    written = text.strip()
    if info.kind == "tasks" and written.endswith("%"):
        return Property(name, "TasksMaxScale", "u", value, written)
    return property_with(name, value, written)


def split_assignment(assignment: str, where: str) -> tuple[str, str]:
    """The two parts of ``NAME=VALUE``. Raises UsageError."""
    name, equals, text = assignment.partition("=")
    if not equals or not name.strip():
        raise UsageError(
            f"expected PROPERTY=VALUE, not {assignment!r}", where=where, hint="for example MemoryMax=8G"
        )
    return name.strip(), text


def unknown(name: str, where: str, error: type[SlicerError] = UsageError) -> SlicerError:
    from slicer.config.property_names import refusal

    message, hint = refusal(name, NAMES)
    return error(message, where=where, hint=hint)


def _dbus_name(name: str) -> str:
    """A unit file's name in StartTransientUnit's form: times are in microseconds there."""
    if name == "CPUQuota":
        return "CPUQuotaPerSecUSec"
    return f"{name.removesuffix('Sec')}USec" if name.endswith("Sec") else name


def file_text(kind: Kind, value: object) -> str:
    """A file's number, truth value or list in the syntax of ``--set``.

    Raises QuantityError if a bare number could mean two things, and for other types.
    """
    _, _, taken, expected = ("", None, str, "a text in quotes") if isinstance(kind, tuple) else _KINDS[kind]
    if type(value) is taken or (taken is float and type(value) is int):
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, int):
            return str(value)
        if isinstance(value, float) and -1e15 < value < 1e15:  # neither NaN nor infinite
            return f"{value:.6f}".rstrip("0").rstrip(".")
        if isinstance(value, list) and value:
            if kind in LISTS and all(isinstance(item, str) for item in value):
                return "\n".join(value)
            if kind not in LISTS and all(type(item) is int for item in value):
                return ",".join(str(item) for item in value)
    raise QuantityError(f"expected {expected}, not {value!r:.40}")


def _parse(kind: Kind, text: str, host: Host) -> Value:
    if isinstance(kind, tuple):
        return _choice(text, kind)
    parse = _KINDS[kind][1]
    return parse(text, host) if kind in ("memory", "memory-any", "cpus") else parse(text)


def _choice(text: str, choices: tuple[str, ...]) -> str:
    word = text.strip()
    if word not in choices:
        raise QuantityError(f"expected one of {', '.join(choices)}, not {word[:40]!r}")
    return word


def _memory(text: str, host: Host, smallest: int = _SMALLEST_MEMORY) -> int:
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
    # The kernel refuses a whole list because of one missing CPU, and systemd only logs that.
    usable = set(quantity.parse_cpus(text)) & set(host.cpus)
    if not usable:
        raise QuantityError(
            f"none of the CPUs {text.strip()!r} is usable here, which are {quantity.format_cpus(host.cpus)}"
        )
    return quantity.cpus_to_mask(usable)


def _nodes(text: str) -> bytes:
    return quantity.cpus_to_mask(quantity.parse_cpus(text))


def _pressure(text: str) -> int:
    return _scaled(quantity.parse_percent(text))


def _tasks(text: str) -> int:
    stripped = text.strip()
    if stripped == "infinity":
        return INFINITY
    if stripped.endswith("%"):
        share = quantity.parse_percent(text)
        # systemd accepts a share of 2**32 - 1, except 0 and 100%.
        if not 0 < share < 10000:
            raise QuantityError(f"expected more than 0% and less than 100%, not {stripped!r}")
        return _scaled(share)
    what = 'a number of tasks such as "500", "10%" or "infinity"'
    return quantity.parse_count(text, lowest=1, highest=2**22, what=what)


def _scaled(share: int) -> int:
    """Hundredths of a percent as systemd scales them: 100% is 2**32 - 1."""
    return (share * (2**32 - 1) + 5000) // 10000


def _time(text: str) -> int:
    value = quantity.parse_duration(text)
    if not value:
        raise QuantityError(
            'expected a duration such as "90s" or "2h", not 0: "infinity" is how to say no limit'
        )
    return value


def parse_signal(text: str) -> int:
    """The number of a signal, by name or number. Raises QuantityError."""
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


def _io_size(text: str) -> int:
    value = quantity.parse_size(text, base=1000)
    if not value:
        raise QuantityError('expected a rate such as "10M", not 0: the job could never read or write')
    return value


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


_weight = quantity.parse_weight
_WEIGHT = "a whole number from 1 to 10000"
_SIZE = 'a size such as "8G" or "50%"'
_TEXT = "a text in quotes"
# Of each kind: its D-Bus type, its parser, what a file may have besides a text, and what is expected.
_KINDS: dict[str, tuple[str, Callable[..., Value], type, str]] = {
    "quota": ("t", _quota, str, 'a percentage of one CPU in quotes such as "300%"'),
    "period": ("t", _period, str, 'a duration such as "10ms"'),
    "cpu-weight": ("t", _cpu_weight, int, f'{_WEIGHT}, or "idle"'),
    "cpus": ("ay", _cpus, list, 'a CPU list such as "0-3,8" or [0, 1]'),
    "nodes": ("ay", _nodes, list, 'a list of memory nodes such as "0-1" or [0, 1]'),
    "memory": ("t", _memory, int, _SIZE),
    "memory-any": ("t", lambda text, host: _memory(text, host, 0), int, _SIZE),
    "bool": ("b", quantity.parse_bool, bool, "true or false"),
    "tasks": ("t", _tasks, int, "a whole number"),
    "weight": ("t", _weight, int, _WEIGHT),
    "io-weights": ("a(st)", lambda text: _by_device(text, _weight, "/dev/sda 200"), list, _TEXT),
    "io-sizes": ("a(st)", lambda text: _by_device(text, _io_size, "/dev/sda 10M"), list, _TEXT),
    "io-times": ("a(st)", lambda text: _by_device(text, _time, "/dev/sda 25ms"), list, _TEXT),
    "devices": ("a(ss)", _devices, list, 'a list such as ["/dev/nvidia0 rw"]'),
    "pressure": ("u", _pressure, str, 'a percentage in quotes such as "60%"'),
    "time": ("t", _time, float, 'seconds, or a duration such as "2h" or "infinity"'),
    "signal": ("i", parse_signal, int, 'a signal such as "SIGTERM"'),
}
