"""The lock: one job at a time has work on a GPU, by priority and then in order, and nobody waits for ever."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import pytest

from tests.patience import until
from tests.process.share_box import GPU0, GPU1, Client, Job, ShareBox, overlaps

pytest_plugins = ["tests.process.share_fixtures"]

MODES = {
    "yield": {"SLICER_SHARE_QUANTUM_MS": "5"},
    "launches": {"SLICER_SHARE_LAUNCHES": "4"},
    "time": {"SLICER_SHARE_TIME_MS": "5"},
    "each": {"SLICER_SHARE_EACH": "1"},
}
FOR_EVER = {"SLICER_SHARE_QUANTUM_MS": "600000"}
SHORT = {"SLICER_SHARE_QUANTUM_MS": "5"}
# Nobody is overtaken before the drain's limit, however slow the machine is.
WIDE = {**SHORT, "SLICER_SHARE_WINDOW_MS": "100"}


def first_starts(share: ShareBox, *clients: Client) -> list[int]:
    """When the first work of each began."""
    return [share.fake.busy(client.pid)[0].start for client in clients]


def waiting(share: ShareBox, job: Job, how: str = "spin 1000", **more: object) -> Client:
    """A client that waits for its job's turn to launch a kernel."""
    client = share.ready(job, **more)
    client.tell(how)
    share.until_turn(job, "waiting")
    return client


def holding(share: ShareBox, job: Job, **more: object) -> Client:
    """A client that keeps its GPU busy and never waits for its work."""
    client = share.ready(job, **more)
    client.hammer(500, 0)
    return client


def hear_all(clients: Sequence[Client]) -> None:
    for client in clients:
        assert client.hear().code == 0, client.said()


@pytest.mark.parametrize("mode", MODES)
def test_no_two_jobs_have_work_on_a_GPU_at_once(share: ShareBox, mode: str) -> None:  # D1 D2
    jobs = [share.job() for _ in range(3)]
    clients = [
        [share.ready(job, env=MODES[mode]) for _ in range(count)]
        for job, count in zip(jobs, (1, 2, 1), strict=True)
    ]
    everybody = [client for of_job in clients for client in of_job]
    for client in everybody:
        client.tell("work 300 40 7")
    hear_all(everybody)
    assert overlaps(share.fake, *clients) == []
    assert len(share.fake.busy()) == 4 * 40
    for job, of_job in zip(jobs, clients, strict=True):
        told = job.told()
        assert told.counters["gated"] == 40 * len(of_job)
        assert told.troubles == set()
        assert told.counters["turns"] >= 1
        assert told.counters["undrained"] == 0


def test_a_higher_priority_goes_first_and_equal_ones_in_order(share: ShareBox) -> None:  # D2
    holder = holding(share, share.job(priority=50), env=FOR_EVER)
    # Without SHORT the two of one priority would have the turn together.
    jobs = [share.job(priority=priority) for priority in (-10, 0, 0, 10)]
    low, first, second, high = (waiting(share, job, env=SHORT) for job in jobs)
    holder.do("halt")
    holder.end()
    hear_all([low, first, second, high])
    starts = first_starts(share, high, first, second, low)
    assert starts == sorted(starts)


def test_a_higher_priority_does_not_wait_for_the_end_of_a_quantum(share: ShareBox) -> None:  # D2
    low_job, high_job = share.job(priority=-5), share.job(priority=5)
    low = share.ready(low_job, env={**FOR_EVER, "SLICER_SHARE_WINDOW_MS": "600000"})
    low.hammer(100, 0)
    high = share.ready(high_job)
    for _ in range(5):
        high.do("spin 300", "sync")
    before = int(low.do("progress")[0])
    until(lambda: int(low.do("progress")[0]) > before, "the lower one goes on")
    low.halt()
    assert overlaps(share.fake, [low], [high]) == []
    assert low_job.count("undrained") == 0


def test_an_equal_priority_waits_for_the_end_of_the_quantum_and_no_longer(share: ShareBox) -> None:  # D2
    holder_job, other_job = share.job(), share.job()
    holder = holding(share, holder_job, env=SHORT)
    other = share.ready(other_job, env=SHORT)
    for _ in range(3):
        other.do("spin 300", "sync")
    holder.halt()
    assert overlaps(share.fake, [holder], [other]) == []
    assert other_job.count("waits") >= 1
    assert other_job.count("waited_ns") >= other_job.count("longest_ns") > 0


def test_a_job_alone_is_never_made_to_wait_for_its_work(share: ShareBox) -> None:  # D2
    job = share.job()
    client = share.ready(job)
    client.do("spin 100 - 200", "sync")
    told = job.told()
    assert len(share.fake.calls("cuCtxSynchronize", "cuCtxSynchronize_v2")) == 1
    assert told.counters["gated"] == 200
    assert told.counters["waits"] == 0


def syncs(share: ShareBox, client: Client) -> int:
    names = ("cuCtxSynchronize", "cuCtxSynchronize_v2", "cuStreamSynchronize", "cuStreamSynchronize_ptsz")
    return len(share.fake.calls(*names, pid=client.pid))


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"SLICER_SHARE_LAUNCHES": "4"}, 3),
        ({"SLICER_SHARE_EACH": "1"}, 12),
        ({"SLICER_SHARE_TIME_MS": "10000"}, 0),
        ({"CUDA_OVERRIDE_KERNEL_N_SYNC": "4"}, 3),
        ({"CUDA_OVERRIDE_KERNEL_N_SYNC": "0"}, 12),
        ({"CUDA_OVERRIDE_ALWAYS_LOCK": "1"}, 12),
        ({"CUDA_OVERRIDE_MAX_SYNC_MS": "10000"}, 0),
        ({"CUDA_OVERRIDE_KERNEL_N_SYNC": "1", "SLICER_SHARE_LAUNCHES": "6"}, 2),
        ({"SLICER_SHARE_LAUNCHES": "4", "SLICER_SHARE_EACH": "1"}, 12),
        ({"SLICER_SHARE_LAUNCHES": "4", "SLICER_SHARE_TIME_MS": "10000"}, 0),
        ({"SLICER_SHARE_LAUNCHES": "four"}, 0),
    ],
)
def test_a_mode_syncs_as_often_as_it_says(
    share: ShareBox, env: dict[str, str], expected: int
) -> None:  # D2 D3
    client = share.ready(share.job(), env=env)
    client.do("spin 200 - 12")
    assert syncs(share, client) == expected


def test_the_time_mode_syncs_after_so_many_milliseconds(share: ShareBox) -> None:  # D2
    client = share.ready(share.job(), env={"SLICER_SHARE_TIME_MS": "2"})
    until(lambda: client.ask("spin 100").code == 0 and syncs(share, client) >= 2, "two syncs")
    begins = [
        call.began for call in share.fake.calls("cuCtxSynchronize", "cuCtxSynchronize_v2", pid=client.pid)
    ]
    assert begins[1] - begins[0] >= 2_000_000


@pytest.mark.parametrize("mode", ["launches", "time"])
def test_a_job_that_launches_no_more_does_not_keep_its_turn(share: ShareBox, mode: str) -> None:  # D2
    client = share.ready(share.job(), env=MODES[mode])
    client.do("spin 100 - 2")
    other = share.ready(share.job(), env=MODES[mode])
    other.do("spin 100", "sync")
    assert overlaps(share.fake, [client], [other]) == []


@pytest.mark.parametrize("name", ["SLICER_SHARE_SKIP_SYNCS", "CUDA_OVERRIDE_SYNC_LOCK_SKIPS"])
def test_a_turn_is_kept_over_the_first_syncs(share: ShareBox, name: str) -> None:  # D2 D3
    """As a task that never yields."""
    job = share.job()
    client = share.ready(job, env={"SLICER_SHARE_LAUNCHES": "2", name: "1000"})
    client.do("spin 100 - 4")
    other = waiting(share, share.job())
    client.do("spin 100 - 8", "sync")
    assert not other.has_answered()
    assert job.count("turns") == 1
    client.end()
    hear_all([other])


def test_a_job_on_another_GPU_is_not_held_up(share: ShareBox) -> None:  # D1
    holder_job, other_job = share.job(gpus=[GPU0]), share.job(gpus=[GPU1])
    holder = holding(share, holder_job, env=FOR_EVER)
    other = share.ready(other_job, env={**FOR_EVER, "CUDA_VISIBLE_DEVICES": GPU1})
    other.do("spin 300", "sync")
    assert other_job.count("waits") == 0
    holder.halt()
    assert holder_job.count("turns") == 1
    assert {busy.gpu for busy in share.fake.busy(other.pid)} == {1}


def test_jobs_with_the_same_two_GPUs_in_another_order_do_not_wait_for_each_other(
    share: ShareBox,
) -> None:  # D1
    jobs = [share.job(gpus=gpus) for gpus in ([GPU0, GPU1], [GPU1, GPU0])] + [share.job(gpus=[GPU1])]
    clients = [share.start(job, env=SHORT) for job in jobs]
    for client in clients[:2]:
        client.do("init", "context 0", "context 1", "use 0")
    clients[2].do("init", "context 1")
    for _ in range(5):
        for client in clients:
            client.tell("work 200 10 3")
        hear_all(clients)
        for client in clients[:2]:
            client.do("use 1")
            client.tell("work 200 10 3")
        hear_all(clients[:2])
    assert overlaps(share.fake, *([client] for client in clients)) == []


def test_ranks_of_a_job_that_wait_for_each_other_get_on(share: ShareBox) -> None:  # D1 D5
    job, other_job = share.job(), share.job()
    ranks = [share.ready(job, env=SHORT) for _ in range(2)]
    other = holding(share, other_job, env=SHORT)
    for rank in ranks:
        rank.tell("meet 300 1 2 60")
    hear_all(ranks)
    for rank in ranks:
        rank.tell("sync")
    hear_all(ranks)
    other.halt()
    assert overlaps(share.fake, ranks, [other]) == []
    assert job.count("undrained") == other_job.count("undrained") == 0


def unequal_ranks(share: ShareBox, job: Job) -> list[Client]:
    """One of them has more of its own to do: how often each launched says nothing of who is behind."""
    ranks = [share.ready(job, env=WIDE) for _ in range(2)]
    ranks[0].do("spin 50 - 7", "sync")
    return ranks


def test_ranks_that_launched_unequally_often_get_on(share: ShareBox) -> None:  # D1 D5
    job, other_job = share.job(), share.job()
    ranks, other = unequal_ranks(share, job), share.ready(other_job, env=WIDE)
    other.hammer(300, 2)
    for number in range(20):
        for rank in ranks:
            rank.tell(f"meet 300 {1 + 3 * number} 2 3")
        hear_all(ranks)
        ranks[number % 2].do("spin 50", "spin 50")
    for rank in ranks:
        rank.do("sync")
    other.halt()
    assert overlaps(share.fake, ranks, [other]) == []
    assert job.count("undrained") == other_job.count("undrained") == 0


def test_a_service_does_not_wait_for_ranks_that_launched_unequally_often(share: ShareBox) -> None:  # D1 D5
    job = share.job()
    ranks, service = unequal_ranks(share, job), share.ready(share.job(priority=5), env=WIDE)
    for number in range(10):
        first, second = ranks[number % 2], ranks[1 - number % 2]
        first.do(f"meet 300 {1 + number} 2 1")  # it waits for the other one, on the GPU
        service.tell("spin 300")
        share.until_turn(job, "yields")
        second.do(f"meet 300 {1 + number} 2 1")
        hear_all([service])
        service.do("sync")
    assert overlaps(share.fake, ranks, [service]) == []
    assert job.count("undrained") == 0


def test_GPUs_of_one_process_that_wait_for_each_other_get_on(share: ShareBox) -> None:  # D1 D5
    job = share.job(gpus=[GPU0, GPU1])
    client, other = share.start(job, env=WIDE), share.ready(share.job(), env=WIDE)
    client.do("init", "context 0", "context 1")
    for number in range(1, 11):
        client.do("use 0", f"meet 300 {number} 2")
        other.tell("spin 300")
        share.until_turn(job, "yields")
        client.do("use 1", f"meet 300 {number} 2")
        hear_all([other])
    for context in ("use 0", "use 1"):
        client.do(context, "sync")
    other.do("sync")
    assert overlaps(share.fake, [client], [other]) == []
    assert job.count("undrained") == 0


def test_a_higher_priority_is_not_held_up_by_a_process_that_is_throttled(share: ShareBox) -> None:  # D1 D2
    """Stopped here; the work that it has in flight goes on beside the other's."""
    job = share.job()
    slow = holding(share, job)
    high = share.ready(share.job(priority=5))
    slow.send(signal.SIGSTOP)
    for _ in range(3):
        high.do("spin 300", "sync")
    slow.send(signal.SIGCONT)
    slow.halt()
    assert job.count("undrained") == 0


def test_jobs_of_one_priority_take_turns_only_if_one_asks_for_it(share: ShareBox) -> None:  # D2
    jobs = [share.job(), share.job()]
    clients = [holding(share, job) for job in jobs]
    until(lambda: all(int(client.do("progress")[0]) > 20 for client in clients), "both work")
    assert [share.turn(job).state for job in jobs] == ["has", "has"]
    assert [job.count("waits") for job in jobs] == [0, 0]
    third = share.job()
    share.ready(third, env=SHORT).do("spin 300", "sync")
    assert third.count("waits") == 1
    for client in clients:
        client.halt()


def test_work_that_waits_for_a_value_is_not_cut_off_from_it(share: ShareBox) -> None:  # D5
    """What writes the value passes, though the job has to yield: else its work would never be done."""
    job = share.job()
    client = share.ready(job, env=SHORT)
    client.do("stream nonblocking", "stream nonblocking", "spin 100", "await 0", "spin 100 0")
    other = share.ready(share.job(), env=SHORT)
    other.tell("spin 300")
    share.until_turn(job, "yields")
    client.do("signal 1", "sync")
    hear_all([other])
    assert job.count("undrained") == 0


@pytest.mark.parametrize("mode", ["0", "1", "2"])
def test_nothing_is_synced_or_released_while_a_graph_is_captured(share: ShareBox, mode: str) -> None:  # D5
    job, other_job = share.job(), share.job()
    client = share.ready(job, env=SHORT)
    client.do("spin 100", "stream", f"begin 0 {mode}")
    other = share.ready(other_job, env=SHORT)
    other.tell("spin 300")
    share.until_turn(other_job, "waiting")
    until(
        lambda: client.ask("spin 100 0").code == 0 and other_job.told() and len(share.fake.calls()) > 60,
        "captured",
    )
    assert not other.has_answered()
    assert syncs(share, client) == 0
    client.do("end 0", "graph 0 0", "graph 0 0", "sync 0")
    hear_all([other])
    told = job.told()
    assert told.counters["passed"] >= 20
    assert told.counters["undrained"] == 0
    assert overlaps(share.fake, [client], [other]) == []


def test_a_capture_in_one_thread_is_not_broken_by_the_turns_of_the_others(share: ShareBox) -> None:  # D5
    client, other = share.ready(share.job(), env=SHORT), share.ready(share.job(), env=SHORT)
    other.hammer(300, 4)
    client.hammer(300, 0)
    client.do("stream nonblocking")
    for number in range(10):
        client.do("begin 0 1", "spin 100 0", "spin 100 0", "end 0", f"graph {number} 0")
    client.halt()
    other.halt()
    assert overlaps(share.fake, [client], [other]) == []


def test_a_stopped_holder_is_overtaken_and_goes_on_later(share: ShareBox) -> None:  # D1
    job = share.job()
    env = {**SHORT, "SLICER_SHARE_DRAIN_MS": "50"}
    stopped = holding(share, job, env=env)
    stopped.send(signal.SIGSTOP)
    other_job = share.job()
    other = share.ready(other_job, env=env)
    other.do("spin 300", "sync", "spin 300", "sync")
    stopped.send(signal.SIGCONT)
    before = int(stopped.do("progress")[0])
    until(lambda: int(stopped.do("progress")[0]) > before, "it goes on")
    stopped.halt()
    other.do("spin 300", "sync")
    assert "undrained" in job.told().troubles


def test_work_that_never_ends_holds_nobody_up_for_ever(share: ShareBox) -> None:  # D1
    job = share.job()
    client = share.ready(job, env={**SHORT, "SLICER_SHARE_DRAIN_MS": "50"})
    client.do("spin 3600000000")
    other = share.ready(share.job(), env=SHORT)
    other.do("spin 300", "sync")
    client.do("spin 300")
    assert job.count("undrained") >= 1
    assert client.said().count("slicer: ") <= 1


def test_many_threads_of_a_process_have_one_turn(share: ShareBox) -> None:  # D1 D5
    jobs = [share.job(), share.job()]
    clients = [share.ready(job, env=SHORT) for job in jobs]
    for client in clients:
        client.tell("threads 8 work 100 30 7")
    assert [client.hear().words for client in clients] == [["8"], ["8"]]
    assert overlaps(share.fake, *([client] for client in clients)) == []
    assert [job.count("gated") for job in jobs] == [240, 240]


def test_a_destroyed_context_is_not_synced(share: ShareBox) -> None:  # D5
    client, other = share.ready(share.job(), env=SHORT), share.ready(share.job(), env=SHORT)
    client.do("spin 100", "context", "spin 100", "destroy 1", "use 0", "spin 100")
    other.do("spin 300", "sync")
    client.do("primary", "spin 100", "reset", "use 0", "spin 100", "destroy 0")
    other.do("spin 300", "sync")
    client.do("context", "spin 100", "sync")
    assert overlaps(share.fake, [client], [other]) == []
    not_ready = 600  # what an event says of work that goes on
    failed = [call for call in share.fake.calls(pid=client.pid) if call.result not in {0, not_ready}]
    assert failed == []


@pytest.mark.parametrize("command", ["ex 300", "cooperative 300", "copy 1000000", "graph 0"])
def test_all_kinds_of_work_wait_for_the_turn(share: ShareBox, command: str) -> None:  # D1
    job = share.job()
    client = share.ready(job)
    if command.startswith("graph"):
        client.do("stream", "begin 0 0", "spin 100 0", "end 0")
    holder = holding(share, share.job(priority=50), env=FOR_EVER)
    client.tell(command)
    share.until_turn(job, "waiting")
    assert not client.has_answered()
    holder.do("halt")
    holder.end()
    hear_all([client])


def test_a_large_copy_from_pageable_memory_takes_no_turn(share: ShareBox) -> None:  # D1
    """As a model that is loaded: it would hold the turn with an idle GPU. What follows it waits."""
    job, holder_job = share.job(), share.job(priority=50)
    client = share.ready(job)
    holder = holding(share, holder_job, env=FOR_EVER)
    client.tell("copy 4000000")  # in, out, and then a memset
    share.until_turn(job, "waiting")
    assert job.count("passed") == 2
    assert [call.result for call in share.fake.calls("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoH_v2")] == [0, 0]
    assert not client.has_answered()
    holder.do("halt")
    holder.end()
    assert client.hear().words == ["same", "5"]


def test_a_job_that_wants_only_a_cap_has_no_lock(share: ShareBox) -> None:  # X7
    holder = holding(share, share.job(), env=FOR_EVER)
    job = share.job(wants="cap", limit_mib=1000)
    share.ready(job).do("spin 300", "sync")
    assert job.count("turns") == job.count("waits") == 0
    holder.do("halt")


def test_beside_MPS_the_lock_is_off_and_the_cap_stays(share: ShareBox) -> None:  # D1 X7
    mps = {"CUDA_MPS_PIPE_DIRECTORY": str(share.share)}
    holder = holding(share, share.job(), env={**FOR_EVER, **mps})
    job = share.job(wants="both", limit_mib=1000)
    client = share.ready(job, env=mps)
    client.do("spin 300", "sync")
    assert client.ask("alloc linear 1001").code == 2
    assert job.told().troubles == {"mps"}
    assert client.said().count("\n") == 1
    holder.do("halt")
