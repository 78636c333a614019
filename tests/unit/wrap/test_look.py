"""Which slicer a shim is to call."""

from __future__ import annotations

from pathlib import Path

import pytest

from slicer.wrap import look
from slicer.wrap.terms import WrapRefused


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A slicer in a store, and a profile in PATH, which is empty."""
    program = tmp_path / "store/1-slicer/bin/slicer"
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    (tmp_path / "profile").mkdir()
    monkeypatch.setattr(look, "STORES", (f"{tmp_path}/store/",))
    monkeypatch.setenv("PATH", f"{program.parent}:.:{tmp_path}/profile")
    return program


def test_a_shim_calls_the_profiles_name_of_a_slicer_in_a_store(store: Path, tmp_path: Path) -> None:  # N3, C5
    """It leads to the next version after an upgrade; this one's own path is collected as garbage."""
    name = tmp_path / "profile/slicer"
    name.symlink_to(store)
    assert look.own_path(str(store)) == str(name)
    assert look.own_path(str(name)) == str(name)


def test_without_such_a_name_it_is_refused(store: Path, tmp_path: Path) -> None:  # N3, C5
    (tmp_path / "profile/slicer").symlink_to("/bin/sh")  # another slicer
    with pytest.raises(WrapRefused, match="nothing in PATH leads to this one"):
        look.own_path(str(store))
