"""The slices of users' jobs: where they are, and which limits they take over from the slice of the login."""

from __future__ import annotations

from typing import Any

import pytest

from slicer.broker.rules import units
from slicer.broker.server import slice_limits
from slicer.quantity import INFINITY


@pytest.mark.parametrize(
    ("slice_name", "above", "cgroup"),
    [
        ("gpu-1001.slice", "", "/gpu.slice/gpu-1001.slice/slicer-x.scope"),
        ("cpu-0.slice", "", "/_cpu.slice/cpu-0.slice/slicer-x.scope"),  # systemd's own escape
        ("gpu-7.slice", "/lxc/a", "/lxc/a/gpu.slice/gpu-7.slice/slicer-x.scope"),
    ],
)
def test_the_cgroup_of_a_scope_is_known_before_it_stands(
    slice_name: str, above: str, cgroup: str
) -> None:  # L1
    assert units.cgroup_of(slice_name, "slicer-x.scope", above) == cgroup


UNSET: dict[str, Any] = {
    "MemoryMax": INFINITY, "TasksMax": INFINITY, "AllowedCPUs": b"", "IOReadBandwidthMax": (),
}  # fmt: skip


@pytest.mark.parametrize(
    ("login", "jobs", "copied", "changes"),
    [
        ({}, {}, {}, {}),
        ({"MemoryMax": 5, "AllowedCPUs": b"\x01"}, {}, {}, {"MemoryMax": 5, "AllowedCPUs": b"\x01"}),
        ({"MemoryMax": 5}, {"MemoryMax": 5}, {"MemoryMax": "5"}, {}),
        ({"MemoryMax": 6}, {"MemoryMax": 5}, {"MemoryMax": "5"}, {"MemoryMax": 6}),  # it was changed since
        ({}, {"MemoryMax": 5}, {"MemoryMax": "5"}, {"MemoryMax": INFINITY}),  # and taken back
        ({"MemoryMax": 5}, {"MemoryMax": 9}, {}, {}),  # the administrator gave the jobs another
        ({"MemoryMax": 5}, {"MemoryMax": 9}, {"MemoryMax": "5"}, {}),  # and after we had copied
        ({"IOReadBandwidthMax": (("/dev/sda", 1),)}, {}, {}, {"IOReadBandwidthMax": (("/dev/sda", 1),)}),
        ({"MemoryLow": 5, "DevicePolicy": "strict"}, {}, {}, {}),  # no limits of a job's use
    ],
)
def test_a_users_limits_follow_its_jobs_but_for_what_the_administrator_set_there(
    login: dict[str, Any], jobs: dict[str, Any], copied: dict[str, str], changes: dict[str, Any]
) -> None:  # L1
    assert slice_limits.changes({**UNSET, **login}, {**UNSET, **jobs}, copied) == changes


def test_what_was_copied_is_remembered_until_it_is_taken_back() -> None:  # L1
    before = {"MemoryMax": "5", "TasksMax": "7"}
    assert slice_limits.remembered({"MemoryMax": 6, "TasksMax": INFINITY}, before) == {"MemoryMax": "6"}


def test_an_older_systemd_has_fewer_limits() -> None:  # L1
    assert slice_limits.changes({"MemoryMax": 5}, {}, {}) == {}
