"""What a user may ask of the system manager for a job: what restricts it, and nothing at others' cost."""

from __future__ import annotations

import pytest

from slicer.broker.client.backend import limits_of
from slicer.broker.rules import allowed, limits
from slicer.broker.rules.allowed import ALLOWED
from slicer.config.properties import NAMES, find, parse_property
from slicer.errors import RefusedError, UsageError
from slicer.job import scope
from slicer.model import Host, Property
from slicer.quantity import INFINITY
from tests.unit import made_up

HOST = Host(cpus=(0, 1, 2, 3), memory_bytes=16 << 30)


def told(*asked: tuple[str, str]) -> dict[str, object]:
    return {each.dbus_name: each.value for each in limits.checked(asked, HOST)}


def test_limits_that_restrict_go_to_systemd_as_a_profile_has_them() -> None:  # K2
    found = told(
        ("CPUQuota", "200%"), ("AllowedCPUs", "0-1"), ("MemoryMax", "50%"), ("IOWeight", "20"),
        ("TasksMax", "10"), ("IOReadBandwidthMax", "/dev/sda 10M; /dev/disk/by-id/x 5M"),
        ("KillSignal", "SIGINT"), ("KillMode", "mixed"), ("OOMPolicy", "kill"),
        ("RuntimeMaxSec", "1h"), ("TimeoutStopSec", "5m"),
    )  # fmt: skip
    assert found == {
        "CPUQuotaPerSecUSec": 2_000_000, "AllowedCPUs": b"\x03", "MemoryMax": 8 << 30, "IOWeight": 20,
        "TasksMax": 10, "IOReadBandwidthMax": (("/dev/sda", 10_000_000), ("/dev/disk/by-id/x", 5_000_000)),
        "KillSignal": 2, "KillMode": "mixed", "OOMPolicy": "kill",
        "RuntimeMaxUSec": 3_600_000_000, "TimeoutStopUSec": 300_000_000,
    }  # fmt: skip


def test_a_job_that_names_no_stop_timeout_has_ten_seconds_to_end() -> None:  # K2
    assert told(("CPUWeight", "idle")) == {"CPUWeight": 0, "TimeoutStopUSec": 10_000_000}


REFUSED = [
    ("MemoryMin", "1G", "take memory from others"),
    ("MemoryLow", "1G", "take memory from others"),
    ("IODeviceLatencyTargetSec", "/dev/sda 1ms", "slow down"),
    ("DeviceAllow", "/dev/nvidia0 rw", "which devices"),
    ("DevicePolicy", "auto", "which devices"),
    ("SendSIGKILL", "no", "has to end"),
    ("ManagedOOMPreference", "omit", "killed first"),
    ("Delegate", "yes", "cannot be set"),
    ("Slice", "system.slice", "cannot be set"),
    ("PIDs", "1", "cannot be set"),
    ("OOMScoreAdjust", "-1000", "a scope has no"),
    ("User", "root", "unknown"),
    ("ExecStart", "/bin/sh", "unknown"),
    ("OnFailure", "emergency.target", "unknown"),
    ("memory_max", "1G", "unknown"),
    ("CPUQuota ", "10%", "unknown"),
    ("", "", "unknown"),
    ("X" * 100_000, "1", "unknown"),
    ("TimeoutStopSec", "301", "may take 5m to end"),
    ("TimeoutStopSec", "infinity", "may take 5m to end"),
    ("TimeoutStopSec", "0", "infinity"),
    ("KillMode", "none", "expected one of"),
    ("KillMode", "process", "expected one of"),
    ("KillSignal", "0", "expected a signal"),
    ("MemoryMax", "NaN", "expected"),
    ("MemoryMax", "-1", "negative"),
    ("MemoryMax", "1" * 5000, "absurdly long"),
    ("AllowedCPUs", ",".join(["0-8191"] * 5000), "absurdly long"),
    ("IOReadBandwidthMax", "/home 10M", "not the name of a disk"),
    ("IOReadBandwidthMax", "/dev/shm/x 10M", "not the name of a disk"),
    ("IOReadBandwidthMax", "/dev/fd/3 10M", "not the name of a disk"),
    ("IOReadBandwidthMax", "/dev/sda 10M; /net/host/x 10M", "not the name of a disk"),
    ("IODeviceWeight", "/dev/disk/../shm/x 10", "expected an absolute path"),
    ("IODeviceWeight", "/proc/1/root/dev/sda 10", "not the name of a disk"),
]


@pytest.mark.parametrize(
    ("name", "text", "why"), REFUSED, ids=[f"{name[:20]}-{text[:20]}" for name, text, _ in REFUSED]
)
def test_whatever_else_is_refused_by_its_name(name: str, text: str, why: str) -> None:  # K2
    with pytest.raises(RefusedError, match=why) as error:
        limits.checked([(name, text)], HOST)
    assert name[:20] in str(error.value)


def test_a_new_property_of_slicers_is_refused_until_somebody_has_thought_about_it() -> None:  # K2
    refused = {name for name, _, _ in REFUSED}
    assert set(NAMES) == set(ALLOWED) | (refused & set(NAMES) - set(ALLOWED))


def test_root_may_ask_for_all_that_slicer_knows() -> None:  # K2
    asked = [
        ("DevicePolicy", "closed"), ("DeviceAllow", "/dev/fuse"), ("MemoryLow", "1G"),
        ("TimeoutStopSec", "infinity"), ("IOReadBandwidthMax", "/home 10M"),
    ]  # fmt: skip
    found = limits.checked(asked, HOST, is_roots=True)
    assert [each.name for each in found] == [name for name, _ in (*asked[1:], asked[0])]
    with pytest.raises(RefusedError, match="Delegate"):
        limits.checked([("Delegate", "yes")], HOST, is_roots=True)


def test_a_limit_is_said_once_and_not_many_are() -> None:  # K2
    with pytest.raises(RefusedError, match="each limit once"):
        limits.checked([("MemoryMax", "1G"), ("MemoryMax", "2G")], HOST)
    with pytest.raises(RefusedError, match="at most"):
        limits.checked([(f"X{n}", "") for n in range(41)], HOST)


def test_of_a_running_job_only_what_systemd_can_change_is_changed() -> None:  # K2
    found = limits.changes([("MemoryMax", "1G"), ("CPUQuota", ""), ("IODeviceWeight", "")], HOST)
    assert [(each.dbus_name, each.value) for each in found] == [
        ("MemoryMax", 1 << 30), ("CPUQuotaPerSecUSec", INFINITY), ("IODeviceWeight", ()),
    ]  # fmt: skip
    for fixed in ("RuntimeMaxSec", "TimeoutStopSec", "KillSignal", "OOMPolicy"):
        with pytest.raises(RefusedError, match=f"{fixed} cannot be changed"):
            limits.changes([(fixed, "")], HOST)
    with pytest.raises(RefusedError, match="MemoryLow"):
        limits.changes([("MemoryLow", "")], HOST)


@pytest.mark.parametrize(
    ("own", "most_s", "held_us"),
    [
        (None, None, None),
        (None, 60.0, 60_000_000),
        ("30s", 60.0, 30_000_000),
        ("90s", 60.0, 60_000_000),
        ("infinity", 60.0, 60_000_000),
        ("90s", None, 90_000_000),
    ],
)
def test_a_job_runs_as_long_as_it_and_the_administrator_allow(
    own: str | None, most_s: float | None, held_us: int | None
) -> None:  # L1
    asked = limits.checked([] if own is None else [("RuntimeMaxSec", own)], HOST)
    found = [each.value for each in limits.held_at_most(asked, most_s) if each.name == "RuntimeMaxSec"]
    assert found == ([] if held_us is None else [held_us])


def test_what_a_profile_says_arrives_as_it_was_said() -> None:  # K2
    said = limits.checked([("MemoryHigh", "25%"), ("IOWriteIOPSMax", "/dev/sda 100; /dev/sdb 50")], HOST)
    assert limits.checked(limits_of(said), HOST) == said


@pytest.mark.parametrize(
    ("name", "text"), [("CPUQuota", "10%"), ("TimeoutStopSec", "5m"), ("KillMode", "mixed")]
)
def test_what_cannot_be_refused_is_known_at_a_glance(name: str, text: str) -> None:  # K2
    assert allowed.are_plain(limits.checked([(name, text)], HOST))


@pytest.mark.parametrize(("name", "text", "why"), REFUSED)
def test_what_would_be_refused_is_never_taken_for_plain(name: str, text: str, why: str) -> None:  # K2
    try:
        made = parse_property(name, text, HOST, "here")
    except UsageError:
        return  # no profile can have it
    assert not allowed.are_plain([made]), why
    with pytest.raises(RefusedError, match=why):
        limits.check([made])


@pytest.mark.parametrize("timeout_s", [1.5, 60.0, 1_036_800.0, 1_234_567.8])
def test_a_time_limit_arrives_however_long_it_is(timeout_s: float) -> None:  # K3
    spec = scope.spec(made_up.profile(timeout_s=timeout_s), "system", "1", "", ("true",))
    told = limits_of(spec.properties)
    found = [each.value for each in limits.checked(told, HOST) if each.name == "RuntimeMaxSec"]
    assert found == [int(timeout_s * 1e6)]


def test_every_allowed_limit_has_its_row() -> None:  # K2
    assert all(find(name) is not None for name in ALLOWED)
    assert Property("TimeoutStopSec", "TimeoutStopUSec", "t", 10_000_000, "10s") in limits.checked([], HOST)
