"""A ticket's file name tells its place and what it wants; its bell wakes its owner and nobody else."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer import tickets
from slicer.errors import StateError
from slicer.model import Request
from tests.unit import made_up

JOBS = st.text("0123456789abcdef", min_size=12, max_size=12)
REQUESTS = st.builds(
    lambda job, priority, arrived_us, gpus, vram, margin, slots, limit: Request(
        job, priority, arrived_us / 1e6, gpus, (), vram if gpus else None,
        margin if gpus and vram is not None else 0, slots, limit,
    ),
    JOBS, st.integers(-100, 100), st.integers(0, 10**15), st.integers(0, 64),
    st.none() | st.integers(1, 10**6), st.integers(0, 10**4), st.integers(0, 512), st.integers(1, 512),
)  # fmt: skip


# X4
@given(REQUESTS)
def test_the_name_tells_all_that_the_request_says(request: Request) -> None:
    name = tickets.name_of(request)
    assert tickets.parse_name(name) == request
    assert tickets.job_of(name) == request.job
    assert tickets.wants_gpus(name) == bool(request.gpus)
    assert not tickets.has_choice(name)
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
    assert tickets.has_choice(name)
    assert tickets.wants_gpus(name)
    parsed = tickets.parse_name(name)
    assert parsed is not None
    assert parsed.gpu_choice == ()


def test_a_ticket_is_also_a_request() -> None:
    ticket = made_up.ticket(gpus=2, vram_mib=4096, margin_mib=512, priority=7, cpu_slots=1)
    assert tickets.request_of(ticket) == made_up.request(
        gpus=2, vram_mib=4096, margin_mib=512, priority=7, cpu_slots=1
    )
    assert tickets.name_of(ticket) == tickets.name_of(tickets.request_of(ticket))


@pytest.mark.parametrize(
    "name",
    ["", "0123456789ab", "a-b-c-d-e", "100-1-job-1of1", "100-1-job-1of1-2y", "100-1-job-x-0x", ".x.swp"],
)
def test_other_names_are_no_tickets(name: str) -> None:
    assert tickets.parse_name(name) is None


# X4
def test_a_bell_rings_once_however_often_it_is_rung_and_for_anybody(tmp_path: Path) -> None:
    path = str(tmp_path / "bell")
    before = os.umask(0o077)
    try:
        bell = tickets.make_bell(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
    with pytest.raises(BlockingIOError):
        os.read(bell, 1)
    for _ in range(100_000):
        assert tickets.ring(path)  # full long since, and it never waits
    tickets.silence(bell)
    with pytest.raises(BlockingIOError):
        os.read(bell, 1)
    os.close(bell)
    tickets.ring(path)  # its owner is dead
    os.unlink(path)
    tickets.ring(path)  # and buried


def test_what_is_no_bell_is_not_written_into(tmp_path: Path) -> None:
    path = tmp_path / "bell"
    path.write_text("precious")
    assert not tickets.ring(str(path))
    assert path.read_text() == "precious"
    link = tmp_path / "link"
    link.symlink_to(path)
    assert not tickets.ring(str(link))
    with pytest.raises(StateError, match="cannot be created"):
        tickets.make_bell(str(path))
