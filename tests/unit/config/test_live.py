"""Which properties of a running scope can be changed, and how their values read. Pure."""

from __future__ import annotations

import pytest

from slicer.config import live
from slicer.config.properties import NAMES, find, parse_property
from slicer.errors import UsageError
from slicer.model import Host
from slicer.quantity import INFINITY

HOST = Host((0, 1, 2, 3), 64 << 30)
# What systemd 252 and 257 refuse for a running scope: tried with systemctl set-property.
FIXED = {
    "RuntimeMaxSec", "TimeoutStopSec", "KillMode", "KillSignal", "SendSIGHUP", "SendSIGKILL", "OOMPolicy",
}  # fmt: skip


def wanted(*assignments: str, **given: str) -> dict[str, object]:
    return {item.name: item.value for item in live.wanted(assignments, given, HOST)}


def test_all_can_be_changed_but_what_systemd_refuses() -> None:  # X6
    assert set(NAMES) - set(live.CHANGEABLE) == FIXED


@pytest.mark.parametrize("name", sorted(FIXED))
def test_what_a_scope_keeps_is_refused_by_name_with_what_to_do(name: str) -> None:  # X6
    for assignment in (f"{name}=", f"{name}=1"):
        with pytest.raises(UsageError, match=f"{name} cannot be changed while the job runs") as caught:
            wanted("CPUWeight=5", assignment)
        assert caught.value.hint


@pytest.mark.parametrize("name", live.CHANGEABLE)
def test_every_other_can_be_put_back(name: str) -> None:  # X6
    (made,) = live.wanted([f"{name}="], {}, HOST)
    info = find(name)
    assert info is not None
    assert (made.dbus_name, made.value) == (info.dbus_name, live.unset_value(name))
    assert live.value_text(name, made.value) in ("", "infinity", "yes", "auto", "none")


def test_nothing_after_the_equals_sign_is_what_it_was_started_with() -> None:  # X6
    assert wanted("MemoryHigh=", "TasksMax=", MemoryHigh="1073741824") == {
        "MemoryHigh": 1 << 30, "TasksMax": INFINITY,
    }  # fmt: skip


def test_lists_add_up_and_the_last_of_others_counts() -> None:  # X6
    found = wanted("IODeviceWeight=/dev/a 20", "CPUWeight=3", "IODeviceWeight=/dev/b 30", "CPUWeight=4")
    assert found == {"IODeviceWeight": (("/dev/a", 20), ("/dev/b", 30)), "CPUWeight": 4}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("CPUQuota", "150%"), ("CPUQuota", "infinity"), ("CPUQuotaPeriodSec", "10ms"), ("CPUWeight", "idle"),
        ("CPUWeight", "20"), ("AllowedCPUs", "0-1,3"), ("MemoryHigh", "1536M"), ("MemoryMax", "infinity"),
        ("MemoryMin", "1M"), ("MemoryZSwapWriteback", "no"), ("TasksMax", "50"), ("IOWeight", "5"),
        ("IODeviceWeight", "/dev/sda 20"), ("IOReadBandwidthMax", "/dev/sda 10000000"),
        ("IODeviceLatencyTargetSec", "/dev/sda 25ms"), ("DevicePolicy", "closed"),
        ("DeviceAllow", "/dev/null rw"), ("ManagedOOMSwap", "kill"), ("ManagedOOMMemoryPressureLimit", "60%"),
        ("ManagedOOMPreference", "avoid"),
    ],
)  # fmt: skip
def test_a_value_reads_as_it_is_written(name: str, text: str) -> None:  # X6
    made = parse_property(name, text, HOST, "here")
    told = tuple(made.value) if isinstance(made.value, bytes) else made.value  # as D-Bus has it
    assert live.value_text(name, told) == text


FRAGMENT = """\
# This is a transient unit file, created programmatically via the systemd API. Do not edit.
[Unit]
Description=a MemoryHigh=3

[Scope]
Slice=cpu.slice
CPUQuota=200.00%
DeviceAllow=/dev/zero r
DeviceAllow=
DeviceAllow=/dev/null rw
DeviceAllow=char-pts r
AllowedCPUs=
AllowedCPUs=0-1
TasksMaxScale=10%
TimeoutStopSec=10s
"""


def test_a_transient_units_file_says_what_it_was_started_with() -> None:  # X6
    assert live.settings_of(FRAGMENT) == {
        "CPUQuota": "200.00%", "DeviceAllow": "/dev/null rw\nchar-pts r", "AllowedCPUs": "0-1",
        "TasksMax": "10%", "TimeoutStopSec": "10s",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("50-MemoryHigh.conf", "MemoryHigh"), ("/run/x/50-TasksMaxScale.conf", "TasksMax"),
        ("50-Nonsense.conf", ""), ("limits.conf", ""), ("50-MemoryHigh.conf.bak", ""),
        ("MemoryHigh.conf", ""),
    ],
)  # fmt: skip
def test_the_drop_ins_of_set_property_are_known(file: str, name: str) -> None:  # K6
    assert live.changed_name(file) == name
