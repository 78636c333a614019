"""``slicer adopt``: a process that was started without slicer becomes a job. Its exit code stays unknown."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from slicer.outcome import history
from tests.patience import LONGEST_S, until
from tests.systemd.helpers import processes, systemctl
from tests.systemd.helpers.broker import Broker
from tests.systemd.helpers.jobs import Done, Slicer
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.fixtures", "tests.systemd.helpers.broker_fixtures"]
pytestmark = pytest.mark.systemd

SIM = {"SLICER_SIM": "2x24G"}
ON_GPU_0 = "slicer simjob --vram 6G --ramp 0 --hold 1h & echo up; wait"


class Loose:
    """A shell script in a login session of its user's."""

    def __init__(self, slicer: Slicer, who: User, script: str, **env: str) -> None:
        self.slicer, self.who, self.env = slicer, who, env
        self.session = f"session-{os.urandom(4).hex()}.scope"
        place = "systemd-run", "--scope", "--quiet", f"--unit={self.session}", f"--slice=user-{who.uid}"
        self.popen = subprocess.Popen(
            [*place, *who.via, "sh", "-c", script], env=slicer.environ(**env), cwd=slicer.directory,
            stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self.pid = self.popen.pid
        assert self.popen.stdout is not None
        with self.popen.stdout as said:
            assert said.readline() == b"up\n"
        self.cgroup = processes.cgroup(self.pid)
        assert self.cgroup.endswith(self.session)

    def command(self, *line: str, code: int = 0) -> Done:
        return self.slicer.command(*line, code=code, via=self.who.via, **self.env)

    def adopted(self, *options: str) -> dict[str, Any]:
        """The job, as ``slicer show`` knows it while it runs."""
        job = self.command("adopt", str(self.pid), *options).stdout.strip()
        running: dict[str, Any] = json.loads(self.command("show", "--json", job).stdout)["running"]
        return running

    def is_untouched(self) -> bool:
        return processes.cgroup(self.pid) == self.cgroup and self.popen.poll() is None

    def end(self) -> None:
        for each in processes.in_cgroup(processes.cgroup(self.pid)):
            os.kill(each, signal.SIGKILL)
        self.popen.wait(LONGEST_S)


Start = Callable[..., Loose]


@pytest.fixture
def loose(public_slicer: Slicer, alice: User) -> Iterator[Start]:
    made: list[Loose] = []

    def start(script: str, who: User = alice, **env: str) -> Loose:
        made.append(Loose(public_slicer, who, script, **env))
        return made[-1]

    yield start
    for each in made:
        if each.popen.poll() is None:
            each.end()


def outcome_of(alice: User, job: str) -> tuple[str, int, str]:
    (found,) = until(lambda: history.read(alice.history, job=job), "its outcome")
    return found.reason, found.exit_code, found.ended_by


@pytest.mark.core
def test_a_process_and_all_below_it_get_a_scope_with_limits(loose: Start, alice: User) -> None:  # U10
    """Also those that are started at that very moment, and in sessions of their own."""
    forks = "while :; do sh -c 'sleep 0.3 & sleep 0.2' & sleep 0.1; done"
    one = loose(f"setsid sleep 1h & ({forks}) & echo up; wait")
    job = one.adopted("--name", "train", "--set", "MemoryMax=300M", "--set", "TasksMax=400")
    assert (job["name"], job["user"]) == ("train", "alice")
    assert job["command"].startswith("sh -c ")
    assert f"/user@{alice.uid}.service/" in job["cgroup"]
    assert processes.cgroup(one.pid) == job["cgroup"]
    # A `sleep 0.3` whose shell has just ended is nobody's child any more.
    until(lambda: not processes.in_cgroup(one.cgroup), "nobody is left in the session")
    assert len(processes.in_cgroup(job["cgroup"])) >= 4
    shown = systemctl.show(job["unit"], "MemoryMax", "TasksMax", prefix=alice.systemctl)
    assert shown == {"MemoryMax": str(300 << 20), "TasksMax": "400"}
    assert "writes where it did before" in one.command("logs", "train").stdout
    one.command("stop", "train")
    assert one.popen.wait(LONGEST_S) == -signal.SIGTERM
    assert outcome_of(alice, job["job"]) == ("stopped", 125, "slicer stop")


@pytest.mark.core
def test_its_end_is_told_as_unknown_never_as_success(
    loose: Start, public_slicer: Slicer, alice: User
) -> None:  # U10
    """By the outcome, the history, ``slicer wait`` and ``--after``."""
    gate = public_slicer.gate()
    one = loose(f"echo up; : < {gate}; exit 0")
    job = one.adopted()["job"]
    gate.open()
    said = one.command("wait", job, code=125).stdout
    assert "exit 125 (nobody saw how)" in said
    assert outcome_of(alice, job) == ("unknown", 125, "")
    assert " unknown " in one.command("history").stdout
    assert one.command("run", "--after", job, "--", "true", code=75).stderr, "it did not end well"


def test_it_gets_the_gpus_that_it_uses_and_is_not_in_its_own_way(loose: Start) -> None:  # U10, B3
    one = loose(ON_GPU_0, **SIM)
    until(lambda: '"used_mib": 6144' in one.command("status", "--json").stdout, "it uses a GPU")
    one.command("run", "--gpu", "0", "--no-wait", "--", "true", code=75)
    job = one.adopted("--name", "train")
    assert [(gpu["index"], gpu["used_mib"]) for gpu in job["gpus"]] == [(0, 6144)]
    assert job["vram_mib"] is None, "it has the GPU whole"
    said = one.command("run", "--gpu", "0", "--no-wait", "--", "true", code=75).stderr
    assert json.loads(said.splitlines()[-1])["holder"]["name"] == "train"
    one.command("run", "--gpu", "1", "--no-wait", "--", "true")


def test_a_gpu_that_another_job_holds_is_refused_at_once(loose: Start, public_slicer: Slicer) -> None:  # U10
    one = loose(ON_GPU_0, **SIM)
    until(lambda: '"used_mib": 6144' in one.command("status", "--json").stdout, "it uses a GPU")
    gate = public_slicer.gate()
    public_slicer.ledger = one.who.ledger
    line = "--gpu", "0", "--vram", "8G", "--name", "owner", "--", "sh", "-c", f"echo up; : < {gate}"
    other = public_slicer.start(*line, via=one.who.via, env=one.env)
    other.said("up")
    refused = one.command("adopt", str(one.pid), code=75)
    assert "owner" in refused.stderr
    assert one.is_untouched()
    assert one.adopted("--vram", "8G")["vram_mib"] == 8192, "beside it there is room"
    gate.open()
    other.end()


def test_a_killed_supervisor_or_keeper_ends_nothing(loose: Start, alice: User) -> None:  # U10, K4
    """The keeper tells of the end in place of the supervisor. Without both, the scope holds the lease."""
    for victims in (("pid",), ("keeper",), ("pid", "keeper")):
        one = loose("echo up; exec sleep 1h", **SIM)
        job = one.adopted("--gpu", "1")
        (keeper,) = (pid for pid in processes.in_cgroup(job["cgroup"]) if pid != one.pid)
        for victim in victims:
            os.kill({"pid": job["pid"], "keeper": keeper}[victim], signal.SIGKILL)
        one.command("run", "--gpu", "1", "--no-wait", "--", "true", code=75)
        assert processes.is_alive(one.pid), victims
        one.popen.kill()
        one.popen.wait(LONGEST_S)
        assert "exit 125" in one.command("wait", job["job"], code=125).stdout, victims
        until(lambda: not systemctl.scopes(alice.systemctl), "no scope is left")


@pytest.mark.core
def test_of_many_at_once_one_adopts_it_and_the_others_name_that_job(loose: Start) -> None:  # U10
    one = loose("echo up; exec sleep 1h")
    line = [*one.who.via, "slicer", "adopt", str(one.pid)]

    def adopt(_: int) -> subprocess.CompletedProcess[str]:
        env = one.slicer.environ()
        return subprocess.run(line, env=env, capture_output=True, text=True, timeout=300, check=False)

    with ThreadPoolExecutor(16) as pool:
        done = list(pool.map(adopt, range(16)))
    (winner,) = (each.stdout.strip() for each in done if each.returncode == 0)
    assert {each.returncode for each in done} == {0, 2}
    assert all(f"it is in job {winner}" in each.stderr for each in done if each.returncode)
    assert processes.cgroup(one.pid).endswith(f"slicer-{winner}.scope")


def test_what_cannot_become_a_job_is_refused_and_stays(loose: Start, alice: User, bob: User) -> None:  # U10
    one, dead = loose("echo up; exec sleep 1h"), loose("echo up; exec sleep 1h")
    dead.popen.kill()
    until(lambda: not processes.is_alive(dead.pid), "it is a zombie")
    theirs, contained = loose("echo up; exec sleep 1h", who=bob), loose("echo up; exec sleep 1h")
    around = [*alice.via, "sh", "-c", "slicer adopt $$; exit $?"]
    mine = one.command("adopt", str(contained.pid)).stdout.strip()
    supervisor = json.loads(one.command("show", "--json", mine).stdout)["running"]["pid"]
    unit = f"{one.session[:-6]}.service"
    systemctl.output("systemd-run", "--quiet", f"--unit={unit}", "--uid=alice", "sleep", "1h")
    service = int(systemctl.show(unit, "MainPID")["MainPID"])
    manager = int(systemctl.show(f"user@{alice.uid}.service", "MainPID")["MainPID"])
    for pid, why in {
        "": "takes the pid of one process",
        "x": "takes the pid of one process",
        "1": "you have no such process",
        "99999999999999999999": "you have no such process",
        str(theirs.pid): "you have no such process",
        str(dead.pid): "you have no such process",
        str(contained.pid): f"it is in job {mine}",
        str(supervisor): f"it is in job {mine}",
        str(service): f"it is {unit} itself",
        str(manager): "you have no such process",
    }.items():
        assert why in one.command("adopt", *filter(None, [pid]), code=2).stderr, pid
    done = subprocess.run(around, env=one.slicer.environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "around other programs" in done.stderr
    assert "you have no such process" in one.slicer.command("adopt", str(one.pid), code=2).stderr  # root's
    assert "no such option" in one.command("adopt", str(one.pid), "--exec", code=2).stderr
    assert one.is_untouched()
    assert theirs.is_untouched()
    systemctl.output("systemctl", "stop", unit)


def test_the_broker_keeps_its_user_to_the_caps(loose: Start, broker: Broker, alice: User) -> None:  # U10
    broker.configure("[slots]\ncpu = 1\n", "[default]\nmax_gpus = 1\n")
    one, more = loose("sleep 1h & echo up; wait"), loose("echo up; exec sleep 1h")
    refused = more.command("adopt", str(more.pid), "--gpus", "2", code=2).stderr
    assert "1 GPU" in refused
    assert more.is_untouched()
    job = one.adopted("--gpus", "1", "--name", "train")
    assert job["cgroup"].startswith(f"/gpu.slice/gpu-{alice.uid}.slice/")
    assert len(processes.in_cgroup(job["cgroup"])) == 3, "the two, and the keeper"
    assert not processes.in_cgroup(one.cgroup)
    more.command("adopt", str(more.pid), "--gpus", "1", code=75)
    assert more.is_untouched()
    one.command("stop", "train")
    assert one.popen.wait(LONGEST_S) == -signal.SIGTERM
    until(lambda: not broker.leases(), "the lease has ended")
