"""All possible findings: the table in kinds.toml, from which docs/doctor.md is made, too."""

from __future__ import annotations

import os
import tomllib
from functools import cache
from typing import Any

from slicer.doctor.findings import Area, Finding, FindingKind

_TABLE = os.path.join(os.path.dirname(__file__), "kinds.toml")


@cache
def kinds() -> dict[str, FindingKind]:
    """All kinds by their ids, in the order of their areas."""
    with open(_TABLE, "rb") as file:
        areas: dict[Area, dict[str, dict[str, Any]]] = tomllib.load(file)  # type: ignore[assignment]
    return {id: FindingKind(id, area, **said) for area, table in areas.items() for id, said in table.items()}


def finding(id: str, what: str, *mend: str) -> Finding:
    return Finding(kinds()[id], what, mend)
