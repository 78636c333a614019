"""The files in shared memory as Python and C know them, and what may stand in them."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.share import arena, layout
from slicer.share.layout import DamagedFile

PRELOAD = Path(__file__).parents[3] / "src" / "slicer" / "share" / "preload"
JOB = "0123456789ab"
GPUS = ("GPU-00000000-0000-0000-0000-000000000000", "MIG-1")
MIB = 1 << 20

OFFSETS = r"""
#include <stdio.h>
#include "arena.h"
#define AT(kind, field) printf(#kind "." #field " %zu\n", offsetof(struct kind, field))
#define IS(name, value) printf(name " %llu\n", (unsigned long long)(value))
int main(void)
{
    IS("job_file", sizeof(struct job_file)); IS("job_process", sizeof(struct job_process));
    AT(job_file, noted); AT(job_file, overhead); AT(job_file, troubles); AT(job_file, rows);
    AT(job_file, counters); AT(job_file, peak); AT(job_file, processes); AT(job_file, limit);
    AT(job_file, gpus); IS("LOCK_BYTE", LOCK_BYTE);
    IS("JOB_FILE_MAGIC", JOB_FILE_MAGIC); IS("JOB_FILE_VERSION", JOB_FILE_VERSION);
    IS("JOB_MAX_GPUS", JOB_MAX_GPUS); IS("JOB_MAX_PROCESSES", JOB_MAX_PROCESSES);
    AT(job_counters, gated); AT(job_counters, passed); AT(job_counters, turns); AT(job_counters, held_ns);
    AT(job_counters, waits); AT(job_counters, waited_ns); AT(job_counters, longest_ns);
    AT(job_counters, undrained); AT(job_counters, allocations); AT(job_counters, refused);
    AT(job_counters, uncounted);
    IS("ARENA_MAGIC", ARENA_MAGIC); IS("ARENA_VERSION", ARENA_VERSION); IS("arena", sizeof(struct arena));
    AT(arena, jobs); AT(arena, processes); AT(arena, processes_used); IS("ARENA_JOBS", ARENA_JOBS);
    IS("ARENA_PROCESSES", ARENA_PROCESSES); IS("arena_job", sizeof(struct arena_job));
    IS("TURN_NONE", TURN_NONE); IS("TURN_WAITING", TURN_WAITING); IS("TURN_HAS", TURN_HAS);
    IS("TURN_YIELDS", TURN_YIELDS); IS("TURN_STATE", TURN_STATE);
    puts("NAME " ARENA_NAME);
}
"""


@pytest.fixture(scope="module")
def in_c(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the headers say, by the compiler."""
    if shutil.which("cc") is None:
        if os.environ.get("CI"):
            pytest.fail("no C compiler")
        pytest.skip("no C compiler")
    directory = tmp_path_factory.mktemp("offsets")
    (directory / "offsets.c").write_text(OFFSETS)
    command = ["cc", "-std=c11", "-D_GNU_SOURCE", f"-I{PRELOAD}", "-o", "offsets", "offsets.c"]
    subprocess.run(command, cwd=directory, check=True)
    told = subprocess.run([directory / "offsets"], capture_output=True, text=True, check=True).stdout
    return dict(line.split() for line in told.splitlines())


def test_the_job_file_is_laid_out_as_in_c(in_c: dict[str, str]) -> None:  # D1
    ours = {
        "job_file": layout.SIZE, "job_process": layout.PROCESS_SIZE, "JOB_FILE_MAGIC": layout.MAGIC,
        "JOB_FILE_VERSION": layout.VERSION, "LOCK_BYTE": layout.LOCK_BYTE, "JOB_MAX_GPUS": layout.MAX_GPUS,
        "JOB_MAX_PROCESSES": layout.MAX_PROCESSES, "job_file.noted": layout.OFFSET_NOTED,
        "job_file.overhead": layout.OFFSET_OVERHEAD, "job_file.troubles": layout.OFFSET_SAID,
        "job_file.rows": layout.OFFSET_SAID + 4, "job_file.counters": layout.OFFSET_SAID + 8,
        "job_file.peak": layout.OFFSET_PROCESSES - 8 * layout.MAX_GPUS,
        "job_file.processes": layout.OFFSET_PROCESSES, "job_file.gpus": 48, "job_file.limit": 48 + 16 * 48,
    }  # fmt: skip
    ours |= {f"job_counters.{name}": 8 * at for at, name in enumerate(layout.Counters.__annotations__)}
    assert {name: int(in_c[name]) for name in ours} == ours


def test_the_job_file_stays_as_it_is_while_jobs_run_over_an_upgrade() -> None:  # X7
    """The children of a running job load the new library, and find the file that the old slicer made."""
    assert (layout.VERSION, layout.SIZE, layout.OFFSET_PROCESSES) == (1, 36152, 1336)


def test_the_troubles_are_those_of_c() -> None:  # D5
    text = (PRELOAD / "job_file.h").read_text()
    assert set(layout.TROUBLES) == set(map(int, re.findall(r"TROUBLE_\w+ = (\d+)", text)))


def test_the_arena_is_laid_out_as_in_c(in_c: dict[str, str]) -> None:  # D1
    ours = {
        "arena": arena.SIZE, "ARENA_MAGIC": arena.MAGIC, "ARENA_VERSION": arena.VERSION,
        "arena.jobs": arena.OFFSET_JOBS, "arena.processes": arena.OFFSET_PROCESSES, "ARENA_JOBS": arena.JOBS,
        "ARENA_PROCESSES": arena.PROCESSES, "arena_job": 128, "arena.processes_used": 28, "TURN_NONE": 0,
        "TURN_WAITING": 1, "TURN_HAS": 2, "TURN_YIELDS": 3, "TURN_STATE": 3,
    }  # fmt: skip
    assert {name: int(in_c[name]) for name in ours} == ours
    assert in_c["NAME"] == arena.NAME


def test_what_is_written_is_read_back() -> None:  # X7
    said = layout.decode(layout.new(JOB, "both", -3, GPUS, 8192 * MIB))
    assert (said.job, said.wants, said.priority, said.gpus) == (JOB, "both", -3, GPUS)
    assert (said.limit, said.overhead, said.peak) == ((8192 * MIB,) * 2, (0, 0), (0, 0))
    assert (said.rows, said.troubles, said.got_past_cap, said.counters.gated) == (0, (), 0, 0)


@pytest.mark.parametrize(
    "gpus", [tuple(f"GPU-{n}" for n in range(17)), ("GPU-" + "0" * 44,), ("GPU 0",), ("",), ("GPÜ",)]
)
def test_gpus_that_cannot_be_written_are_refused(gpus: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="GPUs"):
        layout.new(JOB, "lock", 0, gpus, 0)


def damaged(offset: int, form: str, value: object) -> bytes:
    data = bytearray(layout.new(JOB, "both", 0, GPUS, MIB))
    struct.pack_into(f"@{form}", data, offset, value)
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\0" * layout.SIZE, layout.new(JOB, "both", 0, GPUS, 0) + b"\0",
        damaged(0, "Q", 1), damaged(8, "I", 2), damaged(12, "I", 9), damaged(16, "16s", b"../../etc/passwd"),
        damaged(32, "I", 0), damaged(32, "I", 4), damaged(36, "i", 101), damaged(40, "I", 17),
        damaged(40, "I", 2**32 - 1), damaged(48, "4s", b"\x1b[2J"), damaged(48, "4s", b"\xff\xff\0\0"),
    ],
)  # fmt: skip
def test_a_head_that_cannot_be_right_is_refused(data: bytes) -> None:  # S7
    with pytest.raises(DamagedFile):
        layout.decode(data)


def test_numbers_that_cannot_be_are_made_to_fit() -> None:  # S7: the history has 63 bits
    huge = damaged(layout.OFFSET_SAID + 8, "Q", 2**64 - 1)
    assert layout.decode(huge).counters.gated == 2**63 - 1
    assert layout.decode(damaged(layout.OFFSET_SAID + 4, "I", 2**32 - 1)).rows == layout.MAX_PROCESSES
    assert layout.decode(damaged(layout.OFFSET_SAID, "I", 8 | 1 << 31)).troubles == ("mps", "other")


@given(st.binary(min_size=200, max_size=200), st.integers(0, layout.OFFSET_PROCESSES))
def test_any_bytes_in_it_are_read(junk: bytes, at: int) -> None:  # S7
    data = bytearray(layout.new(JOB, "both", 0, GPUS, 0))
    data[at : at + 200] = junk
    try:
        said = layout.decode(bytes(data))
    except DamagedFile:
        return
    assert 0 <= said.rows <= layout.MAX_PROCESSES
    assert all(0 <= each < 2**63 for each in (*layout.charges(bytes(data), 0, 2), *said.peak))


# -- the arena ----------------------------------------------------------------------------------------------


def made_arena(*jobs: tuple[str, int, int, int, int]) -> bytes:
    """An arena with these jobs (id, priority, turn, ticket, since), each named by the process of its row."""
    data = bytearray(arena.SIZE)
    head = arena.MAGIC, arena.VERSION, arena.SIZE, 64, arena.JOBS, arena.PROCESSES, len(jobs)
    struct.pack_into("@QIIIIII", data, 0, *head)
    for row, (job, priority, turn, ticket, since) in enumerate(jobs):
        at = arena.OFFSET_JOBS + 128 * row
        struct.pack_into("@16sIi", data, at, job.encode(), 1, priority)
        struct.pack_into("@QQI", data, at + 48, ticket, since, turn)
        struct.pack_into("@I", data, arena.OFFSET_PROCESSES + 64 * row, row + 1)
    return bytes(data)


A, B, C, D = ("a" * 12, "b" * 12, "c" * 12, "d" * 12)


def test_who_has_the_turn_and_who_waits_is_told() -> None:  # D2
    data = made_arena((A, 0, 8 * 5 + 2, 1, 10**9), (B, 0, 1, 7, 10**9), (C, 0, 1, 6, 0), (D, 5, 4 + 1, 9, 0))
    rows = arena.named_rows(data, lambda row: True)
    found = arena.turns(data, rows, 3 * 10**9)
    assert {job: (turn.doing, turn.ahead) for job, turn in found.items()} == {
        A: ("has", 0), D: ("waiting", 0), C: ("waiting", 1), B: ("waiting", 2),
    }  # fmt: skip
    assert found[A].for_s == 2.0


def test_the_rows_of_dead_processes_do_not_count() -> None:  # D2
    data = made_arena((A, 0, 2, 1, 0), (B, 0, 1, 2, 0))
    assert arena.named_rows(data, {1}.__contains__) == {1}
    assert set(arena.turns(data, frozenset({1}), 0)) == {B}


@given(st.binary(min_size=200, max_size=200), st.integers(0, arena.SIZE - 200))
def test_any_bytes_in_the_arena_are_read(junk: bytes, at: int) -> None:  # S7
    data = bytearray(made_arena((A, 0, 2, 1, 0), (B, 0, 1, 2, 0)))
    data[at : at + 200] = junk
    found = arena.turns(bytes(data), arena.named_rows(bytes(data), lambda row: True), 10**9)
    assert all(turn.for_s >= 0 and turn.ahead >= 0 for turn in found.values())


@pytest.mark.parametrize("data", [b"", b"\0" * arena.SIZE, made_arena() + b"\0", b"x" + made_arena()[1:]])
def test_what_is_no_arena_tells_of_nobody(data: bytes) -> None:  # S7
    assert arena.named_rows(data, lambda row: True) == frozenset()
