"""From the command line to a plan: the program, the environment, what is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slicer.config.profiles import Config, Overrides
from slicer.errors import CannotExecute, CommandNotFound, SlicerError
from slicer.job.plan import Invocation, Plan, environment
from slicer.job.program import find_program
from slicer.ledger.leasing import Needs, patience_s
from slicer.ledger.nesting import OuterJobs
from slicer.model import Host, Profile
from slicer.placement.settings import Policy
from slicer.record import replace
from tests.unit import made_up

PROFILE = made_up.profile(gpus=1)
OUTER = made_up.lease("aaaaaaaaaaaa", gpus=("GPU-a",), cpu_slots=1)
INVOCATION = Invocation(("true",), None, Overrides(), "", None, True, "auto", False, False, "")
CONFIG = Config(Host((0,), 1), {}, "light", "", None, {}, {}, (), (), 512, Policy(), 256, None, "/bin/sh")


def plan(profile: Profile = PROFILE, outer: OuterJobs | None = None, **changes: object) -> Plan:
    made = Plan(
        INVOCATION,
        CONFIG,
        profile,
        Host((0,), 1),
        "/bin/true",
        outer or OuterJobs((), False),
        made_up.profile(gpus=1),
        False,
        False,
        {},
    )
    return replace(made, **changes)


@pytest.fixture
def places(tmp_path: Path) -> Path:
    for name, mode in (
        ("first/plain", 0o644),
        ("first/both", 0o644),
        ("second/both", 0o755),
        ("second/tool", 0o755),
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(mode)
    (tmp_path / "first" / "folder").mkdir()
    (tmp_path / "first" / "dangling").symlink_to(tmp_path / "nowhere")
    return tmp_path


def search(places: Path, name: str) -> str:
    return find_program(name, {"PATH": f"{places}/first:{places}/second"})


def test_the_first_executable_in_path_is_taken(places: Path) -> None:
    assert search(places, "tool") == f"{places}/second/tool"
    assert search(places, "both") == f"{places}/second/both"
    assert search(places, f"{places}/second/tool") == f"{places}/second/tool"


@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [
        ("nothing-of-that-name", CommandNotFound, 127),
        ("/nowhere/at/all", CommandNotFound, 127),
        ("./nothing", CommandNotFound, 127),
        ("", CommandNotFound, 127),
        ("plain", CannotExecute, 126),
        ("folder", CannotExecute, 126),
        ("a\nb\x1b", CommandNotFound, 127),
        ("\udcff", CommandNotFound, 127),
        ("/" * 5000 + "x", CommandNotFound, 127),
        ("x" * 5000, CommandNotFound, 127),
    ],
)
def test_what_cannot_be_executed_is_told_apart(
    places: Path, name: str, kind: type[SlicerError], code: int
) -> None:
    with pytest.raises(kind) as caught:
        search(places, name)
    assert type(caught.value) is kind
    assert caught.value.exit_code == code
    assert caught.value.hint
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("python3 x.py", "leave out the quotes"),
        ("SEED=1", "env NAME=VALUE COMMAND"),
        ("A=b/c d", "env NAME=VALUE COMMAND"),
        ("./no such", "leave out the quotes"),
        ("1=2", "not in any directory of PATH"),
    ],
)
def test_what_a_shell_would_have_understood_is_said(places: Path, name: str, hint: str) -> None:  # W33
    with pytest.raises(CommandNotFound) as caught:
        search(places, name)
    assert hint in caught.value.hint


def test_a_dangling_link_is_not_found(places: Path) -> None:
    with pytest.raises(SlicerError) as caught:
        search(places, "dangling")
    assert caught.value.exit_code in (126, 127)


def test_without_a_path_the_systems_default_is_searched(
    monkeypatch: pytest.MonkeyPatch, places: Path
) -> None:
    assert os.access(find_program("sh", {}), os.X_OK)
    monkeypatch.chdir(places / "second")
    assert find_program("tool", {"PATH": ""}) == "./tool"  # as POSIX has it: empty is here
    assert find_program("tool", {"PATH": f"{places}/first:"}) == "./tool"


# A3
def test_the_marker_grows_from_the_outside_in() -> None:
    outer = OuterJobs((OUTER,), False)
    assert environment(plan(), (), "bbbbbbbbbbbb")["SLICER_LEASE"] == "bbbbbbbbbbbb"
    made = environment(plan(outer=outer), ("GPU-b",), "bbbbbbbbbbbb")
    assert made["SLICER_LEASE"] == "aaaaaaaaaaaa,bbbbbbbbbbbb"
    nested = environment(plan(outer=outer, nested=True), (), "bbbbbbbbbbbb")
    assert nested["SLICER_LEASE"] == "aaaaaaaaaaaa"


# A3
def test_a_nested_job_sees_its_own_gpus_and_those_around_it() -> None:
    outer = OuterJobs((OUTER,), False)
    made = environment(plan(replace(PROFILE, gpus=2), outer), ("GPU-b",), "b")
    assert made["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    # inside the outer job nothing is changed: it may have narrowed it down itself
    nested = plan(outer=outer, nested=True, environ={"CUDA_VISIBLE_DEVICES": "7"})
    assert environment(nested, (), "b")["CUDA_VISIBLE_DEVICES"] == "7"


# A3, A4
@pytest.mark.parametrize("change", [{"skip_gpu_lock": True}, {"outer": OuterJobs((), True)}])
def test_without_the_gpu_lock_nothing_is_hidden(change: dict[str, object]) -> None:
    made = environment(replace(plan(environ={"CUDA_VISIBLE_DEVICES": "1"}), **change), (), "b")
    assert made["CUDA_VISIBLE_DEVICES"] == "1"


# K4
def test_a_cpu_job_sees_no_gpu_and_has_its_threads_capped() -> None:
    made = environment(plan(replace(PROFILE, slice="cpu", gpus=0)), (), "b")
    assert made["CUDA_VISIBLE_DEVICES"] == ""
    assert made["OMP_NUM_THREADS"] == made["MKL_NUM_THREADS"] == "4"
    assert "GPU_LOCK_HELD" not in made


# D13: a decision of somebody else takes a millisecond, and is no waiting for what was asked for
@pytest.mark.parametrize(
    ("wait", "max_wait_s", "expected"),
    [(False, None, 2), (True, None, None), (True, 0.0, 2), (True, 60.0, 60)],
)
def test_who_decides_just_now_is_waited_for_a_moment_at_least(
    wait: bool, max_wait_s: float | None, expected: float | None
) -> None:
    needs = Needs(
        gpus=0, gpu_choice=(), vram_mib=None, margin_mib=0, slots={"cpu": 1}, slot_limits={"cpu": 1},
        priority=0, expect_s=None, limit_s=None, wait=wait, max_wait_s=max_wait_s, then=None, plain_lock="",
    )  # fmt: skip
    assert patience_s(needs) == expected
