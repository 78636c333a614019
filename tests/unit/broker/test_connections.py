"""The broker's sockets, and what callers may do to them."""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from slicer.broker.client.connection import BrokerFailed, Lost, NoBroker
from slicer.broker.client.connection import Connection as Client
from slicer.broker.protocol import messages, wire
from slicer.broker.server.connections import Connections
from slicer.broker.server.peers import check_keeper
from slicer.broker.server.requests import Refusal
from slicer.kernel.proc import start_time
from tests.broker_client import replies
from tests.patience import DEADLINE_S, until
from tests.unit.broker.callers import Server, heard, server
from tests.unit.broker.messages import BUSY, CALLS, GPU, JOB, LEASE

pytestmark = pytest.mark.both_pythons

ACQUIRE, START, RELEASE = CALLS[0], CALLS[1], CALLS[2]
SAY_RELEASE, SAY_START = wire.encode_call(RELEASE), wire.encode_call(START)
DONE = wire.encode_reply(messages.Done())
WAITING = messages.Waiting(JOB, BUSY, None, "")
GRANTED = messages.Granted(LEASE, 0.0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Server]:
    with server(tmp_path / "socket") as found:
        yield found


@pytest.fixture
def not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's connections are not counted; so let the tests be nobody's."""
    monkeypatch.setattr("slicer.broker.server.connections._ROOT", -1)


def pass_on(caller: socket.socket, data: bytes, *fds: int) -> None:
    control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
    caller.sendmsg([data], control if fds else [])


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_peer_is_known_by_the_kernels_word(broker: Server) -> None:  # L1
    with broker.caller(SAY_RELEASE):
        peer = broker.call().connection.peer
        assert (peer.pid, peer.uid) == (os.getpid(), os.getuid())
        assert peer.start == start_time(os.getpid())
        assert peer.gids[0] == os.getgid()
        assert set(peer.gids[1:]) == set(os.getgroups())


def test_calls_of_one_connection_are_answered_one_after_the_other(broker: Server) -> None:
    with broker.caller(SAY_RELEASE * 3) as caller:
        until(lambda: len(broker.calls) == 3, "three calls")
        until(lambda: len(caller.recv(65536, socket.MSG_PEEK)) == 3 * len(DONE), "three answers")


def test_a_call_in_pieces_is_a_call(broker: Server) -> None:
    with broker.caller() as caller:
        for byte in SAY_RELEASE:
            caller.sendall(bytes([byte]))
        assert caller.recv(65536) == DONE


def test_what_comes_out_of_band_comes_like_the_rest(broker: Server) -> None:  # L1, S17
    """Else it wakes the broker without end, and brings descriptors that nobody sees."""
    with broker.caller() as caller:
        for byte in SAY_RELEASE:
            caller.send(bytes([byte]), socket.MSG_OOB)
        assert caller.recv(65536) == DONE


def test_noise_is_answered_once_and_hung_up_on(broker: Server) -> None:  # L1
    for noise in (b"GET / HTTP/1.1\r\n\r\n\0", b"\0", b"{}\0", b"\xff\0" + SAY_RELEASE):
        assert heard(broker.caller(noise)).count(b"\0") == 1
    assert not broker.calls


def test_a_wrong_field_costs_the_call_alone(broker: Server) -> None:
    wrong = SAY_RELEASE.replace(JOB.encode(), b"../../shadow")
    with broker.caller(wrong + SAY_RELEASE) as caller:
        until(lambda: caller.recv(65536, socket.MSG_PEEK).count(b"\0") == 2, "two answers")
        assert b"InvalidParameter" in caller.recv(65536)


def test_who_sends_without_an_end_is_hung_up_on(broker: Server) -> None:  # L1
    caller = broker.caller()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        caller.sendall(b"x" * (64 << 20))
    assert heard(caller) == b""


@pytest.mark.parametrize("said", [b"", SAY_RELEASE[:20]], ids=["nothing", "half a message"])
def test_silence_is_not_waited_for(tmp_path: Path, said: bytes) -> None:  # L1
    with server(tmp_path / "socket", silence_s=0.05) as broker:
        assert heard(broker.caller(said)) == b""
        until(lambda: not len(broker.connections), "nobody is left")


def test_who_waits_may_wait(tmp_path: Path) -> None:
    with server(tmp_path / "socket", silence_s=0.05) as broker:
        with broker.caller(wire.encode_call(ACQUIRE, more=True)) as caller:
            call = broker.call()
            assert heard(broker.caller()) == b""  # the time is over for somebody who came later
            call.connection.send(GRANTED)
            assert heard(caller) == wire.encode_reply(GRANTED)
        assert not broker.gone


def test_who_leaves_while_it_waits_is_told_of(broker: Server) -> None:
    broker.caller(wire.encode_call(ACQUIRE, more=True) + SAY_RELEASE).close()
    until(lambda: broker.gone == [broker.call().connection], "it has gone")
    broker.calls[0].connection.send(GRANTED)  # comes too late, and does no harm


def test_a_caller_that_never_reads_gets_the_newest_update_and_the_answer(broker: Server) -> None:  # L1
    with broker.caller(wire.encode_call(ACQUIRE, more=True)) as caller:
        connection = broker.call().connection

        def tell() -> None:
            for number in range(2000):
                connection.send(messages.Waiting(JOB, BUSY, float(number), ""), continues=True)
            assert connection.account.output < 10_000
            connection.send(GRANTED)
            told.set()

        told = threading.Event()
        broker.loop.after(0, tell)
        assert told.wait(DEADLINE_S)
        data = b""
        while not data.endswith(wire.encode_reply(GRANTED)):
            data += caller.recv(65536)
        assert data.count(b"\0") < 1000


def test_what_many_do_not_read_is_bounded(tmp_path: Path, not_root: None) -> None:  # L1
    with server(tmp_path / "socket", output_each=2 << 20) as broker:
        large = messages.Standing((LEASE,) * 4000, (), {}, (), (), {})
        broker.answer = lambda call: call.connection.send(large)
        callers = [broker.caller(wire.encode_call(messages.Status())) for _ in range(8)]
        until(lambda: len(broker.calls) == 8 and len(broker.connections) < 3, "most are left")
        for caller in callers:
            caller.close()


def test_a_user_has_so_many_connections(tmp_path: Path, not_root: None) -> None:  # L1
    with server(tmp_path / "socket", connections_each=3) as broker:
        first = [broker.caller() for _ in range(3)]
        until(lambda: len(broker.connections) == 3, "three are in")
        assert b"io.slicer.Broker.TooMany" in heard(broker.caller())
        first[0].close()
        until(lambda: len(broker.connections) == 2, "one has left")
        with broker.caller(SAY_RELEASE) as caller:
            assert caller.recv(65536) == DONE
        for each in first:
            each.close()


def test_a_user_has_a_part_of_the_brokers_time(tmp_path: Path, not_root: None) -> None:  # L1
    with server(tmp_path / "socket", burst_s=0.0, part_of_time=0.5) as broker:
        with broker.caller(SAY_RELEASE * 5) as caller:
            until(lambda: caller.recv(65536, socket.MSG_PEEK).count(b"\0") == 5, "all are answered")
        waits = [due for due in broker.loop.due if due.act]
        assert len(broker.calls) == 5, waits


def test_a_user_who_has_had_its_part_is_let_in_later(
    tmp_path: Path, not_root: None, monkeypatch: pytest.MonkeyPatch
) -> None:  # L1, S16
    """A thousand that connect and hang up are not in front of others: to let one in costs something."""
    let_in: list[int] = []
    real = Connections._admit
    monkeypatch.setattr(Connections, "_admit", lambda self, *more: (let_in.append(1), real(self, *more)))
    over = [3600.0]
    monkeypatch.setattr(Connections, "_over_s", lambda self, account: over[0])
    with server(tmp_path / "socket") as broker:
        callers = [broker.caller(SAY_RELEASE) for _ in range(20)]
        accounts = broker.connections._accounts
        until(lambda: [len(each.held) for each in accounts.values()] == [20], "all are held")
        assert not let_in
        over[0] = 0.0
        (account,) = accounts.values()
        broker.loop.after(0.0, lambda: broker.connections._resume(account))
        for caller in callers:
            assert caller.recv(65536) == DONE
            caller.close()


def test_a_broker_without_descriptors_goes_on_later(
    broker: Server, monkeypatch: pytest.MonkeyPatch
) -> None:  # L1, S9
    """Those who wait to be accepted must not wake it without end meanwhile."""
    monkeypatch.setattr("slicer.broker.server.connections._SHORTAGE_S", 0.05)
    tries: list[int] = []
    listener = broker.connections._listener

    class Short:
        fileno = staticmethod(listener.fileno)

        def accept(self) -> None:
            tries.append(1)
            raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(broker.connections, "_listener", Short())
    with broker.caller(SAY_RELEASE) as caller:
        until(lambda: len(tries) == 2, "it has tried twice")
        monkeypatch.setattr(broker.connections, "_listener", listener)
        assert caller.recv(65536) == DONE
    assert len(tries) < 10


# -- descriptors ---------------------------------------------------------------------------------------------


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as found:
        yield found
        found.kill()


@pytest.fixture
def older_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """One before Linux 6.16, which sends descriptors to whoever listens."""
    monkeypatch.setattr("slicer.broker.server.connections.refuse_descriptors", lambda listener: None)


def test_no_descriptor_can_be_sent_to_it(broker: Server) -> None:  # L1, S17
    with broker.caller(SAY_RELEASE) as caller, open("/dev/null", "rb") as null:
        assert caller.recv(65536) == DONE
        try:
            caller.getsockopt(socket.SOL_SOCKET, 83)
        except OSError:
            pytest.skip("before Linux 6.16")
        with pytest.raises(PermissionError):
            pass_on(caller, SAY_START, null.fileno())


@pytest.mark.parametrize("before", [b"", SAY_RELEASE, SAY_RELEASE[:20]], ids=["first", "later", "half"])
def test_who_sends_descriptors_is_left(older_kernel: None, broker: Server, before: bytes) -> None:  # L1, S17
    open_before = 0
    for _ in range(5):
        with open("/dev/null", "rb") as null:
            caller = broker.caller(before)
            try:
                pass_on(caller, SAY_START, *[null.fileno()] * 100)
            except ConnectionError:
                pass
        assert b"Start" not in heard(caller)
        until(lambda: not len(broker.connections) and not broker.connections.must_stay, "all is closed")
        open_before = open_before or open_files()
    assert open_files() == open_before, "its child is there still, and nothing else is"
    assert not any(isinstance(call.message, messages.Start) for call in broker.calls)


def test_what_hangs_whoever_closes_it_hangs_no_broker(older_kernel: None, broker: Server) -> None:  # L1, S17
    """A TCP socket that lingers, its peer reads nothing, and the one in flight is the last one of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        lingers = socket.create_connection(listener.getsockname())
        peer = listener.accept()[0]
    lingers.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            lingers.send(bytes(65536))
    lingers.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1000))
    hold = threading.Event()
    broker.loop.after(0.0, lambda: _ignore(hold.wait(DEADLINE_S)))  # nothing is taken meanwhile
    with broker.caller() as caller:
        pass_on(caller, SAY_RELEASE, lingers.fileno())
        lingers.close()
    hold.set()
    until(lambda: broker.connections.must_stay, "it is being closed")
    with broker.caller(SAY_RELEASE) as caller:
        assert caller.recv(65536) == DONE
    assert broker.connections.must_stay, "and that hangs"
    peer.close()
    until(lambda: not broker.connections.must_stay, "it is closed")


def _ignore(_: object) -> None:
    pass


def test_a_keeper_lives_and_is_the_users_own(child: Any) -> None:  # L1
    pidfd = os.pidfd_open(child.pid)
    assert check_keeper(pidfd, os.getuid()) == child.pid
    with pytest.raises(Refusal, match="not the user's own"):
        check_keeper(pidfd, os.getuid() + 1)
    child.kill()
    until(lambda: "Z" in Path(f"/proc/{child.pid}/stat").read_text(), "it is a zombie")
    with pytest.raises(Refusal, match="has ended"):
        check_keeper(pidfd, os.getuid())
    child.wait()
    with pytest.raises(Refusal, match="has ended"):
        check_keeper(pidfd, os.getuid())
    os.close(pidfd)


# -- the client's end ----------------------------------------------------------------------------------------


def test_a_client_is_answered(broker: Server, child: Any) -> None:
    client = Client(broker.path)
    assert client.ask(RELEASE) == messages.Done()
    broker.answer = lambda call: call.connection.send(messages.Previewed((GPU,), None, ""))
    assert client.ask(CALLS[4]) == messages.Previewed((GPU,), None, "")
    assert len(broker.connections) == 1
    client.close()


def test_a_client_hears_why_it_waits_until_its_turn(broker: Server) -> None:
    client = Client(broker.path)

    def answer(call: Any) -> None:
        call.connection.send(WAITING, continues=True)
        broker.loop.after(0.02, lambda: call.connection.send(GRANTED))

    broker.answer = answer
    assert list(replies(client, ACQUIRE)) == [WAITING, GRANTED]
    client.close()


def test_a_client_that_was_left_for_its_silence_connects_again(tmp_path: Path) -> None:
    with server(tmp_path / "socket", silence_s=0.02) as broker:
        client = Client(broker.path)
        assert client.ask(RELEASE) == messages.Done()
        until(lambda: not len(broker.connections), "it was left")
        assert client.ask(RELEASE) == messages.Done()
        client.close()


def test_a_client_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(NoBroker):
        Client(str(tmp_path / "none")).ask(RELEASE)
    with server(tmp_path / "socket") as broker:
        with pytest.raises(BrokerFailed, match=r"has not answered for 0\.05 s") as silent:
            Client(broker.path).ask(ACQUIRE, timeout_s=0.05)
        assert silent.value.exit_code == 75
        broker.answer = lambda call: call.connection.close()
        with pytest.raises(Lost):
            Client(broker.path).ask(ACQUIRE)
    with pytest.raises(BrokerFailed, match="refused"):
        Client(broker.path).ask(RELEASE)
