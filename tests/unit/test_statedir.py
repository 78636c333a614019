"""The state directory: where it is, and that nothing of somebody else's in it is trusted."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicer import statedir
from slicer.errors import EX_SLICER, StateError
from slicer.statedir import StateDir

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def locate(path: Path | str) -> StateDir:
    return statedir.locate({"SLICER_STATE_DIR": str(path)}, os.geteuid())


def refusal(path: Path | str) -> StateError:
    with pytest.raises(StateError) as caught:
        locate(path)
    assert caught.value.exit_code == EX_SLICER
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    return caught.value


# A5
def test_is_made_private_where_the_variable_says(tmp_path: Path) -> None:
    assert locate(tmp_path / "state") == StateDir(str(tmp_path / "state"), False)
    for name in ("state", "state/leases", "state/tickets"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) & 0o077 == 0
    assert locate(tmp_path / "state") == StateDir(str(tmp_path / "state"), False)


@pytest.mark.parametrize("path", ["state", "./state", "../state", " /state"])
def test_a_relative_path_is_refused(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "absolute" in str(refusal(path))
    assert os.listdir(tmp_path) == []


def test_an_empty_variable_is_no_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(statedir, "SYSTEM_DIR", str(tmp_path / "system"))
    environ = {"SLICER_STATE_DIR": "", "XDG_RUNTIME_DIR": str(tmp_path)}
    assert statedir.locate(environ, 0).path == str(tmp_path / "system")


# B7
def test_the_default_is_shared_for_root_and_private_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(statedir, "SYSTEM_DIR", str(tmp_path / "system"))
    environ = {"XDG_RUNTIME_DIR": str(tmp_path / "runtime")}
    (tmp_path / "runtime").mkdir()
    assert statedir.locate(environ, 1000) == StateDir(str(tmp_path / "runtime" / "slicer"), False)
    assert statedir.locate(environ, 0) == StateDir(str(tmp_path / "system"), True)
    assert statedir.locate(environ, 1000) == StateDir(str(tmp_path / "system"), True)


# B7
def test_without_a_login_session_it_is_in_shared_memory() -> None:
    assert statedir._private({}, 999999) == "/dev/shm/slicer-999999"
    assert statedir._private({"XDG_RUNTIME_DIR": "/nowhere"}, 999999) == "/dev/shm/slicer-999999"


@pytest.mark.parametrize("part", ["", "leases", "tickets"])
def test_a_symbolic_link_is_not_followed(tmp_path: Path, part: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    place = tmp_path / "state" / part
    place.parent.mkdir(exist_ok=True, mode=0o700)
    if part:
        place.parent.chmod(0o700)
    (tmp_path / "state" / part).symlink_to(elsewhere)
    assert "symbolic link" in str(refusal(tmp_path / "state"))
    assert os.listdir(elsewhere) == []


@pytest.mark.parametrize("part", ["", "leases", "tickets"])
def test_a_file_in_its_place_is_refused(tmp_path: Path, part: str) -> None:
    place = tmp_path / "state" / part
    place.parent.mkdir(exist_ok=True)
    (tmp_path / "state" / part).write_text("")
    assert "not a directory" in str(refusal(tmp_path / "state"))


def test_a_missing_parent_is_said(tmp_path: Path) -> None:
    assert str(tmp_path / "no" / "state") in str(refusal(tmp_path / "no" / "state"))


@pytest.mark.parametrize("part", ["", "leases", "tickets"])
def test_what_everybody_can_write_is_refused(tmp_path: Path, part: str) -> None:
    locate(tmp_path / "state")
    (tmp_path / "state" / part).chmod(0o777)
    assert "writable by everybody" in str(refusal(tmp_path / "state"))


@ROOT_ONLY
@pytest.mark.parametrize("part", ["", "leases", "tickets"])
def test_what_somebody_else_owns_is_refused(tmp_path: Path, part: str) -> None:
    locate(tmp_path / "state")
    os.chown(tmp_path / "state" / part, 65534, -1)
    assert "belongs to uid 65534" in str(refusal(tmp_path / "state"))


def test_opening_a_lock_file_makes_it_once(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    for _ in range(2):
        fd = statedir.open_lock(str(path))
        assert not os.get_inheritable(fd)
        assert os.fstat(fd).st_ino == path.stat().st_ino
        os.close(fd)
    assert path.read_bytes() == b""


@pytest.mark.usefixtures("umask")
def test_the_lock_file_is_the_groups_whatever_the_umask(tmp_path: Path) -> None:
    os.close(statedir.open_lock(str(tmp_path / "lock")))
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o660


def make_link(path: Path) -> None:
    (path.parent / "target").write_text("precious")
    path.symlink_to(path.parent / "target")


def make_dangling(path: Path) -> None:
    path.symlink_to(path.parent / "target")


def make_hard_link(path: Path) -> None:
    (path.parent / "target").write_text("precious")
    os.link(path.parent / "target", path)


@pytest.mark.parametrize("make", [make_link, make_dangling, make_hard_link, os.mkfifo, Path.mkdir])
def test_a_lock_file_that_is_no_plain_file_is_refused(tmp_path: Path, make: object) -> None:
    path = tmp_path / "lock"
    make(path)  # type: ignore[operator]
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(StateError) as caught:
        statedir.open_lock(str(path))
    assert set(os.listdir("/proc/self/fd")) == before
    assert str(path) in str(caught.value)
    target = tmp_path / "target"
    assert not target.exists() or target.read_text() == "precious"
    assert make is not make_dangling or not target.exists()
