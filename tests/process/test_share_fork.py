"""Forks and execs: a child has nothing of its parent's, neither turn nor memory, and keeps none alive."""

from __future__ import annotations

import os
import signal

from tests.process.share_box import ShareBox
from tests.systemd.helpers import processes

pytest_plugins = ["tests.process.share_fixtures"]

FOR_EVER = {"SLICER_SHARE_QUANTUM_MS": "600000"}
CAP_MIB = 1000


def test_a_child_that_outlives_a_killed_holder_does_not_keep_its_turn_or_memory(
    share: ShareBox,
) -> None:  # D1 X7
    job, other_job = share.job(wants="both", limit_mib=CAP_MIB), share.job()
    holder = share.ready(job, env=FOR_EVER)
    holder.do("alloc linear 700")
    holder.hammer(500, 0)
    (child,) = holder.do("orphan")
    try:
        other = share.ready(other_job, env=FOR_EVER)
        other.tell("spin 300")
        share.until_turn(other_job, "waiting")
        holder.kill()
        assert other.hear().code == 0
        assert share.ready(job).do("info")[0] == str(CAP_MIB)
    finally:
        os.kill(int(child), signal.SIGKILL)


def test_the_parent_goes_on_after_a_fork_and_so_does_a_child_that_had_no_CUDA(share: ShareBox) -> None:  # D5
    job = share.job(wants="both", limit_mib=CAP_MIB)
    parent = share.start(job)
    parent.do("fork init;context;spin 100;sync")
    parent.do("init", "context", "spin 100", "sync", "alloc linear 600")
    assert parent.ask("fork spin 100").code == 3
    parent.do("spin 100", "sync")
    told = job.told()
    assert told.counters["gated"] >= 3
    assert told.charged_mib == 600
    assert parent.end() == 0


def test_a_fork_while_threads_launch_leaves_a_child_that_can_exit(share: ShareBox) -> None:  # D5
    client, other = share.ready(share.job()), share.ready(share.job())
    for busy in (client, other):
        busy.hammer(100, 3)
    for _ in range(10):
        assert client.ask("fork init").code == 3
    for busy in (client, other):
        busy.halt()
        assert busy.end() == 0


def test_a_program_that_is_executed_begins_anew(share: ShareBox) -> None:  # D5
    job = share.job(wants="both", limit_mib=CAP_MIB)
    client = share.ready(job, env=FOR_EVER)
    client.do("spin 100", "sync", "alloc linear 700")
    client.tell(f"exec {share.clients / 'client'} dlsym")
    client.do("init", "context")
    assert client.do("info")[0] == str(CAP_MIB)
    client.do("alloc linear 700", "spin 100", "sync")
    job_files = [link for link in processes.descriptors(client.pid).values() if str(share.share) in link]
    assert sorted(set(job_files)) == sorted(job_files)  # none inherited beside its own
    assert job.count("gated") == 2
