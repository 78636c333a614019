"""What is wrong with a recorded wrap, and which steps repair it. Pure.

A kill at any instant leaves one of the situations below. So does anything that writes BIN or REAL later: a
package manager, pip, a person.
"""

from __future__ import annotations

import shlex

from slicer.record import record
from slicer.wrap import shim
from slicer.wrap.terms import Diversion, FileState, Problem, ProblemId, Situation, Step, Wrap


@record
class Sight:
    """The files and settings of a recorded wrap as they are now."""

    bin: FileState
    real: FileState
    slicer_runs: bool  # the slicer that the shim calls is executable
    has_route: bool | None  # None: the configuration cannot be read
    diversions: tuple[Diversion, ...]  # all of dpkg's
    real_runs: bool = True  # REAL, or the file that it leads to, is executable


def situation(wrap: Wrap, sight: Sight) -> Situation:
    bin, real = sight.bin, sight.real
    if wrap.intent != "install":
        return "leaving"
    if bin.kind == "shim":
        if not (real.is_program and sight.real_runs):
            return "program-gone"
        is_current = bin.head == shim.text(wrap) and bin.mode & 0o111
        return "whole" if is_current else "outdated"
    if bin.kind == "absent":
        return "shim-gone" if real.is_program else "gone"
    if not bin.is_program:
        return "unclear"
    if real.kind == "absent":
        return "unwrapped"
    if is_same(bin, real):
        return "unfinished"
    if wrap.diverted and is_diverted(wrap, sight.diversions):
        # dpkg has written a newer program to REAL before the shim was in place.
        return "unfinished" if real.is_program and is_recorded(wrap, bin) else "unclear"
    return "replaced" if is_recorded(wrap, real) else "unclear"


def is_same(one: FileState, other: FileState) -> bool:
    return one.is_program and (one.dev, one.ino) == (other.dev, other.ino)


def is_recorded(wrap: Wrap, seen: FileState) -> bool:
    """Whether this is the file that was wrapped. (Size and time are not enough: reproducible builds.)"""
    identity = (wrap.ino, wrap.size, wrap.mtime_ns)
    return seen.is_program and (seen.ino, seen.size, seen.mtime_ns) == identity


def is_diverted(wrap: Wrap, diversions: tuple[Diversion, ...]) -> bool:
    """Whether dpkg still has the diversion that the wrap needs; true if it needs none."""
    return not wrap.diverted or any(each.path == wrap.diverted and not each.by for each in diversions)


# The steps that complete a wrap; () if only its owner can decide.
_MENDING: dict[Situation, tuple[Step, ...]] = {
    "outdated": ("record", "place"),
    "shim-gone": ("record", "place"),
    "unfinished": ("record", "place"),
    "unwrapped": ("record", "link", "place"),
    # Record last but one: until REAL is the new program, the record identifies it as the old one.
    "replaced": ("exchange", "record", "place"),
}


def mending(wrap: Wrap, sight: Sight) -> tuple[Step, ...]:
    """The steps that repair the wrap; () if all is well, or if a person must choose."""
    found = situation(wrap, sight)
    if found == "leaving":
        return leaving(wrap, sight)
    if found == "whole":
        if not is_diverted(wrap, sight.diversions):
            return ("divert",)
        return () if sight.slicer_runs else ("record", "place")
    return diverting(wrap, sight, _MENDING.get(found, ()))


def diverting(wrap: Wrap, sight: Sight, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The steps, with the diversion before the last one if dpkg does not have it."""
    if not steps or is_diverted(wrap, sight.diversions):
        return steps
    return (*steps[:-1], "divert", steps[-1])


def leaving(wrap: Wrap, sight: Sight) -> tuple[Step, ...]:
    """The remaining steps of a removal; () if somebody has put another program there meanwhile."""
    end: tuple[Step, ...] = ("undivert", "forget") if wrap.diverted else ("forget",)
    if wrap.intent == "drop" and sight.bin.is_program:
        return ("drop", *end) if sight.real.is_program else end
    if not sight.real.is_program:
        return ("unlink", *end) if sight.bin.kind == "shim" else end
    if is_same(sight.bin, sight.real):
        return ("drop", *end)
    is_ours = sight.bin.kind in ("shim", "absent") or wrap.diverted
    return ("restore", *end) if is_ours and (wrap.diverted or is_recorded(wrap, sight.real)) else ()


def problems(wrap: Wrap, sight: Sight) -> tuple[Problem, ...]:
    """What is wrong with the wrap, the most important first."""
    found = situation(wrap, sight)
    again, away = lines(wrap)
    made: list[Problem] = []
    if found != "whole":
        message, mend = _TOLD[found]
        said = message.format(bin=wrap.path, real=wrap.real)
        choices = tuple(line for key in mend for line in _choice(key, wrap))
        is_mendable = bool(mending(wrap, sight))
        if found == "leaving" and not is_mendable:
            choices = (f"{away} --keep new", f"{away} --keep real")
        made.append(Problem(found, said, choices, is_mendable))
    elif not is_diverted(wrap, sight.diversions):
        told = f"dpkg's diversion of {wrap.diverted} is gone: the next upgrade replaces the shim"
        made.append(Problem("diversion-gone", told, (again,), True))
    if found == "leaving":
        return tuple(made)
    if not sight.slicer_runs:
        told = f"{wrap.slicer} cannot be executed: each call of {wrap.path} fails with exit code 127"
        made.append(Problem("slicer-gone", told, (again,), found == "whole" or bool(mending(wrap, sight))))
    if sight.has_route is False:
        told = f"the route {wrap.route!r} no longer exists: each call of {wrap.path} fails"
        made.append(Problem("no-route", told, (away, f"# or add [routes.{wrap.route}] again"), False))
    return tuple(made)


def lines(wrap: Wrap) -> tuple[str, str]:
    """The commands that wrap it again, and that unwrap it."""
    path = shlex.quote(wrap.path)
    return f"slicer wrap install {path} --route {shlex.quote(wrap.route)}", f"slicer wrap remove {path}"


def _choice(key: str, wrap: Wrap) -> tuple[str, ...]:
    again, away = lines(wrap)
    return {
        "again": (again,), "away": (away,), "force": (f"{again} --force",),
        "keep": (f"{away} --keep new", f"{away} --keep real"),
    }[key]  # fmt: skip


_TOLD: dict[ProblemId, tuple[str, tuple[str, ...]]] = {
    "replaced": ("{bin} was replaced (by an upgrade?): calls do not go through the route", ("again",)),
    "unfinished": ("{bin} is only half wrapped: calls do not go through the route", ("again",)),
    "unwrapped": ("{bin} is the program itself again: calls do not go through the route", ("again",)),
    "outdated": ("{bin} is the shim of another slicer, or was changed", ("again",)),
    "shim-gone": ("{bin} is missing; its program is still at {real}", ("again", "away")),
    "program-gone": (
        "the program {real} is missing or not executable: calls of {bin} exit with 127", ("away",),
    ),
    "gone": ("{bin} and {real} are both missing", ("away",)),
    "unclear": (
        "{bin} and {real} were both changed: calls do not go through the route, and slicer cannot tell "
        "which is the program", ("force", "keep"),
    ),
    "leaving": ("{bin} is only half unwrapped", ("away",)),
        }  # fmt: skip
