"""Detects callers that are system services: a job would escape their unit's confinement. Pure."""

from __future__ import annotations

from slicer.backend.closed_shop import JOB_RUNNERS

_MANAGER = "user@"


def service_of(cgroup: str) -> str:
    """The system service to which a process belongs, by its cgroup; "" for none.

    Processes of a user's own manager are under the user's control. Cron and at run users' orders.
    """
    for part in cgroup.split("/"):
        if part.startswith(_MANAGER):
            return ""
        if part.endswith(".service"):
            return "" if part in JOB_RUNNERS else part
    return ""
