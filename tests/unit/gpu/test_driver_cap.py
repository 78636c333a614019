"""The limit of GPU memory that the driver keeps: for whom it can be asked."""

from __future__ import annotations

from typing import Any

import pytest

from slicer.gpu import driver_cap

FIT: dict[str, Any] = {"uid": 0, "has_scope": True, "root": "/sys/fs/cgroup"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"uid": 1000}, "only root may"),
        ({"has_scope": False}, "the job has no scope of its own"),
        ({"root": "/sys/fs/cgroup/unified"}, "no cgroup v2 hierarchy is mounted at /sys/fs/cgroup"),
        ({"root": None}, "no cgroup v2 hierarchy is mounted at /sys/fs/cgroup"),
    ],
)
def test_the_driver_is_asked_only_where_it_would_take_it(changes: dict[str, Any], why: str) -> None:  # X7
    assert driver_cap.obstacle(**{**FIT, **changes}) == why
