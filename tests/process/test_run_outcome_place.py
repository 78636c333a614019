"""``--outcome`` where another user may make files, by root (S21)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.harness import Box

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be the victim and the other user")

MALLORY = 54321


@pytest.fixture
def open_to_all(tmp_path: Path) -> Path:
    """As /tmp is."""
    made = tmp_path / "open"
    made.mkdir()
    made.chmod(0o1777)
    return made


def outcome_at(box: Box, path: Path) -> tuple[int, str]:
    done = box.run("--outcome", str(path), "--", "true")
    return done.returncode, done.stderr


# S21
def test_another_users_link_is_not_followed(box: Box, open_to_all: Path, tmp_path: Path) -> None:
    victim = tmp_path / "root's"
    victim.write_text("precious")
    link = open_to_all / "out.json"
    link.symlink_to(victim)
    os.chown(link, MALLORY, -1, follow_symlinks=False)
    code, err = outcome_at(box, link)
    assert (code, f"a symbolic link of uid {MALLORY}; not followed" in err) == (2, True), err
    through = open_to_all / "folder"
    through.symlink_to(tmp_path)
    os.chown(through, MALLORY, -1, follow_symlinks=False)
    code, err = outcome_at(box, through / "root's")
    assert (code, f"a symbolic link of uid {MALLORY}; not followed" in err) == (2, True), err
    assert victim.read_text() == "precious"


# S21
@pytest.mark.parametrize("make", [Path.touch, os.mkfifo])
def test_what_another_user_put_in_the_way_is_left_alone(
    box: Box, open_to_all: Path, make: Callable[[Path], None]
) -> None:
    path = open_to_all / "out.json"
    make(path)
    os.chown(path, MALLORY, -1)
    before = path.lstat()
    code, err = outcome_at(box, path)
    assert (code, f"belongs to uid {MALLORY}" in err) == (2, True), err
    assert path.lstat() == before


# X3
def test_links_of_ones_own_lead_to_the_outcome(box: Box, open_to_all: Path, tmp_path: Path) -> None:
    link = open_to_all / "latest"
    link.symlink_to("../out.json")
    assert outcome_at(box, link)[0] == 0
    assert link.is_symlink()
    assert (tmp_path / "out.json").read_text().startswith("{")
    assert os.listdir(open_to_all) == ["latest"]
