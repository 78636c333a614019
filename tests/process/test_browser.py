"""What other tests rely on: the browser notices errors and requests of a page (U13)."""

from __future__ import annotations

from pathlib import Path

from tests.browser import Page
from tests.patience import until

_PAGE = """\
<!DOCTYPE html><meta charset="utf-8"><title>new</title>
<meta name="viewport" content="width=device-width">
<button onclick="document.title = 'clicked'">one</button>
<div style="overflow: auto"><p style="width: 2000px">scrolls</p></div>
"""
_BAD = """\
<img src="http://example.invalid/a.png"><p style="width: 2000px">wide</p>
<script>console.error("said"); setTimeout(() => { throw new Error("thrown") })</script>
"""


def test_a_good_page_has_no_errors_and_asks_for_nothing(page: Page, tmp_path: Path) -> None:
    place = tmp_path / "good.html"
    place.write_text(_PAGE)
    page.go(f"file://{place}")
    page.size(400, 800, is_phone=True)
    assert (page.errors, page.requests, page.overflow()) == ([], [f"file://{place}"], [])
    page.prefer("dark")
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    page.press("Tab", 9)
    page.press("Enter", 13, "\r")
    page.until("document.title === 'clicked'")
    assert page.pdf().startswith(b"%PDF-")


def test_errors_requests_and_overflow_of_a_bad_page_are_seen(page: Page, tmp_path: Path) -> None:
    place = tmp_path / "bad.html"
    place.write_text(_PAGE + _BAD)
    page.go(f"file://{place}")
    page.size(400, 800, is_phone=True)
    until(lambda: page.evaluate("document.title") and "thrown" in str(page.errors), "it throws")
    assert page.requests[1:] == ["http://example.invalid/a.png"]
    for part in ("said", "Error: thrown", "net::ERR"):
        assert any(part in each for each in page.errors), page.errors
    assert page.overflow()
