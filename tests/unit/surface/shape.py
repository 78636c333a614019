"""The shape of data: which keys there are and which types their values have, one path a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

_WORDS = {type(None): "null", list: "list", dict: "object"}  # all others by their own names
_CHANCE = {"null", "absent"}


class Shape:
    """The shape of all samples together.

    ``jobs[].unit: null | str`` is the value of ``unit`` in the objects of the list ``jobs``; "absent" means
    that some of these objects lack it. ``is_loose``: how many lack it or have null there is chance.
    """

    def __init__(self, samples: Iterable[Any], *, is_loose: bool = False) -> None:
        self._is_loose = is_loose
        self._types: dict[str, set[str]] = {}
        self._objects: Counter[str] = Counter()
        self._keys: dict[str, Counter[str]] = {}
        for sample in samples:
            self._add("", sample)
        for path, keys in self._keys.items():
            for key, count in keys.items():
                if count < self._objects[path]:
                    self._types[_below(path, key)].add("absent")

    def _add(self, path: str, value: Any) -> None:
        self._types.setdefault(path, set()).add(_WORDS.get(type(value), type(value).__name__))
        if isinstance(value, list):
            for one in value:
                self._add(f"{path}[]", one)
        elif isinstance(value, dict):
            self._objects[path] += 1
            counts = self._keys.setdefault(path, Counter())
            for key, one in value.items():
                shown = "<n>" if key.isdigit() else key
                counts[shown] += 1
                self._add(_below(path, shown), one)

    def lines(self) -> list[str]:
        return _lines(self._types)

    def beside(self, golden: list[str]) -> list[str]:
        """The lines, with the golden types where these are no contradiction: what is measured at some moment
        may have been null, absent or empty by chance.
        """
        found = dict(self._types)
        for line in golden:
            path, _, words = line.partition(": ")
            path, types = path.removeprefix("(all)"), set(words.split(" | "))
            seen = found.get(path)
            if seen is not None:
                if seen < types or (self._is_loose and seen - _CHANCE <= types):
                    found[path] = types
            elif self._is_unseen(path) or (self._is_loose and "absent" in types):
                found[path] = types
        return _lines(found)

    def _is_unseen(self, path: str) -> bool:
        """Whether there was no value here that could have had what the path says."""
        above = path[:-2] if path.endswith("[]") else path.rpartition(".")[0]
        if above not in self._types:
            return self._is_unseen(above) if above else False
        types = self._types[above]
        return types <= _CHANCE or (path.endswith("[]") and "list" in types)


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _lines(types: dict[str, set[str]]) -> list[str]:
    return [f"{path or '(all)'}: {' | '.join(sorted(words))}" for path, words in sorted(types.items())]
