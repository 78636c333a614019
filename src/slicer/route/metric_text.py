"""Metrics as text: for people, and as a configuration file has them. Pure."""

from __future__ import annotations

import json
import math

from slicer import quantity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.config.routes import ProbeKind

_MEGA = 1_000_000
_IEC: tuple[tuple[int, str], ...] = ((1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))
# Somebody who writes a duration by hand takes one of these as the last digit.
_STEPS_S = (86400, 43200, 21600, 3600, 1800, 600, 300, 60, 30, 10, 5, 1)
_FINENESS = 20  # a step is at most the 20th part of the value


def shown(kind: str, value: float) -> str:
    """A metric for people, in the unit of its probe: ``12m``, ``1.4G``, ``8.3MP``, ``1200``."""
    if not math.isfinite(value):
        return str(value)
    if kind == "duration":
        return quantity.format_duration(value)
    if kind == "size":
        return quantity.format_size(int(value))
    if kind == "pixels" and value >= _MEGA / 10:
        return f"{value / _MEGA:.1f}MP"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:.4g}"


def threshold(kind: ProbeKind, value: float) -> tuple[str, float]:
    """A threshold as TOML has it, rounded down to a number that somebody would write, and its value.

    At most a twentieth of ``value`` is lost, which must be positive and finite.
    """
    if kind == "duration":
        us = _duration(value)
        return json.dumps(quantity.duration_text(us)), us / 1e6
    if kind == "size":
        unit, letter = next((each for each in _IEC if value >= each[0]), (1, "B"))
        amount = _floor(value / unit) if unit > 1 else math.floor(value)
        return json.dumps(f"{_plain(amount)}{letter}"), float(math.floor(amount * unit))
    amount = _floor(value / _MEGA) if kind == "pixels" else _floor(value)
    if kind == "pixels":
        return json.dumps(f"{_plain(amount)}MP"), amount * _MEGA
    return _plain(amount), amount


def exact(kind: ProbeKind, value: float) -> str:
    """A threshold as TOML has it, of the same value."""
    if kind == "duration":
        return json.dumps(quantity.duration_text(round(value * 1_000_000)))
    if kind == "size":
        return json.dumps(quantity.size_text(int(value)))
    if kind == "pixels":
        return json.dumps(f"{_plain(value / _MEGA)}MP")
    return _plain(value)


def _duration(value: float) -> int:
    """The rounded duration, in microseconds."""
    for step in _STEPS_S:
        if value >= step * _FINENESS:
            return math.floor(value / step) * step * 1_000_000
    return math.floor(_floor(value) * 1_000_000)


def _floor(value: float) -> float:
    """The value with two digits, rounded down; more where the first digits are 10 to 19."""
    if value <= 0:
        return value
    power = math.floor(math.log10(value)) - 1
    if value < 2 * 10 ** (power + 1):
        power -= 1
    steps = math.floor(value / 10**power * (1 + 1e-12))  # 0.3 / 0.1 is a little less than 3
    return float(steps * 10**power) if power >= 0 else float(steps / 10**-power)


def _plain(value: float) -> str:
    """A number without an exponent, which TOML and people read."""
    text = f"{value:.9f}".rstrip("0").rstrip(".")
    return text or "0"
