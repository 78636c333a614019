"""systemd's resource properties as --set and profiles take them. (K3)"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.config import properties, property_names
from slicer.errors import ConfigError, SlicerError, UsageError
from slicer.model import Host, Property

HOST = Host(tuple(range(8)), 64 * 2**30)
INFINITY = 2**64 - 1
# What user@.service is given by default (``Delegate=pids memory cpu``). The device policy is an eBPF program,
# which the user manager may not load: it fails open there.
USER_CONTROLLERS = ("cpu", "memory", "pids", "")


def parsed(assignment: str) -> Property:
    name, text = properties.split_assignment(assignment, "--set")
    return properties.parse_property(name, text, HOST, "--set")


@pytest.mark.parametrize(
    ("assignment", "sent"),
    [
        ("CPUQuota=300%", ("CPUQuotaPerSecUSec", "t", 3_000_000)),
        ("CPUQuota=37.5%", ("CPUQuotaPerSecUSec", "t", 375_000)),
        ("CPUQuota=infinity", ("CPUQuotaPerSecUSec", "t", INFINITY)),
        ("CPUQuotaPeriodSec=10ms", ("CPUQuotaPeriodUSec", "t", 10_000)),
        ("CPUWeight=50", ("CPUWeight", "t", 50)),
        ("CPUWeight=idle", ("CPUWeight", "t", 0)),
        ("AllowedCPUs=0-3", ("AllowedCPUs", "ay", b"\x0f")),
        ("AllowedMemoryNodes=0,1", ("AllowedMemoryNodes", "ay", b"\x03")),
        ("MemoryMin=0", ("MemoryMin", "t", 0)),
        ("MemoryLow=1G", ("MemoryLow", "t", 2**30)),
        ("MemoryHigh=20G", ("MemoryHigh", "t", 20 * 2**30)),
        ("MemoryMax=8G", ("MemoryMax", "t", 8 * 2**30)),
        ("MemoryMax= 8G ", ("MemoryMax", "t", 8 * 2**30)),
        ("MemoryMax=50%", ("MemoryMax", "t", 32 * 2**30)),
        ("MemoryMax=infinity", ("MemoryMax", "t", INFINITY)),
        ("MemorySwapMax=0", ("MemorySwapMax", "t", 0)),
        ("MemoryZSwapMax=1G", ("MemoryZSwapMax", "t", 2**30)),
        ("MemoryZSwapWriteback=no", ("MemoryZSwapWriteback", "b", False)),
        ("TasksMax=500", ("TasksMax", "t", 500)),
        ("TasksMax=infinity", ("TasksMax", "t", INFINITY)),
        ("TasksMax=10%", ("TasksMaxScale", "u", 429_496_730)),
        ("IOWeight=20", ("IOWeight", "t", 20)),
        ("IODeviceWeight=/dev/sda 200", ("IODeviceWeight", "a(st)", (("/dev/sda", 200),))),
        ("IOReadBandwidthMax=/dev/sda 10M", ("IOReadBandwidthMax", "a(st)", (("/dev/sda", 10_000_000),))),
        (
            "IOWriteBandwidthMax=/dev/sda infinity",
            ("IOWriteBandwidthMax", "a(st)", (("/dev/sda", INFINITY),)),
        ),
        ("IOReadIOPSMax=/dev/sda 1K", ("IOReadIOPSMax", "a(st)", (("/dev/sda", 1000),))),
        ("IOWriteIOPSMax=/ 5", ("IOWriteIOPSMax", "a(st)", (("/", 5),))),
        (
            "IODeviceLatencyTargetSec=/dev/sda 25ms",
            ("IODeviceLatencyTargetUSec", "a(st)", (("/dev/sda", 25_000),)),
        ),
        ("DevicePolicy=closed", ("DevicePolicy", "s", "closed")),
        ("DeviceAllow=/dev/nvidia0 rw", ("DeviceAllow", "a(ss)", (("/dev/nvidia0", "rw"),))),
        ("DeviceAllow=char-pts", ("DeviceAllow", "a(ss)", (("char-pts", "rwm"),))),
        (
            "DeviceAllow=/dev/a r\n/dev/b w",
            ("DeviceAllow", "a(ss)", (("/dev/a", "r"), ("/dev/b", "w"))),
        ),
        ("OOMPolicy=kill", ("OOMPolicy", "s", "kill")),
        ("ManagedOOMSwap=kill", ("ManagedOOMSwap", "s", "kill")),
        ("ManagedOOMMemoryPressure=auto", ("ManagedOOMMemoryPressure", "s", "auto")),
        ("ManagedOOMMemoryPressureLimit=50%", ("ManagedOOMMemoryPressureLimit", "u", 2**31)),
        ("ManagedOOMPreference=omit", ("ManagedOOMPreference", "s", "omit")),
        ("RuntimeMaxSec=2h", ("RuntimeMaxUSec", "t", 7_200_000_000)),
        ("TimeoutStopSec=30", ("TimeoutStopUSec", "t", 30_000_000)),
        ("KillSignal=SIGINT", ("KillSignal", "i", 2)),
        ("KillSignal=term", ("KillSignal", "i", 15)),
        ("KillSignal=9", ("KillSignal", "i", 9)),
        ("KillMode=mixed", ("KillMode", "s", "mixed")),
        ("SendSIGHUP=yes", ("SendSIGHUP", "b", True)),
        ("SendSIGKILL=0", ("SendSIGKILL", "b", False)),
    ],
)
def test_property_is_sent_as_systemd_wants_it(assignment: str, sent: tuple[object, ...]) -> None:  # K3
    made = parsed(assignment)
    assert (made.dbus_name, made.signature, made.value) == sent
    assert f"{made.name}={made.text}" == assignment.replace("= ", "=").rstrip()


def test_every_row_of_the_table_is_tried_above() -> None:
    marks = test_property_is_sent_as_systemd_wants_it.pytestmark  # type: ignore[attr-defined]
    tried = {assignment.partition("=")[0] for assignment, _ in marks[0].args[1]}
    assert tried == set(properties.NAMES)


def test_profile_key_is_the_directive_in_snake_case() -> None:  # K3
    for name in properties.NAMES:
        info = properties.find(name)
        assert info is not None
        assert properties.find_key(info.key) == info
        spelled = "StopSignal" if name == "KillSignal" else name  # what it does to a scope with a keeper
        assert info.key.replace("_", "") == spelled.lower().removesuffix("sec")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("MemryMax", "did you mean MemoryMax?"),
        ("memorymax", "did you mean MemoryMax?"),
        ("memory_max", "did you mean MemoryMax?"),
        ("cpu_quota", "did you mean CPUQuota?"),
        ("Xyzzy", "systemd.resource-control(5)"),
        ("Nice", "use CPUWeight=50"),
        ("MemoryLimit", "use MemoryMax=8G"),
    ],
)
def test_unknown_property_names_the_nearest(name: str, hint: str) -> None:  # K3
    with pytest.raises(UsageError) as caught:
        parsed(f"{name}=1")
    assert hint in str(caught.value)


@pytest.mark.parametrize("name", sorted(property_names.RESERVED))
def test_what_slicer_decides_is_refused_with_the_reason(name: str) -> None:  # K1, K2
    with pytest.raises(UsageError, match=f"{name} cannot be set: "):
        parsed(f"{name}=x")


def test_reserved_names_are_not_in_the_table() -> None:
    assert not set(properties.NAMES) & {*property_names.RESERVED, *property_names.INSTEAD}


@pytest.mark.parametrize("text", ["MemoryMax", "=8G", "", " = "])
def test_set_without_name_and_value_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="PROPERTY=VALUE"):
        parsed(text)


def test_error_kind_and_label_are_the_callers() -> None:
    with pytest.raises(ConfigError, match=r"^/a\.toml:3: memory_max: expected a size"):
        properties.parse_property("MemoryMax", "x", HOST, "/a.toml:3", error=ConfigError, label="memory_max")


def test_cpus_that_the_machine_lacks_are_left_out() -> None:  # K3
    # The kernel refuses the whole list for one CPU too many, and systemd only logs it.
    small = Host((2, 3), 2**30)
    made = properties.parse_property("AllowedCPUs", "0-15", small, "")
    assert made.value == b"\x0c"
    assert made.text == "0-15"


def test_user_manager_cannot_enforce_cpuset_io_and_devices() -> None:  # K3, X1
    cannot = {n for n in properties.NAMES if properties.controller(n) not in USER_CONTROLLERS}
    assert {"AllowedCPUs", "AllowedMemoryNodes", "IOWeight", "DevicePolicy", "DeviceAllow"} <= cannot
    assert not {"CPUQuota", "CPUWeight", "MemoryMax", "TasksMax", "RuntimeMaxSec"} & cannot
    assert all(name.startswith(("Allowed", "IO", "Device")) for name in cannot)


@given(st.sampled_from(properties.NAMES), st.text(max_size=20))
def test_any_text_is_taken_or_refused_in_one_line(name: str, text: str) -> None:
    said = ""
    try:
        properties.parse_property(name, text, HOST, "--set")
    except SlicerError as error:
        said = str(error)
    assert said.isprintable()
