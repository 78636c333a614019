"""``slicer stop``: which job is meant, that it ends, and that its lease is free afterwards."""

from __future__ import annotations

import fcntl
import os
import pwd
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slicer.errors import SlicerError
from slicer.job import find, stop
from slicer.kernel import proc
from slicer.ledger.ledger import Ledger, Snapshot
from slicer.model import Lease, Ticket
from slicer.outcome import journal
from slicer.record import replace
from slicer.state import statefile
from slicer.state.directory import try_lock
from tests.patience import until
from tests.process.harness import state_dir
from tests.unit.cli.made_up_status import BACKUP, EVAL, TRAIN
from tests.unit.program import Cli
from tests.unit.state.test_hostile_files import changed

pytest_plugins = ["tests.unit.program"]

TWIN = replace(TRAIN, job="3f2a00000000", name="backup")
SEEN = Snapshot((TRAIN, BACKUP, TWIN, replace(TWIN, job="0123456789ab", name="backup")), (EVAL,))


@pytest.mark.parametrize(
    ("word", "job"),
    [
        ("train", TRAIN.job),
        (TRAIN.job, TRAIN.job),
        ("3f2a9", TRAIN.job),
        ("slicer-3f2a9c01b7de.scope", TRAIN.job),
        ("slicer-3f2a9c01b7de", TRAIN.job),
        ("9b1c", BACKUP.job),
        ("eval", EVAL.job),
        ("77aa00bb11cc", EVAL.job),
    ],
)
def test_a_job_is_meant_by_id_unit_name_or_beginning(word: str, job: str) -> None:
    assert find.pick(word, SEEN.entries).job == job


def test_a_name_that_is_also_the_beginning_of_an_id_could_be_both() -> None:
    named = replace(BACKUP, name="3f2a")
    with pytest.raises(find.AmbiguousJob) as caught:
        find.pick("3f2a", (TRAIN, named))
    assert TRAIN.job in caught.value.message
    assert named.job in caught.value.message


@pytest.mark.parametrize("word", ["backup", "3f2a"])
def test_several_that_could_be_meant_are_named(word: str) -> None:
    with pytest.raises(find.AmbiguousJob) as caught:
        find.pick(word, SEEN.entries)
    assert caught.value.exit_code == 2
    assert TWIN.job in caught.value.message
    assert caught.value.hint == "give the id"


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("trian", "did you mean 'train'?"),
        ("zzz", "see slicer status"),
        ("3f2", "see slicer status"),
        ("", ""),
    ],
)
def test_an_unknown_job_is_refused_with_the_nearest(word: str, hint: str) -> None:
    with pytest.raises(find.UnknownJob) as caught:
        find.pick(word, SEEN.entries)
    assert caught.value.hint == (hint or "see slicer status")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    for name in ("leases", "tickets"):
        (tmp_path / "ledger" / name).mkdir(parents=True)
    return Ledger(state_dir(tmp_path / "ledger"), print)


# S1, S7: a ledger is one user's own, so what stands in it is that user's to end, or it does not count
@pytest.mark.parametrize(
    "lie",
    [
        {"uid": "54321"},
        {"unit": "ssh.service", "cgroup": "/system.slice/ssh.service"},
        {"unit": "", "cgroup": "/"},
        {"unit": "slicer-0123456789ab.scope", "cgroup": "/gpu.slice/slicer-0123456789ab.scope"},
    ],
)
def test_a_lease_cannot_talk_anybody_into_stopping_what_is_not_its_own(
    ledger: Ledger, lie: dict[str, str]
) -> None:
    data = statefile.encode(replace(TRAIN, uid=os.geteuid(), boot_id=proc.boot_id()))
    for field, said in lie.items():
        data = changed(data, field.upper(), said)
    path = Path(ledger.directory.leases.path) / TRAIN.job
    path.write_bytes(data)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert ledger.snapshot() == Snapshot((), ())


def end(entry: Lease | Ticket, ledger: Ledger) -> None:
    """What ``slicer stop`` does with one job."""
    lease = entry if isinstance(entry, Lease) else stop.withdraw(entry, ledger)
    if lease is not None:
        stop.tell_to_end(lease, ledger)
        stop.await_end(lease, ledger)


def test_a_pid_that_is_another_process_by_now_is_not_signalled(ledger: Ledger) -> None:
    with subprocess.Popen(["sleep", "1000"]) as bystander:
        pid, start, uid = bystander.pid, proc.start_time(bystander.pid) or 0, os.geteuid()
        end(replace(EVAL, pid=pid, pid_start=start + 1, uid=uid), ledger)
        starting = replace(TRAIN, pid=pid, pid_start=start + 1, keeper=0, backend="plain", cgroup="", uid=uid)
        end(starting, ledger)
        end(replace(starting, keeper=pid), ledger)  # it does not hold the lease
        bystander.send_signal(signal.SIGRTMIN)  # delivered after all that came before
    assert bystander.returncode == -signal.SIGRTMIN


def gone(pid: int) -> bool:
    try:
        return proc.read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_running_job_ends_with_all_that_it_started(cli: Cli) -> None:
    pids = cli.root / "pids"
    lease = cli.running(
        "--name", "x", command=("sh", "-c", f"setsid sleep 1000 & echo $! > {pids}; exec sleep 1000")
    )
    left = int(until(lambda: pids.read_text() if pids.exists() else "", "the other process's pid"))
    done = cli.run("stop", "x")
    assert done.stdout == f"stopped {lease.job}  x\n"
    assert done.stderr == ""
    assert not cli.entries("leases", Lease)  # it was waited for
    assert gone(left)
    (process,) = cli.started
    assert process.wait() == 143
    (outcome,) = cli.json("history")["outcomes"]
    assert (outcome["reason"], outcome["exit_code"]) == ("stopped", 143)


def test_the_next_in_line_gets_what_it_held(cli: Cli) -> None:
    first = cli.running("-p", "heavy", "--name", "first")
    ticket = cli.waiting("-p", "heavy", "--name", "second")
    cli.run("stop", first.job[:6], "--quiet")

    def second_runs() -> bool:
        return [lease.job for lease in cli.entries("leases", Lease) if lease.keeper] == [ticket.job]

    until(second_runs, "the second runs")


def test_a_waiting_job_leaves_the_queue(cli: Cli) -> None:
    cli.running("-p", "heavy", "--name", "first")
    ticket = cli.waiting("-p", "heavy", "--name", "second")
    assert cli.run("stop", "second").stdout == f"no longer waits: {ticket.job}  second\n"
    assert cli.started[1].wait() == 128 + signal.SIGTERM
    assert [lease.name for lease in cli.entries("leases", Lease)] == ["first"]


def test_what_cannot_be_stopped_keeps_nothing_else_running(cli: Cli) -> None:  # W17
    first = cli.running("--name", "x")
    cli.running("--name", "twin")
    cli.running("--name", "twin")
    second = cli.running("--name", "y")
    done = cli.run("stop", "x", "ended", "twin", "y", first.job, code=2)
    assert done.stdout == f"stopped {first.job}  x\nstopped {second.job}  y\n"  # each once
    missing, ambiguous = done.stderr.splitlines()
    assert missing == "slicer: no such job: 'ended' (see slicer status)"
    assert ambiguous.startswith("slicer: 'twin' could be 2 jobs: ")
    assert {lease.name for lease in cli.entries("leases", Lease)} == {"twin"}
    assert cli.run("stop", "x").stdout == f"has ended: {first.job}  x\n"
    assert cli.run("pause", "x", code=2).stderr == "slicer: 'x' has ended (slicer history x)\n"


def test_who_ends_a_job_is_told_to_the_journal_before_it_ends(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:  # W17
    said: list[tuple[str, Any]] = []
    monkeypatch.setattr(journal, "event", lambda kind, **fields: said.append((kind, fields)))
    monkeypatch.setattr(stop, "_stop_processes", lambda lease, ledger: said.append(("act", None)))
    lease = replace(TRAIN, uid=os.geteuid(), backend="plain", gpus=("GPU-b",))
    lease = replace(lease, profile="gpu", gpu_indices=(1,))
    end(lease, ledger)
    (kind, fields), act = said
    by = pwd.getpwuid(os.getuid()).pw_name
    assert (kind, act) == ("stopping", ("act", None))
    about = {"profile": "gpu", "gpu": ("1", "GPU-b"), "slot": ("cpu",)}
    who = {"by": "slicer", "by_uid": os.getuid(), "by_user": by}
    assert (fields["job"], fields["fields"]) == (TRAIN.job, {**about, **who})
    assert fields["message"] == f"train: told to end by {by} (slicer stop) while it held GPU 1 and 1 CPU slot"


def test_a_supervisor_stopped_by_ctrl_z_gives_its_lease_back(cli: Cli) -> None:
    lease = cli.running("-p", "heavy", "--name", "x")

    def is_stopped_without_the_lock() -> bool:
        os.kill(lease.pid, signal.SIGSTOP)
        until(lambda: ") T " in proc.read_text(f"/proc/{lease.pid}/stat"), "it is stopped")
        with open(cli.state / "lock") as lock:
            if try_lock(lock.fileno()):
                return True
        os.kill(lease.pid, signal.SIGCONT)
        return False

    until(is_stopped_without_the_lock, "it does not hold the ledger's lock")
    cli.run("stop", "x")
    assert not cli.entries("leases", Lease)


@pytest.mark.parametrize("trap", ["", "trap '' TERM;"])
def test_what_lives_on_after_slicer_was_killed_is_ended(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:  # K2
    ready = cli.root / "ready"
    script = f"{trap} : > {ready}; sleep 1000; sleep 1000"
    lease = cli.running("-p", "heavy", "--name", "x", command=("sh", "-c", script))
    until(ready.exists, "the command is up")
    for pid in (lease.pid, lease.keeper):
        os.kill(pid, signal.SIGKILL)
    until(lambda: gone(lease.keeper), "the keeper is gone")
    assert [job["job"] for job in cli.json("status")["jobs"]] == [lease.job]
    left = cli.processes()
    assert len(left) == 2
    monkeypatch.setattr(stop, "DEFAULT_STOP_TIMEOUT_S", 0.2)
    end(lease, Ledger(state_dir(cli.state), print))
    assert all(map(gone, left))
    assert cli.json("status")["jobs"] == []


def test_a_job_that_does_not_end_is_said_and_124(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = cli.running("--name", "x")
    ledger = Ledger(state_dir(cli.state), print)
    monkeypatch.setattr(stop, "_stop_processes", lambda lease, ledger: None)
    monkeypatch.setattr(stop, "DEADLINE_S", 0.1)
    with pytest.raises(stop.StillThere) as caught:
        end(lease, ledger)
    assert caught.value.exit_code == 124
    assert isinstance(caught.value, SlicerError)
