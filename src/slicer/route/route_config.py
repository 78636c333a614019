"""Lines of a route's configuration, written as a person would write them. Pure."""

from __future__ import annotations

import json
import math
import string

from slicer import quantity
from slicer.config import metric_units
from slicer.config.routes import Destination, Route

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.config.routes import ProbeKind

_BARE = frozenset(string.ascii_letters + string.digits + "_-")
_MEGA = 1_000_000
_IEC: tuple[tuple[int, str], ...] = ((1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))
# The steps that a person would use for a duration.
_STEPS_S = (86400, 43200, 21600, 3600, 1800, 600, 300, 60, 30, 10, 5, 1)
_FINENESS = 20  # a step is at most a 20th of the value


def bound_lines(route: Route, destination: Destination, probe: int, value: float) -> tuple[str, ...]:
    """The lines that set a destination's bound for this probe to ``value``, rounded down."""
    texts = [_exact(each.kind, bound) for each, bound in zip(route.probes, destination.up_to, strict=True)]
    texts[probe] = rounded(route.probes[probe].kind, value)[0]
    written = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    if is_two_way(route):
        return _heading(route.name), f"threshold = {written}"
    return destination_table(route, destination), f"up_to = {written}"


def destination_table(route: Route, destination: Destination) -> str:
    """The heading of a destination's table: ``[routes.whisper.gpu]``."""
    return _heading(route.name, *(() if is_two_way(route) else ("to",)), destination.name)


def is_two_way(route: Route) -> bool:
    """Whether the file uses "gpu", "cpu" and "threshold", and not ``[routes.NAME.to.…]``."""
    return not any(source.startswith("to.") for source in route.sources)


def _heading(*keys: str) -> str:
    words = (key if key and _BARE.issuperset(key) else json.dumps(key) for key in keys)
    return f"[{'.'.join(['routes', *words])}]"


def _exact(kind: ProbeKind, bound: float | None) -> str:
    """A bound in TOML with the same value; None: any."""
    text = metric_units.bound_text(kind, bound)
    return json.dumps(text) if bound is None or kind in ("duration", "size", "pixels") else text


def rounded(kind: ProbeKind, value: float) -> tuple[str, float]:
    """A threshold in TOML, rounded down to a number that a person would write, and its value.

    ``value`` must be positive and finite. The result is at most a twentieth smaller.
    """
    if kind == "duration":
        us = _duration(value)
        return json.dumps(quantity.duration_text(us)), us / 1e6
    if kind == "size":
        unit, letter = next((each for each in _IEC if value >= each[0]), (1, "B"))
        amount = _floor(value / unit) if unit > 1 else math.floor(value)
        return json.dumps(f"{_plain(amount)}{letter}"), float(math.floor(amount * unit))
    if kind == "pixels":
        amount = _floor(value / _MEGA)
        return json.dumps(f"{_plain(amount)}MP"), amount * _MEGA
    amount = _floor(value)
    return _plain(amount), amount


def _duration(value: float) -> int:
    for step in _STEPS_S:
        if value >= step * _FINENESS:
            return math.floor(value / step) * step * 1_000_000
    return math.floor(_floor(value) * 1_000_000)


def _floor(value: float) -> float:
    """The value rounded down to two digits; to three if the first two are 10 to 19."""
    if value <= 0:
        return value
    power = math.floor(math.log10(value)) - 1
    if value < 2 * 10 ** (power + 1):
        power -= 1
    steps = math.floor(value / 10**power * (1 + 1e-12))  # 0.3 / 0.1 is a little less than 3
    return float(steps * 10**power) if power >= 0 else float(steps / 10**-power)


def _plain(value: float) -> str:
    """A number without an exponent, for TOML and people."""
    text = f"{value:.9f}".rstrip("0").rstrip(".")
    return text or "0"
