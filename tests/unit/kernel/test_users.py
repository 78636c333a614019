"""Names of users, whatever their name service does, and what a user namespace shows of users."""

from __future__ import annotations

import grp
import pwd
import time
from pathlib import Path

import pytest

from slicer.kernel import proc, users
from slicer.kernel.users import hidden_root


# S2
@pytest.mark.parametrize(
    ("uid_map", "shown"),
    [
        ("         0          0 4294967295\n", -1),  # no namespace
        ("      1000       1000          1\n", 65534),  # bubblewrap, apptainer
        ("         0       1000          1\n", 65534),  # unshare --map-root-user
        ("         0          0          1\n", -1),
        ("      1000          0          1\n", -1),
        ("         0       1000          1\n         1     100000      65536\n", -1),  # 65534 may be a subuid
        ("         0       1000          1\n         1     100000       1000\n", 65534),
        ("     65534      65534          1\n", -1),  # nobody's own namespace
        ("", 65534),  # not mapped yet
    ],
)
def test_root_is_hidden_where_a_namespace_maps_others_alone(
    uid_map: str, shown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {"/proc/self/uid_map": uid_map, "/proc/sys/kernel/overflowuid": "65534\n"}
    monkeypatch.setattr(proc, "read_text", texts.__getitem__)
    assert hidden_root() == shown


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A name service that knows uid 7 and gid 7, hangs for 9, and notes whom it was asked for."""
    notes = tmp_path / "asked"

    def look(number: int) -> None:
        with open(notes, "a", encoding="ascii") as file:
            file.write(f"{number} ")
        if number == 9:
            time.sleep(60.0)
        if number != 7:
            raise KeyError(number)

    def user(uid: int) -> pwd.struct_passwd:
        look(uid)
        return pwd.struct_passwd(("first.last", "x", 7, 7, "", "/home/fl", "/bin/sh"))

    def group(gid: int) -> grp.struct_group:
        look(gid)
        return grp.struct_group(("domain users", "x", 7, ["first.last", "kim"]))

    monkeypatch.setattr(pwd, "getpwuid", user)
    monkeypatch.setattr(grp, "getgrgid", group)
    monkeypatch.setattr(users, "_known", {})
    monkeypatch.setattr(users, "_quiet_until", 0.0)
    for kind in ("user", "group"):
        (tmp_path / kind).write_text("root:x:0:0::/root:/bin/sh\n" if kind == "user" else "root:x:0:\n")
        monkeypatch.setitem(users._FILES, kind, str(tmp_path / kind))
    return notes


def test_a_network_users_name_is_asked_for_once(services: Path) -> None:  # L1
    assert [users.user_name(uid) for uid in (0, 7, 8, 7, 8)] == ["root", "first.last", "8", "first.last", "8"]
    assert [users.group_name(gid) for gid in (0, 7)] == ["root", "domain users"]
    assert services.read_text() == "7 8 7 "


def test_nobody_waits_for_a_name_service_that_hangs(
    services: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # L1
    monkeypatch.setattr(users, "_DEADLINE_S", 0.2)
    assert [users.user_name(uid) for uid in (9, 9, 10, 7, 0)] == ["9", "9", "10", "7", "root"]
    assert services.read_text() == "9 "  # it was asked once
    monkeypatch.setattr(users, "_quiet_until", 0.0)
    assert users.user_name(7) == "first.last"
