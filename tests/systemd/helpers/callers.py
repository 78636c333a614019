"""The broker of the machine, and users who speak with it as they like.

PYTEST_DONT_REWRITE: tests import names from here before pytest loads it as a plugin.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import struct
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slicer.broker.client.connection import Connection
from slicer.broker.protocol import messages, wire
from slicer.errors import SlicerError
from slicer.kernel.proc import start_time
from slicer.record import replace
from slicer.state import BROKER
from tests.patience import DEADLINE_S, until
from tests.systemd.helpers import systemctl

SERVICE = "slicer-broker.service"
CONFIG = Path("/etc/slicer/config.toml")
ONE_SLOT = "[slots]\ncpu = 1\n"


@pytest.fixture(scope="module")
def one_broker() -> Iterator[None]:
    """One broker for the whole module is installed. The machine has one CPU slot, and no GPU."""
    before = CONFIG.read_bytes() if CONFIG.exists() else None
    CONFIG.parent.mkdir(mode=0o755, exist_ok=True)
    CONFIG.write_text(ONE_SLOT)
    systemctl.output("slicer", "install", "--broker")
    yield
    systemctl.output("slicer", "install", "--broker", "--remove")
    shutil.rmtree(os.path.dirname(BROKER), ignore_errors=True)
    CONFIG.unlink() if before is None else CONFIG.write_bytes(before)


def bring_loopback_up() -> None:
    """The machine has no network, not even that."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        flags = fcntl.ioctl(any_socket, 0x8913, struct.pack("16sh14x", b"lo", 0))  # SIOCGIFFLAGS
        is_up = struct.unpack_from("h", flags, 16)[0] | 1
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", is_up))


@contextmanager
def as_before_linux_6_16() -> Iterator[None]:
    """Descriptors can be sent to the broker, as before there was SO_PASSRIGHTS."""
    libc = ctypes.CDLL(None, use_errno=True)
    broker = os.pidfd_open(main_pid())
    with socket.socket(fileno=libc.syscall(438, broker, 3, 0)) as listener:  # pidfd_getfd: systemd's socket
        os.close(broker)
        try:
            listener.setsockopt(socket.SOL_SOCKET, 83, 1)
        except OSError:  # it is that old
            yield
            return
        yield
        listener.setsockopt(socket.SOL_SOCKET, 83, 0)


def main_pid() -> int:
    """The broker's process; 0: it is not there."""
    return int(systemctl.show(SERVICE, "MainPID")["MainPID"])


# -- what callers say ----------------------------------------------------------------------------------------


def new_job() -> str:
    return os.urandom(6).hex()


def acquire(job: str = "", **changes: Any) -> messages.Acquire:
    """A request for the CPU slot, that does not wait."""
    usual = messages.Acquire(
        job=job or new_job(), name="a job", command="sleep", profile="heavy", binding="scope", gpus=0,
        gpu_choice=(), vram_mib=None, margin_mib=0, slots={"cpu": 1}, slot_limits={}, priority=0,
        expect_s=None, ahead_of="", wait=False, max_wait_s=None, runs_anyway=False,
    )  # fmt: skip
    return replace(usual, **changes)


def start(job: str, keeper: int = 0, **changes: Any) -> messages.Start:
    """``keeper``: a process, as it is now."""
    started = start_time(keeper) or 0
    return replace(messages.Start(job, "cpu", "a job", (), False, keeper, started), **changes)


def ask(message: Any) -> Any:
    """The answer, or the name of the error."""
    connection = Connection()
    try:
        return connection.ask(message, timeout_s=DEADLINE_S)
    except SlicerError as error:
        if not isinstance(error.__cause__, wire.ErrorReply):
            raise
        return error.__cause__.name.removeprefix("org.varlink.service.")
    finally:
        connection.close()


def dial() -> socket.socket:
    """A connection that has said nothing yet."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    found.connect(BROKER)  # it sleeps where too many others connect
    found.settimeout(DEADLINE_S)
    return found


def say(data: bytes, *fds: int) -> str:
    """Send some bytes, and return the name of the error that comes; "" where the connection ends without."""
    with dial() as caller:
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            caller.sendmsg([data], control)
        except PermissionError:
            return "refused by the kernel"
        except BrokenPipeError:
            return ""
        return heard(caller)


def heard(caller: socket.socket) -> str:
    """The error of the next reply, "Done" if it is none, "" where there is no reply."""
    found = b""
    try:
        while not found.endswith(b"\0") and (data := caller.recv(65536)):
            found += data
    except ConnectionResetError:
        pass
    if not found:
        return ""
    error: str = json.loads(found.partition(b"\0")[0]).get("error", "Done")
    return error.rpartition(".")[2]


# -- users ---------------------------------------------------------------------------------------------------


class Puppet:
    """A process of a user's that does ``act`` once, and then stays as it is. ``said`` is what it returned."""

    def __init__(self, uid: int, act: Callable[[], Any], *, waits: bool = True) -> None:
        reader, writer = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            _be_puppet(uid, act, writer)
        os.close(writer)
        self._reader = reader
        self.said: Any = self.hear() if waits else None

    def hear(self) -> Any:
        """What it returned, once it did."""
        data = b""
        while not data.endswith(b"\n"):
            ready, _, _ = select.select([self._reader], [], [], 2 * DEADLINE_S)
            assert ready, "the user's process does not come to an end"
            more = os.read(self._reader, 65536)
            assert more, "the user's process was killed"
            data += more
        found = json.loads(data)
        assert "error" not in found, found["error"]
        self.said = found["said"]
        return self.said

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._reader)

    def __enter__(self) -> Puppet:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        # What it holds open or locked is an attack for as long as it lives.
        has_died = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        self.end()
        assert kind or not has_died, f"the user's process did not live to the end of the test: {has_died}"


def _be_puppet(uid: int, act: Callable[[], Any], writer: int) -> None:
    try:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        os.chdir("/")
        for signo in (signal.SIGALRM, signal.SIGINT):
            signal.signal(signo, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            said: dict[str, Any] = {"said": act()}
        except BaseException:
            said = {"error": traceback.format_exc()}
        os.write(writer, json.dumps(said).encode() + b"\n")
        while True:
            signal.pause()
    finally:
        os._exit(1)


def by(uid: int, act: Callable[[], Any]) -> Any:
    """What a user's process returns."""
    with Puppet(uid, act) as puppet:
        return puppet.said


class Running:
    """A job of a user's, whose keeper is in its scope: started as slicer would, without slicer."""

    def __init__(self, uid: int, asked: messages.Acquire | None = None, **changes: Any) -> None:
        self.uid = uid
        self.keeper = Puppet(uid, lambda: None)
        asked = asked or acquire()
        self.job = asked.job

        def act() -> list[str]:
            granted, started = ask(asked), ask(start(asked.job, self.keeper.pid, **changes))
            return [type(granted).__name__, type(started).__name__, getattr(started, "cgroup", started)]

        with Puppet(uid, act) as client:
            self.said = client.said
        assert self.said[:2] == ["Granted", "StartedScope"], self.said
        self.unit, self.cgroup = f"slicer-{self.job}.scope", self.said[2]

    def is_well(self) -> bool:
        """Whether its scope is active, runs, and holds its lease."""
        state = systemctl.show(self.unit, "ActiveState", "FreezerState")
        is_held = Path(f"/run/slicer-broker/leases/{self.job}").exists()
        return state == {"ActiveState": "active", "FreezerState": "running"} and is_held

    def end(self) -> None:
        self.keeper.end()
        until(lambda: not Path(f"/sys/fs/cgroup{self.cgroup}").exists(), "its scope is gone")

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def is_served(uid: int) -> bool:
    """Whether the broker serves a user as if nothing were the matter."""

    def act() -> bool:
        asked = acquire(slots={"own": 1}, slot_limits={"own": 1})
        is_granted = isinstance(ask(asked), messages.Granted)
        return is_granted and ask(messages.Release(asked.job)) == messages.Done()

    found: bool = by(uid, act)
    return found
