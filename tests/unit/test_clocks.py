"""The ledger knows no time of day: a clock that is set, by hand or by NTP, changes no decision or wait."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest

import slicer
from slicer.kernel import proc

# All that decides who is next, waits for it, or writes it down for others to decide by.
SOURCE = Path(slicer.__file__).parent
TIMELESS = [
    str(path.relative_to(SOURCE))
    for folder in ("ledger", "placement", "gpu", "state")
    for path in sorted((SOURCE / folder).rglob("*.py"))
] + ["kernel/proc.py"]
WALL_CLOCK = {
    "CLOCK_REALTIME", "CLOCK_TAI", "ctime", "datetime", "gmtime", "localtime", "strftime", "time_ns", "utime",
}  # fmt: skip


def wall_clock_uses(source: str) -> list[int]:
    """The lines in which the source asks for the time of day."""
    found = []
    tree = ast.parse(source)
    stamped = [
        node.func
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and any(each.arg == "ns" for each in node.keywords)
    ]
    for node in ast.walk(tree):
        if node in stamped:
            continue  # utime with a time of the caller's: that one is looked at itself
        if isinstance(node, ast.Attribute):
            is_time = isinstance(node.value, ast.Name) and (node.value.id, node.attr) == ("time", "time")
            if is_time or node.attr in WALL_CLOCK:
                found.append(node.lineno)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.name for alias in node.names}
            if names & WALL_CLOCK or (isinstance(node, ast.ImportFrom) and node.module == "time"):
                found.append(node.lineno)
    return found


# X4: clocks that jump
@pytest.mark.parametrize("name", TIMELESS)
def test_nothing_in_the_ledger_uses_the_time_of_day(name: str) -> None:
    source = (SOURCE / name).read_text()
    assert wall_clock_uses(source) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time()",
        "from time import time",
        "import datetime",
        "time.clock_gettime(time.CLOCK_REALTIME)",
        "os.utime(fd)",
        "os.utime(fd, ns=(time.time_ns(), 0))",
    ],
)
def test_a_use_of_the_time_of_day_would_be_found(source: str) -> None:
    assert wall_clock_uses(source)


# X4: suspended time counts too, and the clock is the same in all processes
def test_the_ledgers_clock_is_the_time_since_boot() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= proc.now_s() <= time.clock_gettime(time.CLOCK_BOOTTIME)
