"""Uids that are nobody's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from slicer.broker.rules.policy import NO_POLICY, is_user
from slicer.broker.server import names
from slicer.broker.server.names import Subordinates, ranges
from slicer.record import replace


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Whom the name services were asked for: they know uid 108472, and one of a container."""
    found: list[int] = []

    def name(uid: int) -> str:
        found.append(uid)
        return {108_472: "first.last", 108_473: "vu-arch-5"}.get(uid, str(uid))

    monkeypatch.setattr(names, "user_name", name)
    return found


def test_a_network_user_in_such_a_range_is_a_user(tmp_path: Path, asked: list[int]) -> None:  # L1
    (tmp_path / "subuid").write_text("alice:100000:65536\nbob:165536:65536\n")
    found = Subordinates(lambda uid: None, str(tmp_path / "subuid"))
    assert [found.owner_of(uid) for uid in (108_472, 108_473, 108_474)] == ["", "alice", "alice"]
    for uid in range(110_000, 110_300):  # all uids of a container
        assert found.owner_of(uid) == "alice"
    assert len(asked) < 200, "they cost the broker little"
    assert found.owner_of(165_536) == "bob"
    assert asked[-1] == 165_536


def test_the_policy_decides_before_the_name_services(tmp_path: Path, asked: list[int]) -> None:  # L1, L3
    (tmp_path / "subuid").write_text("alice:100000:65536\n")
    policy = replace(NO_POLICY, user_uids=((108_000, 108_472), (120_000, 120_000)))
    found = Subordinates(lambda uid: is_user(policy, uid), str(tmp_path / "subuid"))
    uids = (99_999, 107_999, 108_000, 108_472, 108_473, 120_000)
    assert [found.owner_of(uid) for uid in uids] == ["", "alice", "", "", "alice", ""]
    policy = replace(NO_POLICY, user_uids=())
    assert found.owner_of(108_472) == "alice"
    assert asked == []


def test_a_subordinate_uid_has_an_owner(tmp_path: Path) -> None:  # L1, L3
    file = tmp_path / "subuid"
    found = Subordinates(lambda uid: None, str(file))
    assert found.owner_of(100_000) == ""
    file.write_text("alice:100000:65536\n1002:165536:65536\n")
    assert [found.owner_of(uid) for uid in (1001, 99_999, 100_000, 165_535, 165_536, 231_072)] == [
        "", "", "alice", "alice", "1002", "",
    ]  # fmt: skip
    file.write_text("bob:100000:65536\n# that is all\n")
    assert found.owner_of(100_000) == "bob"
    file.unlink()
    assert found.owner_of(100_000) == ""


@pytest.mark.parametrize(
    "line", ["", "#", "alice", "a:1", "a:x:5", "a:-1:5", "a:1:2:3", "root:100000:65536", "a:0:9", "a:5:0"]
)
def test_a_line_that_gives_nobody_anything(line: str) -> None:
    assert all(last < first for first, last, _ in ranges(line))
