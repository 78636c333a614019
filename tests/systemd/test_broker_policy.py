"""Two users under the administrator's policy: caps, shares, and whose use is shown to whom."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker_box import Caller
from tests.patience import until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.broker import SERVICE, Broker
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.broker_fixtures"]
pytestmark = pytest.mark.systemd

CPU = {"slots": {"cpu": 1}}
POLICY = "[default]\nmax_gpus = 1\n[users.bob]\nmax_gpus = 2\nweight = 2\n"


def shown(*command: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(systemctl.output(*command))
    return found


def test_caps_and_shares_hold_between_users_and_each_sees_its_own_use(
    broker: Broker, ann: User, ben: User
) -> None:  # L3, L5
    broker.configure("", POLICY)
    gpu = {"gpus": 1, "binding": "scope", "slice": "gpu", "start": True}
    first = broker.call(ann, **gpu, name="hers", profile="train", command="train --secret")
    first.await_("started")
    second = broker.call(ann, **gpu, name="more")
    said = f"{ann.name} may hold 1 GPU at a time (policy.toml:2) and holds 1"
    assert second.await_("waiting")["why"] == said
    busy = second.await_("waiting")["busy"]
    assert [each["job"] for each in busy["holders"]] == [first.job]
    his = broker.call(ben, **gpu, name="his", profile="serve")
    his.await_("started")  # the other GPU, past her second request

    # Hers has used more by now, for its weight; so his later request goes ahead of hers.
    more = broker.call(ben, **gpu, name="later")
    assert more.await_("waiting")["why"] == ""
    waiting = until(lambda: more.events("waiting"), "it waits")
    assert waiting[0]["busy"]["ahead"] == 0
    first.do("finish")
    first.do("end")
    more.await_("started")
    his.do("end")
    second.await_("started")

    for caller in (more, second):
        caller.do("end")
    until(lambda: not broker.leases(), "all have ended")
    rows = shown(*ann.bare, "slicer", "usage", "--json")["rows"]
    assert {row["profile"]: row["jobs"] for row in rows} == {"train": 1, "": 1}  # type: ignore[attr-defined]
    again = shown(*ann.bare, "slicer", "usage", "--by", "user", "--json")["rows"]  # at once: it is let in
    assert [row["jobs"] for row in again] == [2]  # type: ignore[attr-defined]
    rows = shown("slicer", "usage", "--json")["rows"]
    assert {row["user"]: row["jobs"] for row in rows} == {ann.name: 2, ben.name: 2}  # type: ignore[attr-defined]
    assert all(row["gpu_s"] > 0 for row in rows)  # type: ignore[attr-defined]
    systemctl.output("systemctl", "stop", SERVICE)  # root reads the accounts without the broker, too
    jobs = shown("slicer", "history", "--all-users", "--json")["jobs"]
    assert {(row["user"], row["name"]) for row in jobs} == {  # type: ignore[attr-defined]
        (ann.name, "hers"), (ann.name, "more"), (ben.name, "his"), (ben.name, "later")
    }  # fmt: skip
    for command in (("slicer", "history", "--all-users"), ("cat", "/var/lib/slicer/usage.db")):
        done = subprocess.run((*ben.bare, *command), check=False, capture_output=True, text=True)
        assert done.returncode, done.stdout
        assert "secret" not in done.stdout + done.stderr


def test_a_user_goes_ahead_of_others_by_priority_only_with_the_policys_leave(
    broker: Broker, ann: User, ben: User
) -> None:  # L2, L3
    def line_up() -> list[Caller]:
        made = [broker.call(ann, **CPU)]
        for who, priority in ((ben, 0), (ann, 0), (ann, 100)):
            until(lambda: all(each.look()[1:] for each in made), "each is in the queue before the next one")
            made.append(broker.call(who, **CPU, priority=priority))
        made[-1].await_("waiting")
        return made

    def served(callers: list[Caller]) -> list[Caller]:
        found: list[Caller] = []
        for _ in callers:
            left = [each for each in callers if each not in found]
            has_it = until(lambda left=left: [e for e in left if e.has("granted")], "one has it")
            found += has_it
            found[-1].do("release")
        return found

    broker.configure("[slots]\ncpu = 1\n")
    hers, his, later, urgent = line_up()
    said = f"priority 100 counts among {ann.name}'s own requests only, unless policy.toml has max_priority"
    assert urgent.await_("waiting")["why"] == said
    assert served([hers, his, later, urgent]) == [hers, his, urgent, later]
    broker.configure("[slots]\ncpu = 1\n", "[default]\nmax_priority = 'infinity'\n")
    hers, his, later, urgent = line_up()
    assert served([hers, his, later, urgent]) == [hers, urgent, his, later]


def test_a_job_inside_of_another_one_goes_ahead_of_nobody_who_came_first(
    broker: Broker, ann: User, ben: User
) -> None:  # L3, S18
    broker.configure("[slots]\ncpu = 1\nextra = 1\n")
    holder = broker.call(ben, **CPU)
    holder.await_("granted")
    his = broker.call(ben, **CPU)
    his.await_("waiting")
    outer = broker.call(ann, slots={"extra": 1}, binding="scope", start=True, inner={**CPU})
    outer.await_("started")
    tickets = Path("/run/slicer-broker/tickets")
    until(lambda: len(os.listdir(tickets)) == 2, "the inner one waits, too")
    holder.do("release")
    his.await_("granted")
    assert len(os.listdir(tickets)) == 1, "the inner one waits still"
    his.do("release")
    until(lambda: not os.listdir("/run/slicer-broker/leases"), "and then it is served, and all have ended")


@pytest.fixture
def students() -> Iterator[str]:
    """A group that alice and bob are in."""
    systemctl.output("groupadd", "students")
    for name in ("alice", "bob"):
        systemctl.output("gpasswd", "--add", name, "students")
    yield "students"
    systemctl.output("groupdel", "students")


def test_a_groups_members_hold_so_much_together_and_no_more(
    broker: Broker, ann: User, ben: User, students: str
) -> None:  # L3
    broker.configure("[slots]\ncpu = 4\n", f"[groups.{students}.together]\nmax_cpu_slots = 2\n")
    held = [broker.call(user, **CPU) for user in (ann, ben)]
    for each in held:
        each.await_("granted")
    third = broker.call(ben, **CPU)
    said = "the members of students may hold 2 CPU slots together (policy.toml:2) and hold 2"
    waiting = third.await_("waiting")
    assert (waiting["why"], waiting["busy"]["kind"]) == (said, "cpu")
    assert {each["job"] for each in waiting["busy"]["holders"]} == {each.job for each in held}
    # Two slots are free, and root is bound by no group.
    systemctl.output("slicer", "run", "-q", "--profile", "heavy", "--", "true")
    assert "students     0     0     2 of 2" in systemctl.output("slicer", "status")
    (group,) = shown("slicer", "status", "--json")["groups"]  # type: ignore[misc]
    assert (group["name"], group["slots"], group["max_slots"], group["max_gpus"]) == (students, 2, 2, None)
    broker.kill()  # the next one knows who holds them
    until(lambda: len(third.events("waiting")) > 1, "it waits again")
    held[0].say("release")
    third.await_("granted")
    for each in (held[1], third):
        each.say("release")
