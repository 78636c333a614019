"""The pages of the live view: what fits, what is seen, and what is counted."""

from __future__ import annotations

import re

import pytest

from slicer.cli.live.page import page
from slicer.cli.live.view import Content, View, settled, step
from slicer.columns import CHOSEN, UNICODE, WARNING, cell_count
from slicer.record import replace
from tests.unit.cli.live.content import CONTENT, COPIES, JOBS, PAGES, UUIDS, VIEW, WAITING, text
from tests.unit.cli.made_up_status import IDLE


# W7: one line a GPU, all eight at 80x24; at 80x12 each section has rows, and what is not seen is counted
@pytest.mark.parametrize("name", COPIES)
def test_the_page_is_what_it_was(name: str) -> None:
    """On purpose? ``python -m tests.unit.cli.live.content`` writes the pages anew; read the difference."""
    assert COPIES[name]() == (PAGES / f"{name}.txt").read_text()


@pytest.mark.parametrize("width", [1, 2, 10, 40, 79, 80, 119, 120, 180, 200, 500])
@pytest.mark.parametrize("height", [1, 2, 5, 11, 12, 16, 24, 31, 60, 200])
@pytest.mark.parametrize("mode", ["rows", "filter", "stop", "help", "more"])
def test_a_page_fills_its_size_and_no_more(width: int, height: int, mode: str) -> None:  # W7
    lines = page(replace(VIEW, mode=mode), CONTENT, "", width, height, UNICODE)
    assert len(lines) <= height
    assert height < 12 or len(lines) == height  # so that nothing of the page before stays
    assert all(cell_count(line.text) <= width for line in lines)


def test_wherever_one_scrolls_the_chosen_row_is_seen_and_marked() -> None:  # W7
    for height in (12, 24, 50):
        view, seen = step(VIEW, "home", CONTENT, height)[0], []
        while not seen or seen[-1] != view.chosen:
            seen.append(view.chosen)
            [chosen] = [
                each for each in page(view, CONTENT, "", 80, height, UNICODE) if each.style == CHOSEN
            ]
            row = chosen.text.split()[1]
            assert view.chosen.startswith(row) or view.chosen == UUIDS[int(row)]
            assert cell_count(chosen.text) == 80
            view = step(view, "down", CONTENT, height)[0]
        assert len(seen) == len(UUIDS) + len(JOBS) + len(WAITING) + 1


def test_rows_seen_and_counted_are_all_rows() -> None:  # W7
    for height in (12, 14, 24, 50):
        shown = text(VIEW, 80, height)
        for kind, total, pattern in (
            ("GPUs", 8, r"^[▶ ] [0-7]  "), ("JOBS", 11, r"^[▶ ] \w+  (train|eval|note|render|sweep)"),
            ("WAITING", 31, r"^[▶ ] \w+  (big|report)"),
        ):  # fmt: skip
            rows = len(re.findall(pattern, shown, re.MULTILINE))
            head = re.search(rf"^{kind}.*?(?:(\d+)-(\d+)/)?(\d+)", shown, re.MULTILINE)
            assert head is not None
            if head[1]:
                assert (int(head[2]) - int(head[1]) + 1, int(head[3])) == (rows, total)


def test_a_filter_leaves_out_jobs_and_says_so() -> None:  # W7
    view = settled(replace(VIEW, filter="SWEEP-1"), CONTENT)
    shown = text(view, 80, 24)
    assert "JOBS 2 of 11" in shown
    assert "WAITING 0 of 31" in shown
    assert "GPUs: 1 of 8 free" in shown
    assert "filter: SWEEP-1 (Esc ends it)" in shown
    assert view.chosen == JOBS[9].job  # sweep-10
    assert "54322" not in text(settled(replace(VIEW, filter="54321"), CONTENT), 80, 24).partition("JOBS")[2]


def test_an_empty_machine_says_why() -> None:  # B3
    content = Content(IDLE, (), (), "host", 0, 0.0)
    shown = text(settled(View(), content), 80, 24, content)
    assert "No GPUs: there is no NVIDIA driver" in shown
    assert "No jobs are running." in shown
    assert "WAITING" not in shown


def test_names_of_others_cannot_draw_on_the_page() -> None:  # S11
    wild = "\x1b[2J\x1b]0;owned\x07\u202e\n"
    status = replace(
        CONTENT.status, leases=tuple(replace(each, name=wild, command=wild) for each in JOBS),
        tickets=tuple(replace(each, name=wild, command=wild) for each in WAITING),
    )  # fmt: skip
    content = replace(CONTENT, status=status, notes=(wild,), title=wild)
    for mode in ("rows", "stop", "more"):
        for line in page(replace(VIEW, mode=mode), content, wild, 200, 50, UNICODE):
            assert line.text.isprintable()


def test_many_warnings_leave_room_for_the_rest() -> None:
    content = replace(CONTENT, notes=tuple(f"warning {i}" for i in range(20)))
    shown = page(VIEW, content, "", 80, 24, UNICODE)
    assert [line.text for line in shown if line.style == WARNING and line.text.startswith("warning")] == [
        "warning 0", "warning 1", "warning 2", "warning 3 (16 more warnings: slicer status)"
    ]  # fmt: skip
    assert any(line.text.startswith("WAITING") for line in shown)
