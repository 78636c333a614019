"""The administrator's policy: what its file says, for whom, and in which words a user hears of it. L3"""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from slicer.broker.protocol.messages import GroupStanding, UsageRow
from slicer.broker.rules.allowance import Allowance, check, sizes_of, taken, too_many_waiting
from slicer.broker.rules.order import ordered
from slicer.broker.rules.policy import (
    NO_CAP,
    NO_POLICY,
    Caps,
    SitePolicy,
    Together,
    account_of,
    caps_of,
    rule_of,
    weight_of,
    word_of,
)
from slicer.broker.rules.policy_text import read
from slicer.broker.rules.shares import Shares, added_up, gpu_rate, shares_of, so_far, used_rate
from slicer.broker.rules.standing import groups, passing, standings, why_behind
from slicer.broker.server.names import Names, ask_services
from slicer.broker.server.policy_file import PolicyFile, load
from slicer.errors import ConfigError, NotAllowedError
from slicer.model import PREEMPTIBLE, Busy, Lease, Ticket
from slicer.placement.decision import Book, decide
from slicer.placement.devices import Device
from slicer.placement.forecast import deadlocked
from slicer.placement.order import places
from slicer.placement.settings import Policy as Settings
from slicer.record import replace
from slicer.state.directory import Directory
from tests.unit import made_up

ALICE, BOB, CAROL = 1001, 1002, 1003
NAMES = {ALICE: "alice", BOB: "bob", CAROL: "carol"}
SETTINGS = Settings(reserve_after_s=50.0)
TWO = tuple(Device(uuid, 8000, 0, {}, 0, ()) for uuid in ("GPU-a", "GPU-b"))
MIXED = (Device("GPU-a", 80000, 0, {}, 0, ()), Device("GPU-b", 24000, 0, {}, 0, ()))


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    (tmp_path / "passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\nalice:x:1001:1001::/home/alice:/bin/sh\nbob:x:1002:100::/:/bin/sh\n"
        "broken\nbad:x:-1:5::/:/\n"
    )
    (tmp_path / "group").write_text(
        "users:x:100:\nlab:x:200:alice,carol\nalice:x:1001:\nstudents:x:300:bob\n"
    )
    return tmp_path


def policy_of(etc: Path, text: str) -> SitePolicy:
    (etc / "policy.toml").write_text(text)
    return load(f"{etc}/policy.toml", Names(str(etc)))[0]


def test_a_users_own_word_wins_then_its_most_generous_group_then_the_default(etc: Path) -> None:  # L3
    policy = policy_of(
        etc,
        """\
patience = "infinity"
half_life = "1d"
allow_services = true
preemptible_free = true
max_min_run = "infinity"
user_uids = "108000-119999, 300000"
[default]
max_gpus = 1
max_vram = "24G"
max_priority = 0
[groups.lab]
max_gpus = 2
weight = 2
[groups.students]
max_gpus = 4
max_priority = -5
weight = 0.5
[users.alice]
max_vram = "infinity"
max_hold = "2d"
[users.1002]
weight = 3
""",
    )
    assert caps_of(policy, ALICE, (1001, 200, 300)) == Caps(4, None, None, 0 - 5, 2 * 86400.0, None)
    assert caps_of(policy, ALICE, (1001, 200)) == Caps(2, None, None, 0, 2 * 86400.0, None)
    assert caps_of(policy, BOB, (100,)) == Caps(1, 24 * 1024, None, 0, None, None)
    assert caps_of(policy, 0, (0, 200)) == Caps()  # nobody but [users.root] binds root
    assert [weight_of(policy, uid, (200, 300)) for uid in (ALICE, BOB)] == [2.0, 3.0]
    assert weight_of(policy, ALICE, (1001,)) == 1.0
    assert [account_of(policy, gids) for gids in ((1001, 300, 200), (100, 7))] == [200, 100]
    assert (policy.half_life_s, policy.allow_services) == (86400.0, True)
    assert (policy.preemptible_free, policy.max_min_run_s) == (True, float("inf"))
    assert policy.user_uids == ((108_000, 119_999), (300_000, 300_000))
    assert policy.patience_s == float("inf")


def test_a_bad_file_leaves_the_last_good_one_in_force_and_is_told_once(etc: Path) -> None:  # L3
    path, said = etc / "policy.toml", list[str]()
    path.write_text("[default]\nmax_gpus = 1\n")
    file = PolicyFile(str(path), kept=kept_in(etc), warn=said.append, names=Names(str(etc)))
    path.write_text("[default]\nmax_gpus = 'x'  # longer\n")
    assert not file.refresh()
    assert not file.refresh()
    assert file.policy.default.max_gpus == 1
    assert len(said) == 1
    assert "stays in force" in said[0]
    path.write_text("[default]\nmax_gpus = 22\n")
    assert file.refresh()
    assert (file.policy.default.max_gpus, len(said)) == (22, 1)
    path.unlink()
    assert file.refresh()
    assert file.policy == NO_POLICY


def kept_in(etc: Path) -> Directory:
    """Where the last good policy is kept."""
    (etc / "run").mkdir(mode=0o700, exist_ok=True)
    return Directory(os.open(etc / "run", os.O_RDONLY | os.O_DIRECTORY), str(etc / "run"))


def test_a_users_name_with_a_dot_needs_quotes(etc: Path) -> None:  # L3
    with pytest.raises(ConfigError) as caught:
        read(b"[users.first.last]\nmax_gpus = 1\n", "policy.toml")
    assert '[users."first.last"]' in caught.value.hint


def test_the_last_good_one_outlives_the_broker(etc: Path) -> None:  # L3, W30
    path, said = etc / "policy.toml", list[str]()

    def began() -> PolicyFile:
        return PolicyFile(str(path), kept=kept_in(etc), warn=said.append, names=Names(str(etc)))

    path.write_text("[users.bob]\nmax_gpus = 1\n")
    began()
    assert not said
    path.write_text("[users.bob]\nmax_gpu = 1\n")
    file = began()
    assert (file.policy.users[BOB].max_gpus, said[0].startswith(f"{path}:2: unknown key")) == (1, True)
    assert [each.endswith("; the previous policy stays in force") for each in said] == [True]
    path.write_text("[users.bob]\nmax_gpus = 33\n")
    assert file.refresh()
    assert (file.policy.users[BOB].max_gpus, len(said)) == (33, 1)
    path.unlink()
    assert file.refresh()
    path.write_text("nonsense")
    assert began().policy == NO_POLICY  # as it was, until somebody made a mistake
    assert (etc / "run" / "policy").stat().st_mode & 0o777 == 0o600


def test_the_first_start_has_no_last_good_one(etc: Path) -> None:  # L3
    (etc / "policy.toml").write_text("nonsense")
    with pytest.raises(ConfigError):
        PolicyFile(f"{etc}/policy.toml", kept=kept_in(etc), warn=lambda _: None, names=Names(str(etc)))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root distrusts what others can write")
def test_root_follows_no_policy_that_others_can_write(etc: Path) -> None:  # L1
    path = etc / "policy.toml"
    path.write_text("")
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="users other than root can write it"):
        load(str(path))


def test_a_name_that_nobody_has_is_told_and_the_rest_acts(etc: Path) -> None:  # L3
    (etc / "policy.toml").write_text("[users.nobody-of-that-name]\nmax_gpus = 1\n[users.bob]\nmax_gpus = 2\n")
    policy, warnings = load(f"{etc}/policy.toml", Names(str(etc)))
    assert policy.users == {BOB: Caps(max_gpus=2)}
    assert warnings == (
        f"{etc}/policy.toml:1: there is no user 'nobody-of-that-name': its rules have no effect",
    )


def test_a_user_cannot_leave_a_group_that_limits_it(etc: Path) -> None:  # L1
    names = Names(str(etc))
    assert names.gids_of(ALICE, (1001,)) == (1001, 200)  # its process has dropped lab
    assert names.gids_of(BOB, (100, 300)) == (100, 300)
    assert names.gids_of(4242, (7, 8)) == (7, 8)
    assert (names.name_of(ALICE), names.name_of(4242)) == ("alice", "uid 4242")


def test_names_are_asked_for_only_so_long() -> None:  # L1
    assert ask_services([("user", "root"), ("user", "no-such-user"), ("group", "root")]) == {
        ("user", "root"): 0, ("group", "root"): 0
    }  # fmt: skip
    assert ask_services([("user", "root")], deadline_s=0.0) == {}


# -- caps -----------------------------------------------------------------------------------------------

CAPPED = SitePolicy(
    Caps(max_gpus=2, max_vram_mib=24 * 1024, max_cpu_slots=2, max_priority=0, max_waiting=1), {}, {}, {}, {},
    where={("default", 0, "max_gpus"): "policy.toml:7"},
)  # fmt: skip


def ticket(job: str = "1" * 12, uid: int = ALICE, **fields: object) -> Ticket:
    return made_up.ticket(job, uid=uid, **{"arrived_s": 100.0, **fields})


def lease(job: str = "0" * 12, uid: int = ALICE, **fields: object) -> Lease:
    return made_up.lease(job, uid=uid, **fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"gpus": 3}, "3 GPUs were asked for, but alice may hold 2 GPUs at a time"),
        (
            {"gpus": 2, "vram_mib": 13 * 1024},
            "26G of GPU memory were asked for, but alice may hold 24G of GPU memory at a time",
        ),
        ({"cpu_slots": 3}, "3 CPU slots were asked for, but alice may hold 2 CPU slots at a time"),
        ({"priority": 1}, "priority 1 was asked for, but alice may ask for at most 0"),
    ],
)
def test_what_may_never_be_is_refused_at_once(fields: dict[str, int], said: str) -> None:  # L3
    with pytest.raises(NotAllowedError) as caught:
        check(CAPPED, (1001,), ticket(**fields), MIXED, "alice")
    assert caught.value.message == said
    assert caught.value.where.startswith("policy.toml")


def test_infinity_is_a_word_too() -> None:  # L3
    unbound = SitePolicy(Caps(max_priority=0), {ALICE: Caps(max_priority=NO_CAP)}, {}, {}, {})
    assert word_of(unbound, ALICE, (), "max_priority") is not None
    assert rule_of(unbound, ALICE, (), "max_priority") is None
    assert word_of(NO_POLICY, ALICE, (), "max_priority") is None


def test_a_whole_gpu_counts_with_all_its_memory() -> None:  # L3
    check(CAPPED, (), ticket(gpus=1), MIXED, "alice")  # the smaller one will do
    with pytest.raises(NotAllowedError):
        check(CAPPED, (), ticket(gpus=1, gpu_choice=("GPU-a",)), MIXED, "alice")
    granted = decide([ticket(gpus=1)], MIXED, (), SETTINGS, 100.0, Allowance(CAPPED, {})).grants
    assert granted == {"1" * 12: ("GPU-b",)}  # though the larger one comes first


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"gpus": 1}, "alice may hold 2 GPUs at a time (policy.toml:7) and holds 2"),
        ({"cpu_slots": 2}, "alice may hold 2 CPU slots at a time (policy.toml) and holds 1"),
        ({"cpu_slots": 1}, ""),
        ({"cpu_slots": 1, "uid": BOB}, ""),
    ],
)
def test_who_waits_for_a_cap_reads_which_and_where_it_stands(fields: dict[str, int], said: str) -> None:  # L3
    held = (
        lease("a" * 12, gpus=("GPU-a",), vram_mib=100),
        lease("b" * 12, gpus=("GPU-b",), vram_mib=100, cpu_slots=1),
    )
    asked = ticket(**fields)
    allowance = Allowance(CAPPED, {})
    assert allowance.balance(held, TWO).why(asked, NAMES.__getitem__) == said
    if not asked.gpus:
        may_run = allowance.balance(held, None).within(asked) is not None  # though its wait is over
        assert may_run is (not said)


def test_what_a_request_waits_for_is_what_its_cap_is_of() -> None:  # L3
    held = (lease("a" * 12, gpus=("GPU-a", "GPU-b"), vram_mib=100), lease("b" * 12, cpu_slots=2))
    balance = Allowance(CAPPED, {}).balance((*held, lease("c" * 12, uid=BOB)), TWO)
    assert balance.busy(ticket(gpus=1), held) == Busy("gpu", held[:1], 0, (), "")
    assert balance.busy(ticket(cpu_slots=1), held) == Busy("cpu", held[1:], 0, (), "", slot="cpu")
    assert balance.busy(ticket(uid=BOB, gpus=1), held) is None


def test_only_so_many_may_wait() -> None:  # L3
    assert too_many_waiting(CAPPED, ALICE, (), 0, "alice") == ""
    said = "alice may have 1 request in the queue (policy.toml) and has 1"
    assert too_many_waiting(CAPPED, ALICE, (), 1, "alice") == said


@pytest.mark.parametrize(("waits_s", "granted"), [(10.0, {"2" * 12, "3" * 12}), (60.0, {"3" * 12})])
def test_a_request_over_its_cap_holds_up_its_own_users_later_ones_once_it_has_waited_for_long(
    waits_s: float, granted: set[str]
) -> None:  # L3, X4
    held = (lease(gpus=("GPU-x",), vram_mib=100),)
    devices = (*TWO, Device("GPU-x", 8000, 100, {"0" * 12: 100}, 0, ()))
    queue = [
        ticket("1" * 12, gpus=2),
        ticket("2" * 12, gpus=1, arrived_s=101.0),
        ticket("3" * 12, uid=BOB, gpus=1, arrived_s=102.0),
    ]
    policy = SitePolicy(Caps(max_gpus=2), {}, {}, {}, {})
    found = decide(queue, devices, held, SETTINGS, 100.0 + waits_s, Allowance(policy, {}))
    assert set(found.grants) == granted
    assert found.reserving == ()


def test_a_nested_request_that_only_its_own_outer_job_keeps_over_its_cap_is_told() -> None:  # L3
    outer = lease("a" * 12, gpus=("GPU-a",))
    inner = ticket(gpus=1, inside=(outer.job,))
    policy = SitePolicy(Caps(max_gpus=1), {}, {}, {}, {})
    assert deadlocked(inner, [inner], Book((), TWO, (outer,), SETTINGS, 100.0)) == ()
    capped = Book((), TWO, (outer,), SETTINGS, 100.0, Allowance(policy, {}))
    assert deadlocked(inner, [inner], capped) == (outer.job,)


# -- caps of a group's members together -----------------------------------------------------------------

GIDS = {ALICE: (1001, 200), CAROL: (1003, 200), BOB: (100,)}


def test_a_groups_members_together_are_bound_beside_each_of_them(etc: Path) -> None:  # L3
    policy = policy_of(
        etc,
        """\
[users.alice]
max_gpus = "infinity"
[groups.lab]
max_gpus = 2
[groups.lab.together]
max_gpus = 3
max_vram = "infinity"
[groups.students]
together = { max_vram = "8G", max_cpu_slots = 1 }
""",
    )
    assert policy.together == {
        200: Together("lab", max_gpus=3, max_vram_mib=NO_CAP), 300: Together("students", None, 8192, 1),
    }  # fmt: skip
    assert policy.groups[200] == Caps(max_gpus=2)
    held = (lease("a" * 12, gpus=("GPU-a", "GPU-b", "GPU-c")),)
    balance = Allowance(policy, GIDS).balance(held, None)
    says = "the members of lab may hold 3 GPUs together (policy.toml:6) and hold 3"
    name_of = NAMES.__getitem__
    assert balance.why(ticket(uid=CAROL, gpus=1), name_of) == says
    assert balance.why(ticket(uid=ALICE, gpus=1), name_of) == says  # though alice herself is bound by nothing
    assert balance.why(ticket(uid=BOB, gpus=1), name_of) == ""
    assert balance.why(ticket(uid=CAROL, cpu_slots=1), name_of) == ""  # of which there is no cap
    others = (lease("b" * 12, uid=BOB, gpus=("GPU-d",)), lease("d" * 12, uid=CAROL, cpu_slots=1))
    assert balance.busy(ticket(uid=CAROL, gpus=1), (*held, *others)) == Busy("gpu", held, 0, (), "")
    assert balance.busy(ticket(uid=BOB, gpus=1), held) is None
    with pytest.raises(NotAllowedError) as caught:
        check(policy, GIDS[ALICE], ticket(gpus=4), None, "alice")
    assert caught.value.message == "4 GPUs were asked for, but the members of lab may hold 3 GPUs together"
    assert caught.value.where == "policy.toml:6"
    with pytest.raises(NotAllowedError) as caught:
        check(policy, (300,), ticket(cpu_slots=2), None, "bob")
    assert caught.value.where == "policy.toml:9"


def test_root_is_bound_by_no_group_and_counts_in_none() -> None:  # L3
    policy = SitePolicy(Caps(), {}, {}, {}, {}, together={0: Together("root", max_gpus=1)})
    gids = {0: (0,), ALICE: (1001, 0)}
    held = (lease(uid=0, gpus=("GPU-a",)),)
    check(policy, gids[0], ticket(uid=0, gpus=2), None, "root")
    asked = [ticket("1" * 12, uid=0, gpus=1), ticket("2" * 12, uid=ALICE, gpus=1)]
    balance = Allowance(policy, gids).balance(held, None)
    assert [balance.why(each, "x") for each in asked] == ["", ""]
    assert groups(policy, gids, taken(held, None)) == (GroupStanding(0, "root", 0, 1, 0, None, 0, None),)


@pytest.mark.parametrize(
    ("waits_s", "own_cap", "granted"),
    [
        (10.0, None, {"2" * 12, "3" * 12}),
        (60.0, None, {"3" * 12}),  # what it needs of the group's is kept from carol, not from bob
        (60.0, 1, {"2" * 12, "3" * 12}),  # alice's own cap is in the way, and no affair of carol's
    ],
)
def test_a_request_over_its_groups_cap_holds_up_its_members_once_it_has_waited_for_long(
    waits_s: float, own_cap: int | None, granted: set[str]
) -> None:  # L3, X4
    held = (lease(gpus=("GPU-x",), vram_mib=100, uid=ALICE),)
    devices = (*TWO, Device("GPU-x", 8000, 100, {"0" * 12: 100}, 0, ()))
    queue = [
        ticket("1" * 12, gpus=2),
        ticket("2" * 12, uid=CAROL, gpus=1, arrived_s=101.0),
        ticket("3" * 12, uid=BOB, gpus=1, arrived_s=102.0),
    ]
    users = {ALICE: Caps(max_gpus=own_cap)}
    policy = SitePolicy(Caps(), users, {}, {}, {}, together={200: Together("lab", max_gpus=2)})
    found = decide(queue, devices, held, SETTINGS, 100.0 + waits_s, Allowance(policy, GIDS))
    assert set(found.grants) == granted
    assert found.reserving == ()


# L3, U8: their slots count all the same
@pytest.mark.parametrize("is_free", [False, True])
def test_gpus_that_are_given_to_whoever_wants_them_count_if_the_policy_says_so(is_free: bool) -> None:
    caps = Caps(max_gpus=1, max_vram_mib=8000, max_cpu_slots=1)
    policy = SitePolicy(caps, {}, {}, {}, {}, preemptible_free=is_free)
    held = (lease(gpus=("GPU-a",), priority=PREEMPTIBLE, min_run_s=1.0),)
    used_by = {"GPU-a": {"0" * 12: 100}}
    devices = tuple(Device(f"GPU-{x}", 8000, 100, used_by.get(f"GPU-{x}", {}), 0, ()) for x in "abc")
    wishes = [{"priority": 0}, {"priority": PREEMPTIBLE}, {"priority": PREEMPTIBLE}]
    queue = [ticket(f"{n}" * 12, gpus=1, **wish) for n, wish in enumerate(wishes, 1)]
    found = decide(queue, devices, held, SETTINGS, 110.0, Allowance(policy, GIDS))
    assert set(found.grants) == ({"1" * 12, "2" * 12} if is_free else set())
    assert taken(held, devices, None, policy)[ALICE].gpus == (0 if is_free else 1)
    wide = ticket(gpus=2, priority=PREEMPTIBLE, cpu_slots=1)
    slots = replace(wide, slots={"cpu": 2}, slot_limits={"cpu": 4})
    for asked, is_refused in ((wide, not is_free), (slots, True), (replace(wide, priority=0), True)):
        with pytest.raises(NotAllowedError) if is_refused else nullcontext():
            check(policy, GIDS[ALICE], asked, devices, "alice")


def test_the_standing_of_a_group_adds_up_its_members() -> None:  # L3
    policy = SitePolicy(Caps(), {}, {}, {}, {}, together={200: Together("lab", 3, 48 * 1024)})
    held = [
        lease("a" * 12, uid=ALICE, gpus=("GPU-a",), vram_mib=100), lease("c" * 12, uid=CAROL, cpu_slots=1),
        lease("b" * 12, uid=BOB, gpus=("GPU-b",), vram_mib=100),
    ]  # fmt: skip
    assert groups(policy, GIDS, taken(held, None, {"a" * 12: 100, "b" * 12: 100})) == (
        GroupStanding(200, "lab", 1, 3, 100, 48 * 1024, 1, None),
    )


# -- shares ---------------------------------------------------------------------------------------------


def test_shares_are_by_decayed_use_and_dues_by_weight() -> None:  # L3
    policy = SitePolicy(Caps(), {}, {}, {}, {BOB: 3.0}, half_life_s=100.0)
    held = (lease("a" * 12, gpus=("GPU-a",), since_s=0.0), lease("b" * 12, uid=7, cpu_slots=1))
    shares = shares_of(policy, {}, {}, [(each, float(len(each.gpus))) for each in held], {BOB}, 100.0)
    assert shares.share(ALICE) == 1.0
    assert (shares.due(ALICE), shares.due(BOB), shares.due(7)) == (0.25, 0.75, 0.0)
    assert 72.0 < shares.used[ALICE] < 72.2  # 100 GPU-seconds, of which the first count half already
    assert gpu_rate(("GPU-a", "GPU-b"), 2000, sizes_of(TWO)) == 0.5
    assert gpu_rate(("GPU-a", "GPU-b"), None, sizes_of(TWO)) == 2.0
    assert used_rate(0.5, 2000, 3000, 2) == 0.75  # it declared less than it uses
    assert used_rate(0.5, 2000, 90_000, 2) == 2.0


def test_who_used_less_goes_first_and_the_other_reads_why() -> None:  # L3
    shares = Shares({ALICE: 75.0, BOB: 25.0}, {ALICE: 1.0, BOB: 1.0}, frozenset({ALICE, BOB}), {})
    first, second = ticket(gpus=1), ticket("2" * 12, uid=BOB, gpus=1, arrived_s=200.0)
    queue = ordered([first, second], shares, 1e6, 300.0)
    assert queue == [second, first]
    assert passing(queue, shares) == {first.job: 1}
    assert why_behind(ALICE, 1, shares, "alice") == (
        "alice has used 0.75 of the GPU time lately, 0.50 is due: another user goes first"
    )
    assert why_behind(BOB, 0, shares, "bob") == ""
    assert ordered([first, second], shares, 200.0, 300.0) == [first, second]  # it has been patient
    served = Shares(shares.used, shares.weights, shares.active, {ALICE: 250.0})
    assert ordered([first, second], served, 200.0, 300.0) == [second, first]  # but got a GPU meanwhile


# L3, U7: lengths decide among requests with equal shares, which says nothing about anybody's use
def test_a_short_job_passes_those_of_its_user_and_of_users_with_the_same_share() -> None:
    shares = Shares({CAROL: 9.0}, {}, frozenset({ALICE, BOB, CAROL}), {})
    long, short = ticket(gpus=1, est_s=7200.0), ticket("2" * 12, gpus=1, est_s=60.0, arrived_s=200.0)
    other = ticket("3" * 12, uid=BOB, gpus=1, est_s=600.0, arrived_s=200.0)
    heavy = ticket("4" * 12, uid=CAROL, gpus=1, est_s=1.0, arrived_s=1.0)
    among_own = places(TWO, Settings(), 300.0)
    queue = ordered([heavy, long, short, other], shares, 1e6, 300.0, among_own=among_own)
    assert queue == [short, other, long, heavy]
    assert passing(queue, shares) == {heavy.job: 2}


def test_the_standing_of_users_is_the_largest_share_first() -> None:  # L3
    shares = Shares({ALICE: 25.0, BOB: 75.0}, {ALICE: 1.0, BOB: 1.0}, frozenset({ALICE, BOB}), {})
    held_mib = {"0" * 12: 8000}
    held = taken([lease(gpus=("GPU-a",))], None, held_mib)
    found = standings(CAPPED, {}, shares, held, [ticket(uid=BOB, gpus=1)])
    assert [each.uid for each in found] == [BOB, ALICE]
    assert (found[1].gpus, found[1].max_gpus, found[1].vram_mib, found[1].waiting) == (1, 2, 8000, 0)
    assert (found[0].waiting, found[0].share, found[0].due) == (1, 0.75, 0.5)


def test_running_jobs_count_so_far() -> None:  # L5
    ended = [UsageRow("heavy", 2, 0, 10.0, 5.0, 3.0, 1.0)]
    running = [so_far("gpu", 50.0, 20.0, 0.5, 4000, 2.0), so_far("heavy", 8.0, 20.0, 1.0, 10, 2.0)]
    assert added_up([*ended, *running]) == (
        UsageRow("heavy", 3, 1, 18.0, 85.0, 3.0, 3.0),
        UsageRow("gpu", 1, 1, 10.0, 80000.0, 0.0, 0.0),
    )


def test_infinity_lifts_a_wider_cap() -> None:  # L3
    policy = SitePolicy(Caps(max_gpus=1), {ALICE: Caps(max_gpus=NO_CAP)}, {}, {}, {})
    check(policy, (), ticket(gpus=2), TWO, "alice")
    with pytest.raises(NotAllowedError):
        check(policy, (), ticket(uid=BOB, gpus=2), TWO, "bob")
