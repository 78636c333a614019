"""The budget of a route on a machine. (C7)"""

from __future__ import annotations

import pytest

from slicer.config import routes
from slicer.errors import ConfigError
from slicer.model import Gpu, Host
from slicer.record import replace
from slicer.route import budget
from slicer.route.budget import Worksheet, together_bytes, worksheet
from slicer.route.deciding import profile_for
from slicer.route.past import table
from slicer.route.suggestion import memory_notes
from tests.unit.route.made_up import GIB, HOST, config
from tests.unit.route.past import Past, route

WHISPER = """
    [routes.r]
    memory_reserve = "4G"
    [routes.r.gpu]
    vram = "10G"
    max_jobs = 2
    memory = "6G"
    [routes.r.cpu]
    max_jobs = 1
    memory = "30G"
"""


def gpus(*sizes_gib: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(i, f"GPU-{i}", "L4", size << 10, i) for i, size in enumerate(sizes_gib))


def sheet(text: str, *sizes_gib: int, memory_gib: int = 64, known: bool = True) -> Worksheet:
    made = config(text)
    route = routes.find(made, "r")
    profiles = {each.name: profile_for(made, route, each) for each in route.destinations}
    return worksheet(route, profiles, gpus(*sizes_gib) if known else None, memory_gib * GIB, {"cpu": 4})


def test_a_budget_that_holds_says_what_is_left() -> None:
    made = sheet(WHISPER, 24)
    assert made.problems == ()
    assert (made.gpus[0].jobs, made.gpus[0].left_mib) == ({"gpu": 2}, 4096)
    assert (made.needed_bytes, made.left_bytes) == (46 * GIB, 18 * GIB)
    assert [each.suggested_bytes for each in made.shares] == [12 * GIB, 36 * GIB]


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ((24,), ""),
        ((21,), ""),  # 2 x 10G and the margin of the last one
        ((20,), "gpu: 2 jobs x 10G = 20G and 512M of margin, but GPU 0 has 20G: 1 job fits"),
        ((12, 12), ""),  # one on each
        ((8, 24), ""),  # the small one cannot serve
        ((8, 12), "gpu: 2 jobs x 10G = 20G and 512M of margin, but GPU 1 has 12G: 1 job fits"),
        ((8,), "gpu: 2 jobs of 10G and 512M of margin, but GPU 0 has 8G: no GPU is large enough"),
        ((), "gpu: there is no GPU for 2 jobs"),
    ],
)
def test_gpu_memory_is_added_up_as_the_ledger_gives_it_out(sizes: tuple[int, ...], problem: str) -> None:
    assert sheet(WHISPER, *sizes).problems == ((problem,) if problem else ())


def test_too_little_memory_is_refused_with_the_sum() -> None:
    made = sheet(WHISPER, 24, memory_gib=40)
    assert made.problems == (
        "memory: gpu 2 x 6G + cpu 1 x 30G + 4G of reserve = 46G, but the machine has 40G",
    )
    assert made.left_bytes == -6 * GIB
    suggested = [each.suggested_bytes or 0 for each in made.shares]
    left = 40 * GIB - (2 * suggested[0] + suggested[1] + 4 * GIB)
    assert 0 <= left < 0.3 * GIB  # N9: no more is given away than one decimal for each of three jobs


def test_a_memory_is_proposed_from_what_past_jobs_used() -> None:  # C7, N9
    past = Past()
    for number in range(10):
        past.gpu(600.0)
        job = past.found[-1].job
        assert job is not None
        used = replace(job, memory_peak_bytes=(300 - number) * GIB // 100)
        past.found[-1] = replace(past.found[-1], job=used)
    whisper = route()
    assert memory_notes(whisper, table(past.found[1:])) == []
    (note,) = memory_notes(whisper, table(past.found))
    assert note == (
        'gpu: the largest of 10 successful jobs used 3G of memory; with a fifth more: memory = "3.6G"'
    )


def test_routes_that_fit_one_by_one_may_not_fit_together() -> None:
    made = sheet(WHISPER, 24)
    assert together_bytes([]) == 0
    assert together_bytes([made]) == made.needed_bytes
    assert together_bytes([made, made]) == 2 * 42 * GIB + 4 * GIB


def test_what_only_a_built_in_profile_says_is_a_cap_and_no_plan() -> None:
    made = sheet("[routes.r.gpu]\nvram = '10G'\nmax_jobs = 2\n[routes.r.cpu]\n", 24)
    assert made.problems == ()
    assert made.reserve_bytes == 64 * GIB // 10
    assert [(each.jobs, each.limited_by) for each in made.shares] == [(2, "max_jobs"), (4, "slots.cpu")]
    assert [each.is_declared for each in made.shares] == [False, False]
    assert [each.suggested_bytes for each in made.shares] == [int(9.5 * GIB)] * 2  # 57.6G for 6 jobs
    assert "gpu: no memory is declared (MemoryMax is 57.6G, built-in gpu)" in made.notes[0]


SMALL = """
    [routes.r]
    probe = "duration"
    [routes.r.to.small]
    mode = "gpu"
    up_to = "10m"
    vram = "4G"
"""
LARGE = '[routes.r.to.large]\nmode = "gpu"\n'


def test_what_others_take_without_limit_is_no_problem_of_a_destination() -> None:
    made = sheet(SMALL + LARGE, 24)
    assert made.problems == ()
    assert "small: the others leave no GPU memory (max_jobs would keep some free)" in made.notes
    (problem,) = sheet(SMALL + LARGE, 3).problems
    assert problem == "small: a job of 4G and 512M of margin, but GPU 0 has 3G: no GPU is large enough"


def test_destinations_share_the_gpus() -> None:
    text = f"{SMALL}max_jobs = 2\n{LARGE}vram = '16G'\nmax_jobs = 1\n"
    assert sheet(text, 25).problems == ()
    (problem,) = sheet(text, 24).problems
    room = "GPU 0 has 24G next to large: 1 job fits"
    assert problem == f"small: 2 jobs x 4G = 8G and 512M of margin, but {room}"


def test_a_whole_gpu_is_the_smallest_that_will_do() -> None:
    text = """
        [routes.r.to.whole]
        mode = "gpu"
        max_jobs = 1
        [routes.r.to.large]
        mode = "gpu"
        vram = "20G"
        max_jobs = 1
    """
    made = sheet(text, 24, 12)
    assert made.problems == ()
    assert [gpu.jobs for gpu in made.gpus] == [{"large": 1}, {"whole": 1}]


@pytest.mark.parametrize(
    ("lines", "sizes", "jobs", "problem"),
    [
        ("", (24, 24), 2, ""),  # whole GPUs, as many as there are
        ("max_jobs = 3", (24, 24), 3, "gpu: 3 jobs x 1 whole GPU, but there are 2 GPUs: 2 jobs fit"),
        ("profile = 'two'", (24, 24, 24), 1, ""),
        ("profile = 'two'\nmax_jobs = 1", (24,), 1, "gpu: 1 job x 2 whole GPUs, but there is 1 GPU: none"),
        ("profile = 'two'\nvram = '10G'\nmax_jobs = 2", (24, 24), 2, ""),
        ("profile = 'one'\nvram = '10G'", (24, 24), 2, ""),  # GPU 1 alone
        ("vram = '1G'", (8, 4), 10, ""),  # the margin is needed by the last one
    ],
)
def test_what_one_job_wants_of_gpus_counts(
    lines: str, sizes: tuple[int, ...], jobs: int, problem: str
) -> None:
    profiles = "[profiles.two]\ninherits = 'gpu'\ngpus = 2\n[profiles.one]\ninherits = 'gpu'\ngpu = [1]\n"
    made = sheet(f"{profiles}[routes.r.gpu]\n{lines}\n", *sizes)
    assert made.shares[0].jobs == jobs
    assert [each.startswith(problem) for each in made.problems] == [True] * bool(problem)


def test_what_cannot_be_known_is_said() -> None:
    made = sheet("[routes.r.gpu]\nvram = '10G'\n[routes.r.cpu]\nprofile = 'light'\n", known=False)
    assert made.problems == ()
    assert made.notes[0] == "GPU memory was not checked, because the GPUs are unknown"
    assert "cpu: their number is unlimited (max_jobs would limit it)" in made.notes[2]
    assert [each.suggested_bytes for each in made.shares] == [None, None]


def test_a_route_that_declares_more_memory_than_there_is_does_not_run() -> None:
    made = config(WHISPER)
    budget.check(made, routes.find(made, "r"))
    small = replace(made, host=Host(HOST.cpus, 40 * GIB))
    with pytest.raises(ConfigError) as refused:
        budget.check(small, routes.find(small, "r"))
    assert str(refused.value) == (
        "slicer.toml:7: memory: gpu 2 x 6G + cpu 1 x 30G + 4G of reserve = 46G, but the machine has 40G"
        " (slicer routes check r shows what would fit)"
    )
    silent = config("[routes.r.gpu]\nmax_jobs = 99\n")  # a cap of a built-in profile is no plan
    budget.check(silent, routes.find(silent, "r"))
