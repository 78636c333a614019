"""A ticket's file name tells its place and what it wants; its bell wakes its owner and nobody else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.errors import StateError
from slicer.ledger import tickets
from slicer.model import Request
from slicer.record import as_dict, replace
from slicer.state.directory import Directory
from tests.unit import made_up

pytestmark = pytest.mark.both_pythons

JOBS = st.text("0123456789abcdef", min_size=12, max_size=12)
SLOT_NAMES = st.sampled_from(["cpu", "whisper-gpu", "0x", "a.b_c", "1of2", "x" * 30, "Z-s"])
REQUESTS = st.builds(
    lambda job, priority, arrived_us, gpus, vram, margin, slots, length: Request(
        gpus, (), vram if gpus else None, margin if gpus and vram is not None else 0,
        {name: count for name, (count, _) in slots.items()}, priority, job, arrived_us / 1e6,
        {name: limit for name, (_, limit) in slots.items()}, length if gpus else None,
    ),
    JOBS, st.integers(-100, 100), st.integers(0, 10**15), st.integers(0, 64),
    st.none() | st.integers(1, 10**6), st.integers(0, 10**4),
    st.dictionaries(SLOT_NAMES, st.tuples(st.integers(1, 512), st.integers(1, 512)), max_size=4),
    st.none() | st.integers(0, 10**9).map(float),
)  # fmt: skip


# X4
@given(REQUESTS)
def test_the_name_tells_all_that_the_request_says(request: Request) -> None:
    name = tickets.name_of(request)
    assert tickets.parse_name(name) == request
    assert tickets.job_of(name) == request.job
    assert tickets.wants_gpus(name) == bool(request.gpus)
    assert tickets.says_all(name)
    assert "/" not in name
    assert len(name) < 255


# X4
@given(REQUESTS, REQUESTS)
def test_names_sort_as_priority_and_arrival_have_it(one: Request, other: Request) -> None:
    def place(request: Request) -> tuple[int, float, str]:
        return -request.priority, request.arrived_s, request.job

    if place(one) != place(other):
        assert (tickets.name_of(one) < tickets.name_of(other)) == (place(one) < place(other))


def test_a_choice_of_gpus_is_told_by_the_file_alone() -> None:
    name = tickets.name_of(made_up.request(gpus=1, gpu_choice=("GPU-a",)))
    assert tickets.says_all(name) is False
    assert tickets.wants_gpus(name)
    parsed = tickets.parse_name(name)
    assert parsed is not None
    assert parsed.gpu_choice == ()


# X4
def test_slots_with_names_too_long_for_a_files_are_told_by_the_file_alone() -> None:
    slots = {f"{letter * 63}-": 8192 for letter in "abcdefgh"}
    request = made_up.request(gpus=2, vram_mib=1 << 40, margin_mib=1 << 40, slots=slots, slot_limits=slots)
    name = tickets.name_of(request)
    assert len(name) < 255
    assert not tickets.says_all(name)
    assert tickets.wants_gpus(name)
    assert tickets.job_of(name) == request.job
    assert tickets.parse_name(name) == replace(request, slots={}, slot_limits={})


def test_a_ticket_is_also_a_request() -> None:
    asked = {"gpus": 2, "vram_mib": 4096, "margin_mib": 512, "priority": 7, "cpu_slots": 1}
    ticket, request = made_up.ticket(**asked), made_up.request(**asked)
    assert as_dict(request).items() <= as_dict(ticket).items()
    assert tickets.name_of(ticket) == tickets.name_of(request)


@pytest.mark.parametrize(
    "name",
    ["", "0123456789ab", "a-b-c-d-e", "100-1-job-1of1", "100-1-job-cpu=1of1-2y", "100-1-job-x-0x", ".x.swp"],
)
def test_other_names_are_no_tickets(name: str) -> None:
    assert tickets.parse_name(name) is None


@pytest.fixture
def bells(tmp_path: Path) -> Iterator[Directory]:
    path = tmp_path / "bells"
    path.mkdir()
    before = set(os.listdir("/proc/self/fd"))
    made = Directory(os.open(path, os.O_RDONLY | os.O_DIRECTORY), str(path))
    yield made
    made.close()
    assert set(os.listdir("/proc/self/fd")) == before


# S7: what no ticket's file may say, no name may say
@pytest.mark.parametrize(
    "name",
    [
        "100-0000000000000001-0123456789ab-cpu=1of1-1048577xall",
        "100-0000000000000001-0123456789ab-cpu=1048577of1048577-0x",
        "100-0000000000000001-0123456789ab-0-1x9999999999999999999+0",
        "100-0000000000000001-0123456789ab-0-1x1+9999999999999999999",
        "202-0000000000000001-0123456789ab-cpu=1of1-0x",
        "-01-0000000000000001-0123456789ab-cpu=1of1-0x",
        "100-2000000000000000000-0123456789ab-cpu=1of1-0x",
        "100-0000000000000001-0123456789ab--cpu=1of1-0x",
        f"100-{'9' * 4200}-0123456789ab-cpu=1of1-0x",
        "100-0000000000000001-0123456789AB-cpu=1of1-0x",
        "100-0000000000000001-../../../abc-cpu=1of1-0x",
        "100-0000000000000001-0123456789ab-cpu=\u0661of1-0x",
        "100-0000000000000001-0123456789ab-cpu=1of1,cpu=1of1-0x",
        "100-0000000000000001-0123456789ab-cpu=1of1,a=1of1-0x",
        "100-0000000000000001-0123456789ab-cpu=0of1-0x",
        "100-0000000000000001-0123456789ab-cpu=1of01-0x",
        "100-0000000000000001-0123456789ab-cpu=1-0x",
        "100-0000000000000001-0123456789ab-=1of1-0x",
        "100-0000000000000001-0123456789ab-.a=1of1-0x",
        "100-0000000000000001-0123456789ab-a b=1of1-0x",
        "100-0000000000000001-0123456789ab--0x",
        "100-0000000000000001-0123456789ab-1of1-0x",
    ],
)
def test_a_name_that_says_what_cannot_be_is_no_tickets(name: str) -> None:
    assert tickets.parse_name("100-0000000000000001-0123456789ab-cpu=1of1-0x") is not None
    assert tickets.parse_name(name) is None


# X4
def test_a_bell_rings_once_however_often_it_is_rung(bells: Directory, tmp_path: Path) -> None:
    bell = tickets.make_bell(bells, "bell")
    with pytest.raises(BlockingIOError):
        os.read(bell, 1)
    for _ in range(100_000):
        assert tickets.ring(bells, "bell")  # it never waits
    assert os.read(bell, 4096) == b"\0"
    with pytest.raises(BlockingIOError):
        os.read(bell, 1)
    tickets.ring(bells, "bell")
    tickets.silence(bell)
    with pytest.raises(BlockingIOError):
        os.read(bell, 1)
    os.close(bell)
    assert tickets.ring(bells, "bell")  # its owner is dead
    bells.unlink("bell")
    assert tickets.ring(bells, "bell")  # and buried
    assert os.listdir(tmp_path / "bells") == []


# S9: whoever can open a bell can fill it, or take what was rung
def test_nobody_else_can_ring_or_silence_a_bell_whatever_the_umask(bells: Directory, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        bell = tickets.make_bell(bells, "bell")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "bells" / "bell").stat().st_mode) == 0o600
    os.close(bell)


# D4
def test_one_ringing_of_a_bell_is_told_from_the_next(bells: Directory, tmp_path: Path) -> None:
    path = tmp_path / "bells" / "bell"
    bell = tickets.make_bell(bells, "bell")
    assert tickets.ringing(bells, "bell") is None
    assert tickets.ringing(bells, "nobody") is None
    tickets.ring(bells, "bell")
    os.utime(path, ns=(1, 1))
    tickets.ring(bells, "bell")  # as impatient as anybody may be: it is the same ringing
    assert tickets.ringing(bells, "bell") == 1
    tickets.silence(bell)
    assert tickets.ringing(bells, "bell") is None
    tickets.ring(bells, "bell")
    assert tickets.ringing(bells, "bell") not in (1, None)
    os.close(bell)


def test_what_is_no_bell_is_not_written_into(bells: Directory, tmp_path: Path) -> None:
    path = tmp_path / "bells" / "bell"
    path.write_text("precious")
    assert not tickets.ring(bells, "bell")
    assert tickets.ringing(bells, "bell") is None
    assert path.read_text() == "precious"
    (tmp_path / "bells" / "link").symlink_to(path)
    (tmp_path / "bells" / "folder").mkdir()
    for name in ("link", "folder"):
        assert not tickets.ring(bells, name)
        assert tickets.ringing(bells, name) is None
    with pytest.raises(StateError, match="cannot be created"):
        tickets.make_bell(bells, "bell")
