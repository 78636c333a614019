"""Whose turn it is: the decision itself (turns.c), on an arena in memory, with a clock of the test's."""

from __future__ import annotations

import ctypes
import os
import random
import struct
import subprocess
from pathlib import Path

import pytest

from tests.built import Built
from tests.process.share_box import SOURCES

pytest_plugins = ["tests.process.share_fixtures"]

MS = 1_000_000
QUANTUM, OVERTAKE, DRAIN = 30 * MS, 10 * MS, 2000 * MS
SIZE, JOBS_AT, JOB_SIZE, PROCESSES_AT, PROCESS_SIZE = 52288, 3136, 128, 19520, 64
NONE, WAITING, HAS, YIELDS = range(4)


def build_turns(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    command = [os.environ.get("CC", "cc"), "-std=c11", "-O1", "-fPIC", "-shared", "-D_GNU_SOURCE"]
    subprocess.run([*command, "-o", str(directory / "turns.so"), str(SOURCES / "turns.c")], check=True)


class Arena:
    """Jobs of one process each. A job's number is its row, and its process's."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._settle = library.turns_settle
        self._request = library.turns_request
        self._memory = ctypes.create_string_buffer(SIZE)
        self._rings = ctypes.create_string_buffer(128)
        self.now = 1000 * MS
        self.deaf: set[int] = set()
        """Jobs whose process does not hear its bell."""

    def _job(self, job: int, offset: int, kind: str, value: int | None = None) -> int:
        return self._field(JOBS_AT + job * JOB_SIZE + offset, kind, value)

    def _process(self, job: int, offset: int, value: int | None = None) -> int:
        return self._field(PROCESSES_AT + job * PROCESS_SIZE + offset, "I", value)

    def _field(self, at: int, kind: str, value: int | None = None) -> int:
        if value is not None:
            struct.pack_into("=" + kind, self._memory, at, value)
        return int(struct.unpack_from("=" + kind, self._memory, at)[0])

    def add(
        self, job: int, priority: int = 0, gpus: int = 1, mode: int = 0, *, asks_for_turns: bool = True
    ) -> None:
        """``asks_for_turns``: with jobs of its own priority, too."""
        quantum = QUANTUM // 1000 if asks_for_turns else 0
        row = (b"job", 1, priority, gpus, mode, quantum, DRAIN // 1000)
        at = JOBS_AT + job * JOB_SIZE
        struct.pack_into("=16sIiQIII", self._memory, at, *row)
        struct.pack_into("=I", self._memory, at + 108, OVERTAKE // 1000)
        self._process(job, 0, job + 1)
        self._field(PROCESSES_AT + job * PROCESS_SIZE + 40, "Q", self.now)
        self._field(28, "I", max(self._field(28, "I"), job + 1))

    def state(self, job: int) -> int:
        return self._job(job, 64, "I") & 3

    def priority(self, job: int) -> int:
        return self._job(job, 20, "i")

    def gpus(self, job: int) -> int:
        return self._job(job, 24, "Q")

    def excludes(self, job: int, other: int) -> bool:
        """Whether they may not have the turn at the same time."""
        asks = any(self._job(each, 36, "I") or self._job(each, 32, "I") for each in (job, other))
        return bool(self.gpus(job) & self.gpus(other)) and (
            self.priority(job) != self.priority(other) or asks
        )

    def ticket(self, job: int) -> int:
        return self._job(job, 48, "Q")

    def overtaken(self, job: int) -> int:
        return self._job(job, 68, "I")

    def has_joined(self, job: int) -> bool:
        return self._process(job, 24) == self._job(job, 64, "I") >> 3 and self.state(job) in {HAS, YIELDS}

    def settle(self, later: int = 0) -> None:
        self.now += later
        self._wake()
        self._settle(self._memory, ctypes.c_uint64(self.now), self._rings)

    def _wake(self) -> None:
        """Each helper thread looks, but those that are deaf."""
        for job in range(self._field(28, "I")):
            if job not in self.deaf:
                self._field(PROCESSES_AT + job * PROCESS_SIZE + 40, "Q", self.now)

    def want(self, job: int) -> None:
        """A thread of the job wants to start work; it waits, or takes part in the turn."""
        self._process(job, 20, 1)
        if self.state(job) == NONE:
            row = ctypes.byref(self._memory, JOBS_AT + job * JOB_SIZE)
            self._request(self._memory, row, ctypes.c_uint64(self.now))
        self.settle()
        self.take(job)

    def take(self, job: int) -> None:
        """A thread that waits, or comes, takes part in the turn, if its job has it."""
        if self.state(job) != HAS:
            return
        if not self._job(job, 88, "Q"):
            self._job(job, 96, "Q", self.now)
            self._job(job, 88, "Q", self.now)
        self._process(job, 24, self._job(job, 64, "I") >> 3)
        self._process(job, 20, 0)

    def part(self, job: int, wants_more: bool = False) -> None:
        """Its work is done, and it has left the turn."""
        self._process(job, 24, 0)
        self._process(job, 20, int(wants_more))
        self.settle()

    def die(self, job: int) -> None:
        self._process(job, 0, 0)
        self.settle()

    def lives(self, job: int) -> bool:
        return bool(self._process(job, 0))



@pytest.fixture(scope="session")
def turns_library(built: Built) -> ctypes.CDLL:
    return ctypes.CDLL(str(built("turns", build_turns) / "turns.so"))


@pytest.fixture
def arena(turns_library: ctypes.CDLL) -> Arena:
    return Arena(turns_library)


def states(arena: Arena, count: int) -> list[int]:
    return [arena.state(job) for job in range(count)]


def test_a_free_GPU_goes_to_the_highest_priority_and_then_to_the_first(arena: Arena) -> None:  # D2
    for job, priority in enumerate((5, 0, 0, 3)):
        arena.add(job, priority)
    for job in (0, 2, 1, 3):
        arena.want(job)
    order = [0]
    while arena.state(order[-1]) == HAS:
        arena.take(order[-1])
        arena.part(order[-1])
        order += [job for job in range(4) if arena.state(job) == HAS]
    assert order == [0, 3, 2, 1]


def test_an_equal_asks_back_after_a_quantum_a_higher_at_once_a_lower_never(arena: Arena) -> None:  # D2
    for priority, patience in ((0, QUANTUM), (1, 0), (-1, None)):
        holder, other = 0, 1
        arena.add(holder)
        arena.add(other, priority)
        arena.want(holder)
        arena.want(other)
        if patience is None:
            arena.settle(100 * QUANTUM)
            assert states(arena, 2) == [HAS, WAITING]
        elif patience:
            arena.settle(patience - 1)
            assert states(arena, 2) == [HAS, WAITING]
            arena.settle(1)
        assert patience is None or states(arena, 2) == [YIELDS, WAITING]
        arena.part(holder, wants_more=True)
        if patience is not None:
            assert states(arena, 2) == [WAITING, HAS]
        for job in (holder, other):
            arena.die(job)


@pytest.mark.parametrize("mode", [1, 2, 3])
def test_the_other_modes_keep_their_turn_until_they_give_it_back(arena: Arena, mode: int) -> None:  # D2
    arena.add(0, mode=mode)
    arena.add(1, priority=9)
    arena.want(0)
    arena.want(1)
    arena.settle(1000 * QUANTUM)
    assert states(arena, 2) == [HAS, WAITING]
    arena.part(0)
    assert states(arena, 2) == [NONE, HAS]


@pytest.mark.parametrize(
    ("priority", "waits", "overtaken"), [(0, (QUANTUM, DRAIN), 1), (1, (OVERTAKE,), 0)]
)
def test_work_that_is_not_done_in_time_is_overtaken(
    arena: Arena, priority: int, waits: tuple[int, ...], overtaken: int
) -> None:  # D1 D2
    """By a higher priority soon: as that of a process which is throttled, it goes on beside the other's."""
    arena.add(0)
    arena.add(1, priority=priority)
    arena.want(0)
    arena.want(1)
    for wait in waits:
        arena.settle(wait)
    assert states(arena, 2) == [YIELDS, WAITING]
    arena.settle(1)
    assert states(arena, 2) == [NONE, HAS]
    assert arena.overtaken(0) == overtaken


def test_jobs_of_one_priority_have_the_turn_together(arena: Arena) -> None:  # D2
    """Unless one of them asks for turns: the driver shares a GPU between equals by itself."""
    for job, priority in enumerate((0, 0, 5, 0)):
        arena.add(job, priority, asks_for_turns=job == 3)
    arena.want(0)
    arena.want(1)
    assert states(arena, 2) == [HAS, HAS]
    arena.want(2)
    assert states(arena, 3) == [YIELDS, YIELDS, WAITING]
    arena.part(0, wants_more=True)
    arena.part(1)
    assert states(arena, 3) == [WAITING, NONE, HAS]
    arena.want(1)
    arena.want(3)
    arena.part(2)
    assert states(arena, 4) == [HAS, HAS, NONE, WAITING]
    arena.take(0)
    arena.take(1)
    arena.settle(QUANTUM)
    assert states(arena, 4) == [YIELDS, YIELDS, NONE, WAITING]


@pytest.mark.parametrize(("mode", "priority"), [(0, -1), (1, 0), (1, 9)])
def test_a_holder_that_does_not_answer_is_overtaken(arena: Arena, mode: int, priority: int) -> None:  # D1
    arena.add(0, mode=mode)
    arena.add(1, priority=priority)
    arena.deaf.add(0)
    arena.want(0)
    arena.want(1)
    arena.settle(DRAIN)
    assert states(arena, 2) == [HAS, WAITING]
    arena.settle(1)
    assert states(arena, 2) == [NONE, HAS]
    assert arena.overtaken(0) == 1


@pytest.mark.parametrize("priority", [-1, 0])
def test_a_turn_that_is_not_taken_goes_on(arena: Arena, priority: int) -> None:  # D1
    """As where the one that waited was stopped meanwhile. It is not in line any more, until it asks."""
    for job in range(3):
        arena.add(job, priority if job == 2 else 0)
    arena.want(0)
    arena.want(1)
    arena.want(2)
    arena.part(0)
    assert states(arena, 3) == [NONE, HAS, WAITING]
    arena.settle(400 * MS)
    assert states(arena, 3) == [NONE, HAS, WAITING]
    arena.settle(100 * MS)
    assert states(arena, 3) == [NONE, NONE, HAS]
    assert arena.overtaken(1) == 0


def test_who_waits_for_one_GPU_of_two_keeps_later_ones_from_both(arena: Arena) -> None:  # D1
    for job, gpus in enumerate((0b01, 0b11, 0b10, 0b100)):
        arena.add(job, gpus=gpus)
        arena.want(job)
    assert states(arena, 4) == [HAS, WAITING, WAITING, HAS]
    arena.part(0)
    assert states(arena, 4) == [NONE, HAS, WAITING, HAS]


def check(arena: Arena, jobs: range) -> None:
    alive = [job for job in jobs if arena.lives(job)]
    having = [job for job in alive if arena.state(job) in {HAS, YIELDS}]
    waiting = [job for job in alive if arena.state(job) == WAITING]
    for job in having:
        assert not any(job != other and arena.excludes(job, other) for other in having)
    waiting.sort(key=lambda job: (-arena.priority(job), arena.ticket(job)))
    before = having
    for job in waiting:  # nobody waits for what is free
        assert any(arena.excludes(job, other) for other in before)
        before = [*before, job]


@pytest.mark.parametrize("seed", range(20))
def test_no_GPU_has_two_holders_or_none_while_somebody_waits(arena: Arena, seed: int) -> None:  # D1
    chance = random.Random(seed)
    jobs = range(8)
    for job in jobs:
        gpus = chance.choice((1, 1, 2, 3, 4, 7))
        modes = chance.choice((0, 0, 0, 1))
        arena.add(job, chance.choice((-1, 0, 0, 1)), gpus, modes, asks_for_turns=chance.random() < 0.5)
    for _ in range(400):
        job = chance.choice(jobs)
        if not arena.lives(job):
            arena.add(job, chance.choice((-1, 0, 1)), chance.choice((1, 2, 3)))
        rarely = arena.die if chance.random() < 0.1 else arena.take
        chance.choice((arena.want, arena.want, arena.take, arena.part, rarely))(job)
        arena.settle(chance.choice((0, 1, MS, QUANTUM, 600 * MS, DRAIN)))
        check(arena, jobs)


def test_every_one_of_equals_gets_its_turn(arena: Arena) -> None:  # D2
    jobs = range(6)
    had = [0] * len(jobs)
    for job in jobs:
        arena.add(job, gpus=0b11 if job % 3 == 0 else 0b01)
        arena.want(job)
    for _ in range(300):
        for job in jobs:
            had[job] += arena.state(job) == HAS and not arena.has_joined(job)
            arena.take(job)
        arena.settle(5 * MS)
        for job in jobs:
            if arena.state(job) == YIELDS:
                arena.part(job, wants_more=True)
    assert max(had) - min(had) <= 1
