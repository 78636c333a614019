"""Fixtures of the process tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fake_nvml import FakeNvml
from tests.process.harness import Box, Gate
from tests.process.route_box import RouteBox


@pytest.fixture
def make_box(tmp_path: Path) -> Iterator[Callable[[int], Box]]:
    """Boxes with a given number of CPU slots, emptied at the end."""
    made: list[Box] = []

    def make(slots: int) -> Box:
        root = tmp_path / f"box{len(made)}"
        root.mkdir()
        made.append(Box(root, slots))
        return made[-1]

    yield make
    for box in made:
        box.close()


@pytest.fixture
def box(make_box: Callable[[int], Box]) -> Box:
    """A box with one CPU slot."""
    return make_box(1)


@pytest.fixture
def routes(tmp_path: Path) -> Iterator[RouteBox]:
    """A box for ``slicer route``."""
    root = tmp_path / "routes"
    root.mkdir()
    made = RouteBox(root)
    yield made
    made.close()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


@pytest.fixture
def second_gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "second-gate")


@pytest.fixture
def gpus(box: Box, fake_nvml: FakeNvml) -> FakeNvml:
    """Two idle GPUs that the box sees (for modules with the plugin tests.fake_nvml)."""
    box.env.update(fake_nvml.env)
    return fake_nvml
