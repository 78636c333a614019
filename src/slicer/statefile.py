"""The form of lease and ticket files: ``KEY=value`` lines, as in systemd's own files under /run.

Readable with cat, source-able by no accident (values are escaped, not quoted), and parsed without ``json``
(which costs the hot path 8 ms of imports).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    _T = TypeVar("_T")

VERSION = 1
END = b"\nEND=\n"  # the last line of every file


class TornFile(ValueError):
    """Not a whole file of ours: cut short, of another version, or something else altogether."""


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\0", "\\0")


def _unescape(text: str) -> str:
    return "\\".join(part.replace("\\n", "\n").replace("\\0", "\0") for part in text.split("\\\\"))


def _encode_value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return _escape(value) if isinstance(value, str) else repr(value)


def _decode_value(text: str, annotation: str) -> Any:
    match annotation:
        case "int":
            return int(text)
        case "float":
            return float(text)
        case "float | None":
            return float(text) if text else None
        case "int | None":
            return int(text) if text else None
        case "tuple[str, ...]":
            return tuple(text.split(",")) if text else ()
        case "tuple[int, ...]":
            return tuple(map(int, text.split(","))) if text else ()
        case _:
            return _unescape(text)


def encode(value: Any) -> bytes:
    """A record as bytes. The last line marks the end, so that a torn file can be told."""
    lines = [f"SLICER_{type(value).__name__.upper()}={VERSION}"]
    lines += [f"{name.upper()}={_encode_value(getattr(value, name))}" for name in value.__fields__]
    return "\n".join(lines).encode("utf-8", "surrogateescape") + END


def decode(kind: type[_T], data: bytes) -> _T:
    """The record that :func:`encode` wrote; raises TornFile for anything else."""
    head, *lines = data.decode("utf-8", "surrogateescape").split("\n")
    if head != f"SLICER_{kind.__name__.upper()}={VERSION}" or lines[-2:] != ["END=", ""]:
        raise TornFile(f"not a whole {kind.__name__.lower()} file of version {VERSION}")
    found = [line.partition("=") for line in lines[:-2]]
    # Every field, once, in its order: a shorter text written over a longer one ends well, but says more.
    if [key for key, _, _ in found] != [name.upper() for name in kind.__annotations__]:
        raise TornFile(f"bad {kind.__name__.lower()} file: not its fields")
    try:
        values = {
            name: _decode_value(text, annotation)
            for (name, annotation), (_, _, text) in zip(kind.__annotations__.items(), found, strict=True)
        }
    except ValueError as error:
        raise TornFile(f"bad {kind.__name__.lower()} file: {error}") from error
    return kind(**values)
