"""The tables of keys, the built-in profiles, and the step from a profile's entries to its values.

A key is one row: what kind of value it takes, and its default. From the rows are made what a file may say
(:mod:`slicer.config.check`), what ``slicer profiles`` shows, the options of ``slicer run`` that have words to
choose from, and the NixOS options (``python -m tests.unit.nix``). :mod:`slicer.config.profiles` gathers the
entries.
"""

from __future__ import annotations

from slicer import quantity
from slicer.config import values
from slicer.config.properties import KEYS, LONGEST_STOP_S, file_text, find_key, parse_property
from slicer.errors import UsageError
from slicer.model import CPU, SLICES, Host, Profile, Property
from slicer.quantity import INFINITY, QuantityError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from slicer.config.properties import Kind as Kind
    from slicer.config.values import Entry, Reader
    from slicer.model import Share, SliceName

    Row = tuple[Kind, Any]  # and the default, as it is read; None: none, or what the kind itself says

# The keys outside of profiles and of what has a name, by their path.
SETTINGS: dict[str, Row] = {
    "default_profile": ("text", "light"),
    f"slots.{CPU}": ("some-count", None),  # by the machine. Other slots have any name
    "compat_gpu_lock": ("path", ""),
    "gpu.idle_threshold": ("gpu-memory", 200),
    "gpu.margin": ("gpu-memory", 512),
    "gpu.out_of_service": ("gpus", ()),
    "gpu.spike_buffer": ("fraction", 0.1),
    "waiting.reserve_after": ("auto-time", None),
    "waiting.pressure": ("text", "off"),
    "waiting.order": (("auto", "arrival"), "auto"),
    "logs.max_size": ("some-gpu-memory", 256),
    "logs.keep": ("wait", 30 * 86_400.0),
    "history.keep": ("keep", None),
    "history.git": ("flag", True),
    "queue.shell": ("text", "/bin/sh"),
    "notify.on": ("events", None),
    "notify.command": ("command-line", None),
    "notify.urls": ("urls", None),
}
TABLES: dict[str, tuple[str, ...]] = {}
for _path in SETTINGS:
    _table, _, _key = _path.rpartition(".")
    if _table:
        TABLES[_table] = (*TABLES.get(_table, ()), _key)
SHARES: tuple[Share, ...] = ("lock", "cap", "both", "off")
# The fields of a profile that one key each sets, in the order in which they are shown.
PROFILE: dict[str, Row] = {
    "description": ("text", ""),
    "slice": (SLICES, "cpu"),
    "gpus": ("count", 0),
    "gpu_choice": ("gpus", ()),
    "gpu_ids": (("uuid", "index"), "uuid"),
    "vram_mib": ("some-gpu-memory", None),
    "margin_mib": ("gpu-memory", None),
    "cpu_slots": ("count", 0),
    "priority": ("priority", 0),
    "max_wait_s": ("wait", None),
    "then": (("run", "fail"), None),
    "threads": ("threads", None),
    "timeout_s": ("time", None),
    "linger": ("flag", False),
    "grace_s": ("time", None),
    "preemptible": ("flag", False),
    "min_run_s": ("wait", 600.0),
    "retry": ("retry", ""),
    "share": (SHARES, "off"),
    "share_mode": ("share-mode", "yield"),
    "share_skip_syncs": ("syncs", 0),
    "over_cap": (("warn", "end"), "warn"),
    "fence": (("auto", "on", "off"), "auto"),
    "devices": ("nvidia-devices", ()),
    "idle_timeout_s": ("time", None),
    "on_idle": (("warn", "stop"), "warn"),
    "notify": ("events", None),
}
OTHER_KEYS = {"inherits": "text", "slots": "slots", "env": "variables"}  # of a profile, and their kinds
# The limits of a slice. A slice holds many jobs: time limits and signals are for each of them.
SLICE_KEYS = (
    "cpu_weight", "cpu_quota", "allowed_cpus", "memory_high", "memory_max", "memory_swap_max", "tasks_max",
    "io_weight",
)  # fmt: skip
_NO_READERS: dict[Kind, Reader] = {}
_UNITS = ("_s", "_mib", "_bytes", "_choice")  # at the end of a field's name, but not of its key


def key_of(field: str) -> str:
    """The key of a field, without the unit in the field's name: "idle" of "idle_s"."""
    return field.rpartition("_")[0] if field.endswith(_UNITS) else field


def kinds(rows: Mapping[str, Row]) -> dict[str, Kind]:
    return {key_of(field): kind for field, (kind, _) in rows.items()}


def reader(kind: Kind) -> Reader:
    if isinstance(kind, tuple):
        return lambda entry, label: values.choice(entry, label, kind)
    if kind in values.READERS:
        return values.READERS[kind]
    # What few configurations have.
    from slicer.config import gpu_keys

    if kind in gpu_keys.READERS:
        return gpu_keys.READERS[kind]
    from slicer.config import notify_keys

    if kind in notify_keys.READERS:
        return notify_keys.READERS[kind]
    from slicer.config import route_values

    return route_values.READERS[kind]


class Said:
    """The entries of a profile, route or server, by key. Notes the source of each value that is read."""

    def __init__(self, entries: dict[str, Entry]) -> None:
        self.entries = entries
        self.sources: dict[str, str] = {}

    def get(self, key: str) -> Entry | None:
        entry = self.entries.get(key)
        self.sources[key] = entry[1] if entry else "default"
        return entry

    def read(
        self, rows: Mapping[str, Row], path: str = "", readers: Mapping[Kind, Reader] = _NO_READERS
    ) -> dict[str, Any]:
        """Read each row's field. A field's unit is not part of its key.

        ``path`` is the prefix of a table within, such as "gpu.". The table around it fills its gaps.
        ``readers``: of kinds that only this table has.
        """
        found: dict[str, Any] = {}
        for field, (kind, default) in rows.items():
            key = key_of(field)
            entry = self.get(path + key)
            if entry is None and path and key in self.entries:
                entry = self.entries[key]
                self.sources[path + key] = entry[1]
            found[field] = default if entry is None else (readers.get(kind) or reader(kind))(entry, key)
        return found


def default_slots(machine: Host) -> int:
    """The number of heavy CPU jobs at a time, unless a file sets it: one for every three cores."""
    return max(1, min(4, len(machine.cpus) // 3))


def builtin_profiles(machine: Host, slots: int) -> dict[str, dict[str, Any]]:
    """The built-in profiles in the form of a configuration file, scaled to the machine."""
    return {
        "light": {
            "description": "interactive work and small jobs: no slot, gives way to others",
            "slice": "cpu",
            "cpu_weight": 50,
            "io_weight": 50,
            "memory_max": _share(machine, 50, 1),
            "threads": "auto",
        },
        "heavy": {
            "description": "a long CPU job: takes one CPU slot and its share of the machine",
            "slice": "cpu",
            "cpu_slots": 1,
            "cpu_quota": f"{max(1, len(machine.cpus) * 100 // slots)}%",
            "cpu_weight": 20,
            "io_weight": 20,
            "memory_high": _share(machine, 80, slots),
            "memory_max": _share(machine, 90, slots),
            "threads": "auto",
        },
        "gpu": {
            "description": "a GPU job: takes one whole GPU",
            "slice": "gpu",
            "gpus": 1,
            "memory_max": _share(machine, 90, 1),
            "threads": "auto",
        },
    }


def _share(machine: Host, percent: int, slots: int) -> str:
    mebibytes = machine.memory_bytes * percent // (100 * slots) >> 20
    return quantity.size_text(max(1, mebibytes) << 20)


def profile(
    name: str, entries: dict[str, Entry], host: Host, threads: int | None, margin: tuple[int, str],
    slots: Collection[str],
) -> Profile:  # fmt: skip
    """The profile made from its entries. ``threads`` (CPU_RUN_THREADS) overrides the profile's own.

    ``margin`` is the default margin in MiB, with its source; ``slots`` are the names of all slots. Raises the
    entry's own kind of error for an invalid value.
    """
    said = Said(entries)
    properties: dict[str, Property] = {}
    for key in KEYS:
        if key in entries:
            made = property_of(key, entries[key], host)
            properties[made.name] = made
            said.sources[made.name] = entries[key][1]
    env = {}
    for key, (value, source, _) in entries.items():
        if key.startswith("env.") and value is not False:
            env[key[4:]] = str(value)
            said.sources[key] = source
    _check_spelling(entries, host)
    found = said.read(PROFILE)
    found["gpus"] = _gpus(said, found)
    found["slice"] = _slice(said, found["slice"], found["gpus"])
    found["margin_mib"] = _margin(said, margin, found)
    found["threads"] = _threads(said, found["threads"], threads, host, properties)
    if "grace" in entries:
        found["grace_s"] = min(found["grace_s"] or LONGEST_STOP_S, LONGEST_STOP_S)
    _check_beside(entries, found, properties)
    found["slots"] = _slots(said, found.pop("cpu_slots"), slots)
    return Profile(name=name, env=env, properties=properties, sources=said.sources, **found)


def _check_spelling(entries: Mapping[str, Entry], host: Host) -> None:
    """Refuse a list for a number, and what ``--set`` says, in words that are about just that."""
    gpus, timeout = entries.get("gpus"), entries.get("timeout")
    if gpus and isinstance(gpus[0], str) and "," in gpus[0]:
        dashes = "--" * gpus[1].startswith("--")
        hint = f"{dashes}gpu names GPUs, {dashes}gpus says how many"
        raise values.refuse(gpus, "gpus", f"{gpus[0]!r:.40} is a list", hint)
    if timeout and timeout[1] == "--set":
        property_of("runtime_max", timeout, host)


def _check_beside(entries: dict[str, Entry], found: Mapping[str, Any], given: Collection[str]) -> None:
    if found["max_wait_s"] is None and "then" in entries:
        message = "applies when the wait is over, and this job waits for ever"
        values.check_beside(entries["then"], "then", message, "add --max-wait")
    if not entries.keys().isdisjoint(("share", "share_mode", "fence")):
        from slicer.config import gpu_keys

        gpu_keys.check(entries, found, given)


def _gpus(said: Said, found: Mapping[str, Any]) -> int:
    """The number of GPUs: the one given, else all that are named, else one if memory is wanted."""
    entry, sources, choice = said.entries.get("gpus"), said.sources, found["gpu_choice"]
    gpus: int = found["gpus"]
    if not entry:
        sources["gpus"] = sources["gpu" if choice else "vram"]
        return len(choice) or (1 if found["vram_mib"] else 0)
    for key in ("gpu", "vram"):
        if not gpus and key in said.entries:
            message = f"conflicts with gpus = 0, set by {sources['gpus']}"
            raise values.refuse(said.entries[key], key, message, "remove one of them")
    if choice and gpus > len(choice):
        message = f"{gpus} are more than the {len(choice)} that {sources['gpu']} names"
        raise values.refuse(entry, "gpus", message, "name more GPUs, or ask for fewer")
    return gpus


def _margin(said: Said, setting: tuple[int, str], found: Mapping[str, Any]) -> int:
    """The margin in MiB; 0 for whole GPUs, which no other job shares."""
    margin_mib: int | None = found["margin_mib"]
    if not found["vram_mib"]:
        if margin_mib is not None:
            message = "is added to the GPU memory that a job requests, and this job requests none"
            values.check_beside(said.entries["margin"], "margin", message, "add --vram")
        return 0
    if margin_mib is None:
        margin_mib, said.sources["margin"] = setting
    return margin_mib


def _slots(said: Said, cpu: int, known: Collection[str]) -> dict[str, int]:
    """The slots that the profile takes. ``known``: the names of all slots."""
    found = {CPU: cpu} if cpu else {}
    for key, entry in said.entries.items():
        if not key.startswith("slots."):
            continue
        name = key[len("slots.") :]
        said.get(key)
        if name not in known:
            message, hint = unknown_slot(name, known)
            raise values.refuse(entry, key, message, hint)
        count = values.count(entry, key, lowest=0)
        if count:
            found[name] = count
    return found


def unknown_slot(name: str, known: Collection[str]) -> tuple[str, str]:
    from slicer.config.property_names import known_names

    hint = f"{known_names(name, known)}; [slots] in the configuration names them"
    return f"there is no slot named {name!r:.80}", hint


def _slice(said: Said, value: SliceName, gpus: int) -> SliceName:
    """Unless a file sets it, a job goes where its GPUs are: "--profile heavy --gpus 1" to gpu.slice."""
    if not said.sources["slice"].startswith(("built-in", "default")):
        return value
    implied: SliceName = "gpu" if gpus else "cpu"
    if implied != value:
        said.sources["slice"] = f"gpus = {gpus} ({said.sources['gpus']})"
    return implied


def _threads(
    said: Said, chosen: int | None, forced: int | None, host: Host, properties: dict[str, Property]
) -> int:
    if chosen is None:
        chosen, reason = _auto_threads(host, properties)
        said.sources["threads"] += f", auto: {reason}"
    if forced is not None:
        said.sources["threads"] = "CPU_RUN_THREADS"
        return forced
    return chosen


def _auto_threads(host: Host, properties: dict[str, Property]) -> tuple[int, str]:
    """One thread for each CPU that the job can keep busy, and the limit that decides it."""
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


def property_of(key: str, entry: Entry, host: Host, label: str = "") -> Property:
    """The resource property of a key, from its entry. Raises the entry's error."""
    value, source, error = entry
    info = find_key(key)
    shown = label or (info.name if error is UsageError else key)
    try:
        written = value if isinstance(value, str) else file_text(info.kind, value)
    except QuantityError as bad:
        raise error(f"{shown}: {bad}", where=source) from None
    return parse_property(info.name, written, host, source, error=error, label=shown)
