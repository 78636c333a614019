"""One line of the journal tells the story (K7): who, on which GPU, held by whom, and what became of it."""

from __future__ import annotations

import pytest

from slicer.job import words
from slicer.model import Busy, Lease, Usage
from tests.unit import made_up

WHOLE = made_up.lease(gpus=("GPU-a",), gpu_indices=(0,), profile="gpu")


@pytest.mark.parametrize(
    ("lease", "text"),
    [
        (made_up.lease(), ""),
        (WHOLE, "GPU 0"),
        (made_up.lease(gpus=("GPU-a",)), "GPU GPU-a"),  # its index is not known
        (made_up.lease(gpus=("GPU-a", "GPU-b"), gpu_indices=(0, 2), vram_mib=8192), "8.0G of GPUs 0, 2"),
        (made_up.lease(cpu_slots=2), "2 CPU slots"),
        (made_up.lease(gpus=("GPU-a",), gpu_indices=(1,), cpu_slots=1), "GPU 1 and 1 CPU slot"),
    ],
)
def test_what_a_lease_holds(lease: Lease, text: str) -> None:  # K7
    assert words.held(lease) == text


def test_the_way_of_a_lease() -> None:  # K7
    assert words.acquired(WHOLE, 754.0) == "acquired GPU 0 after 12m34s"
    forced = made_up.lease(cpu_slots=1, forced=1)
    assert words.acquired(forced, 60.0) == "1 CPU slot not free after 1m: running anyway"
    assert words.started(WHOLE) == "started on GPU 0 under profile gpu, by uid 1000"
    assert words.started(made_up.lease(profile="light")) == "started under profile light, by uid 1000"
    assert words.released(WHOLE, 220.0) == "gave back GPU 0 after 2m"


def test_others_read_who_holds_it_but_not_its_command_line() -> None:  # K7 S10
    holder = made_up.lease("aaaaaaaaaaaa", name="", command="python --token SECRET", expect_s=60.0)
    busy = Busy("gpu", (holder, WHOLE), 2, (), "")
    told = words.describe_busy(busy, 130.0, in_public=True)
    assert told == (
        "a GPU, held by aaaaaaaaaaaa (about 30s left, pid 4211, slicer-000000000000.scope, for 30s)"
        " and 1 other, 2 ahead of it"
    )
    assert "python --token SECRET" in words.describe_busy(busy, 130.0)  # at the owner's own terminal


def test_on_a_board_stands_what_does_not_change_each_second() -> None:  # K7, E8
    busy = Busy("gpu", (WHOLE, WHOLE), 2, ("GPU-1",), "")
    told = words.describe_busy(busy, 130.0, in_public=True, is_brief=True)
    outside = "in use by processes outside slicer"
    assert told == f"a GPU, held by {WHOLE.name} and 1 other, {outside}, 2 ahead of it"


def test_the_policys_reason_comes_before_whoever_holds_it() -> None:  # L3, B2
    """What is held is not the reason, if the user's own cap is: other GPUs may be free."""
    said = "bob may hold 2 GPUs at a time (policy.toml:7) and holds 2"
    told = words.describe_busy(Busy("gpu", (WHOLE,), 1, (), "", why=said), 130.0)
    assert told.startswith(f"a GPU: {said}, held by ")
    assert told.endswith(", 1 ahead of you")


def test_the_end_says_how_where_and_what_it_took() -> None:  # K7
    ended = made_up.outcome(
        reason="oom-kill", exit_code=137, signal=9, wall_s=720.0, gpus=("GPU-a",), vram_mib=18432,
        vram_peak_mib=(11264,), usage=Usage(cpu_s=60.0, memory_peak_bytes=1 << 30),
    )  # fmt: skip
    assert words.finished(ended, (0,)) == (
        "finished with exit 137 (out of memory) after 12m on GPU 0: CPU 1m, memory 1.0G,"
        " GPU memory 11.0G of 18.0G declared"
    )
    assert words.finished(made_up.outcome(), ()) == "finished with exit 0 after 12s"
    killed = made_up.outcome(reason="signal", exit_code=143, signal=15)
    assert words.finished(killed, ()) == "finished with exit 143 (killed by SIGTERM) after 12s"


# U24: other jobs' lengths decide who goes first, but they are no estimate for a user
@pytest.mark.parametrize(("source", "said"), [("runs", "about 5m left by earlier runs"), ("machine", "")])
def test_how_long_a_job_runs_on_is_not_guessed_from_other_jobs(source: str, said: str) -> None:
    lease = made_up.lease(since_s=100.0, est_s=600.0, est_from=source)
    assert words.left(lease, 100.0) == said
