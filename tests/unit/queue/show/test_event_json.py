"""Events as JSON: what scripts may count on."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from slicer.queue.model import Event, EventKind, Status
from slicer.queue.show import event_json
from slicer.record import as_dict
from tests.unit.queue.show.test_event_text import NASTY, UNSEEN, event, row

DOCUMENT = Path(__file__).parents[4] / "docs" / "queue-events.md"


def read(one: Event) -> dict[str, Any]:
    line = event_json.encode(one)
    assert line.isascii()
    assert line.isprintable()
    found = json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert isinstance(found, dict)
    return found


def test_an_event_is_one_object_in_one_line() -> None:  # E8
    found = read(event("exceeds", row(name="a"), gpu=0, used_mib=9318, declared_mib=8192))
    job = found.pop("job")
    assert list(found) == ["v", "event", "at", "gpu", "used_mib", "declared_mib"]
    assert (found["v"], found["event"], found["at"]) == (1, "exceeds", 1_700_000_000.0)
    assert (job["no"], job["name"], job["gpus"], job["peak_mib"]) == (3, "a", [0], [17_613])
    assert job["exit_code"] is None  # it runs
    assert read(event("drained", watch=True))["job"] is None


def test_what_is_unknown_is_null() -> None:
    job = read(event("finished", row(status="ok", **UNSEEN)))["job"]
    assert [job[key] for key in ("name", "now_mib", "peak_mib", "utilisation", "note")] == [None] * 5
    assert (job["gpus"], job["exit_code"]) == ([], 0)


def test_rows_in_the_data_are_jobs_like_any_other() -> None:  # E12
    job = row(4, status="failed", exit_code=3)
    found = read(event("summary", counts={"failed": 1}, failed=[job], logs={4: "job0004.log"}))
    assert found["failed"] == [event_json.job_object(job)]
    assert found["counts"] == {"failed": 1}
    assert found["logs"] == {"4": "job0004.log"}


def test_no_data_takes_the_place_of_the_head() -> None:
    found = read(Event("notice", 1.0, None, {"event": "x", "v": 7, "at": 0, "job": "y", "text": "z"}))
    assert (found["event"], found["v"], found["job"], found["text"]) == ("notice", 1, None, "z")


@pytest.mark.parametrize(
    "value", [NASTY, float("nan"), float("inf"), (1, 2), {1: None}, {2, 1}, Path("a"), b"\xff"]
)
def test_any_value_makes_a_valid_line(value: object) -> None:
    read(event("notice", row(command=NASTY, utilisation=float("nan")), text=value))


def test_a_command_comes_back_as_it_was() -> None:
    assert read(event("started", row(command=NASTY)))["job"]["command"] == NASTY


def test_every_kind_field_and_status_is_documented() -> None:
    text = DOCUMENT.read_text()
    for kind in get_args(EventKind):
        assert re.search(rf"^\| `{kind}` \|", text, re.MULTILINE), kind
    for word in (*event_json.job_object(row()), *get_args(Status)):
        assert f"`{word}`" in text or f"`{word}[]`" in text, word
    assert len(event_json.job_object(row())) == len(as_dict(row()))
