"""The times of --since and --until, in words."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from slicer.cli.common import since
from slicer.errors import UsageError
from slicer.moments import past

# As rules, not as names: a sandbox may have no list of time zones.
BERLIN = "CET-1CEST,M3.5.0,M10.5.0/3"
HAVANA = "CST5CDT,M3.2.0/0,M11.1.0/1"


@pytest.fixture(autouse=True)
def zone() -> Iterator[None]:
    """The tests' own time zone again, once a test has chosen one."""
    yield
    time.tzset()


def told(monkeypatch: pytest.MonkeyPatch, zone: str, now: str, text: str) -> str:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        found = past(text, datetime.fromisoformat(now).timestamp())
    finally:
        monkeypatch.undo()
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(found))


NOON = "2026-11-25 12:00:30"  # a Wednesday


# X8
@pytest.mark.parametrize(
    ("zone", "now", "text", "utc"),
    [
        ("UTC", NOON, "90", "2026-11-25 11:59:00"),
        ("UTC", NOON, "1d12h", "2026-11-24 00:00:30"),
        ("UTC", NOON, "1y", "2025-11-25 06:00:30"),
        ("UTC", NOON, "today", "2026-11-25 00:00:00"),
        ("UTC", NOON, " Yesterday", "2026-11-24 00:00:00"),
        ("UTC", NOON, "wednesday", "2026-11-25 00:00:00"),
        ("UTC", NOON, "monday", "2026-11-23 00:00:00"),
        ("UTC", NOON, "thursday", "2026-11-19 00:00:00"),
        ("UTC", NOON, "2026-11-20", "2026-11-20 00:00:00"),
        ("UTC", NOON, "2026-11-20 14:00", "2026-11-20 14:00:00"),
        ("UTC", NOON, "2026-11-20t14:00:05", "2026-11-20 14:00:05"),
        ("UTC", NOON, "2026-11-20 14:00+02:00", "2026-11-20 12:00:00"),
        ("JST-9", NOON, "2026-11-20 14:00", "2026-11-20 05:00:00"),
        # Around midnight, where the day is another one in UTC.
        ("UTC", "2026-03-01 00:00:00", "today", "2026-03-01 00:00:00"),
        ("UTC", "2026-02-28 23:59:59", "today", "2026-02-28 00:00:00"),
        ("UTC", "2028-03-01 00:00:00", "yesterday", "2028-02-29 00:00:00"),
        ("JST-9", "2026-11-25 00:00:00", "today", "2026-11-24 15:00:00"),
        ("EST5EDT,M3.2.0,M11.1.0", "2026-11-24 23:00:00", "today", "2026-11-24 05:00:00"),
        # Clocks that change: days of 23 and 25 hours, and times that are skipped or come twice.
        (BERLIN, "2026-03-29 12:00:00", "today", "2026-03-28 23:00:00"),
        (BERLIN, "2026-03-30 12:00:00", "yesterday", "2026-03-28 23:00:00"),
        (BERLIN, "2026-03-30 12:00:00", "today", "2026-03-29 22:00:00"),
        (BERLIN, "2026-03-30 12:00:00", "1d", "2026-03-29 10:00:00"),
        (BERLIN, "2026-10-26 12:00:00", "yesterday", "2026-10-24 22:00:00"),
        (BERLIN, NOON, "2026-03-29 02:30", "2026-03-29 01:30:00"),
        (BERLIN, NOON, "2026-10-25 02:30", "2026-10-25 00:30:00"),
        (HAVANA, "2026-03-08 15:00:00", "today", "2026-03-08 05:00:00"),  # it began at 1 o'clock
        (HAVANA, "2026-11-01 15:00:00", "today", "2026-11-01 04:00:00"),  # it has two midnights
    ],
)
def test_what_a_time_means(
    monkeypatch: pytest.MonkeyPatch, zone: str, now: str, text: str, utc: str
) -> None:
    assert told(monkeypatch, zone, now, text) == utc


@pytest.mark.parametrize(
    "text",
    ["", "x", "tomorrow", "mon", "-3d", "3x", "2026-13-01", "2026-11-31", "14:00", "0001-01-01", "9" * 999],
)
def test_anything_else_is_told_what_there_is(text: str) -> None:  # X8
    words = r'^--until: .*"7d".*yesterday.*monday.*2026-11-20 14:00'
    with pytest.raises(UsageError, match=words) as caught:
        since(text, "--until")
    assert len(str(caught.value)) < 250


def test_without_the_option_there_is_no_limit() -> None:
    assert since(None) is None
