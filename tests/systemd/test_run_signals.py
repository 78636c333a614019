"""What is sent to slicer reaches the command, once; signals and descriptors are those it would have had."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.patience import LONGEST_S, until
from tests.systemd.helpers import processes
from tests.systemd.helpers.jobs import Job, Slicer, leases

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd

# Prints each signal that comes, and ends at SIGUSR2.
COUNTER = """\
import signal
watched = set(signal.valid_signals()) - {signal.SIGCONT, signal.SIGCHLD, signal.SIGKILL, signal.SIGSTOP}
signal.pthread_sigmask(signal.SIG_BLOCK, watched)
print("ready", flush=True)
while True:
    signo = signal.sigwaitinfo(watched).si_signo
    print(signal.Signals(signo).name, flush=True)
    if signo == signal.SIGUSR2:
        break
"""


def counting(slicer: Slicer, *options: str) -> Job:
    job = slicer.start(*options, "--", sys.executable, "-c", COUNTER)
    job.said("ready")
    job.lease()
    return job


def counted(job: Job) -> list[str]:
    """The signals that came until SIGUSR2, sent as the fence behind which no second copy can hide."""
    job.kill(signal.SIGUSR2)
    done = job.end()
    assert done.code == 0, done
    return done.stdout.split()[1:-1]


FORWARDED = ["SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGALRM", "SIGWINCH"]


@pytest.mark.core
@pytest.mark.parametrize("name", FORWARDED)
def test_a_signal_to_slicer_reaches_the_command_once(slicer: Slicer, name: str) -> None:
    job = counting(slicer)
    job.kill(signal.Signals[name])
    job.said(name)
    assert counted(job) == [name]


@pytest.mark.core
@pytest.mark.parametrize("name", FORWARDED)
def test_a_signal_to_the_process_group_reaches_the_command_once(slicer: Slicer, name: str) -> None:
    job = counting(slicer)
    os.killpg(job.pid, signal.Signals[name])
    job.said(name)
    assert counted(job) == [name]


def test_every_signal_of_a_series_reaches_the_command(slicer: Slicer) -> None:
    job = counting(slicer)

    for number in range(1, 6):
        job.kill(signal.SIGUSR1)
        job.said("SIGUSR1\n" * number)
    assert counted(job) == ["SIGUSR1"] * 5


def test_a_signal_to_the_command_alone_is_its_own_affair(slicer: Slicer) -> None:
    job = counting(slicer)
    os.kill(job.command_pid(), signal.SIGUSR1)
    job.said("SIGUSR1")
    assert counted(job) == ["SIGUSR1"]


@pytest.mark.core
@pytest.mark.parametrize(
    ("signo", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)]
)
def test_a_signal_that_ends_the_command_is_its_exit_code(slicer: Slicer, signo: int, code: int) -> None:
    job = slicer.hold(slicer.gate(), "-p", "heavy")
    job.kill(signo)
    done = job.end()
    assert done.code == code
    assert slicer.outcome_of(done).reason == "signal"


@pytest.mark.core
def test_a_signal_at_any_instant_of_the_start_is_not_lost(slicer: Slicer) -> None:
    for delay_ms in range(0, 100, 4):
        job = slicer.start("-p", "heavy", "--", "sleep", "1000")
        try:
            job.popen.wait(delay_ms / 1000)  # not for an event: every instant is a case of its own
        except subprocess.TimeoutExpired:
            job.kill(signal.SIGTERM)
        assert job.end().code in (143, -15), delay_ms


@pytest.mark.core
@pytest.mark.parametrize("ignored", ["", "trap '' INT QUIT", "trap '' HUP", "trap '' TERM"])
def test_the_command_starts_with_the_signals_of_its_caller(slicer: Slicer, ignored: str) -> None:
    # Not PIPE: Python ignores it before slicer could see how it was, and the command gets the default.
    # Nor the C library's own 32 and 33: glibc before 2.38 leaves them ignored in what it spawns.
    show = ("sed", "-n", "-E", "s/^(Sig(Blk|Ign|Cgt).*)[0-9a-f]{2}(.{7})$/\\1\\3/p", "/proc/self/status")
    shell = ("bash", "-c", f'{ignored or ":"}; "$@"', "bash")
    bare = subprocess.run([*shell, *show], env=slicer.environ(), capture_output=True, text=True)
    done = slicer.run("-q", "--", *show, via=shell)
    assert done.stdout == bare.stdout


def test_nohup_and_a_background_job_of_a_script_work_as_without(slicer: Slicer) -> None:
    # A non-interactive shell gives its background jobs an ignored SIGINT and /dev/null for input.
    script = "slicer run -q -- sh -c 'echo $$ > pid; exec sleep 1000' & wait $!; echo code=$?"
    popen = subprocess.Popen(
        ["bash", "-c", script], env=slicer.environ(), cwd=slicer.directory, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, start_new_session=True, text=True,
    )  # fmt: skip
    pid_file = slicer.path("pid")
    until(lambda: pid_file.exists() and pid_file.read_text(), "the job is up")
    pid = int(pid_file.read_text())
    until(lambda: processes.read(pid, "comm") == b"sleep\n", "sleep runs")
    (slicer_pid,) = (found for found in processes.pids() if processes.parent_is(found, popen.pid))
    os.kill(slicer_pid, signal.SIGINT)
    os.kill(slicer_pid, signal.SIGTERM)
    out, _ = popen.communicate(timeout=LONGEST_S)
    assert out == "code=143\n"


def test_a_stopped_and_continued_slicer_loses_nothing(slicer: Slicer) -> None:
    gate = slicer.gate()
    job = slicer.hold(gate, "-p", "heavy", code=3)
    job.kill(signal.SIGSTOP)
    until(lambda: processes.state(job.pid) == "T", "slicer is stopped")
    gate.open()
    job.said("over")
    job.kill(signal.SIGCONT)
    done = job.end()
    assert done.code == 3
    assert slicer.outcome_of(done).exit_code == 3


# -- standard input, output and error ---------------------------------------------------------------------


def shell(slicer: Slicer, script: str, data: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", script], env=slicer.environ(), input=data, capture_output=True, text=True, timeout=30,
        cwd=slicer.directory,
    )  # fmt: skip


@pytest.mark.core
def test_a_pipeline_flows_through(slicer: Slicer) -> None:
    done = shell(slicer, "slicer run -q -- tr a-z A-Z | slicer run -q rev", "hello\n")
    assert done.stdout == "OLLEH\n", done


# Writes on all standard descriptors, then says what they are; "closed" where there is none.
DESCRIPTORS = """\
import contextlib, os, sys
found = []
for fd in range(3):
    try:
        found.append(os.readlink(f"/proc/self/fd/{fd}"))
    except OSError:
        found.append("closed")
    with contextlib.suppress(OSError):
        os.write(fd, b"garbage" * 100)
with open(sys.argv[1], "w") as file:
    file.write("\\n".join(found))
"""


@pytest.mark.core
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"])
def test_closed_descriptors_stay_closed(slicer: Slicer, closed: str) -> None:  # K2
    # What slicer opens must not land on 0, 1 or 2: the command would write into its lease.
    gate = slicer.gate()
    program = slicer.path("descriptors.py")
    program.write_text(DESCRIPTORS)
    open_ones = {"<&-": "</dev/null", ">&-": ">/dev/null", "2>&-": "2>/dev/null"}
    redirections = " ".join(word if word in closed.split() else other for word, other in open_ones.items())
    shell(slicer, f"{sys.executable} {program} bare {redirections}")
    command = f"'{sys.executable} {program} found; : < {gate}'"
    with subprocess.Popen(
        ["bash", "-c", f"exec slicer run -q -p heavy -- sh -c {command} {redirections}"],
        env=slicer.environ(),
        cwd=slicer.directory,
    ) as popen:
        until(
            lambda: slicer.path("found").exists() and slicer.path("found").read_text(), "the command is done"
        )
        held = [lease.pid for lease in leases()]
        assert slicer.is_busy("-p", "heavy")
        gate.open()
    assert popen.returncode == 0
    assert held == [popen.pid]  # the lease is whole
    assert slicer.path("found").read_text() == slicer.path("bare").read_text()
