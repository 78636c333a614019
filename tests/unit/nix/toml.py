"""Data as TOML text, in the place of nixpkgs' generator, which needs a store to run in."""

from __future__ import annotations

import json
from collections.abc import Mapping


def written(table: Mapping[str, object]) -> str:
    """A TOML file that says this. Values come before tables, to which they would else belong."""
    return "".join(_lines(table, ()))


def _lines(table: Mapping[str, object], path: tuple[str, ...]) -> list[str]:
    lines = [f"[{'.'.join(map(json.dumps, path))}]\n"] if path else []
    values = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    lines += [f"{json.dumps(key)} = {_value(value)}\n" for key, value in values.items()]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += _lines(value, (*path, key))
    return lines


def _value(value: object) -> str:
    """Text, numbers, truth values and lists of them look in TOML as they do in JSON."""
    return json.dumps(value, ensure_ascii=False)
