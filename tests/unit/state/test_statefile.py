"""Lease and ticket files: read back exactly as written, and never half."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.broker.protocol.messages import Finished
from slicer.broker.server.lease_files import Claim
from slicer.errors import UsageError
from slicer.gpu.sim.usage import Use
from slicer.job.job import Started
from slicer.job.report import KeeperReport
from slicer.model import Lease, Ticket, Usage
from slicer.record import replace
from slicer.state import statefile
from slicer.state.standings import ServerStanding
from slicer.state.statefile import TornFile
from slicer.wrap.terms import Wrap
from tests.unit import made_up

pytestmark = pytest.mark.both_pythons

BOOT_ID = "0b6f6b0c-1111-2222-3333-444455556666"
LEASE = Lease(
    job="0123456789ab", name="train", command="python3 train.py", pid=42, pid_start=4711, keeper=43,
    boot_id=BOOT_ID, uid=1000, backend="systemd", manager="user", unit="slicer-0123456789ab.scope",
    cgroup="/user.slice/slicer-0123456789ab.scope", gpus=("GPU-a", "GPU-b"), vram_mib=8192,
    vram_peak_mib=(9000, 0), slots={"cpu": 2}, priority=3, forced=0, since_s=12.5, expect_s=None,
)  # fmt: skip
TICKET = made_up.ticket(
    "0123456789ab", boot_id=BOOT_ID, inside=("aaaaaaaaaaaa",), gpu_choice=("GPU-a",), gpus=1, vram_mib=1024
)

# What argv can hold: any bytes but NUL, as Python shows them.
TEXTS = st.binary(max_size=40).filter(lambda data: b"\0" not in data).map(os.fsdecode)
SECONDS = st.floats(0, 2**40)
# What systemd calls slices and scopes: printable, without "/".
CHARACTERS = st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="/")
PARTS = st.text(CHARACTERS, min_size=1).filter(lambda part: part not in (".", ".."))


@given(
    name=TEXTS, command=TEXTS, above=st.lists(PARTS, max_size=4), since=SECONDS, expect=st.none() | SECONDS,
    pid=st.integers(0, 2**22),
)  # fmt: skip
def test_a_lease_reads_back_as_written(**drawn: Any) -> None:
    lease = replace(
        LEASE, name=drawn["name"], command=drawn["command"],
        cgroup="/".join(("", *drawn["above"], LEASE.unit)), since_s=drawn["since"], expect_s=drawn["expect"],
        pid=drawn["pid"],
    )  # fmt: skip
    assert statefile.decode(Lease, statefile.encode(lease)) == lease


@given(name=TEXTS, priority=st.integers(-100, 100), arrived=SECONDS)
def test_a_ticket_reads_back_as_written(name: str, priority: int, arrived: float) -> None:
    ticket = replace(TICKET, name=name, priority=priority, arrived_s=arrived)
    assert statefile.decode(Ticket, statefile.encode(ticket)) == ticket


@pytest.mark.parametrize(
    "name",
    ["", " ", "\n", "\\", "\\n", "\\\\n", "\\\n", "a\nEND=\n", "a\nPID=1", "=", "é", "\udcff", "\r",
     "\x1b[31m", "\x85", "\u2028", "a\0b", "\\0", "\0"],
)  # fmt: skip
def test_hostile_names_stay_what_they_are(name: str) -> None:
    lease = replace(LEASE, name=name, command=name)
    data = statefile.encode(lease)
    assert statefile.decode(Lease, data) == lease
    # The keeper's pipe separates its messages by NUL.
    assert b"\0" not in data


KINDS: list[Any] = [
    LEASE, TICKET, Usage(cpu_s=1.0), KeeperReport(1, "exited"), Started("/gpu.slice", 1.0, 1.0, 1.0),
    Use(7, 8, 9, ("GPU-a",), (1,)), Wrap("/x", "/x-real", "r", "/slicer", "wrap", 1, 2, 3, "", "", 1.0),
    Claim("0123456789ab", "true", "scope", 1, 1.0, (7,), ("aaaaaaaaaaaa",), "gpu", 1.0, 1024),
    Finished("0123456789ab", "exited", 0, 1.0, 1.0, 1.0, 1024, (9000,)),
    ServerStanding("model", "raw", ("127.0.0.1:1",), "ready", 1.0, 1, 2, None, "0123456789ab", "", 7),
]  # fmt: skip
ANYTHING: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers() | st.booleans(),
    "float": st.floats() | st.integers(),
    "tuple": st.lists(TEXTS | st.sampled_from(["", ",", "GPU-a", "GPU-a,GPU-b"]) | st.integers()).map(tuple),
    "dict": st.dictionaries(TEXTS | st.sampled_from(["cpu", "a=1", "a,b"]), st.integers() | st.booleans()),
    "str": TEXTS | st.sampled_from(["\ud800", "x" * (1 << 20), "cpu", "plain"]),
}


def kind_of(annotation: str) -> str:
    return next((kind for kind in ANYTHING if annotation.startswith(kind)), "str")


# D17: what nobody can read back holds nothing
@pytest.mark.parametrize("good", KINDS, ids=lambda good: type(good).__name__)
@given(pick=st.data())
def test_what_can_be_written_down_can_be_read_back(good: Any, pick: st.DataObject) -> None:
    field = pick.draw(st.sampled_from(good.__fields__))
    drawn = pick.draw(ANYTHING[kind_of(type(good).__annotations__[field])] | st.none())
    made = replace(good, **{field: drawn})
    try:
        data = statefile.encode(made)
    except UsageError:
        return
    assert statefile.decode(type(good), data) == made


# D17
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("expect_s", 1e13), ("expect_s", math.inf), ("name", "x" * 1_200_000), ("name", "\ud800"),
        ("gpus", ("",)), ("gpus", ("GPU-a,GPU-b",)), ("slots", {"cpu": True}), ("pid", -1), ("priority", 101),
    ],
    ids=lambda value: repr(value)[:24],
)  # fmt: skip
def test_what_nobody_could_read_back_is_refused(field: str, value: Any) -> None:
    with pytest.raises(UsageError, match="the lease cannot be written: "):
        statefile.encode(replace(LEASE, **{field: value}))


@pytest.mark.parametrize("gpus", [(), ("GPU-a",), ("GPU-a", "GPU-b")])
def test_lists_read_back_as_written(gpus: tuple[str, ...]) -> None:
    lease = replace(LEASE, gpus=gpus)
    assert statefile.decode(Lease, statefile.encode(lease)) == lease


@pytest.mark.parametrize("value", [Usage(), Usage(1.5, oom_kills=0, memory_peak_bytes=2**62)])
def test_missing_figures_stay_missing(value: Usage) -> None:
    assert statefile.decode(Usage, statefile.encode(value)) == value


@pytest.mark.parametrize("value", [LEASE, TICKET, replace(LEASE, name="é\n\\"), Usage(cpu_s=1.0)])
def test_torn_at_any_byte_is_told(value: Any) -> None:
    data = statefile.encode(value)
    for length in range(len(data)):
        with pytest.raises(TornFile):
            statefile.decode(type(value), data[:length])
    assert statefile.decode(type(value), data) == value


WHOLE = statefile.encode(LEASE)


@pytest.mark.parametrize(
    "data",
    [
        WHOLE.replace(b"SLICER_LEASE=1\n", b"SLICER_LEASE=2\n"),
        WHOLE.replace(b"SLICER_LEASE=1\n", b""),
        statefile.encode(TICKET),
        WHOLE.replace(b"PID=42\n", b"PID=forty-two\n"),
        WHOLE.replace(b"PID=42\n", b"PID=\n"),
        WHOLE.replace(b"PID=42\n", b""),
        WHOLE.replace(b"SINCE_S=12.5\n", b"SINCE_S=soon\n"),
        WHOLE.replace(b"PID=42\n", b"PID=" + b"9" * 5000 + b"\n"),
        WHOLE + b"more",
        WHOLE + WHOLE,
        WHOLE[1:],
        b"",
        b"\n",
        b"\0" * 100,
        b"\xff" * 100,
        b"END=\n",
    ],
    ids=lambda data: repr(data[:24]),
)
def test_anything_else_is_no_lease(data: bytes) -> None:
    with pytest.raises(TornFile):
        statefile.decode(Lease, data)


@given(st.binary(max_size=200))
def test_noise_is_no_lease_and_no_crash(data: bytes) -> None:
    with pytest.raises(TornFile):
        statefile.decode(Lease, data)


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_a_changed_byte_gives_a_lease_or_a_torn_file(position: int, byte: int) -> None:
    data = WHOLE[:position] + bytes([byte]) + WHOLE[position + 1 :]
    try:
        found = statefile.decode(Lease, data)
    except TornFile:
        return
    assert isinstance(found.pid, int)
    assert isinstance(found.since_s, float)
