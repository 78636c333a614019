"""Slots of several names: each is counted, kept and waited for by itself."""

from __future__ import annotations

from typing import Any

import pytest

from slicer.model import Lease, Request
from slicer.placement.decision import Book, Infeasible, decide, infeasible
from slicer.placement.devices import Device
from slicer.placement.forecast import deadlocked, start_times
from slicer.placement.refusal import refusal
from slicer.placement.settings import Policy
from slicer.record import as_dict
from tests.unit import made_up

NOW_S = 10_000.0
YOUNG_S, OLD_S = NOW_S - 1, NOW_S - 300
POLICY = Policy(reserve_after_s=300.0)
LIMITS = {"cpu": 4, "gpu-jobs": 2, "matlab": 1, "ocr": 2}
GPU = (Device("a", 80_000, 0, {}, 0, ()),)


def named(words: str) -> dict[str, int]:
    """As in ``"matlab gpu-jobs=2"``."""
    each = [word.partition("=") for word in words.split()]
    return {name: int(count or 1) for name, _, count in each}


def wants(job: str, words: str, arrived_s: float = YOUNG_S, **fields: Any) -> Request:
    slots = named(words)
    limits = fields.pop("slot_limits", {name: LIMITS[name] for name in slots})
    return made_up.request(job, slots=slots, slot_limits=limits, arrived_s=arrived_s, **fields)


def old(job: str, words: str, **fields: Any) -> Request:
    return wants(job, words, OLD_S, **fields)


def has(job: str, words: str, **fields: Any) -> Lease:
    return made_up.lease(job, slots=named(words), **fields)


# X4, issue: named slots
@pytest.mark.parametrize(
    ("queue", "held", "granted"),
    [
        ([wants("x", "matlab"), wants("y", "ocr"), wants("z", "cpu")], (has("h", "matlab"),), "yz"),
        ([wants("x", "matlab"), wants("y", "matlab")], (), "x"),
        # all at once or nothing: who lacks one takes none of the others
        ([wants("x", "matlab ocr=2"), wants("y", "ocr=2")], (has("h", "matlab"),), "y"),
        ([wants("x", "gpu-jobs", gpus=1), wants("y", "gpu-jobs"), wants("z", "gpu-jobs")], (), "xy"),
        ([wants("x", "gpu-jobs", gpus=1)], (has("h", "gpu-jobs=2"),), ""),
        # one that is held by more jobs than there are slots (forced, or by an older configuration)
        ([wants("x", "matlab")], (has("h", "matlab=3"),), ""),
        # everybody by their own count
        ([wants("x", "ocr", slot_limits={"ocr": 1}), wants("y", "ocr", slot_limits={"ocr": 3})],
         (has("h", "ocr=1"),), "y"),
    ],
)  # fmt: skip
def test_each_name_is_counted_by_itself(queue: list[Request], held: tuple[Lease, ...], granted: str) -> None:
    assert "".join(decide(queue, GPU, held, POLICY, NOW_S).grants) == granted


# X4, issue: named slots
@pytest.mark.parametrize(
    ("queue", "held", "granted", "reserving"),
    [
        # two that want different things have their turns at a time
        ([old("x", "ocr=2"), old("y", "gpu-jobs=2"), wants("z", "ocr"), wants("w", "gpu-jobs")],
         (has("h", "ocr"), has("i", "gpu-jobs")), "", "xy"),
        # two that want the same do not; what the second needs beside it is not kept
        ([old("x", "ocr=2"), old("y", "ocr=2 gpu-jobs=2"), wants("z", "gpu-jobs")],
         (has("h", "ocr"), has("i", "gpu-jobs")), "z", "x"),
        # who wants nothing of the first has a turn behind the second
        ([old("x", "ocr=2"), old("y", "ocr gpu-jobs=2"), old("z", "gpu-jobs=2"), wants("w", "gpu-jobs")],
         (has("h", "ocr"), has("i", "gpu-jobs")), "", "xz"),
        # what is kept is what it wants, and no more
        ([old("x", "ocr=2"), wants("y", "matlab"), wants("z", "cpu=4")], (has("h", "ocr"),), "yz", "x"),
        # the slots of one that waits for a GPU are kept with it
        ([old("x", "gpu-jobs=2", gpus=1), wants("y", "gpu-jobs"), wants("z", "ocr")],
         (made_up.lease("h", gpus=("a",)),), "z", "x"),
        # what could never be served keeps nothing
        ([old("x", "ocr=3"), wants("y", "ocr")], (has("h", "ocr"),), "y", ""),
    ],
)  # fmt: skip
def test_each_name_is_kept_by_itself(
    queue: list[Request], held: tuple[Lease, ...], granted: str, reserving: str
) -> None:
    verdict = decide(queue, GPU, held, POLICY, NOW_S)
    assert ("".join(verdict.grants), "".join(verdict.reserving)) == (granted, reserving)


# B1, issue: named slots
@pytest.mark.parametrize(
    ("wanted", "ahead", "held", "expected"),
    [
        (wants("x", "matlab ocr"), [], (has("h", "matlab"), has("i", "ocr")), ("slot", ("h",), "", "matlab")),
        (wants("x", "cpu=4 ocr"), [], (has("h", "cpu"), has("i", "ocr")), ("cpu", ("h",), "", "cpu")),
        (wants("x", "ocr=2", gpus=1), [], (has("i", "ocr"),), ("slot", ("i",), "", "ocr")),
        (wants("x", "ocr", gpus=1), [wants("y", "ocr=2")], (), ("slot", (), "", "ocr")),
        (wants("x", "ocr", gpus=1), [wants("y", "", gpus=1)], (), ("gpu", (), "", "")),
        (wants("x", "cpu ocr"), [old("y", "ocr=2")], (has("h", "ocr"),), ("slot", (), "y", "ocr")),
    ],
)
def test_who_waits_for_a_slot_is_told_its_name(
    wanted: Request, ahead: list[Request], held: tuple[Lease, ...],
    expected: tuple[str, tuple[str, ...], str, str],
) -> None:  # fmt: skip
    busy = Book([*ahead, wanted], GPU, held, POLICY, NOW_S).busy(wanted)
    holders = tuple(lease.job for lease in busy.holders)
    assert (busy.kind, holders, busy.reserved_for, busy.slot) == expected


# E4, issue: named slots
def test_more_than_there_are_is_said_at_once() -> None:
    request = wants("x", "cpu matlab=2")
    never = infeasible(request, GPU)
    assert never == Infeasible("slot", 2, 1, slot="matlab")
    told = refusal(never, request)
    assert told.message == "2 matlab slots were asked for, but this machine has 1 matlab slot"
    assert told.exit_code == 2


# A3, issue: named slots
@pytest.mark.parametrize(
    ("wanted", "inside", "waiting", "stuck"),
    [
        # two that hold a slot each and want that of the other
        ("matlab", ("h-ocr",), [("ocr=2", ("h-matlab",))], ("h-matlab",)),
        # who waits for another name will be served
        ("matlab", ("h-ocr",), [("cpu", ("h-matlab",))], ()),
        # one that can never have more than it leaves to itself
        ("ocr=2", ("h-ocr",), [], ("h-ocr",)),
        ("matlab", ("h-ocr",), [], ()),
    ],
)
def test_whoever_would_wait_for_ever_is_told(
    wanted: str, inside: tuple[str, ...], waiting: list[tuple[str, tuple[str, ...]]], stuck: tuple[str, ...]
) -> None:
    held = (has("h-ocr", "ocr"), has("h-matlab", "matlab"))
    queue = [
        made_up.ticket(**as_dict(wants(f"w{number}", words)), inside=around)
        for number, (words, around) in enumerate(waiting)
    ]
    ticket = made_up.ticket(**as_dict(wants("x", wanted)), inside=inside)
    assert deadlocked(ticket, [*queue, ticket], Book((), (), held, POLICY, NOW_S)) == stuck


# B2, issue: named slots
def test_the_forecast_plays_the_queue() -> None:
    held = (has("h", "matlab", since_s=NOW_S - 10, expect_s=40.0), has("i", "ocr=2"))
    queue = [
        made_up.ticket(**as_dict(wants("x", "matlab")), expect_s=5.0),
        made_up.ticket(**as_dict(wants("y", "matlab"))),
        made_up.ticket(**as_dict(wants("z", "ocr"))),
        made_up.ticket(**as_dict(wants("w", "gpu-jobs"))),
    ]
    assert start_times(Book(queue, (), held, POLICY, NOW_S)) == {"x": 30, "y": 35, "z": None, "w": 0}
