"""docs/journal.md has every event and every field that slicer sends (K7), and the catalog every event."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slicer.outcome import journal

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "journal.md").read_text(encoding="utf-8")
CATALOG = (ROOT / "units" / "catalog" / "slicer.catalog").read_text(encoding="utf-8")
GOLDEN = ROOT / "tests" / "unit" / "surface" / "golden"
PRIORITIES = {
    journal.ERROR: "error", journal.WARNING: "warning", journal.NOTICE: "notice", journal.INFO: "info",
}  # fmt: skip


@pytest.mark.parametrize("kind", journal.KINDS)
def test_every_event_is_documented_with_its_priority(kind: journal.Kind) -> None:  # K7
    row = re.search(rf"^\| (?:`[\w-]+`, )*`{kind}`(?:, `[\w-]+`)* \| (\w+)", PAGE, re.M)
    assert row, f"docs/journal.md does not say what {kind} is"
    assert row[1] == PRIORITIES[journal.KINDS[kind].priority]


@pytest.mark.parametrize("kind", journal.KINDS)
def test_every_event_is_explained(kind: journal.Kind) -> None:  # K7
    assert f"-- {journal.KINDS[kind].message_id}\n" in CATALOG


def test_every_field_is_documented() -> None:  # K7
    sent = {
        name
        for path in GOLDEN.glob("*.txt")
        for name in re.findall(r"^(SLICER_\w+): ", path.read_text(encoding="utf-8"), re.M)
    }
    assert {"SLICER_EVENT", "SLICER_GPU", "SLICER_REASON"} <= sent
    assert sorted(name for name in sent if f"`{name}`" not in PAGE) == []
