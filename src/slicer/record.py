"""Small immutable records for the hot path.

``dataclasses`` would be the natural choice. But it imports ``inspect`` and ``re``, which takes 17 ms, more
than ``slicer run`` may add to ``systemd-run``. Type checkers see an ordinary frozen dataclass. At run time
:func:`record` gives the class the same behaviour in microseconds, and imports nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar, dataclass_transform

    _T = TypeVar("_T")


def _init(self: Any, *args: Any, **named: Any) -> None:
    """One ``__init__`` for all records. Compiling one for each class costs more than it gains."""
    fields, known = type(self).__fields__, type(self).__annotations__
    if len(args) > len(fields):
        raise TypeError(f"{type(self).__name__} takes {len(fields)} values, {len(args)} given")
    values = self.__dict__
    values.update(zip(fields, args, strict=False))
    for name, value in named.items():
        if name in values or name not in known:
            raise TypeError(f"{type(self).__name__}: field {name!r} is given twice or unknown")
        values[name] = value
    if len(values) < len(fields):
        absent = [name for name in fields if name not in values and not hasattr(type(self), name)]
        if absent:
            raise TypeError(f"{type(self).__name__}: missing {', '.join(absent)}")


def _frozen(self: object, name: str, value: object = None) -> None:
    raise AttributeError(f"{type(self).__name__} is immutable: cannot change {name!r}")


def _values(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, name) for name in self.__fields__)


def _eq(self: object, other: object) -> bool:
    return type(self) is type(other) and _values(self) == _values(other)


def _hash(self: object) -> int:
    return hash((type(self), _values(self)))


def _repr(self: Any) -> str:
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__fields__)
    return f"{type(self).__name__}({shown})"


def _record(cls: type[_T]) -> type[_T]:
    # A record that extends another begins with its fields.
    annotations = {**getattr(cls.__base__, "__annotations__", {}), **cls.__annotations__}
    made: dict[str, Any] = {
        "__annotations__": annotations,
        "__fields__": tuple(annotations),
        "__init__": _init,
        "__setattr__": _frozen,
        "__delattr__": _frozen,
        "__eq__": _eq,
        "__hash__": _hash,
        "__repr__": _repr,
    }
    for name, value in made.items():
        setattr(cls, name, value)
    return cls


if TYPE_CHECKING:

    @dataclass_transform(frozen_default=True)
    def record(cls: type[_T]) -> type[_T]: ...

else:
    record = _record


def replace(value: _T, /, **changes: Any) -> _T:
    """A copy of a record with some fields changed; raises TypeError on an unknown field."""
    return type(value)(**{**as_dict(value), **changes})


def as_dict(value: Any) -> dict[str, Any]:
    """The fields of a record, in their order, as a plain dict (not recursive)."""
    return {name: getattr(value, name) for name in value.__fields__}


def fields_for(kind: Any, value: Any) -> dict[str, Any]:
    """The fields of a record that records of ``kind`` have as well."""
    return {name: getattr(value, name) for name in value.__fields__ if name in kind.__fields__}
