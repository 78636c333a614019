"""The client's side of a request: what is asked, what an answer leads to, and what a silence does."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from slicer.backend import BROKER_VARIABLE, broker_socket
from slicer.broker.client import asking
from slicer.broker.client import connection as dialing
from slicer.broker.client.connection import TooOld, failure_of
from slicer.broker.protocol import wire
from slicer.broker.protocol.messages import ERRORS, Acquire, Done, Granted, Release, Waiting
from slicer.errors import (
    BrokerError,
    BusyError,
    InfeasibleError,
    NoGpu,
    NotAllowedError,
    RefusedError,
    SlicerError,
)
from slicer.gpu.observer import GpuObserver
from slicer.job import granting
from slicer.ledger import leasing
from slicer.ledger.leasing import CancelToken, Hooks, Needs, Requester
from slicer.ledger.ledger import Ledger, Snapshot
from slicer.ledger.status import joined
from slicer.model import Busy
from slicer.record import replace
from slicer.state import statedir
from slicer.state.directory import Directory
from tests.patience import until

pytestmark = pytest.mark.both_pythons

JOB = "0123456789ab"
GPU = "GPU-00000000-0000-0000-0000-000000000000"
BUSY = Busy("gpu", (), 1, (), "")
NEEDS = Needs(
    gpus=1, gpu_choice=("0",), vram_mib=8192, margin_mib=512, slots={"cpu": 1}, priority=3,
    slot_limits={"cpu": 4, "x": 2}, expect_s=60.0, limit_s=3600.0, wait=True,
    max_wait_s=None, then=None, plain_lock="",
)  # fmt: skip
HOOKS = Hooks(lambda _: None, None, CancelToken())
Step = Callable[[socket.socket], None]


class ScriptedBroker:
    """A socket that does one step for each connection, and notes what it was asked."""

    def __init__(self, path: str, *steps: Step) -> None:
        self.calls: list[object] = []
        self._steps = list(steps)
        self._open: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        for step in self._steps:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            self.calls.append(wire.decode_call(connection.recv(65536)).message)
            step(connection)

    def close(self) -> None:
        try:
            self._listener.shutdown(socket.SHUT_RDWR)  # a close alone wakes no accept
        except OSError:
            pass  # it was closed before
        self._listener.close()
        self._thread.join(10.0)
        for connection in self._open:
            connection.close()


def says(*frames: bytes) -> Step:
    return lambda connection: connection.sendall(b"".join(frames))


def hangs_up_after(*frames: bytes) -> Step:
    def step(connection: socket.socket) -> None:
        connection.sendall(b"".join(frames))
        connection.shutdown(socket.SHUT_RDWR)

    return step


def waiting(why: str = "") -> bytes:
    return wire.encode_reply(Waiting(JOB, BUSY, None, why), continues=True)


def granted(ledger: Ledger, **known: object) -> bytes:
    lease = replace(prepared(ledger).draft, gpus=(GPU,), gpu_indices=(0,), slots={"cpu": 1}, command="")
    lease = replace(lease, **known)
    return wire.encode_reply(Granted(lease, 0.0))


GIVEN_BACK = says(wire.encode_reply(Done()))


def prepared(ledger: Ledger, **changes: object) -> leasing.PreparedRequest:
    unit = f"slicer-{JOB}.scope"
    who = Requester(JOB, "", "/usr/bin/python3 secret.py", "systemd", "system", unit, (), "gpu")
    return leasing.drafted(who, replace(NEEDS, **changes), GpuObserver())


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    warned: list[str] = []
    made = Ledger(statedir.locate({"SLICER_STATE_DIR": str(tmp_path / "state")}, os.geteuid()), warned.append)
    with closing(made):
        yield made
    assert not warned


def serve(path: Path, *steps: Step) -> closing[ScriptedBroker]:
    return closing(ScriptedBroker(str(path / "socket"), *steps))


def test_the_socket_is_where_the_broker_has_it(tmp_path: Path) -> None:
    assert broker_socket({BROKER_VARIABLE: "off"}) == ""
    assert broker_socket({BROKER_VARIABLE: str(tmp_path)}, "plain") == ""
    assert broker_socket({BROKER_VARIABLE: str(tmp_path), "SLICER_SIM": "1x24G"}) == ""


def test_what_is_asked_says_no_more_than_the_needs(ledger: Ledger) -> None:  # L1
    call = asking.acquire_of(replace(prepared(ledger), ahead_of="ba9876543210"), "scope")
    assert (call.name, call.command) == ("python3", "/usr/bin/python3 secret.py")
    assert (call.gpus, call.gpu_choice, call.vram_mib, call.margin_mib) == (1, ("0",), 8192, 512)
    assert (call.slots, call.slot_limits, call.ahead_of) == ({"cpu": 1}, {"cpu": 4}, "ba9876543210")
    assert not call.runs_anyway
    none = asking.acquire_of(prepared(ledger, gpus=0), "process")
    assert (none.gpu_choice, none.vram_mib, none.margin_mib, none.runs_anyway) == ((), None, 0, True)
    assert wire.decode_call(wire.encode_call(none)).message == none


def test_a_lease_is_written_into_the_users_own_books(tmp_path: Path, ledger: Ledger) -> None:  # L1
    with serve(tmp_path, says(waiting(), waiting("she holds 2"), granted(ledger)), GIVEN_BACK) as broker:
        held = granting.obtain(str(tmp_path / "socket"), prepared(ledger), ledger, HOOKS, "scope")
        (lease,) = ledger.snapshot().leases
        assert (lease.job, lease.gpus, lease.pid) == (JOB, (GPU,), os.getpid())
        assert lease.command.endswith("secret.py")  # others' eyes see none
        held.release()
        assert [type(call) for call in broker.calls] == [Acquire, Release]
    assert not ledger.snapshot().leases


@pytest.mark.parametrize(
    ("own", "policys", "both"),
    [
        ((None, None), (None, None), (None, None)),
        ((60.0, None), (2700.0, 3000.0), (60.0, 3000.0)),
        ((7200.0, 7500.0), (2700.0, None), (2700.0, 7500.0)),
    ],
)
def test_a_profile_cannot_weaken_the_policys_idle_timeout(  # U4, L3
    tmp_path: Path, ledger: Ledger, own: tuple[float, float], policys: tuple[float, float], both: object
) -> None:
    wanted = prepared(ledger)
    draft = replace(wanted.draft, idle_warn_s=own[0], idle_end_s=own[1])
    answer = granted(ledger, idle_warn_s=policys[0], idle_end_s=policys[1])
    with serve(tmp_path, says(answer), GIVEN_BACK):
        held = granting.obtain(
            str(tmp_path / "socket"), replace(wanted, draft=draft), ledger, HOOKS, "scope"
        )
        assert (held.lease.idle_warn_s, held.lease.idle_end_s) == both
        held.release()


def test_the_status_of_an_own_job_has_what_the_broker_saw(ledger: Ledger) -> None:  # U4
    own = replace(prepared(ledger).draft, gpus=(GPU,), keeper=4)
    theirs = replace(own, keeper=0, idle_since_s=12.0)
    (shown,) = joined(Snapshot((own,), ()), Snapshot((theirs,), ())).leases
    assert (shown.keeper, shown.idle_since_s) == (4, 12.0)


def test_why_it_waits_is_said_with_the_policys_words(tmp_path: Path, ledger: Ledger) -> None:  # L3
    with serve(tmp_path, says(waiting("alice may hold 2 GPUs at a time")), GIVEN_BACK):
        found = asking.queue_up(str(tmp_path / "socket"), prepared(ledger), ledger, "scope")
        assert isinstance(found, asking.Asking)
        assert (found.why().why, found.why().ahead) == ("alice may hold 2 GPUs at a time", 1)
        found.leave()


def test_once_the_scope_has_it_a_lease_is_not_given_back(tmp_path: Path, ledger: Ledger) -> None:  # L1
    with serve(tmp_path, says(granted(ledger))) as broker:
        held = granting.obtain(str(tmp_path / "socket"), prepared(ledger), ledger, HOOKS, "scope")
        held.update(cgroup=f"/gpu.slice/gpu-0.slice/slicer-{JOB}.scope")
        held.release()
        assert [type(call) for call in broker.calls] == [Acquire]


def test_a_broken_connectioncosts_nothing_while_it_waits(tmp_path: Path, ledger: Ledger) -> None:  # L1
    steps = hangs_up_after(waiting("first")), hangs_up_after(), says(waiting("again"), granted(ledger))
    with serve(tmp_path, *steps) as broker:
        held = granting.obtain(str(tmp_path / "socket"), prepared(ledger), ledger, HOOKS, "scope")
        held.gives_back = None
        held.release()
        assert held.lease.gpus == (GPU,)
        assert broker.calls == [asking.acquire_of(prepared(ledger), "scope")] * 3


@pytest.mark.parametrize("steps", [(), (lambda _: None,)])
def test_a_broker_that_says_nothing_is_broken(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, steps: tuple[Step, ...]
) -> None:  # L1: fails closed
    monkeypatch.setattr(asking, "ANSWER_S", 0.05)
    monkeypatch.setattr(asking, "_GIVE_BACK_S", 0.05)
    with serve(tmp_path, *steps) as broker:
        if not steps:
            broker.close()
        with pytest.raises(BrokerError) as caught:
            granting.obtain(str(tmp_path / "socket"), prepared(ledger), quiet(ledger), HOOKS, "scope")
    assert caught.value.exit_code == 75
    assert not ledger.snapshot().leases


def test_who_waits_waits_on_while_the_broker_is_away_and_says_so_once(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:  # L1
    monkeypatch.setattr(asking, "ANSWER_S", 0.05)
    monkeypatch.setattr(asking, "_BACK_S", 0.05)
    said: list[str] = []
    ledger.warn = said.append  # type: ignore[method-assign]

    def stands_still(connection: socket.socket) -> None:
        until(lambda: said, "the client has noticed")
        connection.shutdown(socket.SHUT_RDWR)  # and is killed

    broken = (hangs_up_after(waiting()), hangs_up_after(), stands_still, hangs_up_after())
    with serve(tmp_path, *broken, says(waiting(), granted(ledger)), GIVEN_BACK) as broker:
        granting.obtain(str(tmp_path / "socket"), prepared(ledger), ledger, HOOKS, "scope").release()
        # One connection for each that broke: others would fill the queue of a broker that stands still.
        assert [type(call) for call in broker.calls] == [Acquire] * 5 + [Release]
    (line,) = said
    assert "waits on" in line


@pytest.mark.parametrize("wish", ["a broker that is on", "not for ever"])
def test_a_wait_ends_with_what_it_waits_for(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, wish: str
) -> None:  # L1
    monkeypatch.setattr(asking, "_BACK_S", 0.2)
    monkeypatch.setattr(asking, "_GIVE_BACK_S", 0.05)
    is_on = wish == "not for ever"

    def step(connection: socket.socket) -> None:
        connection.sendall(waiting())
        if not is_on:
            (tmp_path / "socket").unlink()
            connection.shutdown(socket.SHUT_RDWR)

    needs = prepared(ledger, max_wait_s=0.01 if is_on else None)
    with serve(tmp_path, step, lambda _: None), pytest.raises(BrokerError) as caught:
        granting.obtain(str(tmp_path / "socket"), needs, quiet(ledger), HOOKS, "scope")
    assert caught.value.exit_code == 75
    assert ("has not answered" if is_on else "is gone") in str(caught.value)


def test_no_lease_depends_on_the_users_own_records(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:  # L1
    ledger.snapshot()
    opened = Directory.open

    def full(folder: Directory, name: str, flags: int, *rest: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(folder, name, flags, *rest)

    monkeypatch.setattr(Directory, "open", full)  # any user can fill /run/lock
    with serve(tmp_path, says(granted(ledger)), GIVEN_BACK) as broker:
        held = granting.obtain(str(tmp_path / "socket"), prepared(ledger), quiet(ledger), HOOKS, "process")
        held.update(keeper=5)
        assert (held.lease.gpus, held.fd >= 0, held.is_shared()) == ((GPU,), True, False)
        held.release()
        assert [type(call) for call in broker.calls] == [Acquire, Release]


def test_a_socket_of_somebody_else_is_not_the_broker(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:  # L1
    monkeypatch.setattr(dialing, "_uid_of", lambda _: 4242)
    with serve(tmp_path), pytest.raises(BrokerError, match="uid 4242's"):
        granting.obtain(str(tmp_path / "socket"), prepared(ledger), ledger, HOOKS, "scope")


class Clock:
    """The module's clock, which jumps while the process stands still."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self.looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return time.monotonic() + self.ahead_s


def test_the_time_in_which_this_process_stood_still_is_not_the_brokers(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:  # L1
    clock = Clock()
    for module in (asking, dialing):
        monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(module, "ANSWER_S", 0.05)
    monkeypatch.setattr(asking, "_GIVE_BACK_S", 0.05)

    def both_stand_still(answer: bytes) -> Step:
        def step(connection: socket.socket) -> None:
            clock.ahead_s += 60.0
            for module in (asking, dialing):
                monkeypatch.setattr(module, "ANSWER_S", 60.0)
            seen = clock.looks
            until(lambda: clock.looks > seen, "the client goes on")
            connection.sendall(answer)
            monkeypatch.setattr(asking, "ANSWER_S", 0.05)

        return step

    done = wire.encode_reply(Done())
    with serve(tmp_path, both_stand_still(granted(ledger)), both_stand_still(done)) as broker:
        held = granting.obtain(str(tmp_path / "socket"), prepared(ledger), ledger, HOOKS, "scope")
        held.release()
        assert [type(call) for call in broker.calls] == [Acquire, Release]


def test_a_request_that_is_cancelled_leaves_the_queue(tmp_path: Path, ledger: Ledger) -> None:  # J2
    cancel = CancelToken()
    with serve(tmp_path, says(waiting()), GIVEN_BACK) as broker:
        failed: list[BaseException] = []

        def ask() -> None:
            try:
                hooks = Hooks(lambda _: None, None, cancel)
                granting.obtain(str(tmp_path / "socket"), prepared(ledger), ledger, hooks, "process")
            except BusyError as error:
                failed.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        until(lambda: cancel.waiting, "it waits")
        cancel.cancel()
        thread.join(10.0)
        assert failed
        assert broker.calls[1:] == [Release(JOB)]


def quiet(ledger: Ledger) -> Ledger:
    ledger.warn = lambda _: None  # type: ignore[method-assign]
    return ledger


@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [
        ("Busy", BusyError, 75), ("Infeasible", InfeasibleError, 2), ("NotAllowed", NotAllowedError, 2),
        ("RefusedLimit", RefusedError, 125), ("NoGpu", NoGpu, 125), ("Broken", BrokerError, 75),
        ("Deadlock", SlicerError, 75), ("TooMany", SlicerError, 75), ("BadProcess", SlicerError, 125),
        ("NoSuchJob", SlicerError, 125), ("JobExists", SlicerError, 125),
    ],
)  # fmt: skip
def test_every_error_of_the_broker_has_its_exit_code(name: str, kind: type[SlicerError], code: int) -> None:
    more = {"busy": BUSY} if name == "Busy" else {"reason": "permission"} if name == "NoGpu" else {}
    frame = wire.encode_error(name, "so it is", "here", "do that", **more)
    with pytest.raises(wire.ErrorReply) as caught:
        wire.decode_reply(Acquire, frame)
    found = failure_of(caught.value)
    assert type(found) is kind or kind is SlicerError
    assert found.exit_code == code
    assert name in ERRORS
    unknown = failure_of(wire.ErrorReply("org.varlink.service.MethodNotFound", {}))
    assert (type(unknown), unknown.exit_code) == (TooOld, 75)
