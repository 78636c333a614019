"""``slicer run --detach`` and ``--after``: what goes on without its caller, and what becomes of it."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.patience import LONGEST_S, until
from tests.process.harness import (
    SLICER,
    Box,
    Gate,
    gone,
    kill_9,
    mounting,
    sleeps_in_poll,
    state_of,
)
from tests.process.hot_path import PLAIN as PLAIN_IMPORTS
from tests.process.hot_path import imported, surplus

PLAIN = ("run", "--backend", "plain")
# Where the caller is stopped before the job is on its own; after that; and the job itself.
BEFORE, AFTER, OWN = POINTS = "detach-started", "detach-handed", "detached-noted"


def slicer(box: Box, *line: str, code: int | None = 0, **env: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*box.prefix, *SLICER, *line], env={**box.env, **env}, capture_output=True, text=True, cwd=box.root,
        timeout=LONGEST_S, check=False, stdin=subprocess.DEVNULL, errors="surrogateescape",
    )  # fmt: skip
    assert code is None or done.returncode == code, done
    return done


def detached(box: Box, *line: str, **env: str) -> str:
    """The id of a detached job."""
    job = slicer(box, *PLAIN, "-d", *line, **env).stdout
    assert len(job) == 13, job
    return job.strip()


def shown(box: Box, job: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(slicer(box, "show", "--json", job).stdout)
    return found


def folder(box: Box) -> Path:
    return box.var_lib / "slicer" / "jobs"


def file(box: Box, job: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder(box) / f"{job}.json").read_text())
    return found


def outer(box: Box, job: str) -> int:
    return int(file(box, job)["pid"])


def waits_at(gate: Gate, more: str = "") -> tuple[str, ...]:
    return "sh", "-c", f"echo begun; read x <{gate.path}; echo ended; {more}"


# -- it goes on ---------------------------------------------------------------------------------------------


def test_the_id_is_printed_and_the_job_goes_on_with_a_log_of_its_own(box: Box, gate: Gate) -> None:  # U1
    done = slicer(box, *PLAIN, "--detach", "--name", "x", "--", *waits_at(gate, "exit 3"))
    job = done.stdout.strip()
    assert done.stdout == f"{job}\n"
    assert f"slicer logs -f {job}" in done.stderr
    log = folder(box) / f"{job}.log"
    assert shown(box, "x")["state"] == "running"
    assert shown(box, job[:5])["log"] == str(log)
    gate.open()
    assert slicer(box, "wait", "x", code=3).stdout.startswith("x: exit 3")
    assert slicer(box, "logs", "x").stdout == log.read_text() == "begun\nended\n"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder(box).stat().st_mode) == 0o700
    (outcome,) = box.outcomes()
    assert (outcome.job, outcome.log, outcome.directory) == (job, str(log), str(box.root))
    assert str(log) in slicer(box, "history", "x").stdout
    box.assert_clean()


# U1: the one that began last, whether it runs or has ended; a script's empty list stops nothing
def test_without_a_word_the_last_job_is_meant(box: Box, gate: Gate) -> None:
    assert "you have no job yet" in slicer(box, "logs", code=2).stderr
    detached(box, "--name", "first", "--", "echo", "one")
    slicer(box, "wait", "-q", "first")
    last = detached(box, "--name", "last", "--", *waits_at(gate, "exit 3"))
    until(lambda: slicer(box, "logs", "last").stdout, "it has begun")
    which = f"slicer: last job: {last} last\n"
    assert (slicer(box, "logs").stderr, slicer(box, "show").stderr) == (which, which)
    refused = slicer(box, "stop", code=2).stderr
    assert refused.startswith(which)
    assert "missing argument: JOB or --mine" in refused
    assert "last has not ended (slicer show last)" in slicer(box, "history", "last", code=2).stderr
    gate.open()
    ended = slicer(box, "wait", code=3)
    assert (ended.stderr, ended.stdout.partition(" \u00b7")[0]) == (which, "last: exit 3")
    assert slicer(box, "logs").stdout == "begun\nended\n"
    assert (slicer(box, "show").stderr, slicer(box, "history").stderr) == (which, "")


def test_a_log_is_the_commands_output_and_show_has_what_slicer_said(box: Box, gate: Gate) -> None:  # U1
    holder = box.hold(gate)
    job = detached(box, "-p", "heavy", "--name", "x", "--", "echo", "out")
    gate.open()
    holder.process.wait(LONGEST_S)
    followed = slicer(box, "logs", "-f", job)
    assert followed.stdout == "out\n"
    assert "slicer: x: exit 0" in followed.stderr
    assert any(said.startswith("acquired 1 CPU slot after") for said in shown(box, job)["said"])
    assert "acquired 1 CPU slot after" in slicer(box, "show", job).stdout


def test_its_command_has_nothing_of_the_hand_over(box: Box) -> None:  # U1
    script = "ls /proc/self/fd >fds; env >variables; readlink /proc/self/fd/0 >stdin"
    slicer(box, "wait", detached(box, "--", "sh", "-c", script))
    foreground = box.run("--", "sh", "-c", "ls /proc/self/fd >foreground")
    assert foreground.returncode == 0
    fds, foreground_fds = (len((box.root / name).read_text().split()) for name in ("fds", "foreground"))
    assert fds == foreground_fds  # the lease has another number
    names = {line.partition("=")[0] for line in (box.root / "variables").read_text().splitlines()}
    assert not [name for name in names if "DETACH" in name.upper()]
    assert (box.root / "stdin").read_text() == "/dev/null\n"


# Of what only some of them need (--after, a broker, what others read), each half imports nothing.
@pytest.mark.parametrize("half", [("-d", "--name", "x"), ("--detached", "0123456789ab")])
def test_neither_half_imports_more_than_a_job_in_the_foreground(box: Box, half: tuple[str, ...]) -> None:
    found = imported(box, "--backend", "plain", *half, "--", "true")  # U1, K8
    assert surplus(found, PLAIN_IMPORTS | {"encodings.ascii", "struct"}) == set()
    if "-d" in half:
        slicer(box, "wait", "x")
    else:
        assert not [name for name in found if name.startswith(("slicer.doctor", "slicer.cli.placing"))]
    box.assert_clean()


def test_a_log_of_the_users_is_appended_to(box: Box) -> None:  # U1
    (box.root / "mine").write_text("before\n")
    job = detached(box, "--output", "mine", "--", "echo", "after")
    slicer(box, "wait", job)
    assert (box.root / "mine").read_text() == "before\nafter\n"
    assert slicer(box, "logs", job).stdout == (box.root / "mine").read_text()
    assert not (folder(box) / f"{job}.log").exists()


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (("-p", "none", "--", "true"), 2, "unknown profile"),
        (("--", "no-such-command"), 127, "no-such-command"),
        (("--gpus", "1", "--", "true"), 125, "NVIDIA"),
        (("--exec", "--", "true"), 2, "--exec"),
        (("--output", "no/such/log", "--", "true"), 2, "no/such/log"),
        (("--output", "/dev/null", "--", "true"), 2, "/dev/null"),
        (("--after", "nobody", "--", "true"), 2, "no such job"),
        (("--begin", "8", "--", "true"), 2, "--begin: expected"),
        (("--begin", "2020-02-20", "--", "true"), 2, "has passed"),
        (("-p", "heavy", "--no-wait", "--", "true"), 75, '"error": "cpu-busy"'),
    ],
)
def test_what_cannot_be_is_refused_at_once_as_in_the_foreground(
    box: Box, gate: Gate, line: tuple[str, ...], code: int, says: str
) -> None:  # U1
    holder = box.hold(gate)
    done = slicer(box, *PLAIN, "-d", *line, code=code)
    assert done.stdout == ""
    assert says in done.stderr, done
    assert list(folder(box).glob("*")) == []
    gate.open()
    holder.process.wait(LONGEST_S)
    box.assert_clean()


def test_it_returns_once_the_job_waits(box: Box, gate: Gate) -> None:  # U1
    holder = box.hold(gate)
    done = slicer(box, *PLAIN, "-d", "-p", "heavy", "--name", "next", "--", "true")
    assert "waits in the background" in done.stderr
    found = shown(box, "next")
    assert found["state"] == "waiting"
    assert "held by holder" in found["waiting"]["why"]["text"]
    assert "held by holder" in slicer(box, "show", "next").stdout
    gate.open()
    holder.process.wait(LONGEST_S)
    slicer(box, "wait", "next")
    box.assert_clean()


def test_inside_another_job_it_ends_with_that_and_says_so(box: Box, gate: Gate) -> None:  # U1, A3
    done = box.run("-p", "heavy", "--", "inner", "-d", "-v", "--name", "x", "--", *waits_at(gate))
    assert done.returncode == 0, done
    assert "it ends with the job around it" in done.stderr
    ended = slicer(box, "wait", "x", code=None)
    assert ended.returncode in (143, 137)  # the job around it ends its keeper, too, which may be first
    box.assert_clean()


def test_it_outlives_its_terminal(box: Box, gate: Gate) -> None:  # U1
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(box.root)
        command = [*SLICER, *PLAIN, "-d", "--name", "x", "--", *waits_at(gate)]
        os.execve("/bin/sh", ["sh", "-c", '"$@"; echo done; sleep 1000', "sh", *command], box.env)
    said = b""

    def has_said() -> bool:
        nonlocal said
        said += os.read(terminal, 4096)
        return b"done" in said

    until(has_said, "the shell has its prompt")
    os.close(terminal)  # SIGHUP for the session
    os.waitpid(pid, 0)
    gate.open()
    slicer(box, "wait", "x")
    assert "ended\n" in slicer(box, "logs", "x").stdout


def test_without_systemd_a_queue_goes_on_as_a_process(box: Box, gate: Gate) -> None:  # U1, E7
    (box.root / "jobs.txt").write_text(f"[profile=light] read x <{gate.path}; echo ran >>ran\n")
    said = slicer(box, "queue", "jobs.txt", "--detach").stdout
    assert "detached as process" in said
    pid = int(said.partition("detached as process ")[2].partition(":")[0])
    gate.open()
    until(lambda: gone(pid), "the queue has ended")
    assert (box.root / "ran").read_text() == "ran\n"
    assert "1" in (box.root / "slicer_logs" / "status.txt").read_text()


# -- kill -9 ------------------------------------------------------------------------------------------------


def at(box: Box, point: str, *line: str) -> subprocess.Popen[bytes]:
    """A caller, and the process that has stopped at a fault point."""
    return box.start("-d", "--name", "x", *line, env={"SLICER_FAULTS": f"{box.state}:{point}"})


def test_no_job_is_left_of_a_caller_that_was_killed_before_the_hand_over(box: Box) -> None:  # U1
    caller = at(box, BEFORE, "--", "true")
    until(lambda: state_of(caller.pid) == "T", "it has started the job's process")
    kill_9(caller.pid)
    caller.wait()
    until(lambda: not box.processes(), "nothing of it is left")
    assert box.outcomes() == []
    assert list(folder(box).glob("*")) == []
    slicer(box, "wait", detached(box, "--", "true"))
    box.assert_clean()


def test_a_job_goes_on_once_it_is_handed_over(box: Box) -> None:  # U1
    caller = at(box, AFTER, "--", "sh", "-c", "exit 4")
    until(lambda: state_of(caller.pid) == "T", "it has handed over")
    kill_9(caller.pid)
    caller.wait()
    until(lambda: [each.exit_code for each in box.outcomes()] == [4], "the job has run")
    assert slicer(box, "wait", "x", code=4)


def test_ctrl_c_at_its_caller_leaves_the_job_alone(box: Box) -> None:  # U1
    caller = at(box, OWN, "--", "sh", "-c", "exit 4")
    (path,) = until(lambda: list(folder(box).glob("*.json")), "it is there")
    pid = int(json.loads(path.read_text())["pid"])
    until(lambda: state_of(pid) == "T", "it is stopped")
    caller.send_signal(signal.SIGINT)
    out, err = caller.communicate(timeout=LONGEST_S)
    assert (caller.returncode, out) == (130, b"")
    assert b"goes on in the background" in err
    Path(f"{box.state}.go").touch()
    os.kill(pid, signal.SIGCONT)
    slicer(box, "wait", "x", code=4)


def test_a_job_that_is_killed_before_it_begins_is_an_error_of_its_caller(box: Box) -> None:  # U1
    caller = at(box, OWN, "--", "true")
    (path,) = until(lambda: list(folder(box).glob("*.json")), "it is there")
    pid = int(json.loads(path.read_text())["pid"])
    until(lambda: state_of(pid) == "T", "it is stopped")
    kill_9(pid)
    out, err = caller.communicate(timeout=LONGEST_S)
    assert (caller.returncode, out) == (125, b"")
    assert b"was ended before it could report" in err
    done = slicer(box, "wait", "x", code=125)
    assert "killed" in done.stdout
    assert "killed" in slicer(box, "show", "x").stdout


def test_a_job_of_an_earlier_boot_says_so(box: Box, gate: Gate) -> None:  # U1
    job = detached(box, "--name", "x", "--", *waits_at(gate))
    supervisor, keeper = outer(box, job), box.leases()[0].keeper
    kill_9(supervisor, keeper)
    until(lambda: gate.open_if_awaited() or not box.processes(), "its command has ended, too")
    shutil.rmtree(box.state)  # it was in memory
    said = {**file(box, job), "boot_id": "0" * 36}
    (folder(box) / f"{job}.json").write_text(json.dumps(said))
    assert "the machine was restarted" in slicer(box, "wait", "x", code=125).stdout
    assert "the machine was restarted" in slicer(box, "show", "x").stdout


def test_its_output_and_exit_code_outlive_its_supervisor(box: Box, gate: Gate) -> None:  # U1, X3
    job = detached(box, "--name", "x", "--", *waits_at(gate, "exit 5"))
    until(lambda: "begun\n" in slicer(box, "logs", "x").stdout, "it runs")
    waiting = subprocess.Popen([*SLICER, "wait", "x"], env=box.env, stdout=subprocess.PIPE)
    following = subprocess.Popen([*SLICER, "logs", "-f", "x"], env=box.env, stdout=subprocess.PIPE)
    box.adopt(waiting)
    box.adopt(following)
    kill_9(outer(box, job))
    gate.open()
    assert waiting.wait(LONGEST_S) == 5
    assert b"begun\nended\n" in following.communicate(timeout=LONGEST_S)[0]
    assert box.outcomes()[0].exit_code == 5


# -- a full disk, hostile files -----------------------------------------------------------------------------


def test_a_full_disk_refuses_a_job_whose_file_it_cannot_hold(box: Box) -> None:  # U1
    script = 'mount -t tmpfs -o size=64k none "$0" && (head -c 1M /dev/zero >"$0/x"; true) 2>/dev/null'
    box.prefix = mounting(script, box.var_lib)
    done = slicer(box, *PLAIN, "-d", "--", "true", code=125)
    assert "No space left" in done.stderr
    assert done.stdout == ""


def test_a_job_outlives_a_disk_that_its_log_fills(box: Box) -> None:  # U1
    (box.root / "small").mkdir()
    box.prefix = mounting('mount -t tmpfs -o size=64k none "$0"', box.root / "small")
    job = detached(
        box, "--output", "small/log", "--", "sh", "-c", "head -c 1M /dev/zero 2>/dev/null; echo $? >went-on"
    )
    box.prefix = ()
    slicer(box, "wait", job)
    assert (box.root / "went-on").read_text() == "1\n"


def test_bad_files_cost_themselves_alone(box: Box) -> None:  # U1
    job = detached(box, "--name", "good", "--", "true")
    slicer(box, "wait", job)
    names = [f"{number:012x}" for number in range(1, 7)]
    paths = [folder(box) / f"{name}.json" for name in names]
    paths[0].symlink_to(f"{job}.json")
    os.mkfifo(paths[1])
    paths[2].write_text("{}")
    paths[3].write_text("[" * 100_000)
    paths[4].write_text(json.dumps({**file(box, job), "job": names[0]}))
    paths[5].mkdir()
    said = slicer(box, "show", "good")
    for name in (*names[:4], names[5]):
        assert name in said.stderr
    assert slicer(box, "stop", names[1], code=2).stdout == ""
    assert slicer(box, "wait", "good").stdout.startswith("good: exit 0")
    slicer(box, "wait", detached(box, "--", "true"))


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to give a file away")
def test_another_users_file_is_not_believed(box: Box, gate: Gate) -> None:  # U1
    victim = subprocess.Popen(["sleep", "1000"])
    box.adopt(victim)
    job = detached(box, "--name", "good", "--", "true")
    slicer(box, "wait", job)
    told = {**file(box, job), "job": "0" * 12, "name": "bad", "pid": victim.pid, "exit_code": None}
    told["pid_start"] = int(Path(f"/proc/{victim.pid}/stat").read_text().rpartition(") ")[2].split()[19])
    path = folder(box) / f"{'0' * 12}.json"
    path.write_text(json.dumps(told))
    os.chown(path, 4242, 4242)
    slicer(box, "stop", "bad", code=2)
    assert victim.poll() is None
    victim.kill()


def test_a_link_in_place_of_the_directory_is_refused(box: Box) -> None:  # U1
    (box.root / "elsewhere").mkdir()
    folder(box).parent.mkdir()
    folder(box).symlink_to(box.root / "elsewhere")
    done = slicer(box, *PLAIN, "-d", "--", "true", code=125)
    assert "symbolic link" in done.stderr
    assert list((box.root / "elsewhere").iterdir()) == []


def test_nobody_can_connect_to_the_hand_over(box: Box) -> None:  # U1
    caller = at(box, BEFORE, "--", "true")
    until(lambda: state_of(caller.pid) == "T", "it has started the job's process")
    named = [line.split()[7:] for line in Path("/proc/net/unix").read_text().splitlines()]
    assert not [path for path in named if path and str(box.state) in path[0]]
    assert list(box.state.rglob("detach*")) == []
    kill_9(caller.pid)


# -- many at once -------------------------------------------------------------------------------------------


def test_of_many_that_start_at_once_none_is_lost_nor_refused(box: Box) -> None:  # U23
    starting = [box.start("-d", "--name", f"x{n}", "--", "sh", "-c", f"exit {n}") for n in range(16)]
    said = [each.communicate(timeout=LONGEST_S) for each in starting]
    assert [each.returncode for each in starting] == [0] * 16, said
    jobs = [out.decode().strip() for out, _ in said]
    slicer(box, "wait", *jobs, code=15)
    assert {each.job: each.exit_code for each in box.outcomes()} == dict(zip(jobs, range(16), strict=True))
    box.assert_clean()


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to give a link away")
def test_another_users_link_on_the_way_to_its_log_is_not_followed(box: Box) -> None:  # U1, S9
    (box.root / "mine").mkdir()
    link = box.root / "link"
    link.symlink_to("mine")
    slicer(box, "wait", detached(box, "--output", "link/log", "--", "true"))
    os.lchown(link, 4242, 4242)
    done = slicer(box, *PLAIN, "-d", "--output", "link/other", "--", "true", code=125)
    assert "a symbolic link of uid 4242" in done.stderr
    assert [path.name for path in (box.root / "mine").iterdir()] == ["log"]


def test_a_removed_working_directory_is_an_error_like_others(box: Box) -> None:  # U1
    (box.root / "jobs.txt").write_text("true\n")
    for line in (f"{' '.join(PLAIN)} -d -- true", f"queue {box.root}/jobs.txt"):
        script = f'mkdir gone && cd gone && rmdir ../gone && exec "$@" {line}'
        done = subprocess.run(
            ["sh", "-c", script, "sh", *SLICER], env=box.env, cwd=box.root, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert (done.returncode, "the working directory was removed" in done.stderr) == (2, True), done


# -- logs ---------------------------------------------------------------------------------------------------


def test_the_last_lines_and_then_all_until_its_end(box: Box, gate: Gate) -> None:  # U1
    job = detached(box, "-q", "--name", "x", "--", "sh", "-c", f"seq 9; read x <{gate.path}; printf end")
    until(lambda: slicer(box, "logs", "x").stdout.endswith("9\n"), "it has printed")
    assert slicer(box, "logs", "-n", "2", job).stdout == "8\n9\n"
    assert slicer(box, "logs", "-n", "0", job).stdout == ""
    bar = detached(box, "--", "printf", "first\r\n 1%%\r 50%%\r100%%\n")
    slicer(box, "wait", bar)
    assert slicer(box, "logs", "-n", "1", bar).stdout == "100%\n"
    assert slicer(box, "logs", "-n", "2", bar).stdout == "first\n100%\n"
    follow = subprocess.Popen([*SLICER, "logs", "-f", "-n", "1", "x"], env=box.env, stdout=subprocess.PIPE)
    box.adopt(follow)
    until(lambda: sleeps_in_poll(follow.pid), "it sleeps")
    gate.open()
    assert follow.communicate(timeout=LONGEST_S)[0] == b"9\nend"


@pytest.mark.slow
def test_a_log_has_a_bound_and_its_end_stays_also_without_the_supervisor(box: Box, gate: Gate) -> None:  # U1
    (box.root / "config.toml").write_text('[logs]\nmax_size = "1M"\n')
    script = f"seq 1000000; read x <{gate.path}; echo the end"
    job = detached(box, "-q", "--", "sh", "-c", script, SLICER_CONFIG=str(box.root / "config.toml"))
    kill_9(outer(box, job))
    log = folder(box) / f"{job}.log"
    until(lambda: log.stat().st_size > 6_000_000 and log.stat().st_blocks * 512 < 1_300_000, "it is freed")
    gate.open()
    slicer(box, "wait", job)
    lines = slicer(box, "logs", job).stdout.splitlines()
    assert lines[-2:] == ["1000000", "the end"]
    assert lines[0] == str(1_000_000 - len(lines) + 2)  # a whole line
    assert 1_000_000 < sum(len(line) + 1 for line in lines) < 1_300_000


def test_a_job_without_a_log_says_where_its_output_went(box: Box, gate: Gate) -> None:  # U1
    holder = box.hold(gate)  # its output is a pipe
    assert "no log" in slicer(box, "logs", "holder", code=2).stderr
    gate.open()
    holder.process.wait(LONGEST_S)
    assert "caller's stdout" in slicer(box, "logs", "holder", code=2).stderr
    job = detached(box, "--", "true")
    slicer(box, "wait", job)
    (folder(box) / f"{job}.log").unlink()
    assert "is gone" in slicer(box, "logs", job, code=2).stderr


def test_files_of_old_jobs_are_removed_but_not_of_one_that_lives(box: Box, gate: Gate) -> None:  # U1
    old, lives = detached(box, "--", "true"), detached(box, "--", *waits_at(gate))
    slicer(box, "wait", old)
    for path in folder(box).iterdir():
        os.utime(path, (1, 1))
    new = detached(box, "--", "true")
    left = {path.name.partition(".")[0] for path in folder(box).iterdir()}
    assert left == {lives, new}
    gate.open()
    slicer(box, "wait", lives, new)


# -- names, several -----------------------------------------------------------------------------------------


def test_two_jobs_of_one_name_are_told_apart(box: Box, gate: Gate) -> None:  # U1
    jobs = [detached(box, "--name", "train", "--", *waits_at(gate)) for _ in range(2)]
    for verb in ("logs", "wait", "show", "stop"):
        said = slicer(box, verb, "train", code=2).stderr
        assert all(job in said for job in jobs), said
    assert "no such job: 'nothing*'" in slicer(box, "stop", "nothing*", code=2).stderr
    assert sorted(slicer(box, "stop", "tr*n").stdout.split()[1::3]) == sorted(jobs)
    assert slicer(box, "wait", "train", code=143)  # the newest
    assert slicer(box, "stop", "--mine").stdout == ""
    box.assert_clean()


def test_of_those_that_ended_a_name_means_the_last_even_if_it_never_ran(box: Box) -> None:  # U1
    slicer(box, "wait", detached(box, "--name", "x", "--", "true"))
    slicer(box, "wait", "x")
    last = detached(box, "--name", "x", "--after", "x:failed", "--", "true")
    slicer(box, "wait", last, code=75)
    slicer(box, "wait", "x", code=75)
    assert shown(box, "x")["job"] == last
    box.run("--name", "x", "--", "sh", "-c", "exit 3")
    slicer(box, "wait", "x", code=3)


def test_wait_knows_any_several_and_a_limit(box: Box, gate: Gate) -> None:  # U1
    detached(box, "--name", "quick", "--", "sh", "-c", "exit 7")
    detached(box, "--name", "slow", "--", *waits_at(gate, "exit 2"))
    assert slicer(box, "wait", "--any", "slow", "quick", code=7).stdout.startswith("quick: exit 7")
    assert "slow has not ended" in slicer(box, "wait", "--max-wait", "50ms", "slow", code=124).stderr
    assert slicer(box, "wait", "slow", "typo", code=2).stdout == ""
    gate.open()
    found = json.loads(slicer(box, "wait", "--json", "slow", "quick", code=7).stdout)
    assert {each["name"]: each["exit_code"] for each in found["jobs"]} == {"slow": 2, "quick": 7}


def test_a_foreground_job_is_awaited_and_shown_likewise(box: Box, gate: Gate) -> None:  # U1
    holder = box.hold(gate)
    waiting = subprocess.Popen([*SLICER, "wait", "holder"], env=box.env, stdout=subprocess.DEVNULL)
    box.adopt(waiting)
    found = shown(box, "holder")
    assert (found["state"], found["directory"]) == ("running", str(box.root))
    assert holder.command in found["running"]["processes"]
    until(lambda: sleeps_in_poll(waiting.pid), "it sleeps")
    slicer(box, "stop", "holder")
    assert waiting.wait(LONGEST_S) == 143


# -- after --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "condition", "runs"),
    [
        (0, "", True), (3, "", False), (3, ":ok", False), (3, ":any", True), (0, ":any", True),
        (0, ":failed", False), (3, ":failed", True),
    ],
)  # fmt: skip
def test_a_job_begins_after_another_that_ended_as_it_wants(
    box: Box, gate: Gate, code: int, condition: str, runs: bool
) -> None:  # U1
    first = detached(box, "--name", "first", "--", *waits_at(gate, f"exit {code}"))
    done = slicer(box, *PLAIN, "-d", "--name", "then", "--after", f"first{condition}", "--", "touch", "ran")
    assert "waits in the background" in done.stderr
    found = shown(box, "then")
    (later,) = json.loads(slicer(box, "status", "--json").stdout)["later"]
    assert (later["job"], later["after"]) == (found["job"], found["after"])
    assert f"first:{condition[1:] or 'ok'}" in slicer(box, "status").stdout
    assert (found["state"], found["after"]) == ("after", [f"{first}:{condition[1:] or 'ok'}"])
    assert not (box.root / "ran").exists()
    gate.open()
    done = slicer(box, "wait", "then", code=0 if runs else 75)
    assert (box.root / "ran").exists() is runs
    assert ("will not run" in done.stdout) is not runs
    assert slicer(box, *PLAIN, "-d", "--after", f"first{condition}", "--", "true").returncode == 0  # it ended
    box_is_quiet(box)


def box_is_quiet(box: Box) -> None:
    until(lambda: not box.processes(), "nothing runs")


def test_the_foreground_waits_for_others_too(box: Box, gate: Gate) -> None:  # U1
    detached(box, "--name", "first", "--", *waits_at(gate))
    then = box.start("--after", "first", "--", "echo", "then")
    until(lambda: sleeps_in_poll(then.pid), "it sleeps")
    gate.open()
    out, err = then.communicate(timeout=LONGEST_S)
    assert (then.returncode, out) == (0, b"then\n")
    assert b"begins after first" in err
    failed = box.run("--after", "first:failed", "--", "echo", "never")
    assert (failed.returncode, failed.stdout) == (75, "")
    box.assert_clean()


@pytest.mark.parametrize("signo", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_wait_for_another_job(box: Box, gate: Gate, signo: signal.Signals) -> None:  # U1
    detached(box, "--name", "first", "--", *waits_at(gate))
    then = box.start("--after", "first", "--", "touch", "ran")
    until(lambda: sleeps_in_poll(then.pid), "it sleeps")
    then.send_signal(signo)
    assert then.wait(LONGEST_S) == -signo
    gate.open()
    slicer(box, "wait", "first")
    assert not (box.root / "ran").exists()


def test_a_job_begins_at_its_time(box: Box, gate: Gate) -> None:  # U7
    """Not before, and after others, too. Meanwhile it is found, shown and ended like those."""
    detached(box, "--name", "first", "--", *waits_at(gate))
    later_job = detached(box, "--name", "later", "--begin", "1d", "--", "touch", "ran")
    then = box.start("--begin", "1s", "--after", "first", "--", "echo", "then")
    shows = shown(box, "later")
    assert (shows["state"], 80_000 < shows["begins_at"] - time.time() < 90_000) == ("after", True)
    until(lambda: {each["name"] for each in later(box)} == {"later", None}, "status shows both")
    assert "tomorrow at " in slicer(box, "status").stdout
    gate.open()
    out, _ = then.communicate(timeout=LONGEST_S)
    assert (then.returncode, out) == (0, b"then\n")
    assert "begins at " in box.run("--begin", "1s", "--", "true").stderr
    assert slicer(box, "stop", "later").stdout == f"no longer waits: {later_job}  later\n"
    assert file(box, later_job)["exit_code"] == 143
    assert not (box.root / "ran").exists()
    box.assert_clean()


def test_stop_ends_a_detached_job_that_waits_for_another(box: Box, gate: Gate) -> None:  # U1
    detached(box, "--name", "first", "--", *waits_at(gate))
    job = detached(box, "--name", "then", "--after", "first", "--", "touch", "ran")
    third = detached(box, "--name", "third", "--after", "then", "--", "touch", "ran")
    pid = outer(box, job)
    other = {"SLICER_STATE_DIR": f"{box.state}-other"}  # without a ledger so far
    assert "then" in slicer(box, "show", "then", **other).stdout
    assert slicer(box, "stop", "then", **other).stdout == f"no longer waits: {job}  then\n"
    assert gone(pid)
    assert file(box, job)["exit_code"] == 143
    slicer(box, "wait", third, code=75)  # what waited for it hears of it
    slicer(box, "stop", "--mine")
    assert not (box.root / "ran").exists()
    box.assert_clean()


def test_others_find_a_job_in_the_foreground_that_waits_for_another(box: Box, gate: Gate) -> None:  # U1
    detached(box, "--name", "first", "--", *waits_at(gate))
    stopped = box.start("--name", "then", "--after", "first", "--", "touch", "ran")
    until(lambda: [each["name"] for each in later(box)] == ["then"], "status shows it")
    third = detached(box, "--name", "third", "--after", "then", "--", "touch", "ran")
    job = shown(box, "then")["job"]
    assert slicer(box, "stop", "then").stdout == f"no longer waits: {job}  then\n"
    assert stopped.wait(LONGEST_S) == -signal.SIGTERM
    assert "then: exit 143" in slicer(box, "wait", "then", code=143).stdout
    slicer(box, "wait", third, code=75)
    runs = box.start("--name", "then", "--after", "first", "--", "sh", "-c", "echo ran; kill -INT $$")
    until(lambda: later(box), "it waits")
    gate.open()
    assert runs.wait(LONGEST_S) == -signal.SIGINT
    slicer(box, "wait", "then", code=130)
    assert not (box.root / "ran").exists()
    left = {path.stem for path in folder(box).glob("*.json")}
    assert shown(box, "then")["job"] not in left  # the history has it
    assert job in left
    box.assert_clean()


def later(box: Box) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(slicer(box, "status", "--json").stdout)["later"]
    return found


def test_a_full_disk_does_not_keep_the_foreground_from_waiting(box: Box) -> None:  # U1
    slicer(box, "wait", detached(box, "--name", "first", "--", "true"))
    script = '(head -c 1M /dev/zero >"$0/x"; true) 2>/dev/null'
    box.prefix = mounting(f'mount -t tmpfs -o size=64k,mode=700 none "$0" && {script}', folder(box))
    done = slicer(box, *PLAIN, "--after", "first", "--", "echo", "ran")
    assert (done.stdout, "No space left" in done.stderr) == ("ran\n", True)
