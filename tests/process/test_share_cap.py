"""The cap: a job's processes together never get more GPU memory than it says, and see a card of that size."""

from __future__ import annotations

import signal
import time

import pytest

from tests.patience import until
from tests.process.share_box import GPU0, GPU1, MIB, ShareBox

pytest_plugins = ["tests.process.share_fixtures"]

CAP_MIB = 1000
KINDS = ["linear", "pitch", "managed", "create", "async", "pool", "domain"]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_memory_is_charged_refused_and_credited(share: ShareBox, kind: str) -> None:  # X7
    job = share.job(wants="cap", limit_mib=CAP_MIB)
    client = share.ready(job)
    for _ in range(3):
        (first,) = client.do(f"alloc {kind} 600")
        assert client.do("info") == ["400", str(CAP_MIB)]
        assert client.ask(f"alloc {kind} 402").code == 2
        (second,) = client.do(f"alloc {kind} 398")
        client.do(f"free {first}", f"free {second}", "sync")
        assert client.do("info")[0] == str(CAP_MIB)
    told = job.told()
    assert [told.counters[name] for name in ("allocations", "refused", "uncounted")] == [6, 3, 0]
    assert [told.peak_mib[0], told.charged_mib] == [998, 0]


@pytest.mark.parametrize("kind", ["host", "numa"])
def test_memory_of_the_host_is_not_charged(share: ShareBox, kind: str) -> None:  # X7
    job = share.job(wants="cap", limit_mib=CAP_MIB)
    client = share.ready(job)
    (number,) = client.do(f"alloc {kind} {CAP_MIB * 2}")
    assert client.do("info")[0] == str(CAP_MIB)
    client.do(f"free {number}")
    assert job.told().counters["refused"] == job.told().counters["allocations"] == 0


def test_memory_whose_handle_was_released_is_charged_until_it_is_unmapped(share: ShareBox) -> None:  # X7
    job = share.job(wants="cap", limit_mib=CAP_MIB)
    assert share.ready(job).do("vmm 400") == [str(CAP_MIB), str(CAP_MIB - 400), str(CAP_MIB)]


def test_what_a_pool_keeps_is_charged_until_somebody_needs_it(share: ShareBox) -> None:  # X7
    """A smaller card would be full of it, too; its driver would empty the pool before it refuses memory."""
    job = share.job(wants="cap", limit_mib=CAP_MIB)
    client = share.ready(job)
    client.do("keep 100000")
    (kept,) = client.do("alloc async 600")
    client.do(f"free {kept}", "sync")
    assert client.do("info")[0] == str(CAP_MIB - 600)
    (again,) = client.do("alloc async 500")  # out of what is kept
    assert client.do("info")[0] == str(CAP_MIB - 600)
    (small,) = client.do("alloc linear 450")
    assert job.told().charged_mib == 950
    client.do(f"free {again}", f"free {small}", "sync", "keep none", "sync")
    assert client.do("info")[0] == str(CAP_MIB)
    assert job.count("refused") == 0
    assert job.told().peak_mib[0] <= CAP_MIB


def test_what_was_freed_in_stream_order_counts_until_the_next_sync(share: ShareBox) -> None:  # X7
    """The driver keeps it for so long, whatever the pool's threshold is: it is on the card."""
    job = share.job(wants="cap", limit_mib=CAP_MIB)
    client = share.ready(job)
    (freed,) = client.do("alloc async 600")
    client.do(f"free {freed}")
    assert client.ask("alloc linear 600").code == 2
    assert client.do("info")[0] == str(CAP_MIB - 600)
    client.do("sync")
    assert client.do("info")[0] == str(CAP_MIB)
    client.do("alloc linear 600")
    assert job.told().charged_mib == 600


def test_a_pool_is_charged_what_the_driver_reserves_for_it(share: ShareBox) -> None:  # X7
    """In pieces, which are larger than what was asked for."""
    job = share.job(wants="cap", limit_mib=CAP_MIB)
    client = share.ready(job)
    (odd,) = client.do("alloc async 3")
    assert client.do("info")[0] == str(CAP_MIB - 4)
    client.do("alloc linear 995")
    (inside,) = client.do("alloc async 1")
    assert client.ask("alloc async 1").code == 2
    client.do(f"free {odd}", f"free {inside}", "sync")
    assert job.told().charged_mib == 995


def test_an_allocation_that_grows_its_pool_beyond_the_cap_is_taken_back(share: ShareBox) -> None:  # X7
    job = share.job(wants="cap", limit_mib=CAP_MIB - 1)
    client = share.ready(job)
    client.do("alloc linear 996")
    assert client.ask("alloc async 3").code == 2  # the driver reserves 4
    assert job.count("refused") == 1
    client.do("sync")
    assert job.told().charged_mib == 996


@pytest.mark.parametrize("kind", ["array", "array3d", "mipmap"])
def test_arrays_pass_and_are_told_as_not_counted(share: ShareBox, kind: str) -> None:  # X7
    job = share.job(wants="cap", limit_mib=CAP_MIB)
    client = share.ready(job)
    (number,) = client.do(f"alloc {kind} 600")
    client.do(f"free {number}", f"alloc {kind} 1")
    assert job.count("uncounted") == 2
    assert job.told().charged_mib == 0
    assert client.said().count("\n") == 1


def test_a_pool_of_the_programs_own_is_charged_where_it_lies(share: ShareBox) -> None:  # X7
    job = share.job(wants="cap", limit_mib=CAP_MIB)
    client = share.ready(job)
    assert client.do("ownpool 400 device") == [str(CAP_MIB - 400), str(CAP_MIB), str(CAP_MIB)]
    assert job.count("uncounted") == 1  # nobody tells what lives on in a pool that is destroyed
    assert client.do("ownpool 2000 host") == [str(CAP_MIB)] * 3
    assert client.do("ownpool 400 managed")[0] == str(CAP_MIB - 400)


def test_an_allocation_that_the_driver_refuses_costs_nothing(share: ShareBox) -> None:  # X7
    job = share.job(wants="cap", limit_mib=CAP_MIB)
    client = share.ready(job, env={"FAKE_CUDA_FAIL": "cuMemAlloc_v2=2,cuMemCreate=2,cuMemAllocAsync=2"})
    for kind in ("linear", "create", "async"):
        assert client.ask(f"alloc {kind} 600").code == 2
    assert client.do("info")[0] == str(CAP_MIB)
    assert [job.told().charged_mib, job.count("refused")] == [0, 0]


def test_frees_of_what_was_never_charged_credit_nothing(share: ShareBox) -> None:  # X7
    job = share.job(wants="cap", limit_mib=CAP_MIB)
    client = share.ready(job)
    (number,) = client.do("alloc linear 600")
    client.do(f"free {number}")
    client.ask(f"free {number}")  # again
    client.do("alloc linear 600")
    assert client.do("info")[0] == str(CAP_MIB - 600)


@pytest.mark.parametrize("way", ["dlsym", "ctypes"])
def test_NVML_shows_the_cap(share: ShareBox, way: str) -> None:  # X7
    job = share.job(wants="cap", limit_mib=CAP_MIB)
    client = share.ready(job, way)
    client.do("alloc linear 400")
    total, used = client.do("nvml 0")
    assert total == str(CAP_MIB)
    assert 400 <= int(used) <= CAP_MIB
    total, _ = client.do("nvml 1")
    assert int(total) > CAP_MIB  # that GPU is not the job's


def test_memory_is_free_only_if_the_card_has_it(share: ShareBox) -> None:  # X7
    share.fake.state.write_text(share.fake.state.read_text() + f"used 0 {81559 - 300 - 200}\n")
    client = share.ready(share.job(wants="cap", limit_mib=CAP_MIB))
    free, total = client.do("info")
    assert total == str(CAP_MIB)
    assert int(free) <= 200
    assert client.ask("alloc linear 300").code == 2


def test_what_slicer_sees_beyond_the_charges_counts(share: ShareBox) -> None:  # X7
    """CUDA contexts, for instance."""
    job = share.job(wants="cap", limit_mib=CAP_MIB)
    client = share.ready(job)
    client.do("alloc linear 400")
    job.set_overhead(300)
    assert client.do("info")[0] == "300"
    assert client.ask("alloc linear 302").code == 2
    client.do("alloc linear 300")


def test_a_job_on_the_second_GPU_has_its_cap_there(share: ShareBox) -> None:  # X7
    job = share.job(wants="both", gpus=[GPU1], limit_mib=CAP_MIB)
    client = share.ready(job, env={"CUDA_VISIBLE_DEVICES": GPU1})
    assert client.do("total") == [str(CAP_MIB)]
    client.do("alloc linear 600", "spin 100", "sync")
    assert client.ask("alloc linear 600").code == 2
    assert {busy.gpu for busy in share.fake.busy()} == {1}


def test_each_GPU_of_a_job_has_its_own_cap(share: ShareBox) -> None:  # X7
    job = share.job(wants="cap", gpus=[GPU1, GPU0], limit_mib=CAP_MIB)
    client = share.start(job)
    client.do("init", "context 0", "alloc linear 600", "context 1", "alloc linear 600")
    assert client.ask("alloc linear 600").code == 2
    client.do("use 0")
    assert client.ask("alloc linear 600").code == 2
    client.do("alloc linear 300")


def test_the_memory_of_a_context_that_is_destroyed_is_free(share: ShareBox) -> None:  # X7
    job = share.job(wants="cap", limit_mib=CAP_MIB)
    client = share.start(job)
    client.do("init", "context", "alloc linear 600", "destroy 0", "context", "alloc linear 600")
    assert client.do("info")[0] == str(CAP_MIB - 600)
    client.do("primary", "alloc linear 300", "reset", "primary", "alloc linear 300")
    assert client.do("info")[0] == str(CAP_MIB - 900)


def test_processes_of_a_job_share_one_budget_and_a_killed_one_gives_its_part_back(
    share: ShareBox,
) -> None:  # X7
    job = share.job(wants="cap", limit_mib=CAP_MIB)
    first, second = share.ready(job), share.ready(job, "linked")
    first.do("alloc linear 600")
    assert second.do("info")[0] == str(CAP_MIB - 600)
    assert second.ask("alloc linear 600").code == 2
    first.kill()
    second.do("alloc linear 600")
    assert job.told().peak_mib[0] == 600


def test_a_child_of_a_fork_has_a_budget_of_its_own_process(share: ShareBox) -> None:  # X7 D5
    """It holds nothing of its parent's, and the parent's death frees what that held."""
    job = share.job(wants="cap", limit_mib=CAP_MIB)
    parent = share.start(job)
    assert parent.do("fork init;context;alloc linear 600;info")[0] == str(CAP_MIB - 600)
    parent.do("init", "context", "alloc linear 700")
    assert parent.ask("fork info").code == 3  # as the driver has it
    assert parent.do("info")[0] == str(CAP_MIB - 700)
    parent.kill()
    assert share.ready(job).do("info")[0] == str(CAP_MIB)


@pytest.mark.parametrize("kind", ["linear", "create", "domain"])
def test_racing_threads_and_processes_never_exceed_the_cap(share: ShareBox, kind: str) -> None:  # X7
    """Sixteen threads in each of four processes, one of which is killed meanwhile. The driver counts."""
    job = share.job(wants="cap", limit_mib=CAP_MIB)
    racers = [share.ready(job) for _ in range(4)]
    for racer in racers:
        racer.tell(f"threads 16 churn {kind} 20 {12}")
    victim = racers.pop()
    until(lambda: job.count("refused") > 0, "memory is short")
    killed_ns = time.monotonic_ns()
    victim.kill()
    for racer in racers:
        assert racer.hear().words == ["16"]
    told = job.told()
    assert 0.5 * CAP_MIB < told.peak_mib[0] <= CAP_MIB
    assert most_in_use(share, victim.pid, killed_ns) <= CAP_MIB * MIB
    assert racers[0].do("info")[0] == str(CAP_MIB)


def most_in_use(share: ShareBox, victim: int, killed_ns: int) -> int:
    """The most bytes at once, by the driver's log: surely held from a call's end to the free's beginning.

    The victim held nothing any more from when it was killed.
    """
    changes = []
    for call in share.fake.calls():
        if call.result or not call.bytes or (call.pid == victim and call.ended > killed_ns):
            continue
        if call.name in {"cuMemAlloc_v2", "cuMemCreate"}:
            changes.append((call.ended, call.bytes, call.pid))
        elif call.name in {"cuMemFree_v2", "cuMemRelease"}:
            changes.append((call.began, -call.bytes, call.pid))
    changes.append((killed_ns, -sum(size for _, size, pid in changes if pid == victim), victim))
    most = now = 0
    for _, change, _ in sorted(changes):
        now += change
        most = max(most, now)
    return most


def test_a_cap_that_cannot_be_applied_makes_CUDA_fail(share: ShareBox) -> None:  # X7
    client = share.start(share.share / "nothing-here")
    assert client.ask("init").code not in {0, 100}
    assert client.said().startswith("slicer: ")
    assert client.said().count("\n") == 1
    assert share.start(share.share / "nothing-here", env={"SLICER_SHARE": "lock"}).ask("init").code == 0


def test_a_process_that_is_stopped_while_it_charges_holds_up_nobody(faulty: ShareBox) -> None:  # X7
    """And the cap holds all the same, when it goes on."""
    job = faulty.job(wants="cap", limit_mib=CAP_MIB)
    stopped = faulty.ready(job, env={"SLICER_SHARE_FAULTS": "quota-locked:stop"})
    other = faulty.ready(job)
    stopped.tell("alloc linear 600")
    until(stopped.is_stopped, "it stopped")
    other.do("alloc linear 300", "alloc linear 300")
    assert other.ask("alloc linear 600").code == 2
    stopped.send(signal.SIGCONT)
    assert stopped.hear().code == 2
    assert job.told().peak_mib[0] == 600


def test_allocations_in_a_capture_are_charged_and_break_nothing(share: ShareBox) -> None:  # X7 D5
    job = share.job(wants="cap", limit_mib=CAP_MIB)
    client = share.ready(job)
    client.do("stream", "begin 0 0", "spin 100 0")
    assert client.ask("info").code == 0
    client.do("end 0", "graph 0 0", "sync 0")
    client.do("begin 0 0")
    assert client.ask("alloc linear 10").code == 900  # as without the library
    assert client.ask("end 0").code == 901
    assert client.do("info")[0] == str(CAP_MIB)


def test_a_process_that_only_asks_NVML_is_none_of_those_with_memory(share: ShareBox) -> None:  # X7
    job = share.job(wants="cap", limit_mib=CAP_MIB)
    client = share.start(job)
    assert client.do("nvml 0")[0] == str(CAP_MIB)
    assert job.told().rows == 0
