"""Small immutable records for the hot path.

``dataclasses`` would be the natural choice, but importing it pulls in ``inspect`` and ``re``: 17 ms, more
than the whole of ``slicer run`` may cost over ``systemd-run``. Type checkers see an ordinary frozen
dataclass; at run time :func:`record` writes the same ``__init__`` in 0.1 ms and imports nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar, dataclass_transform

    _T = TypeVar("_T")


def _init(cls: type, fields: tuple[str, ...]) -> Any:
    defaults = {name: cls.__dict__[name] for name in fields if name in cls.__dict__}
    args = "".join(f", {name}=_defaults['{name}']" if name in defaults else f", {name}" for name in fields)
    body = "".join(f"\n    _set(self, '{name}', {name})" for name in fields) or "\n    pass"
    scope: dict[str, Any] = {"_defaults": defaults, "_set": object.__setattr__}
    exec(f"def __init__(self{args}):{body}", scope)
    return scope["__init__"]


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
    fields = tuple(cls.__annotations__)
    made: dict[str, Any] = {
        "__fields__": fields,
        "__init__": _init(cls, fields),
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


def replace(value: _T, **changes: Any) -> _T:
    """A copy of a record with some fields changed; raises TypeError on an unknown field."""
    return type(value)(**{**as_dict(value), **changes})


def as_dict(value: Any) -> dict[str, Any]:
    """The fields of a record, in their order, as a plain dict (not recursive)."""
    return {name: getattr(value, name) for name in value.__fields__}
