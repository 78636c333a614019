"""What the doctor says to do does mend it, on a machine where limits act."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import LONGEST_S

pytestmark = [pytest.mark.enforced, pytest.mark.with_ci]


@pytest.fixture
def restored() -> Iterator[None]:
    """The disks' schedulers, and rules for them, are as they were."""
    rules = Path("/etc/udev/rules.d")
    before = set(rules.glob("*"))
    schedulers = {path: path.read_text() for path in Path("/sys/block").glob("*/queue/scheduler")}
    yield
    for path, text in schedulers.items():
        active = text.partition("[")[2].partition("]")[0]
        if active:
            path.write_text(active)
    for rule in set(rules.glob("*")) - before:
        rule.unlink()


def examined() -> dict[str, Any]:
    done = subprocess.run(
        ["slicer", "doctor", "--json"], capture_output=True, text=True, timeout=LONGEST_S, check=False
    )
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.mark.usefixtures("restored")
def test_after_what_mends_it_io_weights_are_heeded() -> None:  # X10, D11
    (found,) = (each for each in examined()["findings"] if each["id"] == "io-weight-not-heeded")
    for line in found["mend"]:
        subprocess.run(["sh", "-c", line], check=True, timeout=LONGEST_S)
    said = examined()
    assert "io-weight-not-heeded" not in {each["id"] for each in said["findings"]}
    assert all("IOWeight" in each["enforced"] for each in said["profiles"] if each["profile"] != "gpu")
    assert said["well"], said["findings"]
