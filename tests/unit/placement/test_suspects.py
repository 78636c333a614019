"""A GPU where jobs fail at once is placed last, if the same commands end well elsewhere. (U8)"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.placement.capacity import Capacity
from slicer.placement.devices import Device
from slicer.placement.settings import Policy
from slicer.placement.suspects import RunEnd, how_ended, suspects, with_end
from tests.unit import made_up

SICK, WELL = "GPU-0", "GPU-1"
NOW_S = 10_000.0


def ends(*words: str) -> tuple[RunEnd, ...]:
    """As in "sick quick train.py", one a second, the last one now."""
    rows = [word.split(" ") for word in words]
    return tuple(
        RunEnd(NOW_S - len(rows) + 1 + no, how, ({"sick": SICK, "well": WELL}[gpu],), key)
        for no, (gpu, how, key) in enumerate(rows)
    )


QUICK = ("sick quick train.py",) * 3


@pytest.mark.parametrize(
    ("words", "is_suspect"),
    [
        (("well well train.py", *QUICK), True),
        ((*QUICK, "well well train.py"), True),
        (QUICK, False),  # the command may be broken
        ((*QUICK, "well well eval.py"), False),
        ((*QUICK, "well quick train.py"), False),
        ((*QUICK, "sick well train.py"), False),
        (("well well train.py", *QUICK[:2]), False),
        (("well well train.py", "sick other train.py", *QUICK), True),
        (("well well train.py", *QUICK, "sick other train.py"), False),
        (("well well train.py", *QUICK[:2], "sick quick eval.py"), False),
        (("well well train.py", "well well eval.py", *QUICK[:2], "sick quick eval.py"), True),
    ],
)
def test_it_takes_three_in_a_row_of_commands_that_end_well_elsewhere(
    words: tuple[str, ...], is_suspect: bool
) -> None:
    found = ends(*words)
    assert suspects(found, NOW_S) == ({SICK} if is_suspect else set())
    assert suspects(found, NOW_S + 4000) == set()  # an hour later it is tried again


@pytest.mark.parametrize(
    ("exit_code", "reason", "result", "length_s", "how"),
    [
        (1, "exited", "failed", 30.0, "quick"), (139, "signal", "failed", 1.0, "quick"),
        (1, "exited", "failed", 31.0, "other"), (0, "exited", "ok", 1.0, "well"),
        (143, "stopped", "stopped", 1.0, "other"), (137, "oom-kill", "failed", 1.0, "other"),
    ],
)  # fmt: skip
def test_what_counts_as_a_quick_failure(
    exit_code: int, reason: str, result: str, length_s: float, how: str
) -> None:
    assert how_ended(exit_code, reason, result, length_s) == how


ANY = st.sampled_from(["sick quick a", "sick well a", "well well a", "well other a"])


@given(st.lists(ANY, max_size=200))
def test_what_is_kept_is_bounded_and_nothing_while_all_goes_well(words: list[str]) -> None:
    kept: tuple[RunEnd, ...] = ()
    for end in ends(*words):
        kept = with_end(kept, end)
    assert len(kept) <= 64
    assert bool(kept) <= any(" quick " in word for word in words)


@pytest.mark.parametrize("vram_mib", [None, 1024])
@pytest.mark.parametrize(("wanted", "gpus"), [(1, (WELL,)), (2, (WELL, SICK))])
def test_such_a_gpu_is_placed_last(vram_mib: int | None, wanted: int, gpus: tuple[str, ...]) -> None:
    """Also where it has the least room to spare; and it is given out if nothing else is free."""
    devices = (Device(SICK, 8192, 0, {}, 0, ()), Device(WELL, 16384, 0, {}, 0, ()))
    policy = Policy(suspects=frozenset({SICK}))
    request = made_up.request("a", gpus=wanted, vram_mib=vram_mib)
    found = Capacity(devices, (), policy, NOW_S, {}).fit(request)
    assert found is not None
    assert set(found) == set(gpus)
