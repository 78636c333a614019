"""``slicer queue`` on a real systemd: its jobs' scopes, what ends them, and that nothing is lost with it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from slicer.model import Lease
from tests.patience import until
from tests.systemd.helpers import processes, systemctl
from tests.systemd.helpers.jobs import SYSTEM_LEDGER, Slicer, configured, leases, tickets
from tests.systemd.helpers.queues import Queues, cgroup_of, is_gone, no_process_says, wide_open

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd

SIM = ("--sim", "2", "--poll", "0.1")
SIM_LEDGER = f"{SYSTEM_LEDGER}/sim-2x24G"

PROFILE = """\
[profiles.limited]
slice = "cpu"
cpu_quota = "150%"
memory_high = "300M"
memory_max = "400M"
tasks_max = 123
timeout_stop = "7s"
env = { FLAVOUR = "limited" }
"""


@pytest.fixture
def queues(slicer: Slicer) -> Iterator[Queues]:
    yield Queues(slicer)
    until(lambda: not leases(SIM_LEDGER) and not tickets(SIM_LEDGER), "the simulated ledger is empty")


@pytest.fixture
def config(tmp_path: Path) -> dict[str, str]:
    return configured(tmp_path, PROFILE)


def sim_leases() -> list[Lease]:
    return leases(SIM_LEDGER)


# -- the scope -----------------------------------------------------------------------------------------------


def test_each_job_runs_in_a_scope_with_its_profiles_limits(
    slicer: Slicer, queues: Queues, config: dict[str, str]
) -> None:  # E1, K1, K3, K6
    gate = slicer.gate()
    queues.write(
        f"[vram=6G name=train timeout=90s] cat /proc/self/cgroup; : < {gate}",
        f"[profile=limited env.SEED=7] echo $FLAVOUR $SEED; : < {gate}",
    )
    queue = queues.start(*SIM, env=config)
    queue.told("started", 1)
    queue.told("started", 2)
    on_gpu, on_cpu = queues.scope(1), queues.scope(2)
    assert on_gpu != on_cpu
    shown = systemctl.show(on_gpu, "Slice", "Description", "RuntimeMaxUSec", "Transient", "CollectMode")
    assert shown.pop("Description") == "train (6G on 1 GPU, profile gpu)"
    assert shown == {
        "Slice": "gpu.slice",
        "RuntimeMaxUSec": "1min 30s",
        "Transient": "yes",
        "CollectMode": "inactive-or-failed",
    }
    wanted = {
        "Slice": "cpu.slice",
        "CPUQuotaPerSecUSec": "1.500000s",
        "MemoryHigh": str(300 << 20),
        "MemoryMax": str(400 << 20),
        "TasksMax": "123",
        "TimeoutStopUSec": "7s",
    }
    assert systemctl.show(on_cpu, *wanted) == wanted
    assert queue.pid not in processes.in_cgroup(cgroup_of(on_gpu))
    (lease,) = [lease for lease in sim_leases() if lease.vram_mib == 6 << 10]
    assert (lease.unit, lease.cgroup, lease.name) == (on_gpu, cgroup_of(on_gpu), "train")
    with wide_open(gate):
        assert queue.end().code == 0
    assert queues.log(1).endswith(f"/{on_gpu}\n")
    assert queues.log(2) == "limited 7\n"


def test_what_leaves_the_session_counts_for_its_job_and_is_ended_with_it(
    slicer: Slicer, queues: Queues
) -> None:  # X2, E5, E13
    gate = slicer.gate()
    hold = "slicer simjob --vram 2G --ramp 0 --hold infinity"
    queues.write(
        f"[vram=1G] {hold} --fork-away; : < {gate}; exit 3",
        f"[vram=1G] (setsid sh -c '({hold} &) &' &); : < {gate}; exit 3",
        f"[vram=1G] env -i PATH=$PATH SLICER_SIM=$SLICER_SIM setsid {hold} & : < {gate}; exit 3",
    )
    queue = queues.start(*SIM)
    for no in (1, 2, 3):
        assert queue.told("exceeds", no)["used_mib"] == 2048
    with wide_open(gate):
        assert queue.end().code == 3
    for no in (1, 2, 3):
        job = queue.told("finished", no)["job"]
        assert (job["peak_mib"], job["verdict"]) == ([2048], "under-declared")
    assert no_process_says("--hold\0infinity")
    assert [outcome.vram_peak_mib for outcome in queues.outcomes()] == [(2048,)] * 3


# -- ended from outside --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["systemctl stop", "slicer stop"])
def test_a_job_that_somebody_stops_is_over_and_the_queue_goes_on(
    slicer: Slicer, queues: Queues, way: str
) -> None:  # K6, E9, U15
    gate = slicer.gate()
    # What it says would otherwise be taken for a reason to run it again.
    oom = "echo 'torch.cuda.OutOfMemoryError: CUDA out of memory.'"
    queues.write(f"[vram=1G retries=2 name=victim] {oom}; : < {gate}", "echo second")
    queue = queues.start(*SIM, "-j", "1")
    queue.told("started", 1)
    until(lambda: queues.log(1), "it waits at the gate")
    if way == "systemctl stop":
        systemctl.output("systemctl", "stop", queues.scope(1))
    else:
        systemctl.output("slicer", "stop", "victim", env=slicer.environ(SLICER_SIM="2x24G"))
    done = queue.end()
    job = queue.told("finished", 1)["job"]
    status = "failed" if way == "systemctl stop" else "cancelled"  # the user's own word
    assert (job["status"], job["exit_code"], job["reason"], job["attempt"]) == (status, 143, "stopped", 1)
    assert queue.told("finished", 2)["job"]["status"] == "ok"
    assert done.code == (143 if status == "failed" else 0)
    assert not queue.events("retry")


@pytest.mark.parametrize("alive", [True, False], ids=["queue lives", "queue dead"])
def test_a_scope_that_is_killed_whole_is_noticed(slicer: Slicer, queues: Queues, alive: bool) -> None:  # E8
    slicer.dirty = True
    gate = slicer.gate()
    queues.write(f"[vram=1G retries=2] echo up; : < {gate}", "echo second")
    queue = queues.start(*SIM, "-j", "1")
    queue.told("started", 1)
    unit = queues.scope(1)
    if not alive:
        queue.crash()
    systemctl.output("systemctl", "kill", "--signal=KILL", unit)
    until(partial(is_gone, unit), "its scope is gone")
    if not alive:
        queue = queues.start(*SIM, "-j", "1")
    done = queue.end()
    job = queue.told("finished", 1)["job"]
    assert (job["status"], job["exit_code"]) == ("failed", 137)
    assert done.code == 137
    assert queue.told("finished", 2)["job"]["status"] == "ok"
    assert len(queues.journal("begun")) == 2


# -- timeouts ------------------------------------------------------------------------------------------------

STUBBORN = "trap '' TERM; echo up; while :; do sleep 1000.5; done"


@pytest.mark.parametrize("alive", [True, False], ids=["queue lives", "queue dead"])
def test_a_timeout_holds_whether_the_queue_lives_or_not(
    slicer: Slicer, queues: Queues, alive: bool
) -> None:  # E10
    slicer.dirty = not alive
    queues.write(f"[vram=1G timeout=1s retries=2] {STUBBORN}")
    began = time.monotonic()
    queue = queues.start(*SIM)
    queue.told("started", 1)
    unit = queues.scope(1)
    if not alive:
        queue.crash()
    until(partial(is_gone, unit), "its scope is gone")
    assert time.monotonic() - began > 9.5  # 1 s, and 9 from SIGTERM to SIGKILL: one before systemd
    assert no_process_says("sleep\x001000.5")
    if not alive:
        queue = queues.start(*SIM)
    assert queue.end().code == 124
    job = queue.told("finished", 1)["job"]
    assert (job["status"], job["exit_code"], job["attempt"]) == ("timeout", 124, 1)
    (outcome,) = queues.outcomes()
    assert outcome.reason == "timeout"


def test_a_time_limit_does_not_count_while_the_job_waits_for_its_turn(queues: Queues) -> None:  # Q15, E10
    # The last one begins long after the limit of all: their scopes must not stand before it is their turn.
    queues.write(*(f"[profile=light timeout=5s] sleep 1; echo {n}" for n in range(10)))
    queue = queues.start("-j", "1")
    assert queue.end(60).code == 0
    assert queues.exit_codes() == dict.fromkeys(range(1, 11), 0)


def test_a_job_whose_scope_stands_before_its_turn_is_shown_to_wait(slicer: Slicer, queues: Queues) -> None:
    # Q15, H1
    gates = [slicer.gate() for _ in range(3)]
    queues.write(*(f"[profile=light] : < {gate}" for gate in gates))
    queue = queues.start("-j", "1")

    def shown() -> list[bool]:
        told = json.loads(slicer.command("status", "--json").stdout)
        return [each["begun"] for each in told["jobs"]]

    until(lambda: sorted(shown()) == [False, False, True], "the scopes of all three stand, and one job runs")
    assert slicer.command("status").stdout.count("has not begun") == 2
    for gate in gates:  # one after the other in the file's order, whichever scope stood first
        gate.open()
    assert queue.end().code == 0


def test_a_timeout_of_an_adopted_job_is_told_as_one(slicer: Slicer, queues: Queues) -> None:  # E7, E10
    slicer.dirty = True
    gate = slicer.gate()
    queues.write(f"[vram=1G timeout=3s] : < {gate}")
    queue = queues.start(*SIM)
    queue.told("started", 1)
    queue.crash()
    queue = queues.start(*SIM)
    queue.told("adopted", 1)
    assert queue.end().code == 124
    assert queue.told("finished", 1)["job"]["status"] == "timeout"


# -- the queue dies ------------------------------------------------------------------------------------------


def test_twenty_jobs_survive_the_queue_and_are_adopted(slicer: Slicer, queues: Queues) -> None:  # E7, E13
    slicer.dirty = True
    ran, gates = slicer.path("ran"), (slicer.gate(), slicer.gate())
    numbers = range(1, 21)
    # Half of them end while no queue lives.
    queues.write(
        *(f"[vram=1G] echo {n} >> {ran}; : < {gates[n % 2]}; echo over; exit {n % 5}" for n in numbers)
    )
    queue = queues.start(*SIM)
    queue.told("started", times=20)
    queue.crash()
    assert len(systemctl.scopes()) == 20
    with wide_open(gates[0]):
        until(lambda: len(systemctl.scopes()) == 10, "ten scopes are left")
    queue = queues.start(*SIM)
    queue.told("adopted", times=10)
    assert len(sim_leases()) == 10
    with wide_open(gates[1]):
        done = queue.end()
    assert done.code == 4
    assert sorted(map(int, ran.read_text().split())) == list(numbers)
    assert queues.exit_codes() == {n: n % 5 for n in numbers}
    assert all(queues.log(n) == "over\n" for n in numbers)
    assert [outcome.exit_code for outcome in queues.outcomes()] == [n % 5 for n in numbers]
    assert not sim_leases()
    assert not list((queues.log_dir / "attempts").iterdir())


POINTS = [
    "queue-saving",
    "queue-saved",
    "queue-forked",
    "queue-letting-go",
    "queue-let-go",
]


@pytest.mark.parametrize("point", POINTS)
def test_killed_while_it_starts_a_job_that_job_runs_once(
    slicer: Slicer, queues: Queues, point: str
) -> None:  # E7, K2
    state, ran = slicer.path("state"), slicer.path("ran")
    env = {"SLICER_STATE_DIR": str(state)}
    queues.write(f"[vram=1G] echo once >> {ran}; exit 3")
    queue = queues.start(*SIM, env={**env, "SLICER_FAULTS": f"{state}:{point}"})
    until(lambda: processes.state(queue.pid) == "T", f"it stands still at {point}")
    queue.crash()
    until(lambda: not systemctl.scopes(), "no scope is left")
    assert ran.exists() == (point == "queue-let-go")
    assert queues.run(*SIM, env=env).code == 3
    assert ran.read_text() == "once\n"
    assert queues.exit_codes() == {1: 3}
    assert not leases(f"{state}/sim-2x24G")


SUPERVISOR = ["run-forked", "supervisor-forked", "supervisor-started-scope", "supervisor-updated-lease"]


@pytest.mark.parametrize("victim", ["supervisor", "queue"])
@pytest.mark.parametrize("point", SUPERVISOR)
def test_killed_while_a_supervisor_starts_a_job_that_job_runs_once(
    slicer: Slicer, queues: Queues, point: str, victim: str
) -> None:  # E7, K2
    state, ran = slicer.path("state"), slicer.path("ran")
    env = {"SLICER_STATE_DIR": str(state)}
    queues.write(f"[vram=1G] echo once >> {ran}; exit 3")
    queue = queues.start(*SIM, env={**env, "SLICER_FAULTS": f"{state}:{point}"})
    supervisor = until(
        lambda: next((pid for pid in processes.children(queue.pid) if processes.state(pid) == "T"), 0),
        "one of its children stands still",
    )
    if victim == "queue":
        queue.crash()
    state.with_suffix(".go").touch()  # the next one is not to stop
    os.kill(supervisor, signal.SIGKILL if victim == "supervisor" else signal.SIGCONT)
    if victim == "queue":
        until(lambda: not processes.is_alive(supervisor), "it has ended, too")
        until(lambda: not systemctl.scopes(), "no scope is left")
        queue = queues.start(*SIM, env=env)
    assert queue.end().code == 3
    assert ran.read_text() == "once\n"
    assert queues.exit_codes() == {1: 3}
    until(lambda: not systemctl.scopes(), "no scope is left")
    assert not leases(f"{state}/sim-2x24G")


def test_jobs_start_after_the_queue_had_to_speak_with_systemd(
    slicer: Slicer, queues: Queues
) -> None:  # E7, E13
    slicer.dirty = True
    queues.write("[vram=1G] sleep 1000")
    first = queues.start(*SIM)
    first.told("started", 1)
    inside = cgroup_of(queues.scope(1), ("systemctl",))
    (supervisor,) = processes.children(first.pid)
    first.crash()
    os.kill(supervisor, signal.SIGKILL)
    queue = queues.start(*SIM, "--watch")
    queue.told("adopted", 1)
    keeper = next(
        pid for pid in processes.in_cgroup(inside) if processes.read(pid, "comm") == b"slicer-keeper\n"
    )
    os.kill(keeper, signal.SIGKILL)  # and so the queue has systemd end the job
    queue.told("lost", 1)
    queues.write("[vram=1G] sleep 1000", "[vram=1G] echo second")
    assert queue.told("finished", 2)["job"]["status"] == "ok"
    queue.kill(signal.SIGTERM)
    queue.end()
    assert queue.stderr == ""


# -- what is remembered --------------------------------------------------------------------------------------


def test_history_and_journal_have_every_attempt(slicer: Slicer, queues: Queues) -> None:  # X3, K7, E9
    slicer.dirty = True
    gate = slicer.gate()
    queues.write(
        f"[vram=2G retries=1 name=twice] slicer simjob --vram 1G --hold 0 --oom-once {slicer.path('marker')}",
        f"[vram=1G name=orphan] : < {gate}; exit 7",
    )
    queue = queues.start(*SIM)
    queue.told("finished", 1)
    queue.crash()
    unit = queues.scope(2)
    with wide_open(gate):
        until(partial(is_gone, unit), "the job without a queue has ended")
    assert queues.run(*SIM).code == 7
    orphan = queues.job_id(2)
    attempts = [queues.job_id(1), queues.job_id(1, 2)]
    found = {outcome.job: outcome for outcome in queues.outcomes()}
    assert {job: (found[job].name, found[job].exit_code) for job in found} == {
        attempts[0]: ("twice", 1),
        attempts[1]: ("twice", 0),
        orphan: ("orphan", 7),
    }
    assert found[attempts[1]].vram_mib == 2560
    listed = systemctl.output("slicer", "history", "--name", "orphan", env=slicer.environ())
    assert orphan[:8] in listed
    for job in found:
        assert systemctl.events(job) == ["acquired", "started", "finished", "released"], job
    (entry,) = systemctl.journal("-t", "slicer", "SLICER_EVENT=finished", f"SLICER_JOB={orphan}")
    assert entry["SLICER_EXIT_CODE"] == "7"


# -- with others ---------------------------------------------------------------------------------------------


# -- signals -------------------------------------------------------------------------------------------------


def test_asked_twice_it_ends_what_runs_which_runs_again_next_time(
    slicer: Slicer, queues: Queues
) -> None:  # E7
    gate = slicer.gate()
    queues.write(f"[vram=1G] : < {gate}; exit 5")
    queue = queues.start(*SIM)
    queue.told("started", 1)
    os.kill(queue.pid, signal.SIGTERM)
    queue.told("stopping")
    os.kill(queue.pid, signal.SIGTERM)
    assert queue.end().code == 143
    assert not systemctl.scopes()
    with wide_open(gate):
        assert queues.run(*SIM).code == 5
    assert queues.exit_codes() == {1: 5}
