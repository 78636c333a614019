"""The state of all jobs from ``slicer status``: who has the GPUs, who waits for them, what is on them.

It runs as a separate process. So neither a hanging driver nor the lock of a busy ledger delays a request.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Collection, Mapping
from typing import Any

from slicer.errors import StateError
from slicer.record import record

SLICER = (sys.executable, "-P", "-m", "slicer")


async def run_slicer(environ: Mapping[str, str], *words: str) -> tuple[int, str, str]:
    """Run a slicer command. Returns its exit code, output and errors. If cancelled, it kills the command."""
    process = await asyncio.create_subprocess_exec(
        *SLICER, *words, env=dict(environ), stdin=asyncio.subprocess.DEVNULL, start_new_session=True,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    return process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace").strip()


async def status(environ: Mapping[str, str]) -> dict[str, Any]:
    """The document of ``slicer status --json``. Raises StateError if there is none."""
    code, out, err = await run_slicer(environ, "status", "--json")
    try:
        found = json.loads(out)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise StateError(f"slicer status failed with {code}: {err[-300:]}")
    return found


# -- pure ---------------------------------------------------------------------------------------------------


@record
class Pressure:
    """The kinds of jobs that wait for what a job holds."""

    is_crowded: bool = False  # somebody else's job
    is_rivalled: bool = False  # one of its named rivals


def own_jobs(document: dict[str, Any], names: Collection[str], uid: int) -> tuple[str, ...]:
    """The ids of this user's running and waiting jobs with these names."""
    jobs = [*document["jobs"], *document["waiting"]]
    return tuple(each["job"] for each in jobs if each["name"] in names and each["uid"] == uid)


def first_holder(document: dict[str, Any]) -> tuple[str, float | None]:
    """The GPU job that should end first, and in how many seconds; ("", None) if there is none."""
    jobs = [(each["expected_remaining"], each["name"]) for each in document["jobs"] if each["gpus"]]
    jobs.sort(key=lambda each: (each[0] is None, each[0] or 0.0))
    return (jobs[0][1], jobs[0][0]) if jobs else ("", None)


def pressure(document: dict[str, Any], job: str, rivals: Collection[str], uid: int) -> Pressure:
    """Which jobs wait for GPUs that ``job`` helps to occupy. ``rivals``: names of this user's jobs."""
    is_crowded = is_rivalled = False
    for each in document["waiting"]:
        why = each["why"]
        if each["gpus"] and why is not None and job in why["holders"]:
            is_rival = each["uid"] == uid and each["name"] in rivals
            is_rivalled, is_crowded = is_rivalled or is_rival, is_crowded or not is_rival
    return Pressure(is_crowded, is_rivalled)


def foreign_mib(document: dict[str, Any], gpus: Collection[str]) -> dict[str, int]:
    """The memory that no job uses, by the GPU's UUID, for GPUs that could be examined."""
    found = {
        each["uuid"]: each["used_mib"]
        for each in document["gpus"]["all"]
        if each["uuid"] in gpus and each["used_mib"] is not None
    }
    for job in document["jobs"]:
        for held in job["gpus"]:
            if held["uuid"] in found:
                found[held["uuid"]] -= held["used_mib"] or 0
    return found
