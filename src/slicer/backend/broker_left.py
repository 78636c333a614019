"""A broker that does not listen: whether it still decides here, and what to do."""

from __future__ import annotations

import os

from slicer.kernel import cgroup, proc
from slicer.model import Lease
from slicer.state import BROKER_DIRECTORY, BROKER_ENABLED, statefile
from slicer.state.statefile import TornFile
from slicer.text import counted

_SOCKET = "slicer-broker.socket"
_FOLDER = f"{BROKER_DIRECTORY}/leases"  # root's, and readable by all
_CONDITION = "ConditionFileIsExecutable="  # in the socket's unit: its program
_NAMED = 3  # the number of jobs that are named


def is_switched_on() -> bool:
    """Whether the socket is enabled and its program exists. Without the program, its units decide nothing."""
    try:
        with open(BROKER_ENABLED, encoding="utf-8") as unit:
            conditions = [line.strip() for line in unit if line.startswith(_CONDITION)]
    except (FileNotFoundError, NotADirectoryError):
        return False
    return all(os.access(line.removeprefix(_CONDITION), os.X_OK) for line in conditions)


def why_absent() -> tuple[str, str] | None:
    """What is wrong and what to do if the socket does not exist; None: there is no broker."""
    if is_switched_on():
        message = "the broker is switched on, but its socket is missing"
        hint = f"systemctl start {_SOCKET}; or, to go on without a broker, systemctl disable {_SOCKET}"
        return message, hint
    left = leases_left()
    if not left:
        return None
    named = ", ".join(lease.unit or f"pid {lease.pid}" for lease in left[:_NAMED])
    more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    message = f"the broker was switched off, but {counted(len(left), 'job')} of it still run: {named}{more}"
    if len(left) == 1:
        message = f"the broker was switched off, but one of its jobs still runs: {named}"
    return message, f"wait until they have ended, or switch it on: systemctl enable --now {_SOCKET}"


def leases_left() -> list[Lease]:
    """The leases of an absent broker that still count. No private ledger knows them."""
    try:
        names = sorted(filter(statefile.is_job_id, os.listdir(_FOLDER)))
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    boot = proc.boot_id()
    for name in names:
        try:
            with open(f"{_FOLDER}/{name}", "rb") as file:
                lease = statefile.decode(Lease, file.read())
        except (FileNotFoundError, TornFile):
            continue  # it has just ended; or an older broker wrote it, and nobody knows it any more
        if lease.boot_id == boot and _counts(lease):
            found.append(lease)
    return found


def _counts(lease: Lease) -> bool:
    """Whether its scope is populated; without one or before its keeper, whether its process lives."""
    if lease.cgroup and cgroup.lives(lease.cgroup):
        return True
    is_awaited = not lease.cgroup or proc.start_time(lease.keeper) is not None
    return is_awaited and proc.start_time(lease.pid) in (lease.pid_start, 0)  # 0: hidden, so it lives
