"""Units: what people write, what is refused, and that formatting and reading agree. (K3, E1)"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer import quantity as q

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("512", 512),
        ("512B", 512),
        ("8G", 8 * GIB),
        ("8g", 8 * GIB),
        ("8 G", 8 * GIB),
        (" 8G\n", 8 * GIB),
        ("8GiB", 8 * GIB),
        ("1.5GiB", 3 * GIB // 2),
        ("512M", GIB // 2),
        ("64K", 65536),
        ("0.3K", 307),
        ("2T", 2 << 40),
        ("7E", 7 << 60),
        ("infinity", 2**64 - 1),
    ],
)
def test_size_is_read_as_systemd_reads_it(text: str, size: int) -> None:  # K3
    assert q.parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected a size"),
        (" ", "expected a size"),
        ("G", "expected a size"),
        ("20X", "unknown unit 'X'"),
        ("8 Gb", "ambiguous"),
        ("8GB", "ambiguous"),
        ("8Gib", "unknown unit"),
        ("-1", "negative"),
        ("-5G", "negative"),
        ("+5G", "expected a size"),
        (".5G", "expected a size"),
        ("5.G", "expected a size"),
        ("1,5G", "unknown unit"),
        ("1.5", "bytes cannot be fractional"),
        ("1e9", "unknown unit"),
        ("0x10", "unknown unit"),
        ("nan", "expected a size"),
        ("inf", "expected a size"),
        ("Infinity", "expected a size"),
        ("8E", "absurdly large"),
        ("9223372036854775808", "absurdly large"),
        ("9" * 5000, "absurdly long"),
        ("٣G", "expected a size"),
        ("8G\n9G", "unknown unit"),
    ],
)
def test_size_that_cannot_be_meant_is_refused_with_an_example(text: str, why: str) -> None:  # K3
    with pytest.raises(q.QuantityError) as caught:
        q.parse_size(text)
    message = str(caught.value)
    assert why in message
    assert '"8G"' in message
    assert "\n" not in message
    assert len(message) < 200


def test_io_sizes_count_in_thousands_as_systemd_does() -> None:  # K3
    assert q.parse_size("10M", base=1000) == 10_000_000
    assert q.parse_size("10MiB", base=1000) == 10 << 20


@given(st.integers(min_value=0, max_value=2**63 - 1) | st.just(q.INFINITY))
def test_exact_size_text_reads_back_the_same(size: int) -> None:
    assert q.parse_size(q.size_text(size)) == size


@given(st.integers(min_value=0, max_value=2**62))
def test_size_for_people_is_right_to_its_last_digit(size: int) -> None:
    assert math.isclose(q.parse_size(q.format_size(size)), size, rel_tol=0.06)
    assert len(q.format_size(size)) <= 7


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1.0K"),
        (24 * GIB, "24.0G"),
        (GIB - 1, "1.0G"),
        (1500 << 20, "1.5G"),
        (q.INFINITY, "infinity"),
        (None, "-"),
    ],
)
def test_size_for_people(size: int | None, shown: str) -> None:
    assert q.format_size(size) == shown


@pytest.mark.parametrize(
    ("text", "value"),
    [("50%", 5000), ("37.5%", 3750), ("0.01%", 1), ("100%", 10000), ("0%", 0), (" 5 % ", 500)],
)
def test_percentage_is_read_to_two_digits(text: str, value: int) -> None:  # K3
    assert q.parse_percent(text) == value


@pytest.mark.parametrize("text", ["", "%", "50", "-5%", "100.01%", "1.234%", "nan%", "1e2%", "50%%", "5 0%"])
def test_percentage_that_cannot_be_meant_is_refused(text: str) -> None:  # K3
    with pytest.raises(q.QuantityError, match="expected a percentage"):
        q.parse_percent(text)


def test_quota_of_a_billion_percent_is_refused() -> None:  # K3
    assert q.parse_percent("1000000%", most=q.MAX_CORES_PERCENT) == 100_000_000
    with pytest.raises(q.QuantityError, match="more than 1000000%"):
        q.parse_percent("1000000000%", most=q.MAX_CORES_PERCENT)


@given(st.integers(min_value=0, max_value=10000))
def test_percentage_reads_back_the_same(value: int) -> None:
    assert q.parse_percent(q.percent_text(value)) == value


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0", (0,)),
        ("0-3,8", (0, 1, 2, 3, 8)),
        ("8 0-1", (0, 1, 8)),
        ("1, 3", (1, 3)),
        ("2-2,2", (2,)),
        ("8191", (8191,)),
    ],
)
def test_cpu_list_is_read(text: str, cpus: tuple[int, ...]) -> None:  # K3
    assert q.parse_cpus(text) == cpus


@pytest.mark.parametrize("text", ["", ",", "a", "3-0", "-1", "1-", "0-9999999999", "8192", "1.5", "0~3", "٣"])
def test_cpu_list_that_cannot_be_meant_is_refused(text: str) -> None:  # K3
    with pytest.raises(q.QuantityError, match="expected a CPU list"):
        q.parse_cpus(text)


def test_cpu_mask_is_little_endian() -> None:  # K3
    assert q.cpus_to_mask((0, 1, 2, 3, 8)) == b"\x0f\x01"
    assert q.cpus_to_mask(()) == b""


@given(st.sets(st.integers(min_value=0, max_value=q.MAX_CPU), min_size=1))
def test_cpu_list_and_mask_read_back_the_same(cpus: set[int]) -> None:
    expected = tuple(sorted(cpus))
    assert q.parse_cpus(q.format_cpus(cpus)) == expected
    assert q.mask_to_cpus(q.cpus_to_mask(cpus)) == expected


SECOND = 10**6


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("90", 90 * SECOND),
        ("90s", 90 * SECOND),
        ("1.5", 3 * SECOND // 2),
        ("15m", 900 * SECOND),
        ("15min", 900 * SECOND),
        ("2h", 7200 * SECOND),
        ("1d", 86400 * SECOND),
        ("1w", 604800 * SECOND),
        ("1h30m", 5400 * SECOND),
        ("1h 30m", 5400 * SECOND),
        ("2 days", 172800 * SECOND),
        ("0.5h", 1800 * SECOND),
        ("500ms", SECOND // 2),
        ("10us", 10),
        ("0", 0),
        ("infinity", 2**64 - 1),
    ],
)
def test_duration_is_read_as_systemd_reads_it(text: str, microseconds: int) -> None:  # K3, E1
    assert q.parse_duration(text) == microseconds


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected a duration"),
        ("h", "expected a duration"),
        ("-3s", "negative"),
        ("1h-3m", "unknown unit"),
        ("1M", "minutes"),
        ("3 fortnights", "unknown unit"),
        ("1h30", "no unit"),
        ("0h30", "no unit"),
        ("30m1h", "largest first"),
        ("1h1h", "largest first"),
        ("1:30", "unknown unit"),
        ("nan", "expected a duration"),
        ("9" * 20 + "d", "absurdly long"),
        ("300000000d", "absurdly long"),
        ("9" * 40, "absurdly long"),
    ],
)
def test_duration_that_cannot_be_meant_is_refused_with_an_example(text: str, why: str) -> None:  # K3
    with pytest.raises(q.QuantityError, match="expected a duration such as") as caught:
        q.parse_duration(text)
    assert why in str(caught.value)


@given(st.integers(min_value=0, max_value=q.LONGEST_US) | st.just(q.INFINITY))
def test_exact_duration_text_reads_back_the_same(value: int) -> None:
    assert q.parse_duration(q.duration_text(value)) == value


@given(st.floats(min_value=0.001, max_value=1e8))
def test_duration_for_people_is_right_to_its_smaller_unit(seconds: float) -> None:
    shown = q.parse_duration(q.format_duration(seconds)) / 1e6
    assert math.isclose(shown, seconds, rel_tol=0.06, abs_tol=0.0006)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0s"),
        (0.25, "250ms"),
        (0.9996, "1s"),
        (2.34, "2.3s"),
        (59.97, "1m"),
        (90, "1m30s"),
        (900, "15m"),
        (3599.7, "1h"),
        (5400, "1h30m"),
        (86399, "1d"),
        (200000, "2d8h"),
        (-5, "-5s"),
        (None, "unlimited"),
    ],
)
def test_duration_for_people(seconds: float | None, shown: str) -> None:
    assert q.format_duration(seconds) == shown


@pytest.mark.parametrize(("text", "weight"), [("1", 1), ("10000", 10000), (" 50 ", 50)])
def test_weight_is_1_to_10000(text: str, weight: int) -> None:  # K3
    assert q.parse_weight(text) == weight


@pytest.mark.parametrize("text", ["", "0", "-1", "10001", "1.5", "50%", "9" * 5000, "x", "²"])
def test_weight_outside_is_refused(text: str) -> None:  # K3
    with pytest.raises(q.QuantityError, match="a weight from 1 to 10000"):
        q.parse_weight(text)


def test_truth_values_are_systemds() -> None:
    assert all(q.parse_bool(word) for word in ("yes", "True", "1", "on"))
    assert not any(q.parse_bool(word) for word in ("no", "FALSE", "0", "off"))
    with pytest.raises(q.QuantityError, match="yes"):
        q.parse_bool("maybe")


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    for parse in (
        q.parse_size,
        q.parse_percent,
        q.parse_cpus,
        q.parse_duration,
        q.parse_weight,
        q.parse_bool,
    ):
        said = ""
        try:
            parse(text)
        except q.QuantityError as error:
            said = str(error)
        assert said.isprintable()


@pytest.mark.parametrize(
    ("text", "mib"),
    [("8G", 8192), ("500M", 500), ("1.5GiB", 1536), ("0", 0), ("1K", 1), ("1025K", 2), (" 1 T ", 1 << 20)],
)
def test_gpu_memory_is_whole_mib_never_less_than_said(text: str, mib: int) -> None:  # E1
    assert q.parse_mib(text) == mib


@pytest.mark.parametrize("text", ["", "8", "8000", "1e3", "-1G", "8GB", "infinity", "50%", "8x", "8E9E"])
def test_gpu_memory_without_a_unit_could_mean_anything(text: str) -> None:  # E1
    with pytest.raises(q.QuantityError) as caught:
        q.parse_mib(text)
    assert q.MIB_TEXT in str(caught.value)
    assert "infinity" not in str(caught.value) or text == "infinity"


@pytest.mark.parametrize(
    ("text", "number"), [("0", 0), ("-5", -5), ("+5", 5), (" 9 ", 9), ("-9", -9), ("-0", 0)]
)
def test_a_whole_number_may_be_negative(text: str, number: int) -> None:
    assert q.parse_integer(text, lowest=-9, highest=9, what="x") == number


@pytest.mark.parametrize(
    "text", ["", "-", "+", "--5", "- 5", "10", "-10", "5.0", "٣", "1" * 5000, "-" + "1" * 5000]
)
def test_what_is_no_whole_number_in_range_is_refused(text: str) -> None:
    with pytest.raises(q.QuantityError) as caught:
        q.parse_integer(text, lowest=-9, highest=9, what="a number")
    assert str(caught.value).startswith("expected a number, not ")
    assert len(str(caught.value)) < 100
