"""Idle GPUs: what counts as use, and what follows without any."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.gpu.idle import LONGEST_S, WARNING_S, IdleTime, idle_limits, is_in_use, step
from slicer.model import Lease
from tests.unit.gpu.made_up import G0, G1, IN_A, A, B, scope, seen
from tests.unit.made_up import lease

TIMEOUT_S = 2700.0
LOOKS = st.lists(
    st.tuples(st.floats(0, 3 * LONGEST_S), st.sampled_from(["used", "idle", "idle", "idle", "halted"])),
    max_size=200,
)


def played(
    looks: list[tuple[float, str]], warn_s: float, end_s: float | None
) -> list[tuple[str, float, float]]:
    """Each look's word, with the idle time and the time since the warning that a watcher would count."""
    found: list[tuple[str, float, float]] = []
    time, at_s, idle_s, warned_s = IdleTime(0, 0), 0.0, 0.0, 0.0
    for pause_s, what in looks:
        at_s += pause_s
        counted_s = min(pause_s, LONGEST_S) if what == "idle" else 0.0
        idle_s = 0.0 if what == "used" else idle_s + counted_s
        warned_s += counted_s
        time, turn = step(
            time, at_s, is_used=what == "used", stands_still=what == "halted", warn_s=warn_s, end_s=end_s
        )
        found.append((turn, idle_s, warned_s))
        if turn == "warned":
            warned_s = 0.0
    return found


@given(LOOKS, st.floats(1, 600), st.sampled_from(["warn", "stop"]))
def test_an_idle_job_is_warned_once_and_ended_one_warning_period_later(  # U4
    looks: list[tuple[float, str]], timeout_s: float, on_idle: str
) -> None:
    warn_s, end_s = idle_limits(timeout_s, on_idle)  # type: ignore[arg-type]
    assert warn_s is not None
    state, slack = "", 1e-6
    for (turn, idle_s, warned_s), (_, what) in zip(played(looks, warn_s, end_s), looks, strict=True):
        if turn == "warned":
            assert (state, what) == ("", "idle")
            assert idle_s >= timeout_s - slack
        elif turn == "ends":
            assert (state, what, on_idle) == ("warned", "idle", "stop")
            assert warned_s >= min(WARNING_S, timeout_s) - slack
        elif turn == "used":
            assert (state, what) == ("warned", "used")
        elif what == "idle" and not state:
            assert idle_s < timeout_s + slack
        elif what == "idle" and state == "warned" and on_idle == "stop":
            assert warned_s < min(WARNING_S, timeout_s) + slack
        state = {"used": ""}.get(turn, turn) if turn else state
        assert state != "warned" or what != "used"  # as soon as it is used, nothing is pending


@pytest.mark.parametrize(
    ("timeout_s", "on_idle", "limits"),
    [
        (None, "stop", (None, None)),
        (2700.0, "warn", (2700.0, None)),
        (2700.0, "stop", (2700.0, 3000.0)),
        (60.0, "stop", (60.0, 120.0)),
    ],
)
def test_the_warning_period_is_five_minutes_or_a_shorter_idle_timeout(  # U4
    timeout_s: float | None, on_idle: str, limits: tuple[float | None, float | None]
) -> None:
    assert idle_limits(timeout_s, on_idle) == limits  # type: ignore[arg-type]


def test_a_paused_job_is_neither_warned_nor_ended_and_its_time_goes_on_later() -> None:  # U4
    halted = [(LONGEST_S, "halted")] * 1000
    looks = [(10.0, "idle")] * 269 + halted + [(10.0, "idle")] * 5 + halted + [(10.0, "idle")] * 40
    turns = [(place, turn) for place, (turn, _, _) in enumerate(played(looks, 2700.0, 3000.0)) if turn]
    assert turns == [(1269, "warned"), (2274 + 25, "ends")]


def test_a_time_that_nobody_saw_does_not_count() -> None:  # U4, a suspended machine
    assert not [turn for turn, _, _ in played([(1.0, "idle"), (86400.0, "idle")], 60.0, 120.0) if turn]


OWN, OTHERS = seen(100, cgroup=IN_A), seen(200)


def use(
    *pids: int, of: Lease = A, holders: tuple[Lease, ...] = (A,), now: int | None = 0, counted: bool = True
) -> bool | None:
    owned = [(OWN, A), (OTHERS, None), (seen(300), B)]
    busy = {G0: frozenset(pids), G1: frozenset[int]()} if counted else {}
    return is_in_use(of, owned, holders, busy, {G0: now, G1: 0})


def test_only_a_jobs_own_processes_use_its_gpu() -> None:  # U4
    assert use(100) is True
    assert use() is False
    assert use(200, 300) is False
    assert use(100, 200, 300) is True
    assert use(100, of=B) is False
    assert use(100, of=scope("ccc", G1)) is False


def test_a_busy_process_that_nobody_can_place_may_be_the_jobs() -> None:  # U4
    assert use(999) is True  # it has ended since
    hidden = seen(400, started=0)  # in another pid namespace
    assert is_in_use(A, [(hidden, None)], (A,), {G0: frozenset({400})}, {}) is True


def test_without_figures_of_processes_those_of_the_gpu_count() -> None:  # U4
    assert use(counted=False, now=0) is False
    assert use(counted=False, now=40) is True
    assert use(counted=False, now=None) is None
    assert use(counted=False, now=40, holders=(A, B)) is None  # whose is it?
    assert use(counted=False, now=0, holders=(A, B)) is False
    assert use(counted=False, now=40, holders=(A, scope("ccc", G1))) is True


def test_a_job_uses_its_gpus_if_it_uses_one_of_them() -> None:  # U4
    both = scope("aaa", G0, G1)
    assert use(100, of=both) is True
    assert use(of=both, counted=False, now=None) is None
    assert is_in_use(lease("aaa"), [], (), {}, {}) is False  # of a job without a GPU nobody asks
