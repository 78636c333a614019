"""The metrics that probes of routes measure: their units, and how bounds and values are written.

Pure. A metric is a float in its unit: ``duration`` seconds, ``size`` bytes, ``pixels`` pixels of one frame,
``megapixel_seconds`` the duration times millions of those. ``lines``, ``tokens``, ``count`` and ``command``
are counts.
"""

from __future__ import annotations

from slicer import quantity
from slicer.quantity import INFINITY, QuantityError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    ProbeKind = Literal[
        "duration", "size", "lines", "tokens", "pixels", "megapixel_seconds", "count", "command"
    ]

KINDS: tuple[ProbeKind, ...] = (
    "duration", "size", "lines", "tokens", "pixels", "megapixel_seconds", "count", "command"
)  # fmt: skip
LARGEST = 2.0**63  # no metric reaches it
LONGEST_S = 10.0**9  # 31 years; a file that claims more is damaged

_EXPECTED = {
    "duration": 'a duration such as "15m" or "1h"',
    "size": 'a size such as "2G"',
    "pixels": quantity.PIXELS_TEXT,
}
_SMALLEST_BARE = 1024  # bytes: a smaller bare number is a forgotten unit
_NOUNS = {"size": "a size", "duration": "a duration", "pixels": "a number of pixels"}


def parse_bound(kind: ProbeKind, written: object) -> float | None:
    """The largest metric that a destination takes, from a file's value; None for "infinity": any.

    Raises QuantityError, also for a unit of another probe.
    """
    expected = _EXPECTED.get(kind, quantity.AMOUNT_TEXT)
    if isinstance(written, bool) or not isinstance(written, (int, float, str)):
        raise QuantityError(f"expected {expected}, not {written!r:.40}")
    text = written.strip() if isinstance(written, str) else _plain(written)
    if text == "infinity":
        return None
    try:
        value = _PARSERS.get(kind, quantity.parse_amount)(text)
    except QuantityError:
        meant = _other_kind(kind, text)
        if not meant:
            raise
        why = f"that is {_NOUNS[meant]}"
        raise QuantityError(f'expected {expected} for probe "{kind}", not {text!r:.40}: {why}') from None
    if not value and kind in _NOUNS:
        raise QuantityError(f"expected {expected}, not {text!r:.40}: that is too small for a job")
    return value


def _plain(number: float) -> str:
    """A file's number as text. A non-finite one becomes a text that no parser accepts."""
    return str(number) if isinstance(number, int) else f"{number:.9f}".rstrip("0").rstrip(".")


def _duration(text: str) -> float:
    return quantity.parse_duration(text) / 1e6


def _size(text: str) -> float:
    value = quantity.parse_size(text, what=_EXPECTED["size"])
    if value < _SMALLEST_BARE and text[-1:].isdigit():
        why = f'the unit is missing, write "{text}G"'
        raise QuantityError(f"expected {_EXPECTED['size']}, not {text!r}: {why}")
    return float(value)


_PARSERS: dict[str, Callable[[str], float]] = {
    "duration": _duration, "pixels": quantity.parse_pixels, "size": _size,
}  # fmt: skip


def _other_kind(kind: ProbeKind, text: str) -> str:
    """The kind of another probe whose unit the text has; "" if there is none."""
    if text[-1:].isdigit() and "x" not in text:
        return ""  # a bare number has no unit
    for other, parse in _PARSERS.items():
        if other != kind:
            try:
                parse(text)
            except QuantityError:
                continue
            return other
    return ""


def text(kind: ProbeKind, value: float, *, beside: float | None = None) -> str:
    """A metric for display: ``12m``, ``1.4G``, ``8.3MP``, ``41000``.

    ``beside`` is a bound shown next to it: if both would look the same and differ, the exact value is shown.
    """
    shown = _rounded(kind, value)
    if beside is not None and value != beside and shown in (_rounded(kind, beside), bound_text(kind, beside)):
        return _exact(kind, value)
    return shown


def _rounded(kind: ProbeKind, value: float) -> str:
    if kind == "duration":
        return quantity.format_duration(value)
    if kind == "size":
        return quantity.format_size(int(value)).replace(".0", "")
    if kind == "pixels" and value >= 100_000:
        return f"{value / 1e6:.1f}MP".replace(".0MP", "MP")
    if kind == "pixels" or (abs(value) < 1e15 and value == int(value)):
        return _exact(kind, value)
    return f"{value:.4g}"


def _exact(kind: ProbeKind, value: float) -> str:
    unit = {"duration": "s", "size": "B", "pixels": "px"}.get(kind, "")
    return f"{int(value) if value == int(value) else value}{unit}"


def bound_text(kind: ProbeKind, bound: float | None) -> str:
    """A bound, exactly as in a file: ``1h``, ``2G``, ``8MP``, ``10000``; "infinity" for None."""
    if bound is None:
        return "infinity"
    if kind == "duration":
        return quantity.duration_text(min(round(bound * 1e6), INFINITY - 1))
    if kind == "size":
        return quantity.size_text(int(bound))
    if kind == "pixels":
        return f"{bound / 1e6:.6f}".rstrip("0").rstrip(".") + "MP"
    return _exact(kind, bound)
