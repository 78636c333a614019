"""The side of the pytest that a ring runs: sends every report to the host as a record in standard output.

A record is a line `RECORD_START + JSON`; all else on standard output is what pytest and the tests print.
"""

from __future__ import annotations

import io
import json
import os

import pytest

RECORD_START = "\x1e"
REPORT_FD = 3
"""Standard output as it was before pytest captured it."""


class Reporter:
    """Writes {"started": nodeid} for a test, {"report": …} for each of its phases, {"finished": nodeid}."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        os.set_inheritable(REPORT_FD, False)
        # A file object of our own, as tests replace os.write and the like.
        self._out = io.FileIO(REPORT_FD, "wb", closefd=False)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write({"started": nodeid})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        data.pop("node", None)  # the worker that ran it, which pytest-xdist adds
        self._write({"report": data})

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._write({"finished": nodeid})

    def _write(self, record: dict[str, object]) -> None:
        # Reports may carry any object in user_properties; its text is enough for the host.
        data = f"{RECORD_START}{json.dumps(record, default=str)}\n".encode()
        while data:
            data = data[self._out.write(data) :]
