"""The plain lock of scripts: slicer and flock(1) exclude each other, and no wait outlives its limit."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slicer.errors import StateError
from slicer.kernel import proc
from slicer.ledger.plain_lock import PlainLock
from tests.patience import until
from tests.process.harness import SRC, children, gone, is_waited_for, sleeps_in_flock, state_of

pytestmark = pytest.mark.both_pythons

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
LONG_S = 60.0  # longer than any wait that a test is in for

# Takes the lock, says so, and keeps it until its input ends.
TAKER = """
import signal, sys
sys.path.insert(0, sys.argv[1])
from slicer.ledger.plain_lock import PlainLock

class Interrupted(BaseException):
    pass

def interrupt(signo, frame):
    raise Interrupted

signal.signal(signal.SIGTERM, interrupt)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
wait_s = None if sys.argv[3] == "ever" else float(sys.argv[3])
lock = PlainLock(sys.argv[2])
try:
    print(lock.take(wait_s, frozenset()), flush=True)
except Interrupted:
    kept = signal.pthread_sigmask(signal.SIG_BLOCK, ()) == {signal.SIGTERM}
    print("interrupted", lock.fd, kept, flush=True)
sys.stdin.read()
"""
# As scripts do it: flock(1) runs the command, or locks a descriptor of the script's.
AROUND = 'exec flock "$0" sh -c "echo held; exec cat"'
WITHIN = 'exec 9>>"$0"; flock 9; echo held; exec cat'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gpu.lock"


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a process whose standard input keeps it alive; all are gone after the test."""
    begun: list[subprocess.Popen[str]] = []

    def run(*command: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        begun.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, process_group=0))
        return begun[-1]

    yield run
    for process in begun:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe
            pipe.close()


Start = Callable[..., subprocess.Popen[str]]


def script(start: Start, path: Path, text: str = AROUND) -> subprocess.Popen[str]:
    """A script that holds the lock exclusively until its input ends."""
    process = start("sh", "-c", text, str(path))
    assert line(process) == "held"
    return process


def taker(start: Start, path: Path, wait: str) -> subprocess.Popen[str]:
    """A process of slicer's that wants the lock."""
    return start(sys.executable, "-c", TAKER, SRC, str(path), wait)


def waits(process: subprocess.Popen[str]) -> bool:
    """Whether the taker waits: its child sleeps in flock(2)."""
    return any(map(sleeps_in_flock, children(process.pid)))


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def finish(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.close()
    process.wait(timeout=LONG_S)


def script_gets_it(path: Path) -> bool:
    return subprocess.run(["flock", "-n", path, "true"], check=False).returncode == 0


# ---- mutual exclusion, both ways ----


@pytest.mark.parametrize("text", [AROUND, WITHIN])
def test_a_script_excludes_slicer(start: Start, path: Path, text: str) -> None:  # A5
    held = script(start, path, text)
    lock = PlainLock(str(path))
    assert not lock.take(0, None)
    finish(held)
    assert lock.take(0, None)
    lock.release()


def test_slicer_excludes_scripts_and_not_itself(path: Path) -> None:  # A5
    first, second = PlainLock(str(path)), PlainLock(str(path))
    assert first.take(0, None)
    assert second.take(0, None)
    assert not script_gets_it(path)
    first.release()
    assert not script_gets_it(path)
    second.release()
    assert script_gets_it(path)
    second.release()  # safe to repeat
    assert second.fd == -1


@pytest.mark.parametrize("wait", ["ever", str(LONG_S)])
def test_slicer_is_woken_when_the_script_ends(start: Start, path: Path, wait: str) -> None:  # A5
    held = script(start, path)
    waiting = taker(start, path, wait)
    until(lambda: waits(waiting), "it waits")
    finish(held)
    assert line(waiting) == "True"
    assert not script_gets_it(path)


def test_a_waiting_script_is_woken_when_slicer_lets_go(start: Start, path: Path) -> None:  # A5
    lock = PlainLock(str(path))
    assert lock.take(0, None)
    waiting = start("sh", "-c", AROUND, str(path))
    until(lambda: is_waited_for(path), "the script waits")
    lock.release()
    assert line(waiting) == "held"


@pytest.mark.parametrize("signo", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_holder_holds_nothing(start: Start, path: Path, signo: int) -> None:  # A2
    held = script(start, path, WITHIN)
    waiting = taker(start, path, "ever")
    until(lambda: waits(waiting), "it waits")
    os.kill(held.pid, signo)
    assert line(waiting) == "True"
    os.kill(waiting.pid, signal.SIGKILL)
    until(lambda: gone(waiting.pid), "the taker is dead")
    assert script_gets_it(path)


def test_who_inherits_the_descriptor_keeps_the_lock(start: Start, path: Path) -> None:  # K2
    lock = PlainLock(str(path))
    assert lock.take(0, None)
    assert not os.get_inheritable(lock.fd)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[lock.fd]):
        lock.release()
        assert not script_gets_it(path)
    assert script_gets_it(path)


# ---- waiting ----


@pytest.mark.parametrize("wait_s", [0.0, 1e-9, 0.05, -3.0])
def test_the_wait_has_an_end_and_leaves_no_trace(start: Start, path: Path, wait_s: float) -> None:  # A8
    held = script(start, path)
    lock = PlainLock(str(path))
    before = set(os.listdir("/proc/self/fd"))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        assert not lock.take(wait_s, None)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask | {signal.SIGUSR1}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1  # the file itself
    assert not is_waited_for(path)
    finish(held)
    assert lock.take(wait_s, None)  # it can be tried again
    lock.release()


@pytest.mark.slow
def test_the_end_of_the_wait_and_of_the_holder_together(start: Start, path: Path) -> None:  # A8
    for step in range(100):
        holder = start("flock", str(path), "sh", "-c", "echo held; sleep 0.02")
        assert line(holder) == "held"
        lock = PlainLock(str(path))
        got = lock.take(0.004 + step * 0.0002, None)
        assert holder.wait(timeout=LONG_S) == 0
        assert script_gets_it(path) is not got
        lock.release()


@pytest.mark.parametrize("wait", ["ever", str(LONG_S)])
def test_who_waits_can_be_interrupted_there_and_only_there(start: Start, path: Path, wait: str) -> None:
    held = script(start, path)
    waiting = taker(start, path, wait)
    until(lambda: waits(waiting), "it waits")
    os.kill(waiting.pid, signal.SIGTERM)
    assert line(waiting) == "interrupted -1 True"
    finish(held)
    assert script_gets_it(path)


def test_a_program_that_reaps_all_its_children_can_wait(start: Start, path: Path) -> None:  # B4
    held = script(start, path)
    lock = PlainLock(str(path))
    children = proc.children(os.getpid())
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert not lock.take(0.2, None)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert proc.children(os.getpid()) == children
    finish(held)


# A2
def test_nothing_is_left_of_a_killed_waiter(start: Start, path: Path) -> None:
    script(start, path)
    waiting = taker(start, path, "ever")
    until(lambda: waits(waiting), "it waits")
    os.kill(waiting.pid, signal.SIGKILL)
    until(lambda: not is_waited_for(path), "nobody waits any more")


# L8: a stopped process must not get the lock, for it would keep scripts out
def test_who_is_stopped_at_the_terminal_does_not_get_the_lock(start: Start, path: Path) -> None:
    held = script(start, path)
    waiting = taker(start, path, "ever")
    until(lambda: waits(waiting), "it waits")
    group = [waiting.pid, *children(waiting.pid)]
    os.killpg(waiting.pid, signal.SIGTSTP)
    until(lambda: all(state_of(pid) == "T" for pid in group), "it and its child are stopped")
    finish(held)
    assert script_gets_it(path)
    os.killpg(waiting.pid, signal.SIGCONT)
    assert line(waiting) == "True"


def in_a_thread(lock: PlainLock, wait_s: float) -> tuple[threading.Thread, list[bool]]:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(lock.take(wait_s, None)))
    thread.start()
    return thread, found


def test_a_thread_that_gave_up_holds_nothing(start: Start, path: Path) -> None:  # B4
    held = script(start, path)
    thread, found = in_a_thread(PlainLock(str(path)), 0.02)
    thread.join(LONG_S)
    assert found == [False]
    finish(held)
    until(lambda: script_gets_it(path), "nobody has it")


def test_a_thread_is_woken_when_the_script_ends(start: Start, path: Path) -> None:  # B4
    held = script(start, path)
    lock = PlainLock(str(path))
    thread, found = in_a_thread(lock, LONG_S)
    until(lambda: is_waited_for(path), "it waits")
    finish(held)
    thread.join(LONG_S)
    assert found == [True]
    assert not script_gets_it(path)
    lock.release()


def test_a_removed_file_is_not_waited_for(start: Start, path: Path) -> None:
    old = script(start, path)
    waiting = taker(start, path, str(LONG_S))
    until(lambda: waits(waiting), "it waits")
    path.unlink()
    new = script(start, path)
    finish(old)
    # It sleeps again, now on the new file: had it the old one, it would have said so.
    until(lambda: is_waited_for(path), "it waits for the new file")
    finish(new)
    assert line(waiting) == "True"


# ---- who holds it ----


@pytest.mark.parametrize("text", [AROUND, WITHIN])
def test_the_holder_is_named(start: Start, path: Path, text: str) -> None:  # B1
    lock = PlainLock(str(path))
    assert lock.holder() == 0  # there is not even a file
    held = script(start, path, text)
    assert not lock.take(0, None)
    assert lock.holder() == held.pid
    finish(held)
    assert lock.holder() == 0
    assert lock.take(0, None)
    assert lock.holder() == 0  # nobody excludes us
    lock.release()


# ---- the file ----


def test_the_file_is_made_for_everybody(path: Path) -> None:
    umask = os.umask(0o002)
    try:
        lock = PlainLock(str(path))
        assert lock.take(0, None)
        assert stat.S_IMODE(path.stat().st_mode) == 0o664
        lock.release()
    finally:
        os.umask(umask)


def test_a_file_that_can_only_be_read_will_do(path: Path) -> None:
    path.write_text("not ours to change\n")
    path.chmod(0o444)
    lock = PlainLock(str(path))
    assert lock.take(0, None)
    lock.release()
    assert path.read_text() == "not ours to change\n"


@ROOT_ONLY
def test_anothers_file_in_a_sticky_directory_will_do(tmp_path: Path) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    path = shared / "gpu.lock"
    path.touch()
    os.chown(path, 65534, 65534)
    lock = PlainLock(str(path))
    assert lock.take(0, None)
    lock.release()


def test_a_link_is_followed_where_only_its_owner_could_put_it(tmp_path: Path, path: Path) -> None:
    target = tmp_path / "target"
    target.touch()
    path.symlink_to(target)
    lock = PlainLock(str(path))
    assert lock.take(0, None)
    assert not script_gets_it(target)
    lock.release()
    tmp_path.chmod(0o1777)
    with pytest.raises(StateError):
        lock.take(0, None)


def make_missing(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def make_loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, make_missing, make_loop])
def test_what_cannot_be_a_lock_is_refused(path: Path, make: Callable[[Path], None]) -> None:
    make(path)
    before = set(os.listdir("/proc/self/fd"))
    lock = PlainLock(str(path))
    with pytest.raises(StateError) as caught:
        lock.take(None, None)
    assert set(os.listdir("/proc/self/fd")) == before
    assert str(caught.value).startswith(f"{path}: ")
    assert "GPU_LOCK_PATH" in caught.value.hint
    assert lock.fd == -1
    assert os.listdir(path.parent) == [path.name]


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError) as caught:
        PlainLock(str(tmp_path / "no" / "gpu.lock")).take(0, None)
    assert "No such file or directory" in str(caught.value)
