"""Everything that the doctor can find. The ids are stable: scripts and people's notes refer to them.

docs/doctor.md is this table (``python -m tests.unit.doctor`` writes it). Pure.
"""

from __future__ import annotations

from slicer.doctor.kinds import brokers, fences, machine, places, use
from slicer.doctor.model import Finding, Kind

_FOUND = (*machine.FOUND, *places.FOUND, *brokers.FOUND, *fences.FOUND, *use.FOUND)
KINDS: dict[str, Kind] = {kind.id: kind for kind in _FOUND}


def finding(id: str, what: str, *mend: str) -> Finding:
    """A case of the kind with that id."""
    return Finding(KINDS[id], what, mend)
