"""What probes measure: how a bound is written, and how a metric is shown beside it. (C1, C2)"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.config.metric_units import KINDS, bound_text, parse_bound, text
from slicer.quantity import QuantityError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.config.metric_units import ProbeKind


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        ("duration", "1h", 3600),
        ("duration", "1h30m", 5400),
        ("duration", 90, 90),
        ("duration", 0.5, 0.5),
        ("size", "2G", 2 * 2**30),
        ("size", "1.5GiB", 3 * 2**29),
        ("size", 1_000_000, 1_000_000),
        ("pixels", "8MP", 8_000_000),
        ("pixels", "8.3 MP", 8_300_000),
        ("pixels", "1920x1080", 2_073_600),
        ("megapixel_seconds", "7.5k", 7500),
        ("lines", 500, 500),
        ("tokens", "10k", 10_000),
        ("tokens", "1.5M", 1_500_000),
        ("count", "200", 200),
        ("command", 0.25, 0.25),
        ("command", 0, 0),
        ("duration", "infinity", None),
        ("command", "infinity", None),
    ],
)
def test_a_bound_is_written_in_the_unit_of_its_probe(
    kind: ProbeKind, written: object, value: float | None
) -> None:
    assert parse_bound(kind, written) == value


@pytest.mark.parametrize(
    ("kind", "written", "said"),
    [
        ("duration", "2G", 'for probe "duration", not \'2G\': that is a size'),
        ("duration", "8MP", "that is a number of pixels"),
        ("size", "1h", 'such as "2G" for probe "size", not \'1h\': that is a duration'),
        ("pixels", "8M", "that is a size"),
        ("pixels", "15m", "that is a duration"),
        ("lines", "2G", "that is a size"),
        ("tokens", "1920x1080", "that is a number of pixels"),
        ("count", "1h", "that is a duration"),
        ("command", "5s", "that is a duration"),
        ("size", 2, 'the unit is missing, write "2G"'),
        ("size", "24", 'the unit is missing, write "24G"'),
        ("size", "2GB", "ambiguous"),
        ("pixels", 8, 'the unit is missing, write "8MP"'),
        ("pixels", "4K", "that is a size"),
        ("pixels", "0.1234567MP", "pixels cannot be fractional"),
        ("duration", 0, "that is too small for a job"),
        ("size", "0", "the unit is missing"),
        ("duration", -1, "it cannot be negative"),
        ("lines", "-5", "it cannot be negative"),
        ("lines", "ten", "expected a number"),
        ("lines", math.inf, "expected a number"),
        ("lines", math.nan, "expected a number"),
        ("duration", math.nan, "expected a duration"),
        ("lines", 10**40, "absurdly long"),
        ("lines", 10**25, "absurdly large"),
        ("pixels", "9999999999x9999999999", "absurdly large"),
        ("duration", True, "not True"),
        ("size", ["2G"], "not ['2G']"),
        ("duration", "", "expected a duration"),
    ],
)
def test_a_unit_that_does_not_fit_the_probe_is_refused(kind: ProbeKind, written: object, said: str) -> None:
    with pytest.raises(QuantityError) as refused:
        parse_bound(kind, written)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@given(st.sampled_from(KINDS), st.integers(min_value=1, max_value=10**12))
def test_a_bound_is_shown_as_a_file_would_have_it(kind: ProbeKind, value: int) -> None:
    bound = value * (1024.0 if kind == "size" else 1.0)
    assert parse_bound(kind, bound_text(kind, bound)) == pytest.approx(bound, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "value", "beside", "shown"),
    [
        ("duration", 720.0, None, "12m"),
        ("duration", 3600.4, 3600.0, "3600.4s"),
        ("duration", 3600.0, 3600.0, "1h"),
        ("size", 2.0**31 + 1, 2.0**31, "2147483649B"),
        ("size", 1.5 * 2**30, 2.0**31, "1.5G"),
        ("pixels", 8_300_000.0, 8e6, "8.3MP"),
        ("pixels", 8_000_001.0, 8e6, "8000001px"),
        ("pixels", 400.0, None, "400px"),
        ("lines", 41_000.0, None, "41000"),
        ("command", 0.125, None, "0.125"),
    ],
)
def test_a_metric_never_looks_like_the_bound_that_it_is_not(
    kind: ProbeKind, value: float, beside: float | None, shown: str
) -> None:
    assert text(kind, value, beside=beside) == shown
