"""The keys that a configuration file may have. Imported only after a file has changed."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from slicer.config import values
from slicer.config.build import OTHER_KEYS, PROFILE, SETTINGS, SLICE_KEYS, TABLES, kinds
from slicer.config.files import Layer
from slicer.config.properties import KEYS, find
from slicer.config.route_slots import MODES
from slicer.errors import ConfigError
from slicer.model import CPU, SLICES

TOP_SETTINGS = tuple(path for path in SETTINGS if "." not in path)
TOP_KEYS = (*TOP_SETTINGS, *TABLES, "slices", "profiles", "routes", "serve", "engine")
OWN_KEYS = {**kinds(PROFILE), **OTHER_KEYS}
_LONGEST_NAME = 31  # of a route or a destination; with a dash between them they name a slot


def check_keys(layer: Layer) -> None:
    """Raise ConfigError for an unknown key, or for a table of another type."""
    data = layer.data
    known_keys(data, TOP_KEYS, layer, ())
    _check_slot_names(data, layer)
    for name, known in TABLES.items():
        if name != "slots":
            _below(data, known, layer, name)
    slices = _below(data, SLICES, layer, "slices")
    for name in slices:
        _below(slices, SLICE_KEYS, layer, "slices", name)
    profiles = _below(data, None, layer, "profiles")
    for name in profiles:
        if not re.fullmatch(r"[\w.+][\w.+-]*", name, re.ASCII):
            hint = "letters, digits, . _ + and - are allowed, not beginning with -"
            where = layer.where("profiles", name)
            raise ConfigError(f"{name!r:.60} is not a valid profile name", where=where, hint=hint)
        table = _below(profiles, (*OWN_KEYS, *KEYS), layer, "profiles", name)
        _check_variables(table, layer, "profiles", name)
        _check_slot_names(table, layer, "profiles", name)
    routes = _below(data, None, layer, "routes")
    for name in routes:
        _check_route(name, routes, layer)
    servers = _below(data, None, layer, "serve")
    for name in servers:
        _check_server(name, servers, layer)
    if "engine" in data:
        _check_engine(data, layer)


def _below(around: dict[str, Any], known: Collection[str] | None, layer: Layer, *path: str) -> dict[str, Any]:
    """The table at ``path`` in the outer table, with known keys only (None: any)."""
    table = as_table(around.get(path[-1], {}), layer, *path)
    if known is not None:
        known_keys(table, known, layer, path)
    return table


def _check_engine(data: dict[str, Any], layer: Layer) -> None:
    from slicer.config.slurm import KEYS as SLURM_KEYS
    from slicer.config.slurm import PROFILE_KEYS

    engine = _below(data, ("slurm",), layer, "engine")
    table = _below(engine, (*SLURM_KEYS, "profiles"), layer, "engine", "slurm")
    profiles = _below(table, None, layer, "engine", "slurm", "profiles")
    for name in profiles:
        _below(profiles, PROFILE_KEYS, layer, "engine", "slurm", "profiles", name)


def _check_server(name: str, servers: dict[str, Any], layer: Layer) -> None:
    from slicer.config.serve import KEYS as SERVE_KEYS

    _check_name(name, "server", layer.where("serve", name))
    table = _below(servers, SERVE_KEYS, layer, "serve", name)
    _check_variables(table, layer, "serve", name)


def _check_route(name: str, routes: dict[str, Any], layer: Layer) -> None:
    from slicer.config.routes import DESTINATION_KEYS, TO_KEYS
    from slicer.config.routes import KEYS as ROUTE_KEYS

    path = ("routes", name)
    _check_name(name, "route", layer.where(*path))
    table = _below(routes, (*ROUTE_KEYS, *MODES, "to"), layer, *path)
    for mode in MODES:
        _below(table, DESTINATION_KEYS, layer, *path, mode)
    several = _below(table, None, layer, *path, "to")
    for destination in several:
        _check_name(destination, "destination", layer.where(*path, "to", destination))
        _below(several, TO_KEYS, layer, *path, "to", destination)


def _check_name(name: str, what: str, where: str) -> None:
    if not re.fullmatch(r"\w[\w.-]*", name, re.ASCII) or len(name) > _LONGEST_NAME:
        hint = f"letters, digits, . _ and - are allowed, not beginning with . or -, at most {_LONGEST_NAME}"
        raise ConfigError(f"{name!r:.60} is not a valid {what} name", where=where, hint=hint)


# Names that probably mean something else.
_NO_SLOTS = {
    "cpu": f"did you mean {CPU}?",
    "cpus": f"did you mean {CPU}?",
    "gpu": "GPUs are not slots: a profile requests them with gpus",
    "gpus": "GPUs are not slots: a profile requests them with gpus",
}


def _check_slot_names(around: dict[str, Any], layer: Layer, *around_path: str) -> None:
    path = (*around_path, "slots")
    for name, count in _below(around, None, layer, *path).items():
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


def _check_variables(table: dict[str, Any], layer: Layer, *path: str) -> None:
    for variable, value in _below(table, None, layer, *path, "env").items():
        _check_variable(variable, value, layer.where(*path, "env", variable))


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
