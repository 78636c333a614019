"""From the text of policy.toml to a :class:`SitePolicy`: the keys and their meanings. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from slicer.broker.rules.policy import NO_CAP, Caps, SitePolicy, Together
from slicer.config import gpu_keys, values
from slicer.config.check import as_table, known_keys
from slicer.config.files import Layer
from slicer.config.toml import parse
from slicer.errors import ConfigError
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.config.values import Entry

Kind = str  # "user" or "group"

_TABLES = {"user": "users", "group": "groups"}
_LEAST_HALF_LIFE_S = 60.0
_MOST_WEIGHT = 1e6


@record
class Read:
    """The content of a policy file, before its users and groups are looked up."""

    layer: Layer
    default: Caps
    users: dict[str, Caps]
    groups: dict[str, Caps]
    together: dict[str, Together]
    weights: dict[tuple[Kind, str], float]
    settings: dict[str, Any]  # arguments of Policy


def read(content: bytes, path: str) -> Read:
    """Raises ConfigError with file and line for an invalid entry."""
    layer = Layer(path, *parse(content, path))
    known_keys(layer.data, TOP_KEYS, layer, ())
    weights: dict[tuple[Kind, str], float] = {}
    caps: dict[Kind, dict[str, Caps]] = {}
    together: dict[str, Together] = {}
    for kind, table in _TABLES.items():
        caps[kind] = {}
        for name, entries in as_table(layer.data.get(table, {}), layer, table).items():
            as_table(entries, layer, table, name)
            also = ("weight", _TOGETHER) if kind == "group" else ("weight",)
            _check_quoted(entries, layer, table, name)
            known_keys(entries, (*_READERS, *also), layer, (table, name))
            caps[kind][name] = _caps(layer, entries, table, name)
            if "weight" in entries:
                weights[kind, name] = _weight(_entry(layer, entries["weight"], table, name, "weight"))
            if _TOGETHER in entries:
                together[name] = _together(layer, entries[_TOGETHER], table, name, _TOGETHER)
    default = as_table(layer.data.get("default", {}), layer, "default")
    if "weight" in default:
        message = "weight: a default has no effect: only the ratio of weights counts"
        raise ConfigError(message, where=layer.where("default", "weight"), hint="without one it is 1")
    known_keys(default, tuple(_READERS), layer, ("default",))
    return Read(
        layer, _caps(layer, default, "default"), caps["user"], caps["group"], together, weights,
        _settings(layer),
    )  # fmt: skip


def _check_quoted(entries: dict[str, Any], layer: Layer, table: str, name: str) -> None:
    """Refuse [users.first.last], which is a table in a table. Raises ConfigError."""
    for key, value in entries.items():
        if isinstance(value, dict) and key != _TOGETHER:
            hint = f'a name with a dot needs quotes: [{table}."{name}.{key}"]'
            message = f"unknown key {key!r:.60} in [{table}.{name}]"
            raise ConfigError(message, where=layer.where(table, name, key), hint=hint)


def resolve(
    said: Read, uids: Mapping[str, int], gids: Mapping[str, int]
) -> tuple[SitePolicy, tuple[str, ...]]:
    """The policy by numbers, and a warning for each unknown name. Raises ConfigError.

    ``uids`` and ``gids`` belong to the names in the file; a number is its own name.
    """
    warnings: list[str] = []
    where: dict[tuple[str, int, str], str] = {}
    short = said.layer.path.rpartition("/")[2]
    found: dict[Kind, dict[int, Caps]] = {"user": {}, "group": {}}
    weights: dict[Kind, dict[int, float]] = {"user": {}, "group": {}}
    names: dict[tuple[Kind, int], str] = {}
    together: dict[int, Together] = {}

    def note_lines(whose: tuple[str, int], keys: Iterable[str], *path: str) -> None:
        for cap in keys:
            line = said.layer.lines.get((*path, cap))
            if line:
                where[*whose, _FIELDS.get(cap, cap)] = f"{short}:{line}"

    for kind, by_name, numbers in (("user", said.users, uids), ("group", said.groups, gids)):
        for name, caps in by_name.items():
            place = said.layer.where(_TABLES[kind], name)
            number = numbers.get(name, int(name) if _is_number(name) else None)
            if number is None:
                warnings.append(f"{place}: there is no {kind} {name!r:.60}: its rules have no effect")
                continue
            other = names.setdefault((kind, number), name)
            if other != name:
                raise ConfigError(f"{name!r:.60} and {other!r:.60} are the same {kind}", where=place)
            found[kind][number] = caps
            if (kind, name) in said.weights:
                weights[kind][number] = said.weights[kind, name]
            note_lines((kind, number), _READERS, _TABLES[kind], name)
            if kind == "group" and name in said.together:
                together[number] = said.together[name]
                note_lines((_TOGETHER, number), _OF_ALL, _TABLES[kind], name, _TOGETHER)
    note_lines(("default", 0), _READERS, "default")
    policy = SitePolicy(
        said.default, found["user"], found["group"], weights["group"], weights["user"],
        where=where, together=together, **said.settings,
    )  # fmt: skip
    return policy, tuple(warnings)


def names_in(said: Read) -> tuple[tuple[str, ...], tuple[str, ...]]:
    users, groups = ([name for name in each if not _is_number(name)] for each in (said.users, said.groups))
    return tuple(users), tuple(groups)


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) <= 10


# -- one value ------------------------------------------------------------------------------------------


def _caps(layer: Layer, entries: dict[str, Any], *path: str) -> Caps:
    return Caps(**_caps_in(layer, entries, tuple(_READERS), path))


def _together(layer: Layer, entries: object, *path: str) -> Together:
    table = as_table(entries, layer, *path)
    known_keys(table, _OF_ALL, layer, path)
    return Together(path[1], **_caps_in(layer, table, _OF_ALL, path))


def _caps_in(
    layer: Layer, entries: dict[str, Any], keys: tuple[str, ...], path: tuple[str, ...]
) -> dict[str, Any]:
    return {
        _FIELDS.get(key, key): _READERS[key](_entry(layer, entries[key], *path, key), key)
        for key in keys
        if key in entries
    }


def _settings(layer: Layer) -> dict[str, Any]:
    return {
        field: read(_entry(layer, layer.data[key], key))
        for key, (field, read) in _SETTINGS.items()
        if key in layer.data
    }


def _patience(entry: Entry) -> float:
    found = values.seconds(entry, "patience")
    return float("inf") if found is None else found


def _half_life(entry: Entry) -> float:
    found = values.seconds(entry, "half_life")
    if found is None or found < _LEAST_HALF_LIFE_S:
        expected = 'expected a minute or more, such as "7d"'
        raise values.refuse(entry, "half_life", f"{expected}, not {entry[0]!r:.40}")
    return found


def _weight(entry: Entry) -> float:
    return values.number(entry, "weight", "a number above 0 such as 2 or 0.5", _MOST_WEIGHT)


def _count(entry: Entry, key: str) -> int:
    return values.count(entry, key, lowest=0, also=' or "infinity"')


def _uids(entry: Entry) -> tuple[tuple[int, int], ...]:
    value, found = entry[0], []
    for word in (value.split(",") if isinstance(value, str) else [value]) if value != "" else ():
        first, _, last = str(word).strip().partition("-")
        if not (_is_number(first) and _is_number(last or first) and int(first) <= int(last or first)):
            expected = 'expected uids such as "100000-199999"'
            raise values.refuse(entry, "user_uids", f"{expected}, not {word!r:.40}")
        found.append((int(first), int(last or first)))
    return tuple(found)


def _or_infinity(read: Callable[[Entry, str], int]) -> Callable[[Entry, str], int]:
    return lambda entry, key: NO_CAP if entry[0] == "infinity" else read(entry, key)


def _duration(entry: Entry, key: str) -> float:
    found = values.seconds(entry, key)
    if found is not None and found <= 0:
        raise values.refuse(entry, key, "expected a duration above 0; max_gpus = 0 forbids GPUs")
    return float(NO_CAP) if found is None else found


_READERS: dict[str, Callable[[Entry, str], Any]] = {
    "max_gpus": _or_infinity(_count),
    "max_vram": _or_infinity(values.mib),
    "max_cpu_slots": _or_infinity(_count),
    "max_priority": _or_infinity(values.priority),
    "max_hold": _duration,
    "max_reserve": _duration,
    "max_waiting": _or_infinity(_count),
    "idle_timeout": lambda entry, _: gpu_keys.idle_timeout(entry) or float(NO_CAP),
}
_SETTINGS: dict[str, tuple[str, Callable[[Entry], Any]]] = {  # the field of Policy, and its reader
    "half_life": ("half_life_s", _half_life),
    "patience": ("patience_s", _patience),
    "fence": ("fence", gpu_keys.fence),
    "devices": ("devices", gpu_keys.devices),
    "on_idle": ("on_idle", gpu_keys.on_idle),
    "allow_services": ("allow_services", lambda entry: values.flag(entry, "allow_services")),
    "user_uids": ("user_uids", _uids),
}
TOP_KEYS = (*_SETTINGS, "default", *_TABLES.values())
_TOGETHER = "together"
_OF_ALL = ("max_gpus", "max_vram", "max_cpu_slots")  # the keys of [together]
# Fields of Caps named unlike the key.
_FIELDS = {
    "max_vram": "max_vram_mib", "max_hold": "max_hold_s", "max_reserve": "max_reserve_s",
    "idle_timeout": "idle_timeout_s",
}  # fmt: skip


def _entry(layer: Layer, value: Any, *path: str) -> Entry:
    return value, layer.where(*path), ConfigError
