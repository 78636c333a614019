"""The preloaded library is between a program and the CUDA driver, however that is found, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fake_cuda.clients import WAYS
from tests.patience import until
from tests.process.share_box import ShareBox
from tests.systemd.helpers import processes

pytest_plugins = ["tests.process.share_fixtures"]

CAP_MIB = 1000


@pytest.mark.parametrize("way", WAYS)
def test_a_program_is_gated_and_capped_however_it_finds_the_driver(
    share: ShareBox, way: str
) -> None:  # D1 D5 X7
    job = share.job(wants="both", limit_mib=CAP_MIB)
    client = share.ready(job, way)
    client.do("spin 100 - 5", "sync")
    assert client.do("copy 5000") == ["same", "5"]
    assert client.ask(f"alloc linear {CAP_MIB + 1}").code == 2
    client.do("alloc linear 10", "free 1")
    assert client.do("total") == client.do("info")[1:] == [str(CAP_MIB)]
    assert client.end() == 0
    told = job.told()
    assert told.counters["gated"] == len(share.fake.busy()) >= 7
    assert told.counters["refused"] == 1
    assert told.counters["allocations"] == 2


def test_each_kind_of_default_stream_keeps_its_own_functions(share: ShareBox) -> None:  # D5
    job = share.job()
    client = share.ready(job)
    legacy, per_thread, again = (
        client.do(f"lookup cuLaunchKernel {version} {flags}")
        for version, flags in ((12000, 1), (12000, 2), (4000, 0))
    )
    assert legacy[1] != per_thread[1]
    assert again == legacy
    share.ready(job, "ptsz").do("spin 100", "sync -")
    share.ready(job, "proc").do("spin 100", "sync -")
    assert len(share.fake.calls("cuLaunchKernel_ptsz")) == 1
    assert len(share.fake.calls("cuLaunchKernel")) == 1
    assert len(share.fake.calls("cuStreamSynchronize_ptsz")) == 1


@pytest.mark.parametrize(
    "question",
    [
        "- 0 0",
        "cuNoSuchThing 12000 0",
        "cuMemAlloc 1000 0",
        "cuDeviceGetName 12000 0",
        "cuLaunchKernel 3000 0",
    ],
)
def test_the_driver_answers_a_question_as_without_the_library(share: ShareBox, question: str) -> None:  # D5
    with_it, without = share.start(share.job()), share.start(None, preload=[])
    answers = [client.ask(f"lookup {question}") for client in (with_it, without)]
    assert answers[0].code == answers[1].code
    assert answers[0].words[0] == answers[1].words[0]
    assert (answers[0].words[1] == "0") == (answers[1].words[1] == "0")


def test_a_process_without_cuda_opens_nothing_and_has_one_thread(share: ShareBox) -> None:  # D5
    job = share.job(wants="both", limit_mib=CAP_MIB)
    client = share.start(job, argv=["sleep", "100"])
    until(lambda: share.library.name in Path(f"/proc/{client.pid}/maps").read_text(), "the library is loaded")
    until(lambda: Path(f"/proc/{client.pid}/comm").read_text() == "sleep\n", "it is sleep")
    assert not [link for link in processes.descriptors(client.pid).values() if str(share.share) in link]
    assert client.threads() == 1
    assert not share.arena.exists()
    assert job.told().rows == 0


def test_a_program_of_which_LD_PRELOAD_was_taken_runs_without_the_library(share: ShareBox) -> None:  # D5
    job = share.job(wants="both", limit_mib=CAP_MIB)
    client = share.ready(job, preload=[])
    client.do("spin 100", "sync", f"alloc linear {CAP_MIB * 2}")
    assert job.told().rows == 0  # which the outcome says: the library was never active


def test_a_library_loaded_with_RTLD_DEEPBIND_escapes_and_works(share: ShareBox) -> None:  # D5
    job = share.job(wants="both", limit_mib=CAP_MIB)
    argv = [str(share.clients / "loader"), str(share.clients / "client.so"), "deepbind", "dlsym"]
    client = share.ready(job, argv=argv)
    client.do("spin 100", "sync", f"alloc linear {CAP_MIB * 2}")
    assert client.end() == 0
    ordinary = share.ready(job, argv=[argv[0], argv[1], "dlsym"])
    assert ordinary.ask(f"alloc linear {CAP_MIB * 2}").code == 2


@pytest.mark.parametrize("is_first", [True, False])
def test_RTLD_NEXT_of_another_preloaded_library_works(share: ShareBox, is_first: bool) -> None:  # D5
    """A function that is not ours, and one of the driver's, whichever library comes first."""
    both = [share.library, share.clients / "next.so"]
    job = share.job()
    client = share.ready(job, "linked", preload=both if is_first else both[::-1])
    assert client.ask("devices").words[0] == "102"
    client.do("spin 100", "sync")
    assert job.count("gated") == 1


def test_the_driver_may_be_closed_and_opened_again(share: ShareBox) -> None:  # D5
    job = share.job(wants="both", limit_mib=CAP_MIB)
    client = share.ready(job)
    client.do("spin 100", "sync", "reopen", "spin 100", "sync", "alloc linear 1")
    assert job.count("gated") == 2
    assert client.end() == 0


def test_thousands_of_lookups_from_many_threads_get_the_same_pointers(share: ShareBox) -> None:  # D5
    job = share.job()
    client = share.ready(job)
    before = client.do("lookup cuMemcpyHtoD 12000 2")
    client.do("threads 8 relookup 3")
    assert client.do("lookup cuMemcpyHtoD 12000 2") == before
    client.do("spin 100", "sync")
    assert "pool-full" not in job.told().troubles
