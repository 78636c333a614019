"""Write docs/doctor.md anew: ``python -m tests.unit.doctor``."""

from __future__ import annotations

from tests.unit.doctor.document import PATH, page

PATH.write_text(page(), encoding="utf-8")
