"""Fixtures of the tests of the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.config.machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)
