"""The keys of a configuration file: which there are, what each takes, and how profiles are built of them.

The values of a profile are gathered as *entries*: what was written, where, and which error to raise over it.
"""

from __future__ import annotations

from slicer import quantity
from slicer.errors import ConfigError, SlicerError, UsageError
from slicer.model import SLICES, Host, Profile, Property
from slicer.properties import KEYS, find_key, parse_property
from slicer.quantity import INFINITY, QuantityError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slicer.config import Layer
    from slicer.model import SliceName
    from slicer.properties import PropertyInfo

    Entry = tuple[Any, str, type[SlicerError]]

TOP_KEYS = ("default_profile", "slots", "compat_gpu_lock", "profiles")
OWN_KEYS = (
    "description",
    "inherits",
    "slice",
    "gpus",
    "cpu_slots",
    "threads",
    "timeout",
    "linger",
    "env",
)
MAX_COUNT = quantity.MAX_CPU + 1
_LISTS = ("io-weights", "io-sizes", "io-times", "devices")


def check_keys(layer: Layer) -> None:
    """Raise ConfigError for a key that means nothing, or a table that is none."""
    _known_keys(layer.data, TOP_KEYS, layer, ())
    slots = _table(layer.data.get("slots", {}), layer, "slots")
    _known_keys(slots, ("cpu",), layer, ("slots",))
    profiles = _table(layer.data.get("profiles", {}), layer, "profiles")
    for name, table in profiles.items():
        where = layer.where("profiles", name)
        if not _good_name(name):
            hint = "letters, digits, . _ + and - are allowed, the first not a -"
            raise ConfigError(f"{name!r:.60} cannot be a profile's name", where=where, hint=hint)
        _known_keys(_table(table, layer, "profiles", name), (*OWN_KEYS, *KEYS), layer, ("profiles", name))
        for variable, value in _table(table.get("env", {}), layer, "profiles", name, "env").items():
            _check_variable(variable, value, layer.where("profiles", name, "env", variable))


def _good_name(name: str) -> bool:
    rest = name.translate({ord(letter): None for letter in "._+-"})
    return bool(name) and name[0] != "-" and name.isascii() and (rest.isalnum() or not rest)


def _table(value: object, layer: Layer, *path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        shown = ".".join(path)
        message = f"{shown} must be a table, [{shown}], not {value!r:.40}"
        raise ConfigError(message, where=layer.where(*path))
    return value


def _known_keys(table: dict[str, Any], known: tuple[str, ...], layer: Layer, path: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            from slicer.properties import find
            from slicer.property_names import nearest

            info = find(key)
            close = info.key if info and info.key in known else nearest(key, known)
            hint = f"did you mean {close}?" if close else ""
            place = f" in [{'.'.join(path)}]" if path else ""
            message = f"unknown key {key!r:.60}{place}"
            raise ConfigError(message, where=layer.where(*path, key), hint=hint)


def _check_variable(name: str, value: object, where: str) -> None:
    if not name or "=" in name or "\0" in name:
        raise ConfigError(f"{name!r:.60} cannot be an environment variable", where=where)
    if isinstance(value, bool):
        if value:
            hint = 'write "1" or "true"; false takes an inherited variable back'
            raise ConfigError(f"env.{name}: expected a text, not true", where=where, hint=hint)
    elif not isinstance(value, (str, int)):
        raise ConfigError(f"env.{name}: expected a text, not {value!r:.40}", where=where)
    elif "\0" in str(value):
        raise ConfigError(f"env.{name}: a NUL character cannot be passed on", where=where)


def merge_settings(settings: dict[str, Entry], layer: Layer) -> None:
    """Lay the settings outside of profiles that a file has over those before it."""
    for key in ("default_profile", "compat_gpu_lock"):
        if key in layer.data:
            settings[key] = (layer.data[key], layer.where(key), ConfigError)
    if "cpu" in layer.data.get("slots", {}):
        settings["slots.cpu"] = (layer.data["slots"]["cpu"], layer.where("slots", "cpu"), ConfigError)


def merge(entries: dict[str, Entry], table: dict[str, Any], layer: Layer, name: str) -> None:
    """Lay one file's table of a profile over ``entries``; raises ConfigError if it gives one limit twice."""
    if "timeout" in table and "runtime_max" in table:
        raise ConfigError(
            "timeout and runtime_max are the same limit",
            where=layer.where("profiles", name, "runtime_max"),
            hint="keep one of them",
        )
    for key, value in table.items():
        if key == "env":
            for variable, text_ in value.items():
                where = layer.where("profiles", name, "env", variable)
                entries[f"env.{variable}"] = (text_, where, ConfigError)
        else:
            where = layer.where("profiles", name, key)
            entries["timeout" if key == "runtime_max" else key] = (value, where, ConfigError)


def build(name: str, entries: dict[str, Entry], host: Host, threads: int | None) -> Profile:
    """A profile out of its entries; ``threads`` (CPU_RUN_THREADS) goes before the profile's own.

    Raises the entry's own kind of error for a value that is not what it should be.
    """
    sources: dict[str, str] = {}
    properties: dict[str, Property] = {}
    for key in KEYS:
        if key in entries:
            made = _property(key, entries[key], host)
            properties[made.name] = made
            sources[made.name] = entries[key][1]
    env = {}
    for key, (value, source, _) in entries.items():
        if key.startswith("env.") and value is not False:
            env[key[4:]] = str(value)
            sources[key] = source
    gpus = _count(entries, sources, "gpus")
    cpu_slots = _count(entries, sources, "cpu_slots")
    return Profile(
        name,
        text(_take(entries, sources, "description", ""), "description"),
        _slice(entries, sources, gpus),
        gpus,
        cpu_slots,
        _threads(entries, sources, threads, host, properties),
        _timeout(entries, sources, host),
        _linger(entries, sources),
        env,
        properties,
        sources,
    )


def _take(entries: dict[str, Entry], sources: dict[str, str], key: str, default: object) -> Entry:
    entry = entries.get(key) or (default, "default", ConfigError)
    sources[key] = entry[1]
    return entry


def _count(entries: dict[str, Entry], sources: dict[str, str], key: str) -> int:
    return count(_take(entries, sources, key, 0), key, lowest=0)


def _slice(entries: dict[str, Entry], sources: dict[str, str], gpus: int) -> SliceName:
    value, source, error = _take(entries, sources, "slice", "cpu")
    for name in SLICES:
        if value == name and not source.startswith(("built-in", "default")):
            return name
    if value not in SLICES:
        raise error(f'slice: expected "cpu" or "gpu", not {value!r:.40}', where=source)
    # Unless a file says otherwise a job belongs where its GPUs are: "--profile heavy --gpus 1" to gpu.slice.
    implied: SliceName = "gpu" if gpus else "cpu"
    if implied != value:
        sources["slice"] = f"gpus = {gpus} ({sources['gpus']})"
    return implied


def _threads(
    entries: dict[str, Entry],
    sources: dict[str, str],
    forced: int | None,
    host: Host,
    properties: dict[str, Property],
) -> int:
    entry = _take(entries, sources, "threads", "auto")
    if entry[0] != "auto":
        chosen = count(entry, "threads", lowest=1, also=' or "auto"')
    else:
        chosen, reason = _auto_threads(host, properties)
        sources["threads"] = f"{entry[1]}, auto: {reason}"
    if forced is not None:
        sources["threads"] = "CPU_RUN_THREADS"
        return forced
    return chosen


def _auto_threads(host: Host, properties: dict[str, Property]) -> tuple[int, str]:
    """As many threads as CPUs that the job can keep busy, and which limit decided it."""
    chosen, reason = len(host.cpus), "the machine's CPUs"
    quota = properties.get("CPUQuota")
    if quota and isinstance(quota.value, int) and quota.value != INFINITY:
        cores = max(1, -(-quota.value // 1_000_000))
        if cores < chosen:
            chosen, reason = cores, f"CPUQuota={quota.text}"
    allowed = properties.get("AllowedCPUs")
    if allowed and isinstance(allowed.value, bytes):
        cores = len(quantity.mask_to_cpus(allowed.value))
        if cores < chosen:
            chosen, reason = cores, f"AllowedCPUs={allowed.text}"
    return max(1, chosen), reason


def _timeout(entries: dict[str, Entry], sources: dict[str, str], host: Host) -> float | None:
    entry = entries.get("timeout")
    sources["timeout_s"] = entry[1] if entry else "default"
    if not entry:
        return None
    value, source, error = entry
    label = "RuntimeMaxSec" if source == "--set" else "timeout"
    if source == "--timeout":
        label, source = source, ""
    made = _property("runtime_max", (value, source, error), host, label).value
    return None if made == INFINITY or not isinstance(made, int) else made / 1e6


def _linger(entries: dict[str, Entry], sources: dict[str, str]) -> bool:
    value, source, error = _take(entries, sources, "linger", False)
    if not isinstance(value, bool):
        raise error(f"linger: expected true or false, not {value!r:.40}", where=source)
    return value


def _property(key: str, entry: Entry, host: Host, label: str = "") -> Property:
    value, source, error = entry
    info = find_key(key)
    assert info is not None  # callers pass keys of the table
    shown = label or (info.name if error is UsageError else key)
    try:
        written = value if isinstance(value, str) else _text_of(info, value)
    except QuantityError as bad:
        raise error(f"{shown}: {bad}", where=source) from None
    return parse_property(info.name, written, host, source, error=error, label=shown)


def text(entry: Entry, label: str) -> str:
    """A text; raises the entry's error for anything else."""
    value, source, error = entry
    if not isinstance(value, str):
        raise error(f"{label}: expected a text in quotes, not {value!r:.40}", where=source)
    return value


def lock_path(entry: Entry) -> str:
    """``compat_gpu_lock``: an absolute path, or "" for none."""
    path = text(entry, "compat_gpu_lock")
    if (path and not path.startswith("/")) or "\0" in path:
        raise entry[2](f"compat_gpu_lock: expected an absolute path, not {path!r:.60}", where=entry[1])
    return path


def count(entry: Entry, label: str, *, lowest: int, also: str = "") -> int:
    """A whole number from ``lowest`` to MAX_COUNT, out of a file or as text from elsewhere."""
    value, source, error = entry
    what = f"a whole number such as {max(lowest, 2)}{also}"
    named = label if error is ConfigError else source
    where = source if error is ConfigError else ""
    if isinstance(value, bool) or not isinstance(value, int if error is ConfigError else (int, str)):
        raise error(f"{named}: expected {what}, not {value!r:.40}", where=where)
    try:
        return quantity.parse_count(str(value), lowest=lowest, highest=MAX_COUNT, what=what)
    except QuantityError as bad:
        raise error(f"{named}: {bad}", where=where) from None


def unknown_property(name: str, where: str) -> SlicerError:
    """The error for a name that ``--set`` does not take."""
    from slicer.properties import NAMES
    from slicer.property_names import refusal

    message, hint = refusal(name, NAMES)
    return UsageError(message, where=where, hint=hint)


_NUMBERS = ("memory", "memory-any", "weight", "cpu-weight", "tasks", "time", "signal")


def _text_of(info: PropertyInfo, value: object) -> str:
    """A file's number, truth value or list as the text that ``--set`` takes.

    Raises QuantityError where a bare number could mean two things, and for other types.
    """
    kind = info.kind
    if isinstance(value, bool):
        if kind == "bool":
            return "yes" if value else "no"
    elif isinstance(value, int):
        if kind in _NUMBERS:
            return str(value)
    elif isinstance(value, float):
        if kind == "time" and -1e15 < value < 1e15:  # neither NaN nor infinite
            return f"{value:.6f}".rstrip("0").rstrip(".")
    elif isinstance(value, list) and value:
        if kind in ("cpus", "nodes") and all(type(item) is int for item in value):
            return ",".join(str(item) for item in value)
        if kind in _LISTS and all(isinstance(item, str) for item in value):
            return "\n".join(value)
    raise QuantityError(f"expected {_EXPECTED.get(kind, 'a text in quotes')}, not {value!r:.40}")


_EXPECTED = {
    "quota": 'a percentage of one CPU in quotes such as "300%"',
    "pressure": 'a percentage in quotes such as "60%"',
    "cpus": 'a CPU list such as "0-3,8" or [0, 1]',
    "nodes": 'a list of memory nodes such as "0-1" or [0, 1]',
    "bool": "true or false",
    "weight": "a whole number from 1 to 10000",
    "cpu-weight": 'a whole number from 1 to 10000, or "idle"',
    "memory": 'a size such as "8G" or "50%"',
    "memory-any": 'a size such as "8G" or "50%"',
    "tasks": "a whole number",
    "time": 'seconds, or a duration such as "2h" or "infinity"',
    "period": 'a duration such as "10ms"',
    "signal": 'a signal such as "SIGTERM"',
    "devices": 'a list such as ["/dev/nvidia0 rw"]',
}
