"""A second try: a test of whole jobs that failed runs once more, and is unsteady if it passes then.

Such a test starts processes that race with each other and with all else on the machine. Among thousands, one
meets a moment that its author did not think of. That is a bug, in the test or in slicer, so the run reports
its first failure. But it should not hide the results of all others. More than MOST of them fail the run. Pure
tests have one try.
"""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol

MOST = 3
FIRST_FAILURE = "first failure"


class SecondTry:
    """Where tests run: gives them their second try, and adds the first failure to the reports."""

    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if item.nodeid.startswith("tests/unit/"):
            return None
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if first := failure(reports):
            again = runtestprotocol(item, log=False, nextitem=nextitem)
            if not failure(again):
                again[1].user_properties.append((FIRST_FAILURE, first))  # the call's report
                reports = again
        for report in reports:
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True


def failure(reports: list[pytest.TestReport]) -> str:
    return "\n".join(report.longreprtext for report in reports if report.failed)


class Unsteady:
    """Where the results arrive: lists those tests, and fails the ones after the first few."""

    def __init__(self) -> None:
        self._found: list[tuple[str, str]] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        first = dict(report.user_properties).get(FIRST_FAILURE)
        if first is None:
            return
        self._found.append((report.nodeid, str(first)))
        if len(self._found) > MOST:
            report.outcome = "failed"
            report.longrepr = f"{first}\nIt passed at its second try, but more than {MOST} tests needed one."

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._found:
            return
        terminalreporter.section("unsteady: these passed only at their second try")
        for nodeid, first in self._found:
            terminalreporter.section(nodeid, "_")
            terminalreporter.write_line(first)
