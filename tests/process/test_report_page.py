"""The page of ``slicer report`` in a real browser (X8, U13)."""

from __future__ import annotations

import itertools
import random
import time
from pathlib import Path

import pytest

from slicer.outcome.series import Series
from slicer.report import figures
from slicer.report import page as report_page
from slicer.report.parts import Card, Period, Report, ReportedJob
from slicer.report.summary import summary
from tests.browser import Page
from tests.unit.report.jobs import job, series

HOUR = 3600.0
NOW = 1_790_000_000.0
EVIL = "</script></title><img src=http://example.invalid/x onerror=document.title='evil'>\"&amp;"
CARDS = [Card(f"GPU-{number}", f"GPU {number}", 24576) for number in range(4)]


def made(count: int, *more: ReportedJob, hours: int = 7 * 24) -> Report:
    """A week, or so many hours, of jobs of two users on four GPUs."""
    chance = random.Random(1)
    length = hours * HOUR * len(CARDS) / max(count, 1)
    jobs, found = list(more), dict[str, Series]()
    for number in range(count):
        began = NOW - hours * HOUR + number // len(CARDS) * length
        ended = began + length * chance.uniform(0.2, 0.9)
        id, uuid = f"{number:012x}", CARDS[number % len(CARDS)].uuid
        jobs.append(job(
            id, name=f"train-{number % 7}", user=("ada", "bob")[number % 2], gpus=(uuid,), began=began,
            ended=ended, waited_s=chance.expovariate(0.01), peak_mib=(chance.randrange(500, 9000),),
            cpu_slots=number % 3, ending="exit 1" if number % 10 == 0 else "ok",
        ))  # fmt: skip
        found[id] = series(began, (ended - began) / 4, busy=(10, 80, 90, 50), mib=(100, 900, 900, 900))
    period = Period(NOW - hours * HOUR, NOW)
    return figures.made(jobs, CARDS, period, lambda ids: {id: found[id] for id in ids if id in found})


def shown(page: Page, directory: Path, report: Report) -> Path:
    """Show the report."""
    place = directory / "report.html"
    place.write_text(report_page.made(report, f"report: {EVIL}"))
    page.go(f"file://{place}")
    return place


def test_the_page_shows_the_data_without_an_error_or_a_request(page: Page, tmp_path: Path) -> None:  # X8
    report = made(200)
    place = shown(page, tmp_path, report)
    drawn = page.evaluate(
        "[...document.querySelectorAll('.lane .held')].map(({x, width}) => "
        "[x, width].map((each) => each.baseVal.valueInSpecifiedUnits / 100))"
    )
    span = report.period.ended - report.period.began
    told = [((bar.began - report.period.began) / span, (bar.ended - bar.began) / span) for bar in report.bars]
    assert drawn == [pytest.approx(each, abs=1e-5) for each in told]
    rows = page.evaluate("[...document.querySelectorAll('tbody')].map((each) => each.rows.length)")
    tables = (report.memory, report.by_profile, report.by_user, report.endings)
    assert rows == [len(table) for table in tables]
    said = page.evaluate("document.body.innerText")
    assert all(line in said for line in summary(report))
    first = report.over_time
    told = f"{first.gpus_held[0]:.2f} held, {first.gpus_busy[0]:.2f} used"
    assert page.evaluate("document.querySelector('.chart title').textContent").endswith(told)
    assert (page.errors, page.requests) == ([], [f"file://{place}"])


def test_a_job_is_told_in_words_whatever_it_is_called(page: Page, tmp_path: Path) -> None:  # S11, X8
    evil = job(
        "e" * 12, name=EVIL, user=EVIL, profile=EVIL, gpus=(EVIL,), began=NOW - 100 * HOUR, ended=NOW,
        ending=EVIL,
    )  # fmt: skip
    place = shown(page, tmp_path, made(0, evil))
    said = page.evaluate("document.querySelector('.lane .failed title').textContent")
    assert said.count(EVIL) == 4
    assert "8.0G declared, peak 2.0G" in said
    assert page.evaluate("document.title") == f"report: {EVIL}"
    assert page.evaluate("document.querySelectorAll('img, script').length") == 0
    assert (page.errors, page.requests) == ([], [f"file://{place}"])


def test_the_browser_lets_no_script_run_and_nothing_out(page: Page, tmp_path: Path) -> None:  # S11
    place = shown(page, tmp_path, made(5))
    page.evaluate(
        "window.refused = []; addEventListener('securitypolicyviolation', "
        "(event) => refused.push(event.effectiveDirective))"
    )
    page.evaluate("fetch('http://example.invalid/').catch(() => null)")
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.ran = 1'}))"
    )
    page.until("refused.length >= 2")
    assert sorted(page.evaluate("refused")) == ["connect-src", "script-src-elem"]
    assert page.evaluate("window.ran") is None
    assert page.requests == [f"file://{place}"]


@pytest.mark.parametrize("hours", [1, 24, 7 * 24, 40 * 24, 365 * 24])
def test_nothing_is_wider_than_a_phone_and_no_two_times_overlap(
    page: Page, tmp_path: Path, hours: int
) -> None:  # U13
    page.size(390, 844, is_phone=True)
    long = job("f" * 12, name="n" * 80, user="u" * 40, profile="p" * 80, began=NOW - HOUR, ended=NOW)
    shown(page, tmp_path, made(60, long, hours=hours))
    assert page.overflow() == []
    places = page.evaluate(
        "[...document.querySelector('.axis svg').children].map((each) => each.getBoundingClientRect())"
        ".filter((each) => each.width).map(({left, right}) => [left, right])"
    )
    assert places
    assert all(one[1] < other[0] for one, other in itertools.pairwise(places))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_in_light_and_in_dark(page: Page, tmp_path: Path, scheme: str) -> None:  # U13
    shown(page, tmp_path, made(20))
    page.prefer(scheme)
    back = _rgb(page, "getComputedStyle(document.body).backgroundColor")
    assert (sum(back) < 384) is (scheme == "dark")
    colours = {"body": "color", ".note": "color", ".axis text": "fill"}
    texts = [f"getComputedStyle(document.querySelector('{each}')).{how}" for each, how in colours.items()]
    assert [text for text in texts if _contrast(_rgb(page, text), back) < 4.5] == []


def _rgb(page: Page, expression: str) -> list[int]:
    """A colour that may be written in any way, as the browser draws it."""
    found: list[int] = page.evaluate(
        "(() => { const drawn = document.createElement('canvas').getContext('2d');"
        f"drawn.fillStyle = {expression}; drawn.fillRect(0, 0, 1, 1);"
        "return [...drawn.getImageData(0, 0, 1, 1).data].slice(0, 3) })()"
    )
    return found


def _contrast(one: list[int], other: list[int]) -> float:
    """The contrast ratio of WCAG 2."""

    def luminance(colour: list[int]) -> float:
        parts = [each / 255 for each in colour]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_it_can_be_printed(page: Page, tmp_path: Path) -> None:  # U13
    long = job("f" * 12, name="n" * 80, profile="p" * 20, began=NOW - HOUR, ended=NOW)
    shown(page, tmp_path, made(20, long))
    assert page.pdf().startswith(b"%PDF-")
    page.prefer("dark", medium="print")
    page.size(700, 1000)
    wide = "[...document.querySelectorAll('table, svg')].filter((each) => each.clientWidth > 700).length"
    assert page.evaluate(wide) == 0
    assert sum(_rgb(page, "getComputedStyle(document.body).backgroundColor")) == 3 * 255  # paper is white


def test_a_report_without_jobs_is_a_page_without_plots(page: Page, tmp_path: Path) -> None:  # X8
    place = shown(page, tmp_path, made(0))
    assert "No job ran in this time." in page.evaluate("document.body.innerText")
    assert place.stat().st_size < 10_000


@pytest.mark.slow
def test_ten_thousand_jobs_are_drawn(page: Page, tmp_path: Path) -> None:  # X8
    began = time.monotonic()
    report = made(10_000)
    calculated = time.monotonic()
    place = shown(page, tmp_path, report)
    print(
        f"{place.stat().st_size / 1e6:.1f} MB; figures {calculated - began:.2f} s, page and plots "
        f"{time.monotonic() - calculated:.2f} s"
    )
    assert page.evaluate("document.querySelectorAll('.lane .held').length") == 10_000
    assert page.errors == []
