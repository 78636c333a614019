"""Starting and ending jobs while no process can be forked (Q1)."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from slicer.errors import BackendError
from slicer.queue.engine.local.starters import _Starter
from slicer.queue.engine.local.supervisor import QueueSupervisor

pytestmark = pytest.mark.both_pythons


@pytest.fixture
def no_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", fork)


@pytest.fixture
def starter() -> _Starter:
    """One whose process was killed, as its own fork would have made it."""
    made: Any = _Starter.__new__(_Starter)
    made._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made._socket.setblocking(False)
    theirs.close()
    child = subprocess.Popen(["true"])
    made._pid, made.asked, made._answers = child.pid, {"a"}, {}
    child.returncode = 0  # it is ours to wait for, not its
    found: _Starter = made
    return found


@pytest.mark.usefixtures("no_forks")
def test_a_starter_that_cannot_be_made_again_is_asked_in_vain(starter: _Starter) -> None:
    job: Any = SimpleNamespace(id="b")
    (found,) = starter.take().values()
    assert "was killed" in str(found)
    for _ in range(3):
        with pytest.raises(BackendError, match="cannot fork"):
            starter.ask(job, ())
    assert starter.asked == set()
    starter.close()
    starter.close()


# Q16: those that were asked of it before hear of it, too
def test_a_killed_starter_leaves_no_job_without_an_answer(starter: _Starter) -> None:
    job: Any = SimpleNamespace(id="b")
    with pytest.raises(BackendError, match="was killed"):
        starter.ask(job, ())
    (found,) = starter.take().items()
    assert found[0] == "a"
    assert "was killed" in str(found[1])


# Q13: what the kernel has no room for now is no reason to end a starter
@pytest.mark.parametrize("code", [errno.ETOOMANYREFS, errno.EAGAIN])
def test_descriptors_that_cannot_be_handed_on_now(
    starter: _Starter, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def send(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    pid = starter._pid
    monkeypatch.setattr(socket, "send_fds", send)
    job: Any = SimpleNamespace(id="b")
    with pytest.raises(BackendError, match="cannot be handed to a starter"):
        starter.ask(job, ())
    assert (starter._pid, starter.asked) == (pid, {"a"})
    starter.close()


# Q22
def test_a_stopped_starter_is_not_waited_for(starter: _Starter) -> None:
    os.waitpid(starter._pid, 0)
    child = subprocess.Popen(["sleep", "1000"])
    os.kill(child.pid, signal.SIGSTOP)
    starter._pid = child.pid
    starter.close()
    assert not os.path.exists(f"/proc/{child.pid}")
    child.returncode = -signal.SIGKILL  # it is waited for


@pytest.fixture(params=["fork", "pipe2"])
def shortage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    code = errno.EAGAIN if request.param == "fork" else errno.EMFILE

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, request.param, fail)


# Q22: nor does a lack of descriptors end the queue
@pytest.mark.usefixtures("shortage")
def test_a_killed_keepers_duties_wait_until_a_process_can_be_forked() -> None:
    supervisor: Any = QueueSupervisor.__new__(QueueSupervisor)
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    supervisor._up_read, supervisor._received, supervisor.pidfd = reading, b"", writing
    supervisor.keeper_was_killed = False
    before = len(os.listdir("/proc/self/fd"))
    assert not supervisor.clean_up()
    assert not supervisor.keeper_was_killed
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(reading)
    os.close(writing)
