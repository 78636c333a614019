"""Times that people name: when a job is to begin. (U7)"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from slicer.moments import coming, words

NOW = "2026-11-27 15:30"  # a Friday


@pytest.fixture(autouse=True)
def _in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("90m", "2026-11-27 17:00"),
        ("16:00", "2026-11-27 16:00"),
        ("8:05", "2026-11-28 08:05"),
        ("15:30", "2026-11-28 15:30"),  # not now
        ("22:00:30", "2026-11-27 22:00:30"),
        ("tomorrow", "2026-11-28 00:00"),
        ("Tomorrow 6:00", "2026-11-28 06:00"),
        ("today 23:00", "2026-11-27 23:00"),
        ("monday", "2026-11-30 00:00"),
        ("friday 16:00", "2026-11-27 16:00"),
        ("friday", "2026-12-04 00:00"),
        ("2026-12-24", "2026-12-24 00:00"),
        ("2026-12-24 18:00", "2026-12-24 18:00"),
        ("2026-12-24t18:00", "2026-12-24 18:00"),
    ],
)
def test_a_time_is_the_next_one_of_that_name(text: str, meant: str) -> None:
    assert coming(text, at(NOW)) == at(meant)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected"), ("soon", "expected"), ("25:00", "expected"), ("8", "expected"),
        ("8:0x", "expected"), ("infinity", "expected"), ("-5m", "expected"), ("monday soon", "expected"),
        ("x" * 99, "expected"), ("yesterday", "expected"), ("2026-11-20", "has passed"),
        ("today 8:00", "has passed"),
    ],
)  # fmt: skip
def test_what_is_no_coming_time_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        coming(text, at(NOW))
    assert len(str(caught.value)) < 220


def test_a_clock_time_of_a_day_that_skips_it_comes_a_little_later() -> None:
    assert coming("2:30", at("2026-03-29 00:00")) == at("2026-03-29 03:30")
    assert coming("2:30", at("2026-03-29 12:00")) == at("2026-03-30 02:30")


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("2026-11-27 22:00", "at 22:00"), ("2026-11-27 15:30:20", "at 15:30:20"),
        ("2026-11-28 06:00", "tomorrow at 06:00"), ("2026-12-03 08:00", "on Thursday at 08:00"),
        ("2026-12-04 08:00", "on 2026-12-04 at 08:00"),
    ],
)  # fmt: skip
def test_a_time_is_said_as_people_say_it(when: str, said: str) -> None:
    assert words(at(when), at(NOW)) == said
