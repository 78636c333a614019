"""From the text of policy.toml to a :class:`SitePolicy`: the keys and their meanings. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from slicer.broker.rules.policy import NO_CAP, Caps, SitePolicy, Together
from slicer.config import values
from slicer.config.build import PROFILE, key_of, reader
from slicer.config.check import as_table, known_keys
from slicer.config.files import Layer
from slicer.config.toml import parse
from slicer.errors import ConfigError
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.config.build import Kind as ValueKind
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
            known_keys(entries, (*CAPS, *also), layer, (table, name))
            caps[kind][name] = _caps(layer, entries, table, name)
            if "weight" in entries:
                weights[kind, name] = _read("weight", layer, entries, table, name)
            if _TOGETHER in entries:
                together[name] = _together(layer, entries[_TOGETHER], table, name, _TOGETHER)
    default = as_table(layer.data.get("default", {}), layer, "default")
    if "weight" in default:
        message = "weight: a default has no effect: only the ratio of weights counts"
        raise ConfigError(message, where=layer.where("default", "weight"), hint="without one it is 1")
    known_keys(default, CAPS, layer, ("default",))
    return Read(
        layer, _caps(layer, default, "default"), caps["user"], caps["group"], together, weights,
        _fields(layer, layer.data, SETTINGS, ()),
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
                where[*whose, _FIELDS[cap]] = f"{short}:{line}"

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
            note_lines((kind, number), CAPS, _TABLES[kind], name)
            if kind == "group" and name in said.together:
                together[number] = said.together[name]
                note_lines((_TOGETHER, number), OF_ALL, _TABLES[kind], name, _TOGETHER)
    note_lines(("default", 0), CAPS, "default")
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
    return Caps(**_fields(layer, entries, CAPS, path))


def _together(layer: Layer, entries: object, *path: str) -> Together:
    table = as_table(entries, layer, *path)
    known_keys(table, OF_ALL, layer, path)
    return Together(path[1], **_fields(layer, table, OF_ALL, path))


def _fields(
    layer: Layer, entries: dict[str, Any], keys: Collection[str], path: tuple[str, ...]
) -> dict[str, Any]:
    return {_FIELDS[key]: _read(key, layer, entries, *path) for key in keys if key in entries}


def _read(key: str, layer: Layer, entries: dict[str, Any], *path: str) -> Any:
    """The value of a key that is set. Raises ConfigError."""
    entry: Entry = entries[key], layer.where(*path, key), ConfigError
    kind = _KINDS[key]
    if kind in _READERS:
        return _READERS[str(kind)](entry, key)
    if isinstance(kind, str) and kind.startswith("cap:"):
        return NO_CAP if entry[0] == "infinity" else reader(kind[4:])(entry, key)
    found = reader(kind)(entry, key)
    return float(NO_CAP if key in CAPS else "inf") if found is None else found


def _half_life(entry: Entry, key: str) -> float:
    found = values.seconds(entry, key)
    if found is None or found < _LEAST_HALF_LIFE_S:
        expected = 'expected a minute or more, such as "7d"'
        raise values.refuse(entry, key, f"{expected}, not {entry[0]!r:.40}")
    return found


def _weight(entry: Entry, key: str) -> float:
    return values.number(entry, key, "a number above 0 such as 2 or 0.5", _MOST_WEIGHT)


def _count(entry: Entry, key: str) -> int:
    if entry[0] == "infinity":
        return NO_CAP
    return values.count(entry, key, lowest=0, also=' or "infinity"')


def _uids(entry: Entry, key: str) -> tuple[tuple[int, int], ...]:
    value, found = entry[0], []
    for word in (value.split(",") if isinstance(value, str) else [value]) if value != "" else ():
        first, _, last = str(word).strip().partition("-")
        if not (_is_number(first) and _is_number(last or first) and int(first) <= int(last or first)):
            expected = 'expected uids such as "100000-199999"'
            raise values.refuse(entry, key, f"{expected}, not {word!r:.40}")
        found.append((int(first), int(last or first)))
    return tuple(found)


_READERS = {"half-life": _half_life, "user-weight": _weight, "cap:count": _count, "uids": _uids}
# The fields of Caps and of SitePolicy, and the kinds of their keys.
_CAP_ROWS: dict[str, ValueKind] = {
    "max_gpus": "cap:count",
    "max_vram_mib": "cap:gpu-memory",
    "max_cpu_slots": "cap:count",
    "max_priority": "cap:priority",
    "max_reserve_s": "time",
    "max_hold_s": "time",
    "idle_timeout_s": "time",
    "max_waiting": "cap:count",
}
_SETTING_ROWS: dict[str, ValueKind] = {
    "half_life_s": "half-life",
    "patience_s": "wait",
    "fence": PROFILE["fence"][0],
    "on_idle": PROFILE["on_idle"][0],
    "devices": "nvidia-devices",
    "max_min_run_s": "wait",
    "preemptible_free": "flag",
    "allow_services": "flag",
    "user_uids": "uids",
}
_FIELDS = {key_of(field): field for field in _CAP_ROWS | _SETTING_ROWS}
CAPS = {key_of(field): kind for field, kind in _CAP_ROWS.items()}
SETTINGS = {key_of(field): kind for field, kind in _SETTING_ROWS.items()}
_KINDS: dict[str, ValueKind] = {**CAPS, **SETTINGS, "weight": "user-weight"}
TOP_KEYS = (*SETTINGS, "default", *_TABLES.values())
_TOGETHER = "together"
OF_ALL = ("max_gpus", "max_vram", "max_cpu_slots")  # the keys of [together]
