"""The queue's end of the control socket: what is answered when, and who reads slowly."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from slicer.queue.control import server as control
from slicer.queue.control.messages import WHICH, decode, encode
from slicer.queue.control.server import ControlSocket
from slicer.queue.model import Event
from slicer.state.directory import Directory, open_trusted
from tests.unit.queue.show.test_board_text import board
from tests.unit.queue.show.test_event_text import summed_up


class Caller:
    def __init__(self, directory: Directory) -> None:
        (name,) = (name for name in directory.names() if name.startswith("queue-"))
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(f"{directory.handle}/{name}")
        self.socket.setblocking(False)

    def send(self, **question: object) -> None:
        self.socket.send(encode(question))

    def received(self) -> list[dict[str, Any]]:
        """All packets that are there; {} at the end for a connection that is closed."""
        found: list[dict[str, Any]] = []
        while True:
            try:
                packet = self.socket.recv(1 << 20)
            except BlockingIOError:
                return found
            found.append(decode(packet) or {})
            if not packet:
                return found


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    with closing(open_trusted(str(tmp_path))) as found:
        yield found


@pytest.fixture
def call(directory: Directory) -> Iterator[Callable[[], Caller]]:
    """Connects somebody."""
    with ExitStack() as opened:

        def connect() -> Caller:
            caller = Caller(directory)
            opened.enter_context(caller.socket)
            return caller

        yield connect


@pytest.fixture
def server(directory: Directory) -> Iterator[ControlSocket]:
    made = ControlSocket(directory, {"look": lambda _: {"n": 1}, "stop": lambda _: {"n": 2}}, ("stop",))
    yield made
    made.close(None)


def taken(server: ControlSocket) -> bool:
    """Two rounds: one for whoever comes, one for what they ask."""
    first = server.take(server.descriptors())
    return server.take(server.descriptors()) or first


def told(number: int) -> Event:
    return Event("notice", 0.0, data={"text": f"event {number}"})


# U1: what was done is on the disk before anybody hears of it
def test_an_act_is_answered_only_when_the_journal_has_it(
    server: ControlSocket, call: Callable[[], Caller]
) -> None:
    caller = call()
    caller.send(ask="stop")
    caller.send(ask="look")
    taken(server)
    assert [answer["n"] for answer in caller.received()] == [1]
    server.answer()
    assert [answer["n"] for answer in caller.received()] == [2]
    server.answer()
    assert caller.received() == []


# U23: whoever stops a queue that has just ended is told that it is stopped
def test_who_asks_at_the_very_end_learns_which_queue_has_ended(
    directory: Directory, call: Callable[[], Caller]
) -> None:
    done = []
    answers = {WHICH: lambda _: {"file": "a"}, "leave": lambda asked: done.append(asked) or {}}
    server = ControlSocket(directory, answers, ("leave",))
    known = call()
    server.take(server.descriptors())
    late = call()
    for caller in (known, late):
        caller.send(ask=WHICH)
    known.send(ask="leave")
    server.close(None)
    assert [answer.get("file", answer.get("error")) for answer in known.received()][:1] == ["a"]
    assert late.received() == [{"v": 1, "file": "a"}, {}]
    assert done == []


# U1: a question about the future has its answer later, the last one of each caller
def test_what_is_not_known_yet_is_answered_later(directory: Directory, call: Callable[[], Caller]) -> None:
    known: dict[str, dict[str, object]] = {}
    server = ControlSocket(directory, {"line": lambda asked: known.get(str(asked["key"]))}, ("line",))
    caller, gone = call(), call()
    gone.send(ask="line", key="b")
    for key in "ab":
        caller.send(ask="line", key=key)
    taken(server)
    server.answer()
    assert caller.received() == []
    gone.socket.close()
    taken(server)
    known.update(a={"n": 1}, b={"n": 2})
    server.answer()
    assert [each["n"] for each in caller.received()] == [2]
    server.answer()
    assert caller.received() == []
    server.close(None)


# U1
def test_those_who_watch_are_told_what_comes_and_the_end(
    directory: Directory, call: Callable[[], Caller]
) -> None:
    server = ControlSocket(directory, {}, ())
    server.event(told(29))
    assert not server.wants_board
    caller = call()
    caller.send(ask="watch")
    assert taken(server)
    assert server.wants_board
    server.event(told(30))
    server.draw(board())
    said, shown = caller.received()
    assert [text.split()[-1] for text, _ in said["said"]] == ["30"]
    assert shown["board"]["title"] == "jobs.txt"
    server.close(summed_up())
    last, closed = caller.received()
    assert last["end"] == summed_up().data["exit_code"]
    assert last["said"]
    assert closed == {}
    assert directory.names() == []


# U1: the queue waits for nobody
def test_whoever_reads_slowly_hears_the_last(server: ControlSocket, call: Callable[[], Caller]) -> None:
    slow, fast = call(), call()
    for caller in (slow, fast):
        caller.send(ask="watch")
    taken(server)
    for number in range(200):
        server.event(told(number))
        server.draw(board())
        assert len(fast.received()) == 2
    first, _ = slow.received()
    assert len(first["said"]) == 1
    server.draw(board())
    late, shown = slow.received()
    assert len(late["said"]) == 50
    assert late["said"][-1][0].endswith("event 199")
    assert "board" in shown


# U1
def test_whoever_leaves_is_forgotten_and_too_many_are_turned_away(
    server: ControlSocket, call: Callable[[], Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_MOST_CLIENTS", 64)
    callers = [call() for _ in range(60)]
    taken(server)
    callers += [call() for _ in range(10)]
    taken(server)
    assert len(server.descriptors()) == 65
    assert callers[-1].received() == [{}]
    for caller in callers:
        caller.socket.close()
    taken(server)
    assert len(server.descriptors()) == 1


# E7: what killed queues leave goes with the next one; a queue that lives, however busy, keeps its socket
def test_only_the_sockets_of_dead_queues_are_removed(
    directory: Directory, call: Callable[[], Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_MOST_CLIENTS", 0)  # one more waits, and no second one
    busy = ControlSocket(directory, {}, ())
    call()
    names = directory.names()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as killed:
        killed.bind(f"{directory.handle}/queue-killed")
        killed.listen()
    ControlSocket(directory, {}, ()).close(None)
    assert directory.names() == names
    busy.close(None)
    assert directory.names() == []
