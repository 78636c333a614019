"""The log of acts on a running job: pause, resume, change, stop. Each job has one append-only file.

``slicer pause`` and the like write a line before they act, and one after. The supervisor writes the acts of
others that it sees (``systemctl freeze``). The file lies beside the leases' folder, so that it wakes no
waiting job, and is removed with the lease. Its lines are ``SECONDS KIND UID TEXT``.

A killed writer leaves a line without a successor. So the file alone never shows that a job stands still: the
cgroup does.
"""

from __future__ import annotations

import os

from slicer.errors import LedgerGone
from slicer.kernel.proc import now_s
from slicer.ledger.files import control_name
from slicer.model import GAVE_WAY
from slicer.record import record
from slicer.state.directory import failing
from slicer.state.statefile import SECONDS_MAX, is_digits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from slicer.ledger.ledger import Ledger
    from slicer.model import EndedBy
    from slicer.state.statedir import StateDir

    # "pause" and "resume" come before the act, "paused" and "resumed" after it. "frozen" and "thawed" are
    # acts of others. "set" is a completed NAME=VALUE. "stop", "cap" (the job exceeded its cap and is ended
    # for that), "idle" (it did not use its GPUs) and "way" (it gives way) come before the act. "signal" is
    # one that ends the job while it gives way.
    Kind = Literal[
        "pause", "paused", "resume", "resumed", "frozen", "thawed", "set", "stop", "cap", "idle", "way",
        "signal",
    ]

_MAX_BYTES = 1 << 20
_LONGEST_TEXT = 4096
_OPENING = ("pause", "paused", "frozen")
_CLOSING = ("resumed", "thawed")
_ENDING: dict[str, EndedBy] = {
    "stop": "slicer stop", "cap": "slicer cap", "idle": "slicer idle", "way": GAVE_WAY,
    "signal": "slicer run",
}  # fmt: skip
_KINDS = frozenset({*_OPENING, *_CLOSING, "resume", "set", *_ENDING})


@record
class ControlAct:
    at_s: float  # CLOCK_BOOTTIME, the ledger's clock
    kind: Kind
    uid: int  # of the process that acted
    text: str


@record
class Pause:
    """A time in which the job stood still. ``until_s`` None: it still does, or its end was not logged."""

    since_s: float
    until_s: float | None
    by_slicer: bool  # by slicer pause


def read(directory: StateDir, job: str) -> tuple[ControlAct, ...]:
    """The job's lines, in order; invalid lines are left out. Raises StateError."""
    return decode(directory.base.read(control_name(job), _MAX_BYTES))


def add(directory: StateDir, job: str, kind: Kind, text: str = "") -> None:
    """Add a line. Raises StateError.

    Call it only while the lease certainly exists. Otherwise the file would never be removed.
    """
    name = control_name(job)
    with failing(f"{directory.path}/{name}", "cannot be written"):
        fd = directory.base.open_file(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(fd, encode(ControlAct(now_s(), kind, os.geteuid(), text)))
        finally:
            os.close(fd)


def note(ledger: Ledger, job: str, kind: Kind, text: str = "") -> None:
    """Add a line if the job still has its lease. Raises StateError."""
    try:
        with ledger.locked():
            if ledger.directory.leases.has(job):
                add(ledger.directory, job, kind, text)
    except LedgerGone:
        pass  # nobody would read it


# -- pure ---------------------------------------------------------------------------------------------------


def encode(act: ControlAct) -> bytes:
    text = act.text[:_LONGEST_TEXT].replace("\\", "\\\\").replace("\n", "\\n")
    return f"{act.at_s:.6f} {act.kind} {act.uid} {text}\n".encode("utf-8", "surrogateescape")


def decode(data: bytes) -> tuple[ControlAct, ...]:
    """The acts in a file's bytes. Invalid lines are left out, and so is an incomplete one."""
    lines = data.decode("utf-8", "surrogateescape").split("\n")[:-1]
    return tuple(act for act in map(_act, lines) if act is not None)


def _act(line: str) -> ControlAct | None:
    at, _, rest = line.partition(" ")
    kind, _, rest = rest.partition(" ")
    uid, _, text = rest.partition(" ")
    whole, _, fraction = at.partition(".")
    if kind not in _KINDS or not all(map(is_digits, (whole, fraction or "0", uid))):
        return None
    at_s = float(at)
    if at_s > SECONDS_MAX:
        return None
    text = "\\".join(part.replace("\\n", "\n") for part in text.split("\\\\"))
    return ControlAct(at_s, kind, int(uid), text)  # type: ignore[arg-type]


def pauses(acts: Iterable[ControlAct]) -> tuple[Pause, ...]:
    """The times in which the job stood still, as logged. Only the last one may be open."""
    found: list[Pause] = []
    since: ControlAct | None = None
    for act in acts:
        if act.kind in _OPENING and since is None:
            since = act
        elif act.kind in _CLOSING and since is not None:
            found.append(Pause(since.at_s, max(since.at_s, act.at_s), since.kind != "frozen"))
            since = None
    if since is not None:
        found.append(Pause(since.at_s, None, since.kind != "frozen"))
    return tuple(found)


def open_pause(acts: Iterable[ControlAct]) -> Pause | None:
    """The last pause, if its end was not logged."""
    last = next(reversed(pauses(acts)), None)
    return last if last is not None and last.until_s is None else None


def paused_s(acts: Iterable[ControlAct], at_s: float) -> float:
    """The seconds that the job stood still until ``at_s``."""
    ends = ((pause, at_s if pause.until_s is None else min(pause.until_s, at_s)) for pause in pauses(acts))
    return sum(max(0.0, until_s - pause.since_s) for pause, until_s in ends)


def last_set(acts: Iterable[ControlAct]) -> dict[str, str]:
    """The last value of each property from ``slicer set``."""
    found = (act.text.partition("=") for act in acts if act.kind == "set")
    return {name: value for name, _, value in found}


def who_told_to_end(acts: Iterable[ControlAct]) -> EndedBy:
    """The first part of slicer that told the job to end; "": none. That it gives way counts least."""
    told = [_ENDING[act.kind] for act in acts if act.kind in _ENDING]
    return next((by for by in told if by != GAVE_WAY), told[0] if told else "")
