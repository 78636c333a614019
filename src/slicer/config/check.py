"""The keys that a configuration file may have. Imported only after a file has changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

from slicer.config import values
from slicer.config.build import OTHER_KEYS, PROFILE, SETTINGS, SLICE_KEYS, TABLES, kinds
from slicer.config.files import Layer
from slicer.config.properties import KEYS, find
from slicer.config.route_slots import MODES
from slicer.errors import ConfigError
from slicer.model import CPU, SLICES

Check = Callable[..., None]  # of a table, its file and its path
Below = dict[str, Any] | Check | None  # what is below a key: a table with these, one that is checked, a value
Tree = dict[str, Any]  # of Below

TOP_SETTINGS = tuple(path for path in SETTINGS if "." not in path)
TOP_KEYS = (*TOP_SETTINGS, *TABLES, "slices", "profiles", "routes", "serve", "engine")
OWN_KEYS = {**kinds(PROFILE), **OTHER_KEYS}
_LONGEST_NAME = 31  # of a route or a destination; with a dash between them they name a slot


def check_keys(layer: Layer) -> None:
    """Raise ConfigError for an unknown key, or for a table of another type."""
    _check(layer.data, _tree(layer.data), layer)


def _tree(data: Collection[str]) -> Tree:
    """What a file may have. The features of which it says nothing are not imported."""
    profile = {**dict.fromkeys((*OWN_KEYS, *KEYS)), "env": _variables, "slots": _slot_names}
    found: Tree = {
        **dict.fromkeys(TOP_KEYS),
        **{table: dict.fromkeys(keys) for table, keys in TABLES.items()},
        "slots": _slot_names,
        "slices": dict.fromkeys(SLICES, dict.fromkeys(SLICE_KEYS)),
        "profiles": _named("profile", profile),
    }
    if "routes" in data:
        from slicer.config import routes

        way: Tree = dict.fromkeys(routes.DESTINATION_KEYS)
        to = _named("destination", dict.fromkeys(routes.TO_KEYS))
        keys: Tree = {**dict.fromkeys(routes.KEYS), **{mode: way for mode in MODES}, "to": to}
        found["routes"] = _named("route", keys)
    if "serve" in data:
        from slicer.config import serve

        found["serve"] = _named("server", {**dict.fromkeys(serve.KEYS), "env": _variables})
    if "engine" in data:
        from slicer.config import slurm

        jobs: Tree = {**dict.fromkeys(slurm.KEYS), "profiles": _named("", dict.fromkeys(slurm.PROFILE_KEYS))}
        found["engine"] = {"slurm": jobs}
    return found


def _check(value: object, below: Below, layer: Layer, *path: str) -> None:
    if below is None:
        return
    table = as_table(value, layer, *path)
    if not isinstance(below, dict):
        below(table, layer, *path)
        return
    known_keys(table, below, layer, path)
    for key, each in table.items():
        _check(each, below[key], layer, *path, key)


def _named(what: str, below: Tree) -> Check:
    """Tables of any name that is valid for ``what``; "": any."""

    def check(table: dict[str, Any], layer: Layer, *path: str) -> None:
        for name, each in table.items():
            if what:
                _check_name(name, what, layer.where(*path, name))
            _check(each, below, layer, *path, name)

    return check


def _check_name(name: str, what: str, where: str) -> None:
    is_profile = what == "profile"
    form = r"[\w.+][\w.+-]*" if is_profile else r"\w[\w.-]*"
    if not re.fullmatch(form, name, re.ASCII) or (len(name) > _LONGEST_NAME and not is_profile):
        others = f". _ and - are allowed, not beginning with . or -, at most {_LONGEST_NAME}"
        hint = f"letters, digits, {'. _ + and - are allowed, not beginning with -' if is_profile else others}"
        raise ConfigError(f"{name!r:.60} is not a valid {what} name", where=where, hint=hint)


# Names that probably mean something else.
_NO_SLOTS = {
    "cpu": f"did you mean {CPU}?",
    "cpus": f"did you mean {CPU}?",
    "gpu": "GPUs are not slots: a profile requests them with gpus",
    "gpus": "GPUs are not slots: a profile requests them with gpus",
}


def _slot_names(table: dict[str, Any], layer: Layer, *path: str) -> None:
    for name, count in table.items():
        where = layer.where(*path, name)
        values.slot_name((name, where, ConfigError), ".".join(path))
        if name.lower() in _NO_SLOTS and name != CPU:
            message = f"{'.'.join(path)}: {name!r} would be mistaken for something else"
            raise ConfigError(message, where=where, hint=_NO_SLOTS[name.lower()])
        if isinstance(count, dict):  # license.matlab = 1 is a table in a table
            hint = f'a name with a dot needs quotes: "{name}.{next(iter(count), "…")}" = 1'
            message = f"{'.'.join(path)}.{name}: expected a whole number, not a table"
            raise ConfigError(message, where=where, hint=hint)


def as_table(value: object, layer: Layer, *path: str) -> dict[str, Any]:
    """The value of a key that has to be a table. Raises ConfigError."""
    if not isinstance(value, dict):
        shown = ".".join(path)
        message = f"{shown} must be a table, [{shown}], not {value!r:.40}"
        raise ConfigError(message, where=layer.where(*path))
    return value


def known_keys(table: dict[str, Any], known: Collection[str], layer: Layer, path: tuple[str, ...]) -> None:
    """Raise ConfigError for an unknown key of the table."""
    for key in table:
        if key not in known:
            from slicer.config.property_names import nearest

            info = find(key)
            close = info.key if info and info.key in known else nearest(key, known)
            hint = f"did you mean {close}?" if close else ""
            place = f" in [{'.'.join(path)}]" if path else ""
            message = f"unknown key {key!r:.60}{place}"
            raise ConfigError(message, where=layer.where(*path, key), hint=hint)


def _variables(table: dict[str, Any], layer: Layer, *path: str) -> None:
    for name, value in table.items():
        _check_variable(name, value, layer.where(*path, name))


def _check_variable(name: str, value: object, where: str) -> None:
    if not name or "=" in name or "\0" in name:
        raise ConfigError(f"{name!r:.60} is not a valid name of an environment variable", where=where)
    if isinstance(value, bool):
        if value:
            hint = 'write "1" or "true"; false removes an inherited variable'
            raise ConfigError(f"env.{name}: expected a text, not true", where=where, hint=hint)
    elif not isinstance(value, (str, int)):
        raise ConfigError(f"env.{name}: expected a text, not {value!r:.40}", where=where)
    elif "\0" in str(value):
        raise ConfigError(f"env.{name}: a NUL character cannot be passed on", where=where)
