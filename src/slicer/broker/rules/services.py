"""Callers that are system services: a job would take them out of what their unit confines them to. Pure."""

from __future__ import annotations

from slicer.backend.closed_shop import JOB_RUNNERS

_MANAGER = "user@"


def service_of(cgroup: str) -> str:
    """The system service that a process is part of, by its cgroup; "" for none.

    What a user's own manager runs is the user's own word. Cron and at run what users have ordered.
    """
    for part in cgroup.split("/"):
        if part.startswith(_MANAGER):
            return ""
        if part.endswith(".service"):
            return "" if part in JOB_RUNNERS else part
    return ""
