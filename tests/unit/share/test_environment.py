"""The variables of a job that shares its GPUs."""

from __future__ import annotations

import pytest

from slicer.record import replace
from slicer.share.environment import ShareOrder, is_within, mode_of, variables, why_unnameable, without

ORDER = ShareOrder(
    wants="both", mode="yield", is_mode_said=False, skip_syncs=0, over_cap="warn", priority=0, limit_mib=8192,
    outer_gpus=(), folder="/run/slicer/share", library="/l/libslicer-share.so", problem="",
)  # fmt: skip
JOB = "0123456789ab"
OURS = {
    "LD_PRELOAD": "/l/libslicer-share.so",
    "SLICER_SHARE_FILE": f"/run/slicer/share/{JOB}",
    "SLICER_SHARE": "both",
}


def test_the_job_learns_of_its_file() -> None:  # D3
    assert variables({"A": "1"}, ORDER, JOB) == {"A": "1", **OURS}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("/x.so", "/l/libslicer-share.so:/x.so"),
        ("/x.so /y.so:/z.so", "/l/libslicer-share.so:/x.so:/y.so:/z.so"),
        ("/x.so:/l/libslicer-share.so", "/l/libslicer-share.so:/x.so"),  # once, and first
        (" : ", "/l/libslicer-share.so"),
    ],
)
def test_what_was_preloaded_stays_behind_ours(before: str, after: str) -> None:  # D5
    assert variables({"LD_PRELOAD": before}, ORDER, JOB)["LD_PRELOAD"] == after


@pytest.mark.parametrize(
    ("mode", "made"),
    [
        ("yield", {}), ("launches=10", {"SLICER_SHARE_LAUNCHES": "10"}),
        ("time=5ms", {"SLICER_SHARE_TIME_MS": "5"}), ("each", {"SLICER_SHARE_EACH": "1"}),
    ],
)  # fmt: skip
def test_a_mode_that_was_said_counts_over_the_environment(mode: str, made: dict[str, str]) -> None:  # D3
    base = {"SLICER_SHARE_LAUNCHES": "3", "CUDA_OVERRIDE_MAX_SYNC_MS": "7", "CUDA_OVERRIDE_ALWAYS_LOCK": "1"}
    assert variables(base, replace(ORDER, mode=mode, is_mode_said=True), JOB) == {**OURS, **made}


def test_without_one_the_environment_is_left_as_it_is() -> None:  # D3
    base = {"CUDA_OVERRIDE_KERNEL_N_SYNC": "3", "SLICER_SHARE_SKIP_SYNCS": "2"}
    assert variables(base, ORDER, JOB) == {**base, **OURS}


def test_skipped_syncs_are_told() -> None:  # D2
    base = {"CUDA_OVERRIDE_SYNC_LOCK_SKIPS": "9"}
    assert variables(base, replace(ORDER, skip_syncs=2), JOB) == {**OURS, "SLICER_SHARE_SKIP_SYNCS": "2"}


def test_nothing_is_told_where_nothing_is_preloaded() -> None:
    assert variables({"A": "1"}, replace(ORDER, library="", problem="static"), JOB) == {"A": "1"}


@pytest.mark.parametrize(
    ("environ", "mode"),
    [
        ({}, "yield"),
        ({"CUDA_OVERRIDE_KERNEL_N_SYNC": "10"}, "launches=10"),
        ({"CUDA_OVERRIDE_KERNEL_N_SYNC": "0"}, "each"),
        ({"CUDA_OVERRIDE_KERNEL_N_SYNC": "10", "SLICER_SHARE_LAUNCHES": "3"}, "launches=3"),
        ({"SLICER_SHARE_LAUNCHES": "3", "CUDA_OVERRIDE_MAX_SYNC_MS": "5"}, "time=5ms"),
        ({"SLICER_SHARE_TIME_MS": "5", "CUDA_OVERRIDE_ALWAYS_LOCK": "1"}, "each"),
        ({"SLICER_SHARE_EACH": "0", "SLICER_SHARE_TIME_MS": "0"}, "yield"),
        ({"SLICER_SHARE_LAUNCHES": "-1", "SLICER_SHARE_TIME_MS": "5ms"}, "yield"),
        ({"SLICER_SHARE_EACH": "9" * 30}, "yield"),
        ({"SLICER_SHARE_LAUNCHES": "", "CUDA_OVERRIDE_KERNEL_N_SYNC": "4"}, "launches=4"),
    ],
)
def test_the_mode_of_the_environment_is_the_librarys(environ: dict[str, str], mode: str) -> None:  # D3
    assert mode_of(environ) == mode


@pytest.mark.parametrize("path", ["/a b/l.so", "/a:b/l.so", "/$LIB/l.so", "l.so"])
def test_a_path_that_the_linker_would_take_apart_is_refused(path: str) -> None:  # X7
    assert path in why_unnameable(path)


def test_an_ordinary_path_is_none_of_these() -> None:
    assert why_unnameable("/usr/lib/python3/dist-packages/slicer/share/libslicer-share.so") == ""


def test_whose_sharing_a_process_is_in_is_told_by_its_file() -> None:
    assert is_within({"SLICER_SHARE_FILE": f"/run/slicer/share/{JOB}"}, (JOB,))
    assert not is_within({"SLICER_SHARE_FILE": f"/run/slicer/share/{JOB}"}, ("f" * 12,))
    assert not is_within({}, (JOB,))


@pytest.mark.parametrize(
    ("preload", "kept"),
    [
        ("/l/libslicer-share.so", {}),
        ("/l/libslicer-share.so:/x.so", {"LD_PRELOAD": "/x.so"}),
        ("/x.so /y.so", {"LD_PRELOAD": "/x.so /y.so"}),
    ],
)
def test_what_told_of_another_job_is_taken_out(preload: str, kept: dict[str, str]) -> None:
    assert without({**OURS, "A": "1", "LD_PRELOAD": preload}) == {"A": "1", **kept}
