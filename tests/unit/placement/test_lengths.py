"""How long a job is taken to run: who is believed, and about which command."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicer.placement.decision import Book
from slicer.placement.forecast import start_times
from slicer.placement.lengths import Lengths, estimate, key_of, likely_s
from slicer.placement.settings import Policy
from slicer.record import replace
from tests.unit import made_up

RUNS = Lengths().with_run("python train.py", 100.0).with_run("python train.py", 300.0)
RUNS = RUNS.with_run("python train.py", 200.0)  # median 200
MANY = Lengths(machine=tuple(float(each) for each in range(10, 110, 10)))


# U7
@pytest.mark.parametrize(
    ("known", "said_s", "limit_s", "expected"),
    [
        (Lengths(), None, None, (None, "")),
        (Lengths(), 60.0, None, (60.0, "expect")),
        (Lengths(), None, 900.0, (900.0, "limit")),
        (Lengths(), 60.0, 900.0, (60.0, "expect")),
        (Lengths(), 1000.0, 900.0, (900.0, "limit")),  # it will be ended then
        (RUNS, None, None, (400.0, "runs")),
        (RUNS, None, 900.0, (400.0, "runs")),
        (RUNS, None, 300.0, (300.0, "limit")),
        (RUNS, 250.0, None, (250.0, "expect")),
        (RUNS, 1.0, None, (200.0, "runs")),  # a claim below what was seen counts as what was seen
        (MANY, None, None, (200.0, "machine")),
        (MANY, None, 900.0, (900.0, "limit")),  # its own limit says more than others' runs
        (MANY, 60.0, None, (60.0, "expect")),
        (Lengths(machine=(50.0,) * 7), None, None, (None, "")),  # too few to say anything
    ],
)
def test_each_source_is_believed_as_far_as_it_goes(
    known: Lengths, said_s: float | None, limit_s: float | None, expected: tuple[float | None, str]
) -> None:
    assert estimate(known, "python train.py", said_s, limit_s) == expected


# U7
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py --lr 1e-3", "python train.py"),
        ("/usr/bin/python3.11 -u train.py x", "python3.11 train.py"),
        ("CUDA_LAUNCH_BLOCKING=1 python -m pkg.train", "python pkg.train"),
        ("sh -c 'python train.py --lr 3'", "python train.py"),
        ("python eval.py 0.5 data.bin", "python eval.py"),
        ("torchrun --nproc-per-node 4 src/train.py 3", "torchrun train.py"),
        ("./train.sh 7 x.yaml", "train.sh"),
        ("make train", "make"),
        ("/bin/bash -c 'cd x && ./run'", "cd"),
        ("env A=b ./train", "train"),
        ("sh", "sh"),
        ("--only --options", ""),
        ("", ""),
    ],
)
def test_runs_of_one_script_are_the_same_command(command: str, expected: str) -> None:
    assert key_of(command) == expected


# U7: what is kept is bounded, and the newest stay
def test_only_the_last_runs_count() -> None:
    found = Lengths()
    for number in range(1000):
        found = found.with_run(f"c{number % 300}", float(number))
    assert (len(found.machine), found.machine[-1]) == (64, 999.0)
    assert (len(found.commands), found.runs_of("c120")) == (256, ())
    assert found.runs_of("c99") == (999.0,)


# U7
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", ""]), st.floats(0, 1e9)), max_size=30),
    st.none() | st.floats(0, 1e9), st.none() | st.floats(1, 1e9),
)  # fmt: skip
def test_no_estimate_is_above_the_limit_or_a_claim_below_the_median(
    runs: list[tuple[str, float]], said_s: float | None, limit_s: float | None
) -> None:
    found = Lengths()
    for key, length_s in runs:
        found = found.with_run(key, length_s)
    est_s, source = estimate(found, "a", said_s, limit_s)
    assert (est_s is None) == (source == "")
    if est_s is not None and limit_s is not None:
        assert est_s <= limit_s
    own = sorted(found.runs_of("a"))
    if own and est_s is not None:
        assert est_s >= min(own[len(own) // 2], limit_s or 1e9)


@pytest.mark.parametrize(
    ("est_s", "source", "expect_s", "likely"),
    [
        (100.0, "runs", None, 50.0), (100.0, "machine", None, None), (100.0, "limit", None, 100.0),
        (100.0, "expect", 100.0, 100.0), (100.0, "runs", 80.0, 100.0), (None, "", 80.0, 80.0),
        (None, "", None, None),
    ],
)  # fmt: skip
def test_people_are_told_the_likely_length_and_not_the_safe_one(
    est_s: float | None, source: Any, expect_s: float | None, likely: float | None
) -> None:  # U7
    for made in (made_up.lease("1" * 12), made_up.ticket("2" * 12)):
        assert likely_s(replace(made, est_s=est_s, est_from=source, expect_s=expect_s)) == likely


@pytest.mark.parametrize(("source", "starts_s"), [("runs", 50.0), ("limit", 100.0), ("machine", None)])
def test_no_start_is_foretold_by_the_lengths_of_other_commands(source: Any, starts_s: float | None) -> None:
    """U7: a decision may use them, but nobody is told that a job ends because others did."""
    held = made_up.lease("1" * 12, gpus=(), slots={"x": 1}, since_s=100.0, est_s=100.0, est_from=source)
    waits = made_up.ticket("2" * 12, gpus=0, slots={"x": 1}, slot_limits={"x": 1})
    assert start_times(Book([waits], (), (held,), Policy(), 100.0)) == {waits.job: starts_s}
