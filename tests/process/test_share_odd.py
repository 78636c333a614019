"""Programs that do odd things, and files that stay locked: lock and cap hold, and nobody hangs."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.patience import until
from tests.process.share_box import ARENA_PROCESSES, MAX_PROCESSES, ShareBox, overlaps

pytest_plugins = ["tests.process.share_fixtures"]

SHORT = {"SLICER_SHARE_QUANTUM_MS": "5"}
CAP_MIB = 1000
LOCK_BYTE = 1 << 20  # in both files


@contextmanager
def locked(path: Path, first: int, count: int) -> Iterator[None]:
    """Hold bytes of a file, as processes do that own rows, or are stopped while they have the file's lock."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, first, count, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
        yield
    finally:
        os.close(file)


def test_a_program_that_closes_all_descriptors_stays_under_the_cap(share: ShareBox) -> None:  # X7
    """Its row is kept by the mapping. For its turns it takes another one."""
    jobs = [share.job(wants="both", limit_mib=CAP_MIB) for _ in range(2)]
    clients = [share.ready(job, env=SHORT) for job in jobs]
    for client in clients:
        client.do("alloc linear 600")
        client.hammer(300, 4)
    assert clients[0].do("closeall") == ["2"]  # of the job's file and of the arena
    assert clients[0].ask("alloc linear 600").code == 2
    clients[0].do("alloc linear 100", "halt", "work 200 30 5")
    clients[1].halt()
    second = share.ready(jobs[0], env=SHORT)  # whose row must be another one
    assert second.do("info")[0] == str(CAP_MIB - 700)
    second.do("spin 100", "sync")


def test_a_message_that_nobody_reads_holds_up_nobody(share: ShareBox) -> None:  # D1 D5
    """The program writes to a full pipe, as of a pager that stands still, and the library has a message."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while os.write(writer, b"x" * 4096):
            continue
    os.set_blocking(writer, True)
    env = {**SHORT, "SLICER_SHARE_DRAIN_MS": "50"}
    jobs = [share.job(), share.job()]
    mute, other = share.ready(jobs[0], env=env, stderr_to=writer), share.ready(jobs[1], env=env)
    try:
        mute.do("spin 600000")  # longer than others wait for it
        other.do("spin 300")
        for client in (mute, other, mute, other):
            client.do("spin 300")
        until(lambda: jobs[0].told().troubles == {"undrained"}, "it is noted")
        for client in (mute, other):
            client.do("sync", "spin 300", "sync")
    finally:
        os.close(reader)
        os.close(writer)


def test_a_removed_arena_is_told_and_left_for_the_new_one(share: ShareBox) -> None:  # D1
    jobs = [share.job() for _ in range(2)]
    holder = share.ready(jobs[0], env={"SLICER_SHARE_QUANTUM_MS": "600000"})
    holder.hammer(300, 4)
    share.arena.unlink()
    other = share.ready(jobs[1], env=SHORT)
    other.do("spin 100", "sync")  # nobody could keep it from that
    until(lambda: share.turn(jobs[0]).state == "has", "the holder is in the new arena")
    other.tell("spin 100")

    def waits() -> bool:
        if other.has_answered():  # the holder paused for longer than a turn stays its own
            assert other.hear().code == 0
            other.tell("spin 100")
        return share.turn(jobs[1]).state == "waiting"

    until(waits, "a turn in the new arena is waited for")
    assert jobs[0].told().troubles == {"no-arena"}
    assert holder.said().count("was removed") == 1
    holder.do("halt")
    holder.end()
    assert other.hear().code == 0


def test_signals_that_interrupt_system_calls_change_nothing(share: ShareBox) -> None:  # D5
    jobs = [share.job(wants="both", limit_mib=CAP_MIB) for _ in range(2)]
    clients = [share.ready(job, env=SHORT) for job in jobs]
    for client in clients:
        client.do("alarms 500")
        client.tell("threads 3 work 200 30 5")
    assert [client.hear().words for client in clients] == [["3"], ["3"]]
    for client in clients:
        client.tell("threads 3 churn linear 100 5")
    assert [client.hear().words for client in clients] == [["3"], ["3"]]
    assert overlaps(share.fake, *([client] for client in clients)) == []
    assert [job.count("gated") for job in jobs] == [90, 90]


def test_a_thread_that_is_cancelled_while_it_waits_leaves_the_others_in_order(share: ShareBox) -> None:  # D5
    holder = share.ready(share.job(priority=50), env={"SLICER_SHARE_QUANTUM_MS": "600000"})
    holder.hammer(300, 0)
    job = share.job()
    client = share.ready(job, env=SHORT)
    client.do("later spin 100")
    share.until_turn(job, "waiting")
    client.tell("cancel")
    holder.halt()
    holder.end()
    client.hear()
    client.do("threads 4 work 100 10 3", "sync")


def test_a_job_with_too_many_processes_runs_with_a_lock_and_fails_with_a_cap(share: ShareBox) -> None:  # X7
    lock, cap = share.job(wants="lock"), share.job(wants="cap", limit_mib=CAP_MIB)
    with locked(lock.path, 0, MAX_PROCESSES), locked(cap.path, 0, MAX_PROCESSES):
        client = share.ready(lock)
        client.do("work 100 10 3")
        assert client.said().count("\n") == 1
        refused = share.start(cap)
        assert refused.ask("init").code == 304
        assert refused.said().count("\n") == 1
    assert lock.told().troubles == cap.told().troubles == {"no-row"}


def test_a_full_arena_turns_the_lock_off(share: ShareBox) -> None:  # D1
    first = share.ready(share.job())
    first.do("spin 100", "sync")
    first.end()
    job = share.job()
    with locked(share.arena, 0, ARENA_PROCESSES):
        client = share.ready(job)
        client.do("work 100 10 3")
    assert job.told().troubles == {"no-arena"}
    assert client.said().count("\n") == 1


@pytest.mark.slow
def test_a_lock_that_is_never_given_back_stops_nobody(share: ShareBox) -> None:  # D1 X7
    """Of the arena, and of a job's file: as if a process was stopped while it had it."""
    jobs = [share.job(wants="both", limit_mib=CAP_MIB) for _ in range(2)]
    clients = [share.ready(job, env=SHORT) for job in jobs]
    for client in clients:
        client.do("work 100 10 3")
    with locked(share.arena, LOCK_BYTE, 1), locked(jobs[0].path, LOCK_BYTE, 1):
        for client in clients:
            client.tell("work 100 20 5")
        for client in clients:
            assert client.hear().code == 0
            client.do("alloc linear 10", "free 0")
    for client in clients:
        client.do("work 100 10 3")


def test_who_only_asks_NVML_sees_the_cap_and_takes_no_row(share: ShareBox) -> None:  # X7
    job = share.job(wants="both", limit_mib=CAP_MIB)
    assert share.start(job).do("nvml 0")[0] == str(CAP_MIB)
    assert job.told().rows == 0
    assert not share.arena.exists()
