"""Outcomes that are not in the history yet: files ``ID.outcome`` in the ledger's directory.

That directory is in memory. So the outcome of a job survives a history whose disk is full or damaged, and so
does the fact that a job ran of which nobody saw the end. Whoever next ends a job or looks at the history puts
them there, each once.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable

from slicer.errors import EX_SLICER, StateError
from slicer.kernel.epoch import epoch_s
from slicer.model import CPU, Lease, Outcome, Usage
from slicer.outcome import history
from slicer.outcome.outcome_file import INVALID, outcome_from, outcome_json
from slicer.record import fields_for
from slicer.state.directory import Directory
from slicer.state.statefile import is_job_id

_LONGEST = 4 << 20  # a command may have 2 MiB


def keep(base: Directory, outcome: Outcome) -> None:
    """Keep an outcome for the history. ``base`` is the ledger's directory. Raises OSError."""
    base.replace_shared(f"{outcome.job}{history.KEPT}", json.dumps(outcome_json(outcome)).encode(), 0o600)


def keep_lost(base: Directory, lease: Lease) -> None:
    """Keep the little that is known of a job whose processes are all gone, unless its end is known."""
    if not base.has(f"{lease.job}{history.KEPT}"):
        keep(base, lost(lease, epoch_s()))


def lost(lease: Lease, booted_at: float) -> Outcome:
    """The outcome of a job that nobody saw end. ``booted_at``: in seconds since 1970. Pure.

    How long it ran is not known, and is 0.
    """
    try:
        command = tuple(shlex.split(lease.command))
    except ValueError:  # it is shortened
        command = tuple(lease.command.split())
    return Outcome(
        **{**fields_for(Outcome, lease), "command": command},
        slice=os.path.basename(os.path.dirname(lease.cgroup)).removeprefix("_"),  # it escapes "cpu."
        cpu_slots=lease.slots.get(CPU, 0),
        reason="unknown", exit_code=EX_SLICER, signal=None, started_at=booted_at + lease.since_s,
        waited_s=0.0, wall_s=0.0, usage=Usage(), leftovers=0, enforced=(), not_enforced=(),
    )  # fmt: skip


def settle(base: Directory, path: str, warn: Callable[[str], None]) -> list[Outcome]:
    """Put what is kept into the history at ``path``. Returns what that has no room for yet.

    A process that is killed on the way leaves a file for the next: the history takes each job once.
    """
    left = list[Outcome]()
    for name in sorted(base.names()):
        job = name.removesuffix(history.KEPT)
        if job == name or not is_job_id(job):
            continue
        try:
            outcome = outcome_from(json.loads(base.read(name, _LONGEST)))
        except INVALID:  # not ours, or another process has just put it there
            continue
        try:
            if not left:  # else there is no room for this one either
                warning = history.append(outcome, path)
                base.remove(name)
                if warning:
                    warn(warning)
                continue
        except StateError as error:
            warn(str(error))
        left.append(outcome)
    return left
