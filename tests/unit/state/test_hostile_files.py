"""What others may have written, and everything that reads it: whole and sane, or refused; nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.model import Lease, Ticket, Usage
from slicer.record import replace
from slicer.state import statefile
from slicer.state.statefile import TornFile
from tests.soak import fuzz
from tests.soak.fuzz import HOSTILE, LEASE, TARGETS, TICKET, UNIT

pytestmark = pytest.mark.both_pythons

READERS = pytest.mark.parametrize("reader", TARGETS)
# ``check`` raises where a reader fails otherwise than it says, or accepts what cannot be.


@READERS
def test_a_good_file_is_accepted(reader: str) -> None:
    target = TARGETS[reader]
    assert all(map(target.check, target.good))


# S7, S3, D6
@READERS
@given(data=st.binary(max_size=300))
def test_noise_does_no_harm(reader: str, data: bytes) -> None:
    TARGETS[reader].check(data)


# S7, S3, D6
@READERS
@given(pick=st.data())
def test_a_good_file_that_was_changed_does_no_harm(reader: str, pick: st.DataObject) -> None:
    target = TARGETS[reader]
    data = pick.draw(st.sampled_from(target.good))
    begin, end = sorted(pick.draw(st.tuples(*[st.integers(0, len(data))] * 2)))
    target.check(data[:begin] + pick.draw(st.binary(max_size=40)) + data[end:])


# S7, S3, D6
@READERS
@pytest.mark.parametrize("said", HOSTILE, ids=lambda said: repr(said[:24]))
def test_no_field_can_be_made_to_say_something_harmful(reader: str, said: bytes) -> None:
    target = TARGETS[reader]
    for good in target.good:
        for separator in (b"\n", b"-"):
            lines = good.split(separator)
            for index, line in enumerate(lines):
                key, is_field, _ = line.partition(b"=")
                changed = key + is_field + said if is_field else said
                target.check(separator.join((*lines[:index], changed, *lines[index + 1 :])))


def changed(good: bytes, field: str, said: str) -> bytes:
    lines = good.decode().split("\n")
    (index,) = [number for number, line in enumerate(lines) if line.startswith(f"{field}=")]
    lines[index] = f"{field}={said}"
    return "\n".join(lines).encode("utf-8", "surrogateescape")


# S7, S3, D6: each of these was believed once
@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("JOB", "../../lock"), ("JOB", "0123456789AB"), ("JOB", ""), ("PID", "9" * 4200), ("PID", "-1"),
        ("PID", str(10**30)), ("PID", str(2**22 + 1)), ("KEEPER", "-50"), ("UID", str(2**32 - 1)),
        ("BOOT_ID", "b"), ("BACKEND", "docker"), ("MANAGER", "root"), ("UNIT", "ssh.service"), ("UNIT", "\0"),
        ("UNIT", f"slicer-{fuzz.OTHER}.scope"), ("CGROUP", "/"), ("CGROUP", "/system.slice/ssh.service"),
        ("CGROUP", f"/gpu.slice/slicer-{fuzz.OTHER}.scope"), ("CGROUP", f"/../../tmp/{UNIT}"),
        ("CGROUP", f"/gpu.slice/./{UNIT}"), ("CGROUP", f"//{UNIT}"), ("CGROUP", UNIT),
        ("CGROUP", f"/a\0b/{UNIT}"), ("CGROUP", f"/a\\0b/{UNIT}"), ("CGROUP", f"/{'x' * (1 << 19)}/{UNIT}"),
        ("GPUS", "../GPU-a"), ("GPUS", "GPU-a,,GPU-b"), ("GPUS", "x" * 81), ("VRAM_MIB", "-50"),
        ("VRAM_PEAK_MIB", "9000,-1"), ("VRAM_PEAK_MIB", ","), ("SLOTS", "cpu=-50"),
        ("SLOTS", f"cpu={10**18}"), ("SLOTS", "cpu=0"), ("SLOTS", "cpu=1,cpu=1"), ("SLOTS", "cpu=01"),
        ("SLOTS", "../cpu=1"), ("SLOTS", "cpu"), ("SLOTS", "=1"), ("SLOTS", "b=1,a=1"), ("SLOTS", ".a=1"),
        ("SLOTS", f"{'x' * 65}=1"), ("SLOTS", "\u0661=1"), ("SLOTS", "a b=1"),
        ("PRIORITY", "101"), ("FORCED", "2"), ("SINCE_S", "nan"), ("SINCE_S", "-inf"), ("SINCE_S", "-1.0"),
        ("EXPECT_S", "inf"), ("EXPECT_S", "1e999"),
    ],
    ids=lambda text: repr(text[:24]),
)  # fmt: skip
def test_what_no_lease_says_makes_it_none(field: str, said: str) -> None:
    with pytest.raises(TornFile, match="bad lease file"):
        statefile.decode(Lease, changed(statefile.encode(LEASE), field, said))


# S7, D6
@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("JOB", "lock"), ("INSIDE", "ba9876543210,.."), ("PID", "-1"), ("PRIORITY", "-102"), ("GPUS", "-1"),
        ("ARRIVED_S", "nan"), ("ARRIVED_S", "-0.5"), ("GPU_CHOICE", "GPU-a,"), ("VRAM_MIB", "9" * 4200),
        ("MARGIN_MIB", "-1"), ("SLOTS", "cpu=-1"), ("SLOTS", "other=1"), ("SLOT_LIMITS", "cpu=" + "9" * 19),
        ("SLOT_LIMITS", ""), ("EXPECT_S", "nan"),
    ],
    ids=lambda text: repr(text[:24]),
)  # fmt: skip
def test_what_no_ticket_says_makes_it_none(field: str, said: str) -> None:
    with pytest.raises(TornFile, match="bad ticket file"):
        statefile.decode(Ticket, changed(statefile.encode(TICKET), field, said))


# S7
def test_a_text_for_people_may_say_anything() -> None:
    for text in ("x" * (1 << 18), "../..", "-50", "nan", "a\0b", "SLICER_LEASE=1"):
        lease = replace(LEASE, name=text, command=text)
        assert statefile.decode(Lease, statefile.encode(lease)) == lease


# D6
@pytest.mark.parametrize("said", ["nan", "inf", "9" * 4200, "1.5s", "\0"])
def test_a_figure_that_is_none_makes_the_usage_none(said: str) -> None:
    with pytest.raises(TornFile):
        statefile.decode(Usage, changed(statefile.encode(Usage(cpu_s=1.0)), "CPU_S", said))
