"""Metrics as text: for people, and as a configuration file has them. Pure."""

from __future__ import annotations

import json
import math

from slicer import quantity
from slicer.config import metrics

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.config.routes import ProbeKind

_MEGA = 1_000_000
_IEC: tuple[tuple[int, str], ...] = ((1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))
# Somebody who writes a duration by hand takes one of these as the last digit.
_STEPS_S = (86400, 43200, 21600, 3600, 1800, 600, 300, 60, 30, 10, 5, 1)
_TICKS = 9
_FINENESS = 20  # a step is at most the 20th part of the value


def shown(kind: ProbeKind, value: float) -> str:
    """A metric for people, in the unit of its probe: ``12m``, ``1.4G``, ``8.3MP``, ``1200``, ``0.7341``."""
    if kind in ("duration", "size", "pixels"):
        return metrics.text(kind, value)
    return str(int(value)) if abs(value) < 1e15 and value == int(value) else f"{value:.4g}"


def span(kind: ProbeKind, low: float, high: float) -> str:
    """Two metrics, as in ``1m to 1h``; one where both are the same."""
    ends = dict.fromkeys((shown(kind, low), shown(kind, high)))
    return " to ".join(ends)


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


def tick(kind: ProbeKind, most: float) -> float:
    """How far apart the marks of an axis up to ``most`` are, so that there are at most nine."""
    least = most / _TICKS
    if kind == "duration":
        days = math.ceil(least / _STEPS_S[0]) * _STEPS_S[0]
        return float(next((step for step in reversed(_STEPS_S) if step >= least), days))
    unit = next((unit for unit, _ in _IEC if most >= unit), 1) if kind == "size" else 1
    power = 10.0 ** math.floor(math.log10(least / unit))
    return next(factor for factor in (1, 2, 5, 10) if factor * power * unit >= least) * power * unit


def exact(kind: ProbeKind, bound: float | None) -> str:
    """A bound as TOML has it, of the same value; None: any."""
    text = metrics.bound_text(kind, bound)
    return json.dumps(text) if bound is None or kind in ("duration", "size", "pixels") else text


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
