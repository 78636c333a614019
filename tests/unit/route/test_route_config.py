"""Thresholds as somebody would write them."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicer.config import metric_units
from slicer.config.metric_units import KINDS
from slicer.route import route_config
from tests.examples import examples
from tests.unit.route.past import part, probes, route

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.config.routes import ProbeKind


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("duration", 3540.7, '"59m"'),
        ("duration", 10_830.0, '"3h"'),
        ("duration", 12.34, '"12s300ms"'),
        ("size", 1.8 * 2**30 + 5, '"1.8G"'),
        ("size", 1500.0, '"1.46K"'),
        ("pixels", 8.29e6, '"8.2MP"'),
        ("pixels", 5000.0, '"0.005MP"'),
        ("tokens", 41_234.0, "41000"),
        ("command", 0.734, "0.73"),
        ("count", 7.0, "7"),
    ],
)
def test_a_threshold_is_rounded_down_to_what_people_write(
    kind: ProbeKind, value: float, text: str
) -> None:  # C9
    assert route_config.rounded(kind, value)[0] == text


@settings(database=None, max_examples=examples(200))
@given(st.sampled_from(KINDS), st.floats(1e-3, 9e14))
def test_what_is_written_is_read_back_and_not_larger(kind: ProbeKind, value: float) -> None:  # C9
    if kind == "duration":
        value = min(value, metric_units.LONGEST_S)
    if kind in ("size", "pixels"):
        value = float(int(value)) + 1.0
    text, rounded = route_config.rounded(kind, value)
    read = metric_units.parse_bound(kind, tomllib.loads(f"x = {text}")["x"])
    assert read == pytest.approx(rounded, rel=1e-6)
    assert 0.94 * value <= rounded <= value * (1 + 1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bound", [None, 1e6, 3600.0, 2.0**31])
def test_the_bound_of_another_probe_is_written_as_it_is(kind: ProbeKind, bound: float | None) -> None:  # C9
    of = route(part(up_to=(60.0, bound)), probes=probes("duration", kind))
    _, line = route_config.bound_lines(of, of.destinations[0], 0, 120.0)
    written = tomllib.loads(line)["threshold"]
    assert written[0] == "2m"
    assert metric_units.parse_bound(kind, written[1]) == bound


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("duration", 723.4, "12m3s"),
        ("size", 1.5 * 2**30, "1.5G"),
        ("lines", 1234.0, "1234"),
        ("command", 1 / 3, "0.3333"),
        ("command", float("inf"), "inf"),
    ],
)
def test_metrics_are_shown_in_their_unit(kind: ProbeKind, value: float, text: str) -> None:  # C6
    assert metric_units.text(kind, value) == text
