"""The manual pages in man/ are those of this version, and are where an installation looks for them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.manpages.tree import all_commands

ROOT = Path(__file__).parents[2]


def test_the_pages_are_current() -> None:
    pytest.importorskip("docutils", reason="docutils is a tool of development: pip install -e .[dev]")
    from tools.manpages.pages import pages, stale

    old = stale(ROOT / "man", pages())
    assert not old, f"not as the commands' help is: {', '.join(old)} (make man)"


def test_every_command_has_a_page_and_every_page_its_title() -> None:
    there = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "man").iterdir()}
    expected = {f"{command.page}.1" for command in all_commands()}
    sources = {path.stem for path in (ROOT / "docs" / "man").iterdir()}
    assert {"slicer.1", "slicer.toml.5", "slicer-broker.8"} <= sources
    assert set(there) == expected | sources
    for name, text in there.items():
        title, _, section = name.rpartition(".")
        assert f'.TH "{title}" "{section}" ' in text


def test_a_page_refers_only_to_pages_that_there_are() -> None:
    there = {path.name for path in (ROOT / "man").iterdir()}
    for path in (ROOT / "man").iterdir():
        text = path.read_text(encoding="utf-8").replace("\\-", "-").replace("\\fP", "").replace("\\fB", "")
        for name, section in re.findall(r"\b(slicer[\w.-]*)\((\d)\)", text):
            assert f"{name}.{section}" in there, (path.name, name)


def test_the_package_has_the_pages() -> None:
    assert (ROOT / "src" / "slicer" / "_man").resolve() == ROOT / "man"
    assert '"_man/*"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
