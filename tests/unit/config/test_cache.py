"""Parsed configuration that is kept: when it is believed, and when not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slicer.errors import ConfigError
from tests.unit.config.machine import Machine, as_root

pytestmark = pytest.mark.both_pythons


def settle(*paths: Path) -> None:
    """Age files, so that the cache believes that nothing changes them within this tick of the clock."""
    for path in paths:
        os.utime(path, (1, 1))


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were really parsed, with the change time not looked at (a test cannot age it)."""
    from slicer.config import cache, toml

    seen: list[str] = []
    parse = toml.parse

    def spy(content: bytes, where: str) -> object:
        seen.append(where)
        return parse(content, where)

    monkeypatch.setattr(toml, "parse", spy)
    monkeypatch.setattr(cache, "_SETTLED_NS", -(10**12))
    return seen


def cache_file(machine: Machine) -> Path:
    return machine.home / ".cache" / "slicer" / "config"


def test_unchanged_files_are_parsed_once(machine: Machine, parsed: list[str]) -> None:
    path = machine.system("[profiles.a]\nmemory_max = '1G'\nenv = { X = 'ü' }\n")
    first = machine.profile("a")
    assert (parsed, cache_file(machine).stat().st_mode & 0o777) == ([str(path)], 0o600)
    assert machine.profile("a") == first
    assert parsed == [str(path)]


def test_changed_added_and_removed_files_are_seen(machine: Machine, parsed: list[str]) -> None:
    path = machine.system("[slots]\ncpu = 2\n")
    settle(path)
    assert machine.load().slots["cpu"] == 2
    path.write_text("[slots]\ncpu = 3\n")
    settle(path)  # same size, same modification time: the change time still tells
    assert machine.load().slots["cpu"] == 3
    machine.write(machine.user, "[slots]\ncpu = 5\n")
    assert machine.load().slots["cpu"] == 5
    machine.user.unlink()
    assert machine.load().slots["cpu"] == 3


def test_file_changed_just_now_is_not_cached(machine: Machine) -> None:
    machine.system("")
    machine.load()
    assert not cache_file(machine).exists()


def test_bad_configuration_is_never_cached(machine: Machine, parsed: list[str]) -> None:
    machine.system("[profiles.a]\nmemory_max = 'x'\n")
    for _ in range(2):
        with pytest.raises(ConfigError):
            machine.load()
    assert len(parsed) == 2


def _damage(kind: str, path: Path, tmp_path: Path) -> None:
    content = bytearray(path.read_bytes())
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "cut":
        path.write_bytes(content[:-5])
    elif kind == "flipped":
        content[-5] ^= 0xFF
        path.write_bytes(content)
    elif kind == "other version":
        path.write_bytes(content.replace(b"Python ", b"python ", 1))
    elif kind == "readable by others":
        path.chmod(0o644)
    elif kind == "symbolic link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "hard link":
        os.link(path, tmp_path / "elsewhere")
    elif kind == "fifo":
        path.unlink()
        os.mkfifo(path, 0o600)
    elif kind == "open directory":
        path.parent.chmod(0o777)
    else:
        path.unlink()
        path.mkdir()


@pytest.mark.parametrize(
    "kind",
    [
        "empty",
        "cut",
        "flipped",
        "other version",
        "readable by others",
        "symbolic link",
        "hard link",
        "fifo",
        "open directory",
        "a directory",
    ],
)
def test_odd_cache_is_not_believed_and_does_no_harm(
    machine: Machine, parsed: list[str], tmp_path: Path, kind: str
) -> None:
    machine.system("[slots]\ncpu = 2\n")
    machine.load()
    _damage(kind, cache_file(machine), tmp_path)
    assert machine.load().slots["cpu"] == 2
    assert len(parsed) == 2


def test_cache_that_cannot_be_written_is_no_error(machine: Machine, parsed: list[str]) -> None:
    machine.system("[slots]\ncpu = 2\n")
    (machine.home / ".cache").write_text("not a directory")
    assert machine.load().slots["cpu"] == 2
    assert machine.load().slots["cpu"] == 2


def test_root_keeps_no_cache_in_another_users_home(
    machine: Machine, parsed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.system("[slots]\ncpu = 2\n")
    as_root(monkeypatch, machine.home)
    assert machine.load().slots["cpu"] == 2
    assert not (machine.home / ".cache").exists()
