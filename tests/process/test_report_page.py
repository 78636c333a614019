"""The page of ``slicer report`` in a real browser (X8, U13)."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from slicer.outcome.series import Series
from slicer.report import figures
from slicer.report.model import Card, Job, Period, Report
from tests.browser import Page
from tests.patience import until
from tests.unit.report.jobs import job, series

pytest.importorskip("bokeh")

HOUR = 3600.0
NOW = 1_790_000_000.0
EVIL = "</script><img src=http://example.invalid/x onerror=document.title='evil'>$$x^2$$\\(y\\)"
CARDS = [Card(f"GPU-{number}", f"GPU {number}", 24576) for number in range(4)]
# Finds a canvas with the plots' coordinates. Plots are in shadow trees, which documents do not search.
_PLOT = "Bokeh.index.roots[0].child_views[0]"
_DRAWN = "document.documentElement.dataset.drawn === 'yes'"
_DATA = "Bokeh.documents[0].get_model_by_name('jobs').data"
_TEXT = """\
(() => {
    const found = [];
    const walk = (node) => {
        for (const each of node.querySelectorAll("*")) if (each.shadowRoot) {
            found.push(...[...each.shadowRoot.children].filter((one) => one.tagName !== "STYLE"));
            walk(each.shadowRoot);
        }
    };
    walk(document);
    return found.map((each) => each.textContent).join(" ") + "; images: " + found.flatMap(
        (each) => [...each.querySelectorAll("img")]).length;
})()"""
# How many pixels of the timeline have a colour.
_PIXELS = f"""\
(() => {{
    const canvas = {_PLOT}.canvas_view.primary.canvas, area = {_PLOT}.frame.bbox;
    const copy = new OffscreenCanvas(area.width, area.height).getContext("2d");
    copy.drawImage(canvas, -area.left, -area.top);
    const {{data}} = copy.getImageData(0, 0, area.width, area.height);
    let found = 0;
    for (let i = 0; i < data.length; i += 4)
        if (data[i] === RED && data[i + 1] === GREEN && data[i + 2] === BLUE && data[i + 3] === 255) found++;
    return found;
}})()"""


def made(count: int, *more: Job) -> Report:
    """A week of jobs of two users on four GPUs."""
    chance = random.Random(1)
    length = 7 * 24 * HOUR * len(CARDS) / max(count, 1)
    jobs, found = list(more), dict[str, Series]()
    for number in range(count):
        began = NOW - 7 * 24 * HOUR + number // len(CARDS) * length
        ended = began + length * chance.uniform(0.2, 0.9)
        id, uuid = f"{number:012x}", CARDS[number % len(CARDS)].uuid
        jobs.append(job(
            id, name=f"train-{number % 7}", user=("ada", "bob")[number % 2], gpus=(uuid,), began=began,
            ended=ended, waited_s=chance.expovariate(0.01), peak_mib=(chance.randrange(500, 9000),),
            cpu_slots=number % 3, ending="exit 1" if number % 10 == 0 else "ok",
        ))  # fmt: skip
        found[id] = series(began, (ended - began) / 4, busy=(10, 80, 90, 50), mib=(100, 900, 900, 900))
    period = Period(NOW - 7 * 24 * HOUR, NOW)
    return figures.made(jobs, CARDS, period, lambda ids: {id: found[id] for id in ids if id in found})


def shown(page: Page, directory: Path, report: Report) -> Path:
    """Show the report, whose plots are drawn when this returns."""
    from slicer.report import page as report_page

    place = directory / "report.html"
    place.write_text(report_page.made(report, f"report: {EVIL}"))
    page.go(f"file://{place}")
    assert until(lambda: page.errors or page.evaluate(_DRAWN), "the plots are drawn") is True
    return place


def pixels(page: Page, red: int, green: int, blue: int) -> int:
    expression = _PIXELS.replace("RED", str(red)).replace("GREEN", str(green)).replace("BLUE", str(blue))
    found: int = page.evaluate(expression)
    return found


def test_the_page_shows_the_data_without_an_error_or_a_request(page: Page, tmp_path: Path) -> None:  # X8
    report = made(200)
    place = shown(page, tmp_path, report)
    bars = page.evaluate(f"({{...{_DATA}, left: [...{_DATA}.left], right: [...{_DATA}.right]}})")
    assert bars["id"] == [report.jobs[bar.job].id for bar in report.bars]
    lengths = [(end - start) / 1000 for start, end in zip(bars["left"], bars["right"], strict=True)]
    assert lengths == pytest.approx([bar.ended - bar.began for bar in report.bars])
    assert page.evaluate(f"{_PLOT}.model.renderers.length") == 2
    rows = page.evaluate("[...document.querySelectorAll('tbody')].map((each) => each.rows.length)")
    tables = (report.memory, report.by_profile, report.by_user, report.endings)
    assert rows == [len(table) for table in tables]
    held = page.evaluate("Bokeh.index.roots[0].child_views[1].model.renderers[0].data_source.data.held")
    assert held == pytest.approx(list(report.over_time.gpus_held))
    assert (page.errors, page.requests) == ([], [f"file://{place}"])


def test_the_filter_leaves_only_the_chosen_jobs_in_the_timeline(page: Page, tmp_path: Path) -> None:  # X8
    shown(page, tmp_path, made(40))
    ada, bob = (0, 114, 178), (213, 94, 0)  # as in plots.COLOURS
    until(lambda: pixels(page, *ada) and pixels(page, *bob), "bars of both are drawn")
    page.evaluate(_chosen("user", "bob"))
    until(lambda: not pixels(page, *ada), "the others are gone")
    assert pixels(page, *bob)
    assert page.evaluate("document.getElementById('count').textContent") == "20 of 40 jobs with a GPU"
    page.evaluate(_chosen("ending", "exit 1"))
    assert page.evaluate("document.getElementById('count').textContent") == "0 of 40 jobs with a GPU"
    page.evaluate("document.querySelector('button[type=reset]').click()")
    page.until("document.getElementById('count').textContent === 'all 40 jobs with a GPU'")
    page.evaluate("document.forms.filter.elements.word.focus()")
    for letter in "train-3":
        page.press(letter, 0, letter)
    page.until("document.getElementById('count').textContent === '6 of 40 jobs with a GPU'")
    assert page.errors == []


def _chosen(field: str, value: str) -> str:
    list_ = f"document.forms.filter.elements.{field}"
    return f"{list_}.value = '{value}'; {list_}.dispatchEvent(new Event('input', {{bubbles: true}}))"


def test_a_job_is_told_in_words_whatever_it_is_called(page: Page, tmp_path: Path) -> None:  # S11, X8
    evil = job(
        "e" * 12, name=EVIL, user=EVIL, profile=EVIL, gpus=("$$x^2$$",), began=NOW - 100 * HOUR, ended=NOW,
        ending=EVIL,
    )  # fmt: skip
    place = shown(page, tmp_path, made(0, evil))
    left, top = page.evaluate(
        f"(() => {{ const box = {_PLOT}.el.getBoundingClientRect(), area = {_PLOT}.frame.bbox;"
        "return [box.left + area.left + area.width * 0.7, box.top + area.top + area.height * 0.9] })()"
    )
    page.evaluate(f"scrollTo(0, {top} - 200)")
    page.point(left, top - page.evaluate("scrollY"))
    said = until(lambda: _tooltip(page), "the job is told")
    assert EVIL in said
    assert "8.0G declared, peak 2.0G" in said
    assert said.endswith("images: 0")
    assert page.evaluate("document.querySelector('select[name=user]').options[1].text") == EVIL
    assert page.evaluate("document.title") == f"report: {EVIL}"
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert (page.errors, page.requests) == ([], [f"file://{place}"])


def _tooltip(page: Page) -> str:
    found: str = page.evaluate(_TEXT)
    return found if "8.0G declared" in found else ""


def test_wheel_and_drag_zoom_and_move_all_plots_together(page: Page, tmp_path: Path) -> None:  # X8
    shown(page, tmp_path, made(40))
    ranges = "Bokeh.index.roots[0].child_views.map(({model: {x_range}}) => x_range.end - x_range.start)"
    before = page.evaluate(ranges)
    x, y = page.evaluate(
        f"(() => {{ {_PLOT}.el.scrollIntoView(); const box = {_PLOT}.el.getBoundingClientRect();"
        "return [box.left + box.width / 2, box.top + 80] })()"
    )
    page.call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=-100, modifiers=2)
    after = until(lambda: (found := page.evaluate(ranges)) != before and found, "it is zoomed")
    assert len(set(after)) == 1
    assert after[0] < before[0]


def test_on_a_phone_nothing_is_wider_than_the_page(page: Page, tmp_path: Path) -> None:  # U13
    page.size(390, 844, is_phone=True)
    long = job("f" * 12, name="n" * 80, user="u" * 40, profile="p" * 80, began=NOW - HOUR, ended=NOW)
    shown(page, tmp_path, made(200, long))
    assert page.overflow() == []
    assert page.evaluate(f"{_PLOT}.el.getBoundingClientRect().right") <= 390
    assert page.evaluate(f"{_PLOT}.model.toolbar.gestures.pan.active") is None  # a drag scrolls the page
    assert page.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_in_light_and_in_dark(page: Page, tmp_path: Path, scheme: str) -> None:  # U13
    shown(page, tmp_path, made(20))
    page.prefer(scheme)
    back = _rgb(page, "getComputedStyle(document.body).backgroundColor")
    assert (sum(back) < 384) is (scheme == "dark")
    texts = [f"getComputedStyle(document.querySelector('{each}')).color" for each in ("body", ".note")]
    texts += [f"{_PLOT}.model.below[0].major_label_text_color", f"{_PLOT}.model.title.text_color"]

    def faint() -> list[str]:
        return [text for text in texts if _contrast(_rgb(page, text), back) < 4.5]

    until(lambda: not faint(), "all texts are readable")


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


def test_it_can_be_printed_and_is_as_before_afterwards(page: Page, tmp_path: Path) -> None:  # U13
    long = job("f" * 12, name="n" * 80, profile="p" * 20, began=NOW - HOUR, ended=NOW)
    shown(page, tmp_path, made(20, long))
    width = page.evaluate("plots.clientWidth")
    page.evaluate("addEventListener('beforeprint', () => { window.zoom = plots.style.zoom })")
    assert page.pdf().startswith(b"%PDF-")
    assert float(page.evaluate("window.zoom")) * width == pytest.approx(700)  # fits on paper
    assert page.evaluate("plots.style.zoom") == ""
    page.prefer("dark", medium="print")
    page.size(700, 1000)
    wide = "[...document.querySelectorAll('table')].filter((each) => each.offsetWidth > 700).length"
    assert page.evaluate(wide) == 0
    assert sum(_rgb(page, "getComputedStyle(document.body).backgroundColor")) == 3 * 255  # paper is white
    assert page.errors == []


def test_the_main_thing_can_be_read_without_a_script(page: Page, tmp_path: Path) -> None:  # U13
    from slicer.report import page as report_page
    from slicer.report.words import summary

    report = made(20)
    place = tmp_path / "report.html"
    place.write_text(report_page.made(report, "report"))
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    page.go(f"file://{place}")
    root = page.call("DOM.getDocument")["root"]["nodeId"]
    text = page.call("DOM.getOuterHTML", nodeId=root)["outerHTML"]
    for line in summary(report):
        assert f"<li>{line}</li>" in text
    assert text.count("<tbody>") == 4
    assert "<noscript>" in text


def test_the_browser_lets_no_other_script_run_and_nothing_out(page: Page, tmp_path: Path) -> None:  # S11
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


def test_a_report_without_jobs_is_a_page_without_plots(page: Page, tmp_path: Path) -> None:  # X8
    from slicer.report import page as report_page

    place = tmp_path / "report.html"
    place.write_text(report_page.made(made(0), "report"))
    page.go(f"file://{place}")
    assert "No job ran in this time." in page.evaluate("document.body.innerText")
    assert place.stat().st_size < 10_000
    assert page.errors == []


@pytest.mark.slow
def test_ten_thousand_jobs_are_drawn_and_filtered(page: Page, tmp_path: Path) -> None:  # X8
    began = time.monotonic()
    report = made(10_000)
    calculated = time.monotonic()
    place = shown(page, tmp_path, report)
    drawn = time.monotonic()
    page.evaluate(_chosen("user", "ada"))
    page.until("document.getElementById('count').textContent === '5,000 of 10,000 jobs with a GPU'")
    print(
        f"{place.stat().st_size / 1e6:.1f} MB; figures {calculated - began:.2f} s, page and plots "
        f"{drawn - calculated:.2f} s, filter {time.monotonic() - drawn:.2f} s"
    )
    assert page.evaluate(f"{_DATA}.id.length") == 10_000
    assert page.errors == []
