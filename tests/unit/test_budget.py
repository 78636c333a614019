"""A room that outgrows its budget of lines fails `make lint`, and the message says what to do."""

from __future__ import annotations

from pathlib import Path

from tools.budget import problems, sizes


def test_a_room_keeps_to_its_budget(tmp_path: Path) -> None:
    (tmp_path / "job" / "below").mkdir(parents=True)
    for name, lines in (("model.py", 2), ("job/a.py", 3), ("job/below/b.py", 4), ("job/page.js", 9)):
        (tmp_path / name).write_text("pass\n" * lines)
    found = sizes(tmp_path)
    assert found == {".": 2, "job": 7}
    assert problems(found, {".": 2, "job": 7}) == []
    (over,) = problems(found, {".": 2, "job": 6})
    assert over.startswith("src/slicer/job: 7 lines, over its budget of 6: ")
    assert "say why in the commit's message" in over
    assert problems(found, {"job": 7}) == ["src/slicer/.: has no budget of lines in pyproject.toml"]
    (gone,) = problems(found, {".": 2, "job": 7, "gone": 1})
    assert gone == "[tool.slicer.lines]: there is no src/slicer/gone"
