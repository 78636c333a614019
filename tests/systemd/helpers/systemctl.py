"""What systemd and journald say, for root's manager or a user's."""

from __future__ import annotations

import json
import subprocess
from typing import Any


def output(*command: str, check: bool = True, env: dict[str, str] | None = None) -> str:
    """Standard output, stripped; fails with everything the command said."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=env, timeout=300)
    assert not check or done.returncode == 0, (command, done.returncode, done.stdout, done.stderr)
    return done.stdout.strip()


def show(unit: str, *names: str, prefix: tuple[str, ...] = ("systemctl",)) -> dict[str, str]:
    """Properties of a unit, as systemctl formats them."""
    lines = output(*prefix, "show", unit, *(f"--property={name}" for name in names)).splitlines()
    return dict(line.split("=", 1) for line in lines)


def scopes(prefix: tuple[str, ...] = ("systemctl",)) -> list[str]:
    """All slicer scopes that the manager has loaded, in whatever state."""
    listed = output(*prefix, "list-units", "--all", "--plain", "--no-legend", "slicer-*.scope")
    return [line.split()[0] for line in listed.splitlines()]


def journal(*args: str) -> list[dict[str, Any]]:
    """The matching entries, once journald has written what it was sent."""
    output("journalctl", "--sync")
    lines = output("journalctl", "--no-pager", "--quiet", "--all", "--output=json", *args).splitlines()
    return [json.loads(line) for line in lines]


def events(job: str) -> list[str]:
    """The kinds of a job's journal entries, in their order."""
    return [entry["SLICER_EVENT"] for entry in journal("-t", "slicer", f"SLICER_JOB={job}")]
