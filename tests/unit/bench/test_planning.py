"""Which jobs run when, and how they are started."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from bench.gpu import ptx
from bench.sharing import planning
from bench.sharing.model import ALONE, ALONE_LOCKED, UNMANAGED
from slicer.errors import UsageError
from slicer.record import replace
from tests.unit.bench.made_up import CALIBRATION, GPU, PARAMETERS


def test_all_modes_are_compared_with_both_baselines() -> None:  # D2, D4
    names = [scenario.name for scenario in planning.scenarios(PARAMETERS)]
    assert names == [
        ALONE, ALONE, ALONE_LOCKED, ALONE_LOCKED, UNMANAGED, "yield", "priority 10", "launches=10",
        "time=5ms", "each", "skip=20",
    ]  # fmt: skip


def test_without_modes_only_the_baselines_are_measured() -> None:  # D4
    shares = {scenario.share for scenario in planning.scenarios(replace(PARAMETERS, modes=()))}
    assert shares == {"off"}


@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_each_round_has_all_and_none_is_always_first(number: int) -> None:  # D4
    scenarios = planning.scenarios(PARAMETERS)
    order = planning.order(scenarios, number)
    size = len(scenarios)
    rounds = [order[start : start + size] for start in range(0, len(order), size)]
    assert len(rounds) == number
    assert all(Counter(map(repr, each)) == Counter(map(repr, scenarios)) for each in rounds)
    assert len({repr(each[0]) for each in rounds}) == number


@pytest.mark.parametrize(
    "mode",
    ["", "yeild", "launches", "launches=0", "launches=²", "time=", "time=x", "time", "skip=x", "each=1"],
)  # fmt: skip
def test_a_mode_that_there_is_not_is_refused(mode: str) -> None:  # D2
    with pytest.raises(UsageError) as refused:
        planning.scenarios(replace(PARAMETERS, modes=(mode,)))
    assert refused.value.where == "--modes"


def options(mode: str, job: str) -> str:
    scenario = planning.scenarios(replace(PARAMETERS, modes=(mode,)))[-1]
    return " ".join(planning.run_options(PARAMETERS, scenario, job, GPU))


def test_jobs_are_started_as_a_user_would() -> None:  # D3, D4
    start = f"-q --no-wait --name bench-latency --vram 1024M --gpu {GPU}"
    assert options("time=5ms", "latency") == f"{start} --share lock --share-mode time=5ms"
    assert options("priority", "latency") == f"{start} --share lock --share-mode yield --priority 10"
    assert options("priority", "batch").endswith("--share lock --share-mode yield")
    off = planning.scenarios(PARAMETERS)[0]
    assert " ".join(planning.run_options(PARAMETERS, off, "latency", GPU)) == f"{start} --share off"
    assert "--gpus 1" in " ".join(planning.run_options(PARAMETERS, None, "calibrate", ""))


def test_syncs_that_are_skipped_are_told_to_the_library() -> None:  # D2, D3
    scenario = planning.scenarios(replace(PARAMETERS, modes=("skip=3",)))[-1]
    assert planning.variables(scenario, "batch") == {"SLICER_SHARE_SKIP_SYNCS": "3"}
    assert planning.variables(scenario, "latency") == planning.variables(None, "calibrate") == {}


def test_a_kernel_has_the_work_of_its_length() -> None:  # D4
    assert planning.load(PARAMETERS, "batch", CALIBRATION)["iterations"] == 200_000  # 500 us of 2.5 ns
    of_memory = planning.load(replace(PARAMETERS, kernel="memory"), "batch", CALIBRATION)
    assert of_memory["iterations"] == 12  # of 40 us, at least one
    assert planning.iterations(1, 1e9) == 1


def test_the_whole_takes_about_two_minutes() -> None:  # D4
    assert 90 < planning.estimate_s(PARAMETERS, len(planning.scenarios(PARAMETERS))) < 150


def test_the_kernels_declare_what_they_use() -> None:  # D4
    for module in ptx.modules():
        text = module.decode()
        assert text.endswith("\0")
        for entry in re.split(r"\.visible \.entry ", text)[1:]:
            declared = {prefix: int(count) for prefix, count in re.findall(r"(%\w+)<(\d+)>", entry)}
            used = re.findall(r"(%(?:p|f|r|rd))(\d+)\b", entry)
            assert all(int(number) < declared[prefix] for prefix, number in used)
            labels = set(re.findall(r"^(\$\w+):", entry, re.M))
            assert labels == set(re.findall(r"bra(?:\.uni)? (\$\w+);", entry)), "each label is jumped to"
        assert [text.count(f".entry {name}(") for name in (ptx.COMPUTE, ptx.MEMORY, ptx.MEET)] == [1, 1, 1]
