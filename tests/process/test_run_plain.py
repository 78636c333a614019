"""What the plain backend promises where there is no systemd: best effort, and no pretence of more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from slicer import backend
from slicer.kernel.signals import STOP
from tests.patience import LONGEST_S, until
from tests.process.harness import (
    Box,
    Gate,
    children,
    gone,
    kill,
    state_of,
)

pytestmark = pytest.mark.both_pythons

MIB = 2**20
PYTHON = (sys.executable, "-I", "-S", "-c")


def python(code: str) -> tuple[str, ...]:
    return (*PYTHON, textwrap.dedent(code))


# K3: a guard for MemoryMax
@pytest.mark.parametrize(
    "code",
    [
        "data = bytearray(200 << 20); import time; time.sleep(60)",
        # a child that allocates, in a session of its own
        "import os, time\nif not os.fork(): os.setsid(); data = bytearray(200 << 20)\ntime.sleep(60)",
        # several that are harmless one by one
        "import os, time; os.fork(); os.fork(); data = bytearray(60 << 20); time.sleep(60)",
    ],
)
def test_a_job_over_its_memory_is_ended(box: Box, code: str) -> None:
    done = box.run("--set", "MemoryMax=150M", "--", *python(code))
    assert done.returncode == 137
    assert "out of memory" in done.stderr
    (outcome,) = box.outcomes()
    assert (outcome.reason, outcome.signal) == ("oom-kill", signal.SIGKILL)
    assert (outcome.usage.memory_peak_bytes or 0) > 150 * MIB
    box.assert_clean()


def test_shared_memory_counts_once(box: Box) -> None:
    """Four processes with the same 80 MiB are 80 MiB, not 320."""
    code = """
    import mmap, os, time
    shared = mmap.mmap(-1, 80 << 20)
    shared.write(b"x" * (80 << 20))
    os.fork(); os.fork()
    sum(shared[n] for n in range(0, 80 << 20, 4096))
    time.sleep(0.8)  # three looks of the guard
    """
    done = box.run("-q", "--set", "MemoryMax=200M", "--", *python(code))
    assert done.returncode == 0, done
    peak = box.outcomes()[0].usage.memory_peak_bytes or 0
    assert 80 * MIB <= peak < 200 * MIB
    box.assert_clean()


def test_the_guard_looks_however_busy_the_job_is(box: Box) -> None:
    """Orphans that end all the time must not keep the guard from looking."""
    code = """
    import os, time
    data = bytearray(200 << 20)
    end = time.monotonic() + 3
    while time.monotonic() < end:
        if not os.fork():
            if not os.fork():
                time.sleep(0.01)  # an orphan by then, adopted by the keeper, which hears of its end
            os._exit(0)
        os.wait()
        time.sleep(0.02)
    """
    assert box.run("-q", "--set", "MemoryMax=100M", "--", *python(code)).returncode == 137
    box.assert_clean()


def test_lingering_processes_are_guarded_too(box: Box) -> None:
    code = "import os, time\nif not os.fork(): data = bytearray(200 << 20); time.sleep(3)"
    box.run("-q", "--linger", "--set", "MemoryMax=100M", "--", *python(code))
    assert box.outcomes()[0].reason == "oom-kill"
    box.assert_clean()


# K3, E10
def test_over_its_time_a_job_gets_sigterm_and_exits_124(box: Box) -> None:
    script = 'trap "echo term >>\\"$LOG\\"; exit 9" TERM; sleep 60 & wait'
    done = box.run("--timeout", "1s", "--", "sh", "-c", script)
    assert done.returncode == 124
    assert "over its time limit" in done.stderr
    assert box.lines() == ["term"]
    assert box.outcomes()[0].reason == "timeout"
    box.assert_clean()


# K3, E10
def test_who_ignores_sigterm_gets_sigkill_after_the_stop_timeout(box: Box) -> None:
    script = 'trap "" TERM; sleep 60 & sleep 60; sleep 60'
    done = box.run("-q", "--timeout", "1s", "--set", "TimeoutStopSec=300ms", "--", "sh", "-c", script)
    assert done.returncode == 124
    (outcome,) = box.outcomes()
    assert (outcome.reason, outcome.signal) == ("timeout", signal.SIGKILL)
    assert outcome.wall_s > 1.2  # SIGKILL not before its time
    box.assert_clean()


def test_a_stopped_job_is_ended_by_its_time_limit_too(box: Box) -> None:
    done = box.run("-q", "--timeout", "1s", "--", "sh", "-c", "kill -STOP $$; exit 0")
    assert done.returncode == 124
    assert box.outcomes()[0].signal == signal.SIGTERM
    box.assert_clean()


def test_the_time_limit_holds_for_what_lingers(box: Box, gate: Gate) -> None:
    script = f'(echo "start left $$" >>"$LOG"; read x <"{gate.path}") & exit 0'
    process = box.start("-q", "--linger", "--timeout", "1s", "--", "sh", "-c", script)
    try:
        assert process.wait(LONGEST_S) == 124
    except subprocess.TimeoutExpired:
        pytest.fail("it goes on for ever")


# D17: others can read the lease of a job that says so
def test_a_job_may_say_that_it_ends_never(box: Box, gate: Gate) -> None:
    process = box.start("-q", "--expect", "infinity", "--", "sh", "-c", f"read x <{gate.path}")
    until(lambda: [lease.expect_s for lease in box.leases()] == [None], "its lease")
    gate.open()
    assert process.wait(LONGEST_S) == 0


# K3: CPU affinity in place of the quota
@pytest.mark.parametrize(
    ("quota", "expected"),
    [("50%", 1), ("100%", 1), ("150%", 2), ("200%", 2), ("99999%", len(os.sched_getaffinity(0)))],
)
def test_the_quota_becomes_that_many_cpus(box: Box, quota: str, expected: int) -> None:
    done = box.run(
        "-q", "--set", f"CPUQuota={quota}", "--", *python("import os; print(*os.sched_getaffinity(0))")
    )
    cpus = {int(word) for word in done.stdout.split()}
    assert len(cpus) == min(expected, len(os.sched_getaffinity(0)))
    assert cpus <= os.sched_getaffinity(0)


def test_allowed_cpus_become_the_affinity(box: Box) -> None:
    cpu = max(os.sched_getaffinity(0))
    done = box.run(
        "-q", "--set", f"AllowedCPUs={cpu}", "--", *python("import os; print(*os.sched_getaffinity(0))")
    )
    assert done.stdout.split() == [str(cpu)]


# K3: niceness in place of the weight
@pytest.mark.parametrize(("weight", "nice"), [("100", 0), ("50", 3), ("20", 7), ("1", 19)])
def test_a_low_weight_becomes_niceness(box: Box, weight: str, nice: int) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    done = box.run("-q", "--set", f"CPUWeight={weight}", "--", *python("import os; print(os.nice(0))"))
    assert int(done.stdout) == min(19, own + nice)


# D11: root in a container may not either
def test_a_high_weight_is_no_error_for_those_who_may_not(box: Box) -> None:
    if os.geteuid() == 0:
        box.prefix = (*box.prefix, "setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice")
    assert box.run("-q", "--set", "CPUWeight=1000", "--", "true").returncode == 0
    assert "CPUWeight" in box.outcomes()[0].not_enforced


# B5, K2: leftovers
LEAVE = """
{trap}
(echo "start left $$" >>"$LOG"; exec setsid sleep 60) >/dev/null 2>&1 &
until [ -s "$LOG" ]; do :; done
exit 4
"""


@pytest.mark.parametrize("trap", ["", 'trap "" TERM;'])
def test_what_outlives_the_command_is_ended(box: Box, trap: str) -> None:
    done = box.run("--set", "TimeoutStopSec=300ms", "--", "sh", "-c", LEAVE.format(trap=trap))
    assert done.returncode == 4
    assert "1 leftover process ended" in done.stderr
    assert box.outcomes()[0].leftovers == 1
    box.assert_clean()


def test_a_family_of_orphans_is_ended_to_the_last(box: Box) -> None:
    code = """
    import os, time
    first, (ready, told) = os.getpid(), os.pipe()
    for _ in range(3):
        os.fork()
    if os.getpid() == first:
        for _ in range(7):
            os.read(ready, 1)
        os._exit(0)
    os.write(told, b"x")
    os.setsid() if os.getpid() != os.getpgid(0) else None
    time.sleep(60)
    """
    done = box.run("-q", "--", *python(code))
    assert done.returncode == 0
    assert box.outcomes()[0].leftovers == 7
    box.assert_clean()


# podman learns of a container's end from conmon, which lives on for a moment.
@pytest.mark.parametrize(
    ("name", "lives_s", "leftovers"), [("conmon", 1, 0), ("conmon", 60, 1), ("sh", 60, 1)]
)
def test_what_watched_a_container_may_end_by_itself(
    box: Box, name: str, lives_s: int, leftovers: int
) -> None:  # U5
    code = f"""
    import os, time
    ready, told = os.pipe()
    if os.fork():
        os.read(ready, 1)
        os._exit(5)
    with open("/proc/self/comm", "w") as comm:
        comm.write({name!r})
    os.write(told, b"x")
    time.sleep({lives_s})
    """
    done = box.run("--", *python(code))
    assert done.returncode == 5
    assert box.outcomes()[0].leftovers == leftovers
    box.assert_clean()


def test_with_linger_they_are_waited_for(box: Box, gate: Gate) -> None:
    script = f'(read x <"{gate.path}"; sleep 1; echo "start left $$" >>"$LOG") & exit 4'
    process = box.start("-q", "--linger", "--", "sh", "-c", script)
    gate.open()
    assert process.wait(LONGEST_S) == 4
    assert box.started("left")
    (outcome,) = box.outcomes()
    assert outcome.leftovers == 0
    assert outcome.wall_s >= 1  # W5: the job's, not only its first process's
    box.assert_clean()


# what `slicer stop` sends where there is no systemctl
@pytest.mark.parametrize("whom", ["outer", "keeper"])
def test_the_stop_signal_stops_the_job(box: Box, gate: Gate, whom: str) -> None:
    job = box.hold(gate)
    kill(getattr(job, whom), STOP)
    assert job.process.wait(LONGEST_S) == 143
    assert box.outcomes()[0].reason == "stopped"
    box.assert_clean()


def test_the_stop_signal_stops_a_job_without_its_supervisor(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    kill(job.outer)
    job.process.wait()
    kill(job.keeper, STOP)
    until(lambda: not box.processes(), "it ends")
    assert box.outcomes()[0].reason == "stopped"
    box.assert_clean()


# Q5
def test_a_keeper_sleeps_while_a_guarded_job_takes_its_time_to_end(box: Box) -> None:
    trap = 'trap "sleep 1; echo term >>\\"$LOG\\"" TERM'
    script = f'{trap}; echo "start slow $$" >>"$LOG"; while :; do sleep 60 & wait; done'
    limits = ("--set", "MemoryMax=1G", "--set", "TimeoutStopSec=60s")
    process = box.start("-q", *limits, "--", "sh", "-c", script)
    until(lambda: box.started("slow"), "it runs")
    (keeper,) = (lease.keeper for lease in box.leases())
    kill(keeper, STOP)
    until(lambda: "term" in box.lines(), "it was asked to end")
    until(lambda: all(state_of(keeper) == "S" for _ in range(50)), "the keeper sleeps")
    for pid in box.processes():
        if pid not in (keeper, process.pid):
            kill(pid)
    assert process.wait(LONGEST_S) == 137
    box.assert_clean()


# X3: what comes after the command's end has not ended it
@pytest.mark.parametrize("late", ["stop", "time limit"])
def test_a_job_that_ended_before_it_was_stopped_has_ended_by_itself(box: Box, gate: Gate, late: str) -> None:
    began = time.monotonic()
    job = box.hold(gate, "--timeout", "2s")
    kill(job.keeper, signal.SIGSTOP)
    gate.open()
    until(lambda: all(map(gone, children(job.keeper))), "the command ends")
    if late == "stop":
        kill(job.keeper, STOP)
    else:
        until(lambda: time.monotonic() > began + 4, "its time is over")
    kill(job.keeper, signal.SIGCONT)
    assert job.process.wait(LONGEST_S) == 0
    assert box.outcomes()[0].reason == "exited"
    box.assert_clean()


# A9
@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT])
def test_signals_are_for_the_job(box: Box, signo: signal.Signals) -> None:
    # Job control apart: a background process of sh would ignore SIGINT.
    code = f"""
    import signal, os, sys
    signal.pthread_sigmask(signal.SIG_BLOCK, [{int(signo)}])
    log = open(os.environ["LOG"], "a")
    print("start it", os.getpid(), file=log, flush=True)
    signal.sigwait([{int(signo)}])
    sys.exit(6)
    """
    process = box.start("-q", "--", *python(code))
    until(lambda: box.started("it"), "it runs")
    kill(process.pid, signo)
    assert process.wait(LONGEST_S) == 6
    box.assert_clean()


# X3
def test_the_outcome_has_the_figures_that_can_be_had(box: Box) -> None:
    code = """
    import time
    data = bytearray(64 << 20)
    while time.process_time() < 0.2:
        pass
    """
    done = box.run("-p", "heavy", "--name", "sum", "--", *python(code))
    assert done.returncode == 0
    (outcome,) = box.outcomes()
    assert (outcome.name, outcome.backend, outcome.profile, outcome.unit) == ("sum", "plain", "heavy", "")
    used = outcome.usage
    assert used.cpu_s is not None
    assert 0.2 <= used.cpu_s < 5
    assert outcome.wall_s >= 0.15
    assert (used.memory_peak_bytes or 0) >= 64 * MIB
    assert (used.io_read_bytes, used.pressure_cpu_s, used.throttled_s) == (None, None, None)
    assert (outcome.cpu_slots, outcome.leftovers, outcome.waited_s < 5) == (1, 0, True)


# Never pretend
def test_it_says_once_what_is_not_enforced(box: Box) -> None:
    done = box.run("-v", "-p", "heavy", "--", "true")
    lines = done.stderr.splitlines()
    assert sum("best effort" in line for line in lines) == 1
    assert [line for line in lines if "not enforced" in line] == [
        "slicer: not enforced here: MemoryHigh, IOWeight"
    ]
    (outcome,) = box.outcomes()
    assert outcome.not_enforced == ("MemoryHigh", "IOWeight")
    assert "MemoryMax (by a guard that checks 4 times a second)" in outcome.enforced


def test_quiet_is_quiet(box: Box) -> None:
    done = box.run("-q", "-p", "heavy", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")


@pytest.mark.skipif(os.path.isdir(backend.BOOTED), reason="systemd runs here")
def test_plain_is_chosen_by_itself_where_there_is_no_systemd(box: Box) -> None:
    done = box.run("--", "true", backend="")
    assert done.returncode == 0
    assert "no systemd here" in done.stderr
    assert box.outcomes()[0].backend == "plain"
    assert "slicer: without systemd, as asked: limits are" in box.run("--", "true", backend="plain").stderr
    assert box.run("-q", "--", "true", backend="systemd").returncode == 125


def test_a_killed_command_is_told_apart_from_one_that_exits_with_its_code(box: Box) -> None:
    assert box.run("-q", "--", "sh", "-c", "kill -KILL $$").returncode == 137
    assert box.run("-q", "--", "sh", "-c", "exit 137").returncode == 137
    second, first = box.outcomes()
    assert (first.reason, first.signal, second.reason, second.signal) == ("signal", 9, "exited", None)


def test_nobody_is_left_when_the_supervisor_is_killed_while_it_ends_leftovers(box: Box) -> None:
    begun = box.root / "begun"
    script = f'trap "" TERM; sleep 60 & touch {begun}; exit 0'
    process = box.start("-q", "-p", "heavy", "--set", "TimeoutStopSec=500ms", "--", "sh", "-c", script)
    until(begun.exists, "it has begun")
    kill(process.pid)
    until(lambda: gone(process.pid), "the supervisor is dead")
    until(lambda: not box.processes(), "all is gone")
    assert len(box.outcomes()) == 1
    box.assert_clean()


# D7
def test_a_caller_that_ignores_the_ends_of_its_children_changes_nothing(box: Box) -> None:
    box.prefix = (*box.prefix, "env", "--ignore-signal=CHLD")
    process = box.start("-q", "-p", "heavy", "--", "sh", "-c", "exit 3")
    assert process.wait(LONGEST_S) == 3
    box.assert_clean()
