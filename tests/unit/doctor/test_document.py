"""docs/doctor.md says what the code does."""

from __future__ import annotations

from tests.unit.doctor.document import PATH, page


def test_the_page_lists_every_finding_with_why_and_cure() -> None:  # X10
    assert PATH.read_text(encoding="utf-8") == page(), "python -m tests.unit.doctor writes it anew"
