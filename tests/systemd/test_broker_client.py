"""slicer's commands where a broker decides for all users: the way is the same, and so is what is left."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import until
from tests.process.hot_path import SYSTEMD, imported_with_cache, surplus
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.broker import RUN, SCOPE, SERVICE, SOCKET, Broker, holds, leaving_nothing, queues
from tests.systemd.helpers.jobs import Done, Slicer
from tests.systemd.helpers.queues import Queues
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.broker_fixtures", "tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd



@pytest.fixture
def slicer(public_slicer: Slicer, broker: Broker) -> Iterator[Slicer]:
    """slicer in a machine with a broker, for every user."""
    yield from leaving_nothing(public_slicer, broker)


def status(slicer: Slicer, who: User) -> dict:  # type: ignore[type-arg]
    found: dict = json.loads(slicer.command("status", "--json", via=who.via).stdout)  # type: ignore[type-arg]
    return found


def names(found: list[dict]) -> list[str]:  # type: ignore[type-arg]
    return [each["name"] for each in found]


def run(slicer: Slicer, who: User, *arguments: str) -> Done:
    return slicer.run(*arguments, via=who.via)


# -- one job ------------------------------------------------------------------------------------------------


def test_a_users_job_runs_in_the_system_manager(slicer: Slicer, ann: User, tmp_path: Path) -> None:  # L1, K2
    done = run(slicer, ann, "-g1", "--set", "TasksMax=9", "--", "sh", "-c", f"id -u; {SCOPE}; exit 3")
    uid, scope = done.stdout.split()
    assert (uid, done.code) == (str(ann.uid), 3)
    assert scope.startswith(f"0::/gpu.slice/gpu-{ann.uid}.slice/slicer-")
    outcome = slicer.outcome(scope.rpartition("-")[2].removesuffix(".scope"), ann.history)
    assert (outcome.manager, outcome.slice) == ("system", f"gpu-{ann.uid}.slice")
    assert {"TasksMax", "TimeoutStopSec"} <= {*outcome.enforced, *outcome.not_enforced}
    executed = run(slicer, ann, "--exec", "-g1", "--", "sh", "-c", SCOPE)
    assert executed.stdout.startswith(f"0::/gpu.slice/gpu-{ann.uid}.slice/slicer-")
    held = slicer.start("--gpus=1", "--", "sh", "-c", SCOPE, via=ann.via, program="hold").end()
    assert held.stdout.startswith(f"0::/gpu.slice/gpu-{ann.uid}.slice/slicer-")


def test_a_job_inside_asks_for_what_is_missing(slicer: Slicer, ann: User) -> None:  # A11
    echo = "echo {} $CUDA_VISIBLE_DEVICES"
    inner = "; ".join(
        f"slicer run -g{count} -- sh -c '{echo.format(word)}'" for count, word in ((1, "same"), (2, "more"))
    )
    done = run(slicer, ann, "-g1", "--", "sh", "-c", f"{echo.format('outer')}; {inner}")
    said = dict(line.split() for line in done.stdout.splitlines())
    assert said["same"] == said["outer"]
    first, second = said["more"].split(",")
    assert said["outer"] == first != second


def test_the_way_through_the_broker_imports_no_more_than_it_needs(slicer: Slicer, ann: User) -> None:  # K8
    class Hers:
        prefix = ann.via
        env = slicer.environ(PYTHONPATH=str(Path(__file__).parents[2] / "src"))

    found = imported_with_cache(Hers(), "-p", "heavy", "--", "true")
    assert "slicer.broker.client.asking" in found
    assert surplus(found, SYSTEMD - {"pystemd.dbusexc", "pystemd.dbuslib"}) == set()


# -- several users ------------------------------------------------------------------------------------------


def test_users_wait_for_each_other(slicer: Slicer, ann: User, ben: User) -> None:  # L1, A9
    first, gate = holds(slicer, ann, "--name", "train", "-g2", "--expect", "1h")
    second = queues(slicer, ben, "--name", "eval", "-g1", script="echo $CUDA_VISIBLE_DEVICES")
    assert "held by train (about 1h left, alice's, pid" in second.stderr
    busy = run(slicer, ben, "--no-wait", "-g1", "--", "true")
    assert busy.code == 75
    assert json.loads(busy.told.splitlines()[-1])["holder"]["user"] == "alice"
    assert run(slicer, ben, "--max-wait", "50ms", "-g1", "--", "true").code == 75
    dry = slicer.command("run", "--dry-run", "-g1", "--", "true", via=ben.via).stdout
    assert re.search(r"busy: a GPU, held by train \(.*\balice's", dry), dry
    assert f"in gpu-{ben.uid}.slice" in dry
    seen = status(slicer, ben)
    assert [(job["user"], job["command"]) for job in seen["jobs"]] == [("alice", "")]
    assert [(job["user"], job["name"]) for job in seen["waiting"]] == [("bob", "eval")]
    assert {user["user"]: user["gpus"] for user in seen["users"]} == {"alice": 2, "bob": 0}
    assert "alice" in slicer.command("status", via=ben.via).stdout
    gate.open()
    assert first.end().code == second.end().code == 0
    assert second.stdout.strip()


def test_the_next_in_line_has_its_scope_before_its_turn(
    slicer: Slicer, broker: Broker, ann: User, ben: User
) -> None:  # L1
    first, gate = holds(slicer, ann, "-g2")
    known = {*systemctl.scopes()}
    second = queues(slicer, ben, "-g1", script=f"{SCOPE}; echo $CUDA_VISIBLE_DEVICES")
    (unit,) = until(lambda: {*systemctl.scopes()} - known, "the next one's scope is there")
    third = queues(slicer, ben, "--exec", "-g1", script=SCOPE)
    assert {*systemctl.scopes()} - known == {unit}, "the one behind it has none yet"
    broker.kill()
    until(lambda: len(status(slicer, ben)["waiting"]) == 2, "both are back")
    gate.open()
    first.end()
    done = second.end()
    scope, gpus = done.stdout.split()
    assert (done.code, scope.rpartition("/")[2], bool(gpus)) == (0, unit, True)
    outcome = slicer.outcome(unit.removeprefix("slicer-").removesuffix(".scope"), ben.history)
    assert (outcome.reason, outcome.usage.cpu_s is not None) == ("exited", True)
    assert third.end().code == 0


def test_a_scope_that_ends_before_its_turn_ends_the_wait(slicer: Slicer, ann: User, ben: User) -> None:  # L1
    first, gate = holds(slicer, ann, "-g2")
    known = {*systemctl.scopes()}
    ended = queues(slicer, ben, "-g1")
    (unit,) = until(lambda: {*systemctl.scopes()} - known, "its scope is there")
    systemctl.output("systemctl", "kill", "--signal=KILL", unit)
    assert (ended.end().code, "its scope was stopped while the job waited" in ended.stderr) == (125, True)
    killed = queues(slicer, ben, "-g1")
    (other,) = until(lambda: {*systemctl.scopes()} - known - {unit}, "its scope is there, too")
    killed.kill()
    killed.end()
    until(lambda: other not in systemctl.scopes(), "it goes with who waited for it")
    gate.open()
    assert first.end().code == 0


def test_everybody_acts_on_own_jobs_and_root_on_all(slicer: Slicer, ann: User, ben: User) -> None:  # E1
    job, _ = holds(slicer, ann, "--name", "train", "-g1")
    for verb in (("stop",), ("pause",), ("resume",)):
        refused = slicer.command(*verb, "train", via=ben.via, code=2)
        assert "'train' is a job of alice" in refused.stderr
    slicer.command("set", "train", "TasksMax=5", via=ben.via, code=2)
    slicer.command("set", "train", "TasksMax=50", via=ann.via)
    unit = status(slicer, ann)["jobs"][0]["unit"]
    assert systemctl.show(unit, "TasksMax") == {"TasksMax": "50"}
    slicer.command("pause", "train", via=ann.via)
    assert status(slicer, ann)["jobs"][0]["halted"] == "paused"
    assert status(slicer, ben)["jobs"][0]["halted"] == "frozen"
    slicer.command("resume", "train", via=ann.via)
    slicer.command("pause", "train")
    slicer.command("stop", "train")  # by root: it is thawed, to end
    assert job.end().code == 143
    waits, gate = holds(slicer, ann, "-g2")
    waiting = queues(slicer, ann, "--name", "next", "-g1")
    slicer.command("stop", "next", via=ann.via)
    assert waiting.end().code == 143
    gate.open()
    waits.end()


def test_stop_takes_one_line_out_of_a_queue_that_waits_at_the_broker(
    slicer: Slicer, ann: User
) -> None:  # W21
    waits, gate = holds(slicer, ann, "-p", "heavy")
    hers = Queues(slicer, ann.via)
    hers.write("[profile=heavy name=first] true", "[profile=heavy name=second] true")
    queue = hers.start()
    until(lambda: names(status(slicer, ann)["waiting"]) == ["first"], "its ticket")
    slicer.command("stop", "first")  # by root
    queue.told("cancelled", 1)
    until(lambda: names(status(slicer, ann)["waiting"]) == ["second"], "the next ticket")
    gate.open()
    waits.end()
    assert queue.end().code == 0
    assert queue.told("finished", 2)["job"]["status"] == "ok"


def test_a_python_program_holds_what_it_says(slicer: Slicer, ann: User, ben: User) -> None:  # J1
    script = """
import asyncio, sys, slicer
with slicer.acquire("api", gpus=1):
    print("first"); sys.stdin.readline()
async def second():
    waits = asyncio.create_task(slicer.acquire_async("wants", gpus=2, wait=True)._acquire())
    await asyncio.sleep(0.2); waits.cancel()
    try: await waits
    except asyncio.CancelledError: print("left")
    lease = await slicer.acquire_async("one", gpus=1)
    print("second"); sys.stdin.readline()
    lease.release(); print("released"); sys.stdin.readline()
asyncio.run(second())
"""
    source = str(Path(__file__).parents[2] / "src")
    job, gate = holds(slicer, ben, "-g1")
    with subprocess.Popen(
        [*ann.via, f"PYTHONPATH={source}", sys.executable, "-u", "-c", script], env=slicer.environ(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    ) as hers:  # fmt: skip
        assert hers.stdin is not None
        assert hers.stdout is not None
        assert hers.stdout.readline() == "first\n"
        assert run(slicer, ben, "--no-wait", "-g1", "--", "true").code == 75
        hers.stdin.write("\n")
        assert [hers.stdout.readline() for _ in range(2)] == ["left\n", "second\n"]
        seen = status(slicer, ben)
        assert names([each for each in seen["jobs"] if each["user"] == "alice"]) == ["one"]
        assert not seen["waiting"]
        hers.stdin.write("\n")
        assert hers.stdout.readline() == "released\n"
        assert run(slicer, ben, "--no-wait", "-g1", "--", "true").code == 0
        hers.stdin.write("\n")
        assert hers.wait() == 0
    gate.open()
    job.end()


def test_a_queue_takes_its_turn_among_others(slicer: Slicer, ann: User, ben: User) -> None:  # F1, L1
    job, gate = holds(slicer, ben, "-p", "heavy")
    jobs, logs = slicer.path("jobs"), slicer.path("logs")
    jobs.write_text(f"[profile=heavy name=hers] {SCOPE}\n[profile=light] {SCOPE}\n")
    queue = slicer.start("--log-dir", str(logs), str(jobs), via=ann.via, program="queue")
    until(lambda: names(status(slicer, ben)["waiting"]) == ["hers"], "it waits")
    gate.open()
    job.end()
    assert queue.end().code == 0
    for log in ("job0001.log", "job0002.log"):
        assert f"/cpu-{ann.uid}.slice/slicer-" in (logs / log).read_text()


# -- a broker that does not work ----------------------------------------------------------------------------


def test_who_waits_keeps_the_place_when_the_broker_is_killed(
    slicer: Slicer, broker: Broker, ann: User, ben: User
) -> None:  # L1
    job, gate = holds(slicer, ann, "-g2")
    first = queues(slicer, ben, "--name", "first", "-g2")
    second = queues(slicer, ann, "--name", "second", "-g2")
    broker.kill()
    until(lambda: names(status(slicer, ben)["waiting"]) == ["first", "second"], "both are back")
    gate.open()
    assert job.end().code == first.end().code == second.end().code == 0


def test_nobody_ends_others_waits_by_filling_their_records(
    slicer: Slicer, ann: User, ben: User
) -> None:  # L1
    systemctl.output("mount", "-t", "tmpfs", "-o", "size=128k,mode=1777", "tmpfs", "/run/lock")
    try:
        job, gate = holds(slicer, ann, "-g2")
        waiting = queues(slicer, ben, "-g2", script="echo it runs")
        with pytest.raises(OSError, match="No space"):
            Path("/run/lock/filler").write_bytes(bytes(1 << 20))
        gate.open()
        job.end()
        done = waiting.end()
        assert (done.code, done.stdout) == (0, "it runs\n"), done.stderr
    finally:
        systemctl.output("umount", "--lazy", "/run/lock")


def test_what_wants_nothing_runs_without_a_broker_that_is_broken(slicer: Slicer, alice: User) -> None:  # L1
    systemctl.output("systemctl", "stop", "slicer-broker.socket", SERVICE)
    dead = socket.socket(socket.AF_UNIX)
    try:
        RUN.mkdir(exist_ok=True)
        dead.bind(SOCKET)  # nobody listens
        Path(SOCKET).chmod(0o666)
        refused = run(slicer, alice, "-g1", "--", "true")
        assert refused.code == 75
        assert "the broker cannot be reached" in refused.stderr
        done = run(slicer, alice, "--", "sh", "-c", SCOPE)
        assert done.code == 0
        assert f"/user@{alice.uid}.service/" in done.stdout
        assert "runs without the broker" in done.stderr
        jobs, logs = alice.home / "jobs", alice.home / "logs"
        jobs.write_text(f"[profile=heavy] {SCOPE}\n{SCOPE}\n")
        queue = slicer.start("-p", "light", "--log-dir", str(logs), str(jobs), via=alice.via, program="queue")
        until((logs / "job0002.log").exists, "the second starts")
        queue.said("until then only jobs that need neither GPU nor slot are started")
        dead.listen()  # and says nothing
        assert run(slicer, alice, "--no-wait", "-g1", "--", "true").code == 75
    finally:
        dead.close()
        Path(SOCKET).unlink()
        systemctl.output("systemctl", "start", "slicer-broker.socket")
    assert queue.end().code == 0
    scopes = [(logs / f"job000{number}.log").read_text() for number in (1, 2)]
    assert f"/cpu-{alice.uid}.slice/slicer-" in scopes[0]
    assert f"/user@{alice.uid}.service/" in scopes[1]
