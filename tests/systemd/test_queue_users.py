"""Queues of ordinary users: in their own managers, and each user's with one another in one ledger."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

import pytest

from tests.patience import until
from tests.systemd.helpers import processes, systemctl
from tests.systemd.helpers.jobs import SYSTEM_LEDGER, Slicer, leases, tickets
from tests.systemd.helpers.queues import Queues, cgroup_of, is_gone, wide_open
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd

SIM = ("--sim", "2", "--poll", "0.1")
SIM_NAME = "sim-2x24G"


@pytest.fixture
def slicer(public_slicer: Slicer) -> Slicer:
    return public_slicer


@pytest.fixture
def queues(slicer: Slicer, alice: User) -> Iterator[Queues]:
    """Alice's."""
    yield Queues(slicer, alice.via, "alice")
    until(lambda: not systemctl.scopes(alice.systemctl), "no scope of hers")
    for ledger in (alice.ledger, f"{alice.ledger}/{SIM_NAME}"):
        until(lambda ledger=ledger: not leases(ledger) and not tickets(ledger), f"{ledger} is empty")  # type: ignore[misc]


# -- a manager of one's own ----------------------------------------------------------------------------------


def test_a_users_jobs_are_scopes_of_her_own_manager(
    slicer: Slicer, alice: User, queues: Queues
) -> None:  # K1
    gate = slicer.gate()
    queues.write(f"[vram=6G name=train timeout=90s] id -un; : < {gate}", f"[profile=light] : < {gate}")
    queue = queues.start(*SIM)
    queue.told("started", 1)
    queue.told("started", 2)
    shown = systemctl.show(queues.scope(1), "Slice", "Description", "RuntimeMaxUSec", prefix=alice.systemctl)
    assert shown.pop("Description") == "train (6G on 1 GPU, profile gpu)"
    assert shown == {"Slice": "gpu.slice", "RuntimeMaxUSec": "1min 30s"}
    assert systemctl.show(queues.scope(2), "Slice", prefix=alice.systemctl) == {"Slice": "cpu.slice"}
    assert f"/user@{alice.uid}.service/gpu.slice/" in cgroup_of(queues.scope(1), alice.systemctl)
    assert not systemctl.scopes()  # none of root's
    with wide_open(gate):
        assert queue.end().code == 0
    assert queues.log(1) == "alice\n"
    assert (queues.log_dir / "journal.jsonl").stat().st_uid == alice.uid
    assert [outcome.manager for outcome in queues.outcomes(alice.history)] == ["user", "user"]


def test_a_user_stops_a_job_of_hers_by_its_scope(slicer: Slicer, alice: User, queues: Queues) -> None:  # K6
    gate = slicer.gate()
    queues.write(f"[vram=1G] : < {gate}", "echo second")
    queue = queues.start(*SIM, "-j", "1")
    queue.told("started", 1)
    systemctl.output(*alice.systemctl, "stop", queues.scope(1))
    assert queue.end().code == 143
    assert queue.told("finished", 1)["job"]["reason"] == "stopped"
    assert queue.told("finished", 2)["job"]["status"] == "ok"


def test_a_queue_dead_or_alive_a_users_timeout_holds(
    slicer: Slicer, alice: User, queues: Queues
) -> None:  # E10
    gate = slicer.gate()
    queues.write(f"[vram=1G timeout=1s] : < {gate}")
    queue = queues.start(*SIM)
    queue.told("started", 1)
    unit = queues.scope(1)
    queue.crash()
    until(partial(is_gone, unit, alice.systemctl), "its scope is gone")
    assert queues.run(*SIM).code == 124


@pytest.mark.parametrize("alive", [True, False], ids=["queue lives", "queue dead"])
def test_what_ends_with_the_users_manager_runs_again(
    slicer: Slicer, alice: User, queues: Queues, alive: bool
) -> None:  # Q17, E7: as after a logout without linger
    ran, gate = slicer.path("ran"), slicer.gate()
    queues.write(f"[vram=1G] echo started >> {ran}; : < {gate}")
    queue = queues.start(*SIM)
    queue.told("started", 1)
    until(lambda: ran.exists() and ran.read_text(), "the job runs")
    if not alive:
        queue.crash()
    systemctl.output("systemctl", "stop", f"user@{alice.uid}.service")
    if alive:
        assert "you logged out" in queue.told("requeued", 1)["why"]
    systemctl.output("systemctl", "start", f"user@{alice.uid}.service")
    if not alive:
        queue = queues.start(*SIM)
    queue.told("started", 1, 2 if alive else 1)
    with wide_open(gate):
        done = queue.end()
    assert queue.told("finished", 1)["job"]["status"] == "ok"
    assert "Traceback" not in done.stderr
    assert ran.read_text() == "started\n" * 2
    assert [outcome.ended_by for outcome in queues.outcomes(alice.history)] == ["shutdown", ""]


def test_what_is_killed_with_the_users_manager_runs_again(
    slicer: Slicer, alice: User, queues: Queues
) -> None:  # Q17, E7: systemd's last SIGKILL at a logout, for a scope that it could not end in time
    ran, gate, manager = slicer.path("ran"), slicer.gate(), f"user@{alice.uid}.service"
    queues.write(f"[vram=1G] echo started >> {ran}; : < {gate}")
    queue = queues.start(*SIM)
    until(lambda: ran.exists() and ran.read_text(), "the job runs")
    systemctl.output("systemctl", "kill", "--kill-who=main", "--signal=KILL", manager)
    assert "you logged out" in queue.told("requeued", 1)["why"]
    systemctl.output("systemctl", "start", manager)
    queue.told("started", 1, 2)
    with wide_open(gate):
        assert queue.end().code == 0
    assert [outcome.ended_by for outcome in queues.outcomes(alice.history)] == ["shutdown", ""]


@pytest.mark.parametrize("seed", range(2))
def test_through_logouts_and_crashes_every_job_ends_well(
    slicer: Slicer, alice: User, queues: Queues, seed: int
) -> None:  # Q17, E7
    dice, manager = random.Random(seed), f"user@{alice.uid}.service"
    ran, jobs = slicer.path("ran"), 40
    queues.write(*(f"[vram=1G] sleep 0.3; echo {n} >> {ran}" for n in range(jobs)))
    queue = queues.start(*SIM, "-j", "3")
    for _ in range(5):
        queue.told("started", times=len(queue.events("started")) + 1)
        action = dice.choice(["logout", "crash", "both"])
        if action != "logout":
            queue.crash()
        if action != "crash":
            systemctl.output("systemctl", "restart", manager)
        if action != "logout":
            queue = queues.start(*SIM, "-j", "3")
    assert queue.end().code == 0
    assert set(map(int, ran.read_text().split())) == set(range(jobs))
    assert queues.exit_codes() == dict.fromkeys(range(1, jobs + 1), 0)


def test_a_stopped_slice_is_no_shutdown(slicer: Slicer, alice: User, queues: Queues) -> None:  # Q17
    gate = slicer.gate()
    queues.write(f"[vram=1G] : < {gate}")
    queue = queues.start(*SIM)
    queue.told("started", 1)
    assert queues.scope(1)
    systemctl.output(*alice.systemctl, "stop", "gpu.slice")
    assert queue.end().code == 143
    assert queue.told("finished", 1)["job"]["reason"] == "stopped"


# -- a ledger of one's own ----------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["CPU slot", "GPU"])
def test_two_queues_of_a_user_and_her_runs_exclude_each_other(
    slicer: Slicer, alice: User, queues: Queues, what: str
) -> None:  # A1, E13
    other = Queues(slicer, alice.bare, "other")
    inside = slicer.path("inside")
    alone = f"mkdir {inside} && sleep 0.05 && rmdir {inside}"
    bracket = "[profile=heavy] " if what == "CPU slot" else ""
    for each in (queues, other):
        each.write(*(f"{bracket}{alone}; # {n}" for n in range(4)))
    only = ("--gpu", "0") if what == "GPU" else ()
    options = ("-p", "heavy") if what == "CPU slot" else ("-p", "gpu", "--gpu", "0")
    running = [each.start(*SIM, *only) for each in (queues, other)]
    runs = [
        slicer.start(*options, "--", "sh", "-c", alone, env={"SLICER_SIM": "2x24G"}, via=via)
        for via in (alice.via, alice.bare)
    ]
    done = [job.end() for job in (*running, *runs)]
    assert [each.code for each in done] == [0] * 4, [each.stderr for each in done if each.code]
    assert not inside.exists()


def test_what_a_job_uses_is_seen_by_another_queue_of_its_user(
    slicer: Slicer, alice: User, queues: Queues
) -> None:  # A1, E3, X2
    gate = slicer.gate()
    hold = "slicer simjob --vram 10G --ramp 0 --hold infinity"
    queues.write(f"[vram=8G] {hold} --fork-away; : < {gate}; exit 3")
    queue = queues.start("--sim", "1", "--poll", "0.1")
    assert queue.told("exceeds", 1)["used_mib"] == 10 << 10
    # 11 of 24 GiB count as taken: the declaration is exceeded, and what is used may spike.
    second = Queues(slicer, alice.bare, "other")
    second.write("[vram=13G] echo fits not", "[vram=12G] echo fits")
    other = second.start("--sim", "1", "--poll", "0.1")
    other.told("finished", 2)
    assert not other.events("started", 1)
    with wide_open(gate):
        assert queue.end().code == 3
    assert other.end().code == 0
    assert second.log(1) == "fits not\n"


def test_a_queue_killed_with_all_that_is_its_own_leaves_the_gpu_to_another(
    slicer: Slicer, alice: User, queues: Queues
) -> None:  # A2, E13
    gate = slicer.gate()
    queues.write(f": < {gate}")
    queue = queues.start(*SIM, "--gpu", "0")
    queue.told("started", 1)
    second = Queues(slicer, alice.bare, "other")
    second.write("echo others")
    other = second.start(*SIM, "--gpu", "0")
    until(lambda: tickets(f"{alice.ledger}/{SIM_NAME}"), "it waits")
    unit = queues.scope(1)
    inside = processes.in_cgroup(cgroup_of(unit, alice.systemctl))
    assert inside
    queue.crash()
    assert not other.events("started")
    systemctl.output(*alice.systemctl, "kill", "--signal=KILL", unit)
    assert other.end().code == 0
    assert second.log(1) == "others\n"


def test_the_gpus_of_one_users_queue_are_free_in_anothers(
    slicer: Slicer, alice: User, bob: User, queues: Queues
) -> None:  # S1, S9
    gate = slicer.gate()
    bobs = Queues(slicer, bob.via, "bob")
    both = (queues, bobs)
    for each in both:
        each.write(f"[gpus=2] : < {gate}")
    running = [each.start(*SIM) for each in both]
    for queue in running:
        queue.told("started", 1)
    assert [len(leases(f"{someone.ledger}/{SIM_NAME}")) for someone in (alice, bob)] == [1, 1]
    assert not leases(f"{SYSTEM_LEDGER}/{SIM_NAME}")
    with wide_open(gate):
        assert [queue.end().code for queue in running] == [0, 0]


def test_the_first_jobs_of_a_user_make_a_simulated_ledger_together(
    slicer: Slicer, alice: User
) -> None:  # A1, E11
    for number in range(8):
        env = {"SLICER_SIM": f"1x{number + 1}G"}
        who = (alice.via, alice.bare) * 2
        runs = [slicer.start("-q", "-p", "light", "--", "true", env=env, via=via) for via in who]
        done = [job.end() for job in runs]
        assert [each.code for each in done] == [0] * 4, [each.stderr for each in done if each.code]
