"""The fixtures of the systemd and enforced rings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.systemd.helpers.jobs import Slicer


@pytest.fixture
def slicer(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Slicer]:
    """``slicer run`` for one test, which fails when anything of its jobs is left at its end."""
    if "SLICER_TEST_MACHINE" not in os.environ:
        pytest.fail("this test starts jobs over the system's ledger: only for test machines")
    made = Slicer(tmp_path)
    yield made
    try:
        made.check_nothing_left()
    finally:
        made.clean_up()
