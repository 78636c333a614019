"""Every situation that BIN and REAL can be in, what is said of it, and that mending leads to a whole wrap."""

from __future__ import annotations

import itertools

import pytest

from slicer.record import replace
from slicer.wrap import judging, planning, shim
from slicer.wrap.judging import Sight
from slicer.wrap.terms import ABSENT, Diversion, FileState, Wrap, WrapRefused

WRAP = Wrap("/usr/bin/x", "/usr/bin/x-real", "r", "/usr/bin/slicer", "install", 100, 10, 20, "", "", 0.0)
OF_DEB = replace(WRAP, package="x", diverted="/usr/bin/x")
DIVERSION = (Diversion("/usr/bin/x", "/usr/bin/x-real", ""),)
OLD = FileState("file", 1, 100, 10, 20, mode=0o755)  # the program that was wrapped
NEW = FileState("file", 1, 101, 11, 21, mode=0o755)  # one that came later
ELSE = FileState("link", 1, 102, 12, 22, mode=0o777)
SHIM = FileState("shim", 1, 103, 13, 23, mode=0o755, head=shim.text(WRAP))
OF_OTHER = replace(SHIM, head=b"#!/bin/sh\n# slicer wrap, form 0\n")
FOLDER = FileState("directory")


def sight(bin: FileState, real: FileState, wrap: Wrap = WRAP, **changes: object) -> Sight:
    if bin == SHIM:
        bin = replace(bin, head=shim.text(wrap))
    found = Sight(bin, real, True, True, DIVERSION if wrap.diverted else ())
    return replace(found, **changes)


@pytest.mark.parametrize(("wrap", "bin", "real", "expected", "steps"), [
    (WRAP, SHIM, OLD, "whole", ""),
    (WRAP, SHIM, NEW, "whole", ""),  # whoever updates REAL by hand may do so
    (WRAP, SHIM, ELSE, "whole", ""),
    (OF_DEB, SHIM, NEW, "whole", ""),  # by an upgrade of the package
    (WRAP, OF_OTHER, OLD, "outdated", "record place"),
    (WRAP, replace(SHIM, mode=0o644), OLD, "outdated", "record place"),
    (WRAP, SHIM, ABSENT, "program-gone", ""),
    (WRAP, SHIM, FOLDER, "program-gone", ""),
    (WRAP, SHIM, SHIM, "program-gone", ""),
    (WRAP, ABSENT, OLD, "shim-gone", "record place"),
    (WRAP, ABSENT, ABSENT, "gone", ""),
    (WRAP, OLD, OLD, "unfinished", "record place"),
    (WRAP, NEW, NEW, "unfinished", "record place"),
    (WRAP, OLD, ABSENT, "unwrapped", "record link place"),
    (WRAP, NEW, ABSENT, "unwrapped", "record link place"),
    (WRAP, NEW, OLD, "replaced", "exchange record place"),
    (WRAP, ELSE, OLD, "replaced", "exchange record place"),
    (WRAP, NEW, ELSE, "unclear", ""),
    (WRAP, OLD, NEW, "unclear", ""),  # REAL may be somebody's who was faster
    (WRAP, FOLDER, OLD, "unclear", ""),
    (WRAP, NEW, FOLDER, "unclear", ""),
    (OF_DEB, OLD, NEW, "unfinished", "record place"),  # upgraded between the diversion and the shim
    (OF_DEB, NEW, OLD, "unclear", ""),  # REAL is the package's, BIN nobody knows whose
    (OF_DEB, NEW, ELSE, "unclear", ""),
    (WRAP, replace(OLD, ino=7), OLD, "replaced", "exchange record place"),  # a reproducible build
])  # fmt: skip
def test_each_situation_is_told_apart(
    wrap: Wrap, bin: FileState, real: FileState, expected: str, steps: str
) -> None:  # C5
    seen = sight(bin, real, wrap)
    assert judging.situation(wrap, seen) == expected
    assert " ".join(judging.mending(wrap, seen)) == steps
    found = judging.problems(wrap, seen)
    assert [each.id for each in found] == ([] if expected == "whole" else [expected])
    assert all(each.mend and each.is_mendable == bool(steps) for each in found)


@pytest.mark.parametrize(("intent", "bin", "real", "steps"), [
    ("restore", SHIM, OLD, "restore forget"),
    ("restore", ABSENT, OLD, "restore forget"),
    ("restore", OLD, ABSENT, "forget"),
    ("restore", OLD, OLD, "drop forget"),
    ("restore", SHIM, ABSENT, "unlink forget"),
    ("restore", ABSENT, ABSENT, "forget"),
    ("restore", NEW, OLD, ""),  # two programs again: somebody has to say which
    ("restore", SHIM, NEW, ""),
    ("drop", NEW, OLD, "drop forget"),
    ("drop", NEW, ABSENT, "forget"),
])  # fmt: skip
def test_a_removal_is_finished(intent: str, bin: FileState, real: FileState, steps: str) -> None:  # C5
    wrap = replace(WRAP, intent=intent)
    (problem,) = judging.problems(wrap, sight(bin, real))
    assert problem.id == "leaving"
    assert " ".join(judging.mending(wrap, sight(bin, real))) == steps
    assert problem.is_mendable == bool(steps)


def test_a_link_to_a_program_that_is_gone_is_noticed() -> None:  # C5
    """pipx and uv put links into a directory of PATH; uninstalled, the link behind the shim dangles."""
    seen = sight(SHIM, ELSE, real_runs=False)
    assert judging.situation(WRAP, seen) == "program-gone"
    assert judging.mending(WRAP, seen) == ()
    assert planning.remove(WRAP, seen, None).steps == ("record", "restore", "forget")


def test_a_packages_removal_ends_with_its_diversion() -> None:  # C5
    wrap = replace(OF_DEB, intent="restore")
    for bin, real in ((SHIM, NEW), (NEW, OLD), (OLD, NEW)):  # dpkg's newest is always at REAL
        assert judging.mending(wrap, sight(bin, real, wrap)) == ("restore", "undivert", "forget")


def test_what_a_shim_needs_is_told() -> None:  # C5
    without = {
        "slicer-gone": sight(SHIM, OLD, slicer_runs=False),
        "no-route": sight(SHIM, OLD, has_route=False),
        "diversion-gone": sight(SHIM, OLD, OF_DEB, diversions=()),
    }
    for id, seen in without.items():
        wrap = OF_DEB if id == "diversion-gone" else WRAP
        (problem,) = judging.problems(wrap, seen)
        assert problem.id == id
        assert problem.is_mendable == (id != "no-route") == bool(judging.mending(wrap, seen))
    assert judging.problems(WRAP, sight(SHIM, OLD, has_route=None)) == ()
    of_another = (Diversion("/usr/bin/x", "/usr/bin/x.distrib", "other"),)
    assert not judging.is_diverted(OF_DEB, of_another)


def test_an_upgrade_before_the_diversion_was_set_is_what_is_wrapped() -> None:  # C5
    seen = sight(NEW, OLD, OF_DEB, diversions=())
    assert judging.situation(OF_DEB, seen) == "replaced"
    assert judging.mending(OF_DEB, seen) == ("exchange", "record", "divert", "place")


def test_a_lost_diversion_is_set_before_the_shim() -> None:  # C5
    seen = sight(OLD, ABSENT, OF_DEB, diversions=())
    assert judging.mending(OF_DEB, seen) == ("record", "link", "divert", "place")


# -- what the steps do, as a model ---------------------------------------------------------------------------

ALL = (ABSENT, SHIM, OLD, NEW, ELSE)


def after(
    steps: tuple[str, ...], wrap: Wrap, bin: FileState, real: FileState
) -> tuple[Wrap | None, FileState, FileState]:
    """The world once these steps were taken. At no time may BIN, once executable, not be so."""
    recorded: Wrap | None = wrap
    for step in steps:
        was_there = bin.kind != "absent"
        match step:
            case "link":
                assert real.kind == "absent"
                real = bin
            case "exchange":
                real = bin
            case "place":
                assert real.is_program, "a shim without a program"
                bin = replace(SHIM, head=shim.text(wrap))
            case "restore":
                bin, real = real, ABSENT
            case "drop":
                assert bin.is_program, "the only program would be gone"
                real = ABSENT
            case "unlink":
                assert bin.kind == "shim"
                bin = ABSENT
            case "forget":
                recorded = None
        assert not was_there or bin.kind != "absent" or step == "unlink"
    return recorded, bin, real


@pytest.mark.parametrize("wrap", [WRAP, OF_DEB])
@pytest.mark.parametrize("intent", ["install", "restore", "drop"])
def test_mending_comes_to_an_end_from_anywhere_and_after_any_kill(wrap: Wrap, intent: str) -> None:  # C5
    """Each beginning of the steps leaves what mending makes whole; what is whole needs no mending."""
    for bin, real in itertools.product(ALL, ALL):
        known = replace(wrap, intent=intent)
        seen = sight(bin, real, known)
        plan = planning.mend(known, seen, "/usr/bin/slicer")
        for count in range(len(plan.steps) + 1):
            # What "record" writes counts only once it was taken.
            wrote = plan.wrap if "record" in plan.steps[:count] else known
            left, bin_then, real_then = after(plan.steps[:count], plan.wrap, seen.bin, seen.real)
            if left is None:
                continue
            then = sight(bin_then, real_then, wrote)
            again = planning.mend(wrote, then, "/usr/bin/slicer")
            end, last_bin, last_real = after(again.steps, again.wrap, then.bin, then.real)
            if not plan.steps:
                assert not again.steps
            elif intent == "install":
                last = sight(last_bin, last_real, again.wrap)
                assert judging.situation(again.wrap, last) == "whole", (bin, real, count)
            else:
                assert end is None, (bin, real, count)


@pytest.mark.parametrize("wrap", [WRAP, OF_DEB])
def test_removing_never_loses_the_only_program_and_can_be_killed_anywhere(wrap: Wrap) -> None:  # C5
    for bin, real, keep in itertools.product(ALL, ALL, (None, "new", "real")):
        seen = sight(bin, real, wrap)
        try:
            plan = planning.remove(wrap, seen, keep)  # type: ignore[arg-type]
        except WrapRefused:
            assert keep == "new" or (bin.is_program and real.is_program and keep is None) or real == SHIM
            continue
        had = bin.is_program or real.is_program
        for count in range(len(plan.steps) + 1):
            left, bin_then, real_then = after(plan.steps[:count], plan.wrap, seen.bin, seen.real)
            if left is None or not count:
                continue
            then = sight(bin_then, real_then, plan.wrap)
            again = planning.remove(plan.wrap, then, keep if bin_then.is_program else None)  # type: ignore[arg-type]
            end, last_bin, _ = after(again.steps, again.wrap, then.bin, then.real)
            assert end is None
            assert last_bin.is_program == had, (bin, real, keep, count)
