"""The built-in profiles, and the step from a profile's entries to its values.

:mod:`slicer.config.profiles` gathers the entries (see :mod:`slicer.config.values`).
"""

from __future__ import annotations

from slicer import quantity
from slicer.config import values
from slicer.config.properties import KEYS, LISTS, LONGEST_STOP_S, find_key, parse_property
from slicer.config.values import Said
from slicer.errors import UsageError
from slicer.model import CPU, SLICES, Host, Profile, Property
from slicer.quantity import INFINITY, QuantityError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from slicer.config.values import Entry
    from slicer.model import SliceName, Then

# The settings outside of profiles: the top level's, and each table's.
TOP_SETTINGS = ("default_profile", "compat_gpu_lock")
# Only the name of the CPU slots is fixed.
TABLES = {
    "slots": (CPU,),
    "gpu": ("idle_threshold", "margin", "spike_buffer"),
    "waiting": ("reserve_after", "order"),
    "logs": ("max_size", "keep"),
    "history": ("keep",),
    "queue": ("shell",),
    "notify": ("on", "command", "urls"),
}
# The keys for sharing, fencing and using GPUs, in the order in which slicer.config.gpu_keys reads them.
GPU_KEYS = (
    "share", "share_mode", "share_skip_syncs", "over_cap", "fence", "devices", "idle_timeout", "on_idle",
    "gpu_ids",
)  # fmt: skip
_THENS: tuple[Then, ...] = ("run", "fail")
# The limits of a slice. A slice holds many jobs: time limits and signals are for each of them.
SLICE_KEYS = (
    "cpu_weight", "cpu_quota", "allowed_cpus", "memory_high", "memory_max", "memory_swap_max", "tasks_max",
    "io_weight",
)  # fmt: skip


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
    taken = Said(entries)
    properties: dict[str, Property] = {}
    for key in KEYS:
        if key in entries:
            made = property_of(key, entries[key], host)
            properties[made.name] = made
            taken.sources[made.name] = entries[key][1]
    env = {}
    for key, (value, source, _) in entries.items():
        if key.startswith("env.") and value is not False:
            env[key[4:]] = str(value)
            taken.sources[key] = source
    vram = taken.get("vram", "vram_mib")
    vram_mib = values.vram(vram, "whole GPUs") if vram else None
    choice = taken.get("gpu", "gpu_choice")
    gpu_choice = values.gpu_list(choice) if choice else ()
    gpus = _gpus(taken, gpu_choice, vram_mib)
    then = taken.get("then")
    return Profile(
        name=name,
        description=values.text(taken.settled("description", ""), "description"),
        slice=_slice(taken, gpus),
        gpus=gpus,
        gpu_choice=gpu_choice,
        vram_mib=vram_mib,
        margin_mib=_margin(taken, margin, vram_mib),
        slots=_slots(taken, slots),
        priority=values.priority(taken.settled("priority", 0)),
        max_wait_s=_max_wait(taken, then),
        then=values.choice(then, "then", _THENS) if then else None,
        threads=_threads(taken, threads, host, properties),
        timeout_s=_timeout(taken, host),
        linger=values.flag(taken.settled("linger", False), "linger"),
        grace_s=_grace(taken, host),
        env=env,
        properties=properties,
        sources=taken.sources,
        notify=_notify(taken),
        **_gpu_fields(taken, properties, has_memory=bool(vram_mib)),
    )


def _gpu_fields(taken: Said, given: Collection[str], *, has_memory: bool) -> dict[str, Any]:
    """The fields for sharing, fencing and using GPUs that the profile sets."""
    said = {key: entry for key in GPU_KEYS if (entry := taken.get(key))}
    if not said:
        return {}
    from slicer.config import gpu_keys

    return gpu_keys.read(said, given, has_memory=has_memory)


def _notify(taken: Said) -> tuple[str, ...] | None:
    entry = taken.get("notify")
    if entry is None:
        return None
    from slicer.config.notify_keys import words

    return words(entry)


def _gpus(taken: Said, choice: tuple[str, ...], vram_mib: int | None) -> int:
    """The number of GPUs: the one given, else all that are named, else one if memory is wanted."""
    entry, sources = taken.get("gpus"), taken.sources
    if not entry:
        sources["gpus"] = sources["gpu_choice" if choice else "vram_mib"]
        return len(choice) or (1 if vram_mib else 0)
    if isinstance(entry[0], str) and "," in entry[0]:
        raise values.refuse(entry, "gpus", f"{entry[0]!r:.40} is a list", "write it as gpu")
    gpus = values.count(entry, "gpus", lowest=0)
    for key in ("gpu", "vram"):
        if not gpus and key in taken.entries:
            message = f"conflicts with gpus = 0, set by {sources['gpus']}"
            raise values.refuse(taken.entries[key], key, message, "remove one of them")
    if choice and gpus > len(choice):
        message = f"{gpus} are more than the {len(choice)} that {sources['gpu_choice']} names"
        raise values.refuse(entry, "gpus", message, "name more GPUs, or ask for fewer")
    return gpus


def _margin(taken: Said, setting: tuple[int, str], vram_mib: int | None) -> int:
    """The margin in MiB; 0 for whole GPUs, which no other job shares."""
    entry = taken.get("margin", "margin_mib")
    if not entry:
        if not vram_mib:
            return 0
        found, taken.sources["margin_mib"] = setting
        return found
    found = values.mib(entry, "margin")
    if vram_mib:
        return found
    message = "is added to the GPU memory that a job requests, and this job requests none"
    values.check_beside(entry, "margin", message, "add --vram")
    return 0


def _slots(taken: Said, known: Collection[str]) -> dict[str, int]:
    """The slots that the profile takes. ``known``: the names of all slots."""
    taken.get(f"slots.{CPU}")  # its source is needed even if there is none
    found: dict[str, int] = {}
    for key, entry in taken.entries.items():
        if not key.startswith("slots."):
            continue
        name = key[len("slots.") :]
        taken.get(key)
        if name not in known:
            message, hint = unknown_slot(name, known)
            raise values.refuse(entry, key, message, hint)
        count = values.count(entry, "cpu_slots" if name == CPU else key, lowest=0)
        if count:
            found[name] = count
    return found


def unknown_slot(name: str, known: Collection[str]) -> tuple[str, str]:
    """The message and the hint for an unknown slot name."""
    from slicer.config.property_names import known_names

    hint = f"{known_names(name, known)}; [slots] in the configuration names them"
    return f"there is no slot named {name!r:.80}", hint


def _max_wait(taken: Said, then: Entry | None) -> float | None:
    entry = taken.get("max_wait", "max_wait_s")
    found = values.seconds(entry, "max_wait") if entry else None
    if found is None and then:
        message = "applies when the wait is over, and this job waits for ever"
        values.check_beside(then, "then", message, "add --max-wait")
    return found


def _slice(taken: Said, gpus: int) -> SliceName:
    value, source, error = taken.settled("slice", "cpu")
    for name in SLICES:
        if value == name and not source.startswith(("built-in", "default")):
            return name
    if value not in SLICES:
        raise error(f'slice: expected "cpu" or "gpu", not {value!r:.40}', where=source)
    # Unless a file sets the slice, a job goes where its GPUs are: "--profile heavy --gpus 1" to gpu.slice.
    implied: SliceName = "gpu" if gpus else "cpu"
    if implied != value:
        taken.sources["slice"] = f"gpus = {gpus} ({taken.sources['gpus']})"
    return implied


def _threads(taken: Said, forced: int | None, host: Host, properties: dict[str, Property]) -> int:
    entry = taken.settled("threads", "auto")
    if entry[0] != "auto":
        chosen = values.count(entry, "threads", lowest=1, also=' or "auto"')
    else:
        chosen, reason = _auto_threads(host, properties)
        taken.sources["threads"] = f"{entry[1]}, auto: {reason}"
    if forced is not None:
        taken.sources["threads"] = "CPU_RUN_THREADS"
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


def _timeout(taken: Said, host: Host) -> float | None:
    entry = taken.get("timeout", "timeout_s")
    if not entry:
        return None
    value, source, error = entry
    label = "RuntimeMaxSec" if source == "--set" else "timeout"
    if source == "--timeout":
        label, source = source, ""
    made = property_of("runtime_max", (value, source, error), host, label).value
    return None if made == INFINITY or not isinstance(made, int) else made / 1e6


def _grace(taken: Said, host: Host) -> float | None:
    """The time of the command alone, once it is asked to end. None: not set."""
    entry = taken.get("grace", "grace_s")
    if entry is None:
        return None
    made = property_of("timeout_stop", entry, host, "grace").value
    assert isinstance(made, int)
    return min(made / 1e6, LONGEST_STOP_S)


def property_of(key: str, entry: Entry, host: Host, label: str = "") -> Property:
    """The resource property of a key, from its entry. Raises the entry's error."""
    value, source, error = entry
    info = find_key(key)
    shown = label or (info.name if error is UsageError else key)
    try:
        written = value if isinstance(value, str) else _text_of(info.kind, value)
    except QuantityError as bad:
        raise error(f"{shown}: {bad}", where=source) from None
    return parse_property(info.name, written, host, source, error=error, label=shown)


_NUMBERS = ("memory", "memory-any", "weight", "cpu-weight", "tasks", "time", "signal")


def _text_of(kind: str, value: object) -> str:
    """A file's number, truth value or list in the syntax of ``--set``.

    Raises QuantityError if a bare number could mean two things, and for other types.
    """
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
        if kind in LISTS and all(isinstance(item, str) for item in value):
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
