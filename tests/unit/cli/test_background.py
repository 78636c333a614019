"""What a detached job leaves for others to read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from slicer.backend import shutdown
from slicer.cli import background
from slicer.outcome import job_files
from slicer.outcome.job_files import DetachedJob


@pytest.mark.parametrize(
    ("stops", "has_run", "why"),
    [
        (True, False, "the machine was shut down before it began"), (True, True, ""),
        (False, False, "the broker does not answer"),
    ],
)  # fmt: skip
def test_a_job_that_waited_at_a_shutdown_says_so(
    monkeypatch: pytest.MonkeyPatch, stops: bool, has_run: bool, why: str
) -> None:  # U1
    """The broker goes first, and so its error would be the reason that `show` and `wait` give."""
    monkeypatch.setattr(background, "has_systemd", lambda: True)
    monkeypatch.setattr(shutdown, "is_shutting_down", lambda manager: stops)
    written: list[DetachedJob] = []
    job: Any = object.__new__(background._Detached)
    job._file = job_files.new("0" * 12, "x", ("true",), "", "", after=())
    job._files = SimpleNamespace(write=written.append)
    job._is_ready, job._last = True, "the broker does not answer"
    job._end(143, has_run=has_run)
    assert [file.why for file in written] == [why]
