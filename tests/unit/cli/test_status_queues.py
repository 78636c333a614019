"""The running queues in `slicer status` and `slicer queue`."""

from __future__ import annotations

import re

import pytest

from slicer.cli.queue.rows import queue_json, running, section
from slicer.cli.status_json import status_json, without_clocks
from slicer.cli.status_text import lines
from slicer.columns import WARNING
from slicer.record import replace
from tests.unit.cli.made_up_status import FULL, IDLE, row_of
from tests.unit.cli.test_status_json import DOCS
from tests.unit.queue.control.test_messages import QUEUE

BUSY = replace(
    QUEUE, file="/a/b/jobs.txt", counts={"pending": 498, "running": 2, "ok": 10, "oom": 1}, eta_s=4000.0
)


# W10: a queue with 500 pending says so in one line
def test_a_queue_is_one_line_of_the_status() -> None:
    text = "".join(f"{line.text}\n" for line in lines(FULL, (), (BUSY,)))
    assert row_of(text, "/a/b/jobs.txt").split()[1:5] == ["2", "498", "10", "1"]
    assert "PENDING" not in "".join(line.text for line in lines(IDLE))


# W10
def test_what_keeps_a_queue_from_going_on_stands_below_it() -> None:
    (entry,) = section((replace(BUSY, warning="no room\x1b[2J"),), 10.0).entries
    assert [line.style for line in entry] == ["", WARNING]


# W10
def test_queues_for_scripts() -> None:
    told = queue_json(BUSY)
    assert (told["done"], told["failed"], told["left"], told["unit"]) == (10, 1, 4000.0, None)
    documented = set(re.findall(r"[a-z_]+", " ".join(re.findall("`[^`]+`", DOCS.read_text()))))
    assert set(told) <= documented
    later = replace(BUSY, eta_s=3000.0)
    one, other = (without_clocks(status_json(FULL, (), (queue,))) for queue in (BUSY, later))
    assert one == other


# U1: long names, 80 columns
def test_it_fits_into_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slicer.cli.output.is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    unit = "slicer-queue-01234567.service"
    long = replace(BUSY, file="/a/" + "f" * 200, log_dir="/b/" + "l" * 200, unit=unit)
    shown = section((long, BUSY), 1e9).lines
    assert max(len(line.text) for line in shown) <= 80
    assert "FAILED" in shown[0].text


def test_without_a_ledger_there_are_none(tmp_path: object) -> None:
    assert running("") == running(f"{tmp_path}/gone") == ()
