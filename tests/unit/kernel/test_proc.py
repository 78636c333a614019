"""What /proc says about processes."""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from slicer.kernel import proc
from tests.patience import LONGEST_S

pytestmark = pytest.mark.both_pythons

NOBODY = 2**22 + 1  # above the largest pid_max


def stat_line(name: str, parent: int = 7, start: int = 4711) -> str:
    fields = ["S", str(parent), *["0"] * 17, str(start), *["0"] * 30]
    return f"42 ({name}) {' '.join(fields)}\n"


@pytest.mark.parametrize("name", ["sh", "a b", "a) S 1 (b", ")", "((", "\udcff", "a\nb", ""])
def test_any_command_name_is_stepped_over(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "read_text", lambda path: stat_line(name))
    assert proc.start_time(42) == 4711
    assert proc.parent(42) == 7


def test_our_own_start_is_after_our_parents() -> None:
    own, parents = proc.start_time(os.getpid()), proc.start_time(os.getppid())
    assert own is not None
    assert parents is None or own >= parents
    assert proc.start_time(os.getpid()) == own
    assert proc.parent(os.getpid()) == os.getppid()


def test_a_process_that_is_gone() -> None:
    assert proc.start_time(NOBODY) is None
    assert proc.parent(NOBODY) == 0
    assert NOBODY not in proc.in_lease("x")
    assert proc.ancestors(NOBODY) == frozenset()


def test_ancestors_go_up_to_the_first_process() -> None:
    found = proc.ancestors(os.getpid())
    assert os.getppid() in found or os.getppid() == 0
    assert os.getpid() not in found


def test_the_boot_id_is_one_line() -> None:
    assert proc.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert proc.boot_id()


# D3: hidepid=1, hidepid=2 and ProtectProc= hide other users' processes
@pytest.mark.parametrize("error", [PermissionError, FileNotFoundError])
def test_a_hidden_process_is_there_but_unknown(error: type[OSError], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, limit: int = 0) -> str:
        raise error(path)

    def not_ours(pid: int, signo: int) -> None:
        raise PermissionError

    monkeypatch.setattr(proc, "read_text", refuse)
    monkeypatch.setattr("os.kill", not_ours)
    assert proc.start_time(1) == 0
    assert not proc.is_running(1, 4711)
    assert not proc.is_stopped(1, 4711)
    assert not proc.stops(1)
    assert proc.parent(1) == 0
    assert proc.command_line(1) == ()
    assert proc.ancestors(os.getpid()) == frozenset()


# Q5: what a keeper looks through, with CONFIG_PROC_CHILDREN and without
@pytest.mark.parametrize("has_children_file", [True, False])
def test_descendants_are_those_of_threads_and_sessions_too(
    has_children_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
import ctypes, os, threading
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # a subreaper, as a keeper is
def fork():
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork():
            os._exit(0)  # its child is ours now
        os.write(1, f"{os.getpid()}\\n".encode())
        os.read(0, 1)
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # stays as a zombie
thread = threading.Thread(target=fork)
fork(); thread.start(); thread.join()
os.posix_spawnp("cat", ["cat"], {})
os.read(0, 1)
"""
    if not has_children_file:
        monkeypatch.setattr("os.path.exists", lambda path: not path.endswith("/children"))
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        orphans = {int(process.stdout.readline()), int(process.stdout.readline())}
        end = time.monotonic() + 20
        while len(found := proc.descendants(process.pid)) < 3 and time.monotonic() < end:
            pass
        assert orphans < set(found)
        assert len(found) == 3
        process.communicate(b"")
    assert proc.descendants(process.pid) == []


# K2
@pytest.mark.parametrize(
    ("value", "job", "expected"),
    [
        (b"aaa", "aaa", True),
        (b"aaa,bbb", "bbb", True),
        (b"aaa,bbb", "aaa", True),
        (b"aaabbb", "aaa", False),
        (b"", "aaa", False),
        (b"\xff,aaa", "aaa", True),
        (b"x\naaa", "aaa", False),
    ],
)
def test_the_marker_in_a_processs_environment(value: bytes, job: str, expected: bool) -> None:
    environ = {b"PATH": os.environb[b"PATH"], b"SLICER_LEASE": value, b"NOT_SLICER_LEASE": b"zzz"}
    with subprocess.Popen(
        ["sh", "-c", "echo; read x"], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it has executed
        assert (process.pid in proc.in_lease(job)) is expected
        assert process.pid not in proc.in_lease("zzz")
        process.communicate(b"\n")
    assert process.pid not in proc.in_lease(job)


# K2: while it executes a program, a process shows no environment at all
def test_the_environment_of_a_process_that_is_just_being_executed() -> None:
    for _ in range(30):
        pid = os.posix_spawnp("sleep", ["sleep", "60"], {"MARKER": "aaa"})
        try:
            assert proc.environment(pid) == b"MARKER=aaa\0"
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


# D14: else a lease whose job cannot be looked for would count as given up
def test_who_is_short_of_descriptors_sees_no_empty_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    pids = [str(os.getpid())]
    with monkeypatch.context() as patched:
        patched.setattr("os.listdir", lambda path: pids)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                proc.in_lease("x")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_empty_environment_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cat = shutil.which("cat") or "cat"
    with subprocess.Popen([cat], env={}, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"x")
        process.stdin.flush()
        process.stdout.read(1)  # it has executed
        with monkeypatch.context() as patched:
            clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: pytest.fail("it waits"))
            patched.setattr(proc, "time", clock)
            assert proc.environment(process.pid) == b""
        process.stdin.close()


def test_a_zombie_is_in_no_lease() -> None:
    with subprocess.Popen([sys.executable, "-c", ""], env={"SLICER_LEASE": "zombie"}) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process.pid not in proc.in_lease("zombie")


def test_reading_keeps_undecodable_bytes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a\xffb\n")
    assert proc.read_text(str(tmp_path / "file")) == "a\udcffb\n"
    with pytest.raises(FileNotFoundError):
        proc.read_text(str(tmp_path / "missing"))


def test_the_end_of_a_process_is_seen_by_a_descriptor_of_any_number() -> (
    None
):  # E13: a thousand jobs at a time
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        low = os.pidfd_open(process.pid)
        high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1500)
        try:
            assert not proc.has_ended(high)
            process.communicate(b"")
            assert proc.has_ended(high)
        finally:
            os.close(low)
            os.close(high)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# D9: with TimeoutStopSec=infinity there is more time than poll(2) can be told
def test_an_end_is_waited_for_however_long_it_may_take() -> None:
    with subprocess.Popen(["sleep", "0.1"]) as process:
        assert proc.wait_for_end(lambda: [process.pid] if process.poll() is None else [], 365 * 86400.0)


def test_who_stops_is_known() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            assert not proc.stops(process.pid)
            process.send_signal(signal.SIGSTOP)
            assert proc.stops(process.pid)  # at once: it is on its way at the least
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            assert proc.stops(process.pid)
            process.send_signal(signal.SIGCONT)
            os.waitid(os.P_PID, process.pid, os.WCONTINUED)
            assert not proc.stops(process.pid)
        finally:
            process.kill()
    assert not proc.stops(process.pid)


TITLE = """
import os
from slicer.kernel import proc
for text in ("slicer: train (1 GPU)", "ü" * 500, ""):
    proc.retitle(text)
    print(open(f"/proc/{os.getpid()}/cmdline", "rb").read().rstrip(b"\\0").decode())
print(os.environ["MARK"], open(f"/proc/{os.getpid()}/environ").read().count("MARK=kept"))
"""


# K6
def test_a_process_may_call_itself_something_and_keeps_its_environment() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TITLE, *("x" * 10)], capture_output=True, text=True,
        env={**os.environ, "MARK": "kept"}, check=True, timeout=LONGEST_S,
    )  # fmt: skip
    named, long, none, kept = done.stdout.splitlines()
    assert named == "slicer: train (1 GPU)"
    assert set(long) == {"ü"}  # cut between characters
    assert 100 < len(long) < 500
    assert none == ""
    assert kept == "kept 1"
