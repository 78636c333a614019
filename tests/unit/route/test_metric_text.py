"""Thresholds as somebody would write them."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicer.config import metrics
from slicer.config.metrics import KINDS
from slicer.route import metric_text
from tests.examples import examples

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
    assert metric_text.threshold(kind, value)[0] == text


@settings(database=None, deadline=None, max_examples=examples(200))
@given(st.sampled_from(KINDS), st.floats(1e-3, 9e14))
def test_what_is_written_is_read_back_and_not_larger(kind: ProbeKind, value: float) -> None:  # C9
    if kind == "duration":
        value = min(value, metrics.LONGEST_S)
    if kind in ("size", "pixels"):
        value = float(int(value)) + 1.0
    text, rounded = metric_text.threshold(kind, value)
    read = metrics.parse_bound(kind, tomllib.loads(f"x = {text}")["x"])
    assert read == pytest.approx(rounded, rel=1e-6)
    assert 0.94 * value <= rounded <= value * (1 + 1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bound", [None, 1e6, 3600.0, 2.0**31])
def test_an_exact_bound_is_read_back(kind: ProbeKind, bound: float | None) -> None:  # C9
    text = metric_text.exact(kind, bound)
    assert metrics.parse_bound(kind, tomllib.loads(f"x = {text}")["x"]) == bound


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("most", [0.5, 7.0, 3780.0, 1e9, 3e12])
def test_an_axis_has_a_few_marks(kind: ProbeKind, most: float) -> None:  # C9
    assert 1 <= most / metric_text.tick(kind, most) <= 9 or most < 1


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
    assert metric_text.shown(kind, value) == text
