"""docs/doctor.md, made from the table of findings."""

from __future__ import annotations

from pathlib import Path

from slicer.doctor.findings import AREAS
from slicer.doctor.kinds import kinds

PATH = Path(__file__).resolve().parents[3] / "docs" / "doctor.md"
BEGIN = "<!-- The rest is made by `python -m tests.unit.doctor` from src/slicer/doctor/kinds.toml. -->\n"
TITLES = {
    "systemd": "systemd", "kernel": "The kernel, and limits of the shell", "session": "Sessions",
    "limits": "Limits", "gpus": "GPUs", "state": "The ledger and the history", "broker": "The broker",
    "journal": "The journal",
    "units": "Unit files", "configuration": "Configuration", "environment": "How slicer is called",
    "wraps": "Wrapped programs", "others": "Other programs, and the looks themselves",
}  # fmt: skip


def made() -> str:
    """The part of the page that is made."""
    parts = [BEGIN]
    for area in AREAS:
        parts.append(f"\n## {TITLES[area]}\n\n")
        for kind in kinds().values():
            if kind.area == area:
                told = f"**{kind.id}** ({kind.severity}): {kind.title}. {kind.why}"
                parts.append(f"- {told} *Cure:* {kind.cure}\n")
    return "".join(parts)


def page() -> str:
    """The whole page, with its beginning as it is."""
    return PATH.read_text(encoding="utf-8").partition(BEGIN)[0] + made()
