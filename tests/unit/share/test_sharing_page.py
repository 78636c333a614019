"""docs/sharing.md knows every trouble, mode and variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from slicer.share import layout, summary

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "sharing.md").read_text()
PRELOAD = ROOT / "src" / "slicer" / "share" / "preload"  # not in an installed slicer
TROUBLES = (*layout.TROUBLES.values(), summary.NOT_PRELOADED, summary.NO_FILE, "other")


@pytest.mark.parametrize("word", TROUBLES)
def test_every_trouble_has_its_row(word: str) -> None:  # D5
    assert f"\n| `{word}` |" in PAGE


def test_what_the_library_says_is_as_the_page_quotes_it() -> None:  # D5
    sources = PRELOAD.glob("*.c")
    said = " ".join(path.read_text() for path in sources).replace('"\n', '').replace("\n", " ")
    table = PAGE.partition("| the library says |")[2].partition("\n\n")[0]
    quoted = [row.split("|")[1] for row in table.splitlines()[2:]]
    texts = [text for cell in quoted for text in cell.split(", this ")]
    parts = [part.strip(" ,:") for text in texts for part in text.split("…")]
    assert len(quoted) == 10
    assert not {part for part in parts if part and part not in said}


def test_every_variable_of_the_library_is_named() -> None:  # D3
    words = (PRELOAD / "settings.c").read_text().replace(",", " ").replace("(", " ").split()
    names = {word.strip('"') for word in words if word.startswith(('"SLICER_SHARE', '"CUDA_OVERRIDE'))}
    assert len(names) == 11
    assert not {name for name in names if name not in PAGE}
