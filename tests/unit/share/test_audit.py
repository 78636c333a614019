"""What follows from what NVML says of a job with a cap."""

from __future__ import annotations

import pytest

from slicer.share.audit import CONTEXT_MIB, MIB, AuditState, GpuSample, is_beyond, judge, overhead

G = 1024  # MiB


def seen(used: int, charged: int, processes: int = 1, before: int | None = None) -> GpuSample:
    """In MiB."""
    return GpuSample(used, (charged if before is None else before) * MIB, charged * MIB, processes)


# X7: contexts count, and nothing counts twice
@pytest.mark.parametrize(
    ("look", "last", "expected"),
    [
        (seen(0, 0), 0, 0),
        (seen(500, 0), 0, 500),  # a context
        (seen(6 * G + 500, 6 * G), 0, 500),
        (seen(1000, 0, processes=2), 0, 1000),  # two contexts
        (seen(8 * G, 6 * G), 0, 2 * G),  # it got past the library
        (seen(3 * G, 4 * G), 0, 0),  # charged since, not yet in NVML's figure
        (seen(4 * G + 500, 0, before=4 * G), 0, 500),  # freed meanwhile
        (seen(4 * G + 500, 4 * G, before=0), 0, 500),  # allocated meanwhile
        (seen(5 * G, 5 * G), 800, 700),  # what was seen wears off
        (seen(200, 0), 600, 200),  # and is never more than what is in use at all
        (seen(0, 0, processes=0), 600, 0),
    ],
)
def test_what_is_used_unseen(look: GpuSample, last: int, expected: int) -> None:
    assert overhead(look, last * MIB) == expected * MIB


def test_memory_that_was_once_unseen_does_not_count_for_ever() -> None:  # X7
    last = 6 * G * MIB
    for _ in range(60):
        last = overhead(seen(6 * G + 500, 6 * G), last)
    assert last == 500 * MIB


# X7
@pytest.mark.parametrize(
    ("used", "cap", "processes", "expected"),
    [
        (8 * G, 8 * G, 1, False),
        (8 * G + CONTEXT_MIB, 8 * G, 1, False),  # its context, which came before anything was charged
        (8 * G + CONTEXT_MIB + 1, 8 * G, 1, True),
        (8 * G + 2 * CONTEXT_MIB, 8 * G, 2, False),
        (80 * G, 0, 1, False),  # no cap
    ],
)
def test_when_a_job_is_beyond_its_cap(used: int, cap: int, processes: int, expected: bool) -> None:
    assert is_beyond(used, cap, processes) is expected


def looks(*each: tuple[bool, int, bool]) -> list[str]:
    """What is told at each look (beyond its cap, processes with the library, uses a GPU)."""
    standing, told = AuditState(), []
    for beyond, rows, uses in each:
        verdict = judge(standing, is_beyond_cap=beyond, rows=rows, uses_gpu=uses)
        standing = verdict.standing
        told.append(" ".join(word for word in ("got_past", "escaped") if getattr(verdict, word)))
    return told


def test_one_look_beyond_the_cap_tells_nothing() -> None:  # X7
    assert looks((True, 1, True), (False, 1, True), (True, 1, True)) == ["", "", ""]


def test_two_in_a_row_tell_it_once() -> None:  # X7
    assert looks(*[(True, 1, True)] * 4) == ["", "got_past", "", ""]


def test_a_job_that_uses_a_gpu_without_the_library_is_told_of_once() -> None:  # D5
    assert looks((False, 0, False), *[(False, 0, True)] * 3) == ["", "", "escaped", ""]


def test_a_job_whose_library_comes_a_moment_later_has_not_escaped() -> None:  # D5
    assert looks((False, 0, True), (False, 1, True), (False, 1, True)) == ["", "", ""]
