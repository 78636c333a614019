"""What dpkg answers is understood, and asked so that it understands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slicer.kernel import users
from slicer.wrap import dpkg
from slicer.wrap.terms import NOBODY, Diversion, PackageOwner, WrapError


@pytest.mark.parametrize(("out", "expected"), [
    ("coreutils: /usr/bin/x\n", PackageOwner("coreutils", "/usr/bin/x")),
    ("libc6:amd64: /bin/x\n", PackageOwner("libc6:amd64", "/bin/x")),
    ("one, two:i386: /usr/bin/x\n", PackageOwner("one, two:i386", "/usr/bin/x")),
    ("other: /usr/bin/x.gz\ncoreutils: /usr/bin/x\n", PackageOwner("coreutils", "/usr/bin/x")),
    ("diversion by dash from: /usr/bin/x\ndiversion by dash to: /usr/bin/x.distrib\n", NOBODY),
    ("local diversion from: /usr/bin/x\nlocal diversion to: /usr/bin/x-real\nw: /usr/bin/x\n",
     PackageOwner("w", "/usr/bin/x")),
    ("", NOBODY),
])  # fmt: skip
def test_the_owner_is_found_among_its_lines(out: str, expected: PackageOwner) -> None:  # C5
    assert dpkg.parse(out, ("/usr/bin/x", "/bin/x")) == expected


def test_its_list_of_diversions_is_read() -> None:  # C5
    data = b"/bin/sh\n/bin/sh.distrib\ndash\n/usr/bin/\xff\n/usr/bin/\xff-real\n:\n/torn\n"
    assert dpkg.parse_list(data) == (
        Diversion("/bin/sh", "/bin/sh.distrib", "dash"),
        Diversion("/usr/bin/\udcff", "/usr/bin/\udcff-real", ""),
    )


def stand_in(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_a_name_is_never_a_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # C5
    monkeypatch.setattr(dpkg, "_PATH", str(tmp_path))
    stand_in(tmp_path, "dpkg-query", f'printf "%s|" "$@" >{tmp_path}/asked; echo "w: /opt/a[b]*?"')
    assert dpkg.owner("/opt/a[b]*?\\") == NOBODY
    assert (tmp_path / "asked").read_text() == r"--search|--|/opt/a\[b]\*\?\\|"
    assert dpkg.owner("/opt/a[b]*?") == PackageOwner("w", "/opt/a[b]*?")


def test_where_there_is_no_dpkg_nothing_belongs_to_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # C5
    monkeypatch.setattr(dpkg, "_PATH", str(tmp_path))
    monkeypatch.setattr(dpkg, "_LIST", str(tmp_path / "none"))
    assert dpkg.owner("/usr/bin/x") == NOBODY
    assert dpkg.diversions() == ()
    with pytest.raises(WrapError, match="dpkg-divert is not installed"):
        dpkg.divert("/usr/bin/x")


def test_what_dpkg_refuses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # C5
    monkeypatch.setattr(dpkg, "_PATH", f"{tmp_path}:/bin:/usr/bin")
    for name in ("dpkg-query", "dpkg-divert"):
        stand_in(tmp_path, name, "echo 'the database\nis locked' >&2; exit 2")
    with pytest.raises(WrapError, match="dpkg-query failed: the database is locked"):
        dpkg.owner("/usr/bin/x")
    with pytest.raises(WrapError, match="dpkg-divert failed: the database is locked"):
        dpkg.undivert("/usr/bin/x")
    stand_in(tmp_path, "dpkg-query", "kill -STOP $$")
    monkeypatch.setattr(dpkg, "_TIMEOUT_S", 0.01)
    with pytest.raises(WrapError, match="did not answer"):
        dpkg.owner("/usr/bin/x")


def test_a_group_is_private_if_it_is_the_users_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        ("user", os.geteuid()): ["alice", "x", str(os.geteuid()), "1000", "", "", ""],
        ("group", 1000): ["alice", "x", "1000", ""],
        ("group", 50): ["staff", "x", "50", "alice"],
    }
    monkeypatch.setattr(users, "_entry", lambda kind, number: known.get((kind, number), []))
    assert users.is_private_group(1000)
    assert not users.is_private_group(50)
    assert not users.is_private_group(7)  # there is none
    known["group", 1000] = ["alice", "x", "1000", "alice,bob"]
    assert not users.is_private_group(1000)
