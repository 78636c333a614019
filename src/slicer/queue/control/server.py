"""The queue's end of the control socket, which lies in its user's state directory beside the ledger.

The directory is closed to other users. A client cannot delay the queue: a watching client gets a packet only
after it has read the last one, and a slow one misses events.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import termios
from array import array
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from slicer.queue.control.messages import LONGEST, PREFIX, WHICH, board_packet, decode, encode, short
from slicer.queue.events import Renderer
from slicer.queue.model import Board, Event
from slicer.queue.show import event_text
from slicer.state.directory import Directory, failed
from slicer.text import clock

_MOST_CLIENTS = 256  # whoever waits for a line keeps a connection
_AT_ONCE = 16  # questions of one client that are taken in one go
_UNTOLD = 50  # events kept for a client that reads slowly
_SUMMED = 40  # lines of the summary

Answer = Callable[[dict[str, Any]], dict[str, object] | None]  # to a question; None: not yet


class _Client:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.watches = False
        self.unanswered: dict[str, Any] | None = None  # its last question without an answer yet
        self.untold: deque[list[object]] = deque(maxlen=_UNTOLD)

    def send(self, packet: bytes) -> None:
        """If the client is gone, the next read reveals it."""
        with suppress(OSError):
            self.connection.send(packet)

    def has_read_all(self) -> bool:
        unread = array("i", [0])
        fcntl.ioctl(self.connection, termios.TIOCOUTQ, unread)
        return not unread[0]

    def take_untold(self) -> list[list[object]]:
        """The lines that were kept for the next packet."""
        found = list(self.untold)
        self.untold.clear()
        return found


class ControlSocket(Renderer):
    """Also a renderer, for the watching clients, which draw on their own terminals.

    ``answers`` has a function for each question. The answers to ``acts`` wait for :meth:`answer`: these
    questions change something, or tell what must be in the journal first.
    """

    def __init__(self, directory: Directory, answers: Mapping[str, Answer], acts: Collection[str]) -> None:
        """Raises StateError. Also removes the sockets of killed queues, at which nobody listens.

        To be called under the ledger's lock: a queue between bind(2) and listen(2) would look like those.
        """
        self._answers = answers
        self._acts = acts
        self._directory = directory
        self._clients: dict[int, _Client] = {}
        self._late: list[tuple[_Client, bytes]] = []  # answers for later
        self._name = f"{PREFIX}{os.urandom(6).hex()}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            _sweep(directory)
            self._socket.bind(f"{directory.handle}/{self._name}")
            self._socket.listen(_MOST_CLIENTS)
        except OSError as error:
            self._socket.close()
            raise failed(f"{directory.path}/{self._name}", error, what="cannot be created") from error

    def descriptors(self) -> list[int]:
        return [self._socket.fileno(), *self._clients]

    def take(self, ready: Collection[int]) -> bool:
        """Take and answer questions. Returns whether a client has begun to watch."""
        is_new = False
        for fd in [fd for fd in self._clients if fd in ready]:
            is_new |= self._hear(self._clients[fd])
        while self._socket.fileno() in ready and self._accept():
            pass
        return is_new

    def answer(self) -> None:
        """Send the answers that had to wait until the journal was written, or something happened."""
        for client in self._clients.values():
            question, client.unanswered = client.unanswered, None
            if question is not None:
                self._reply(client, question)
        for client, packet in self._late:
            client.send(packet)
        self._late.clear()

    def close(self, summary: Event | None) -> None:
        """Tell the watching clients how the queue ended; close and remove the socket. Raises OSError.

        Who has asked which queue this is learns it, in order to hear that it has ended. Nothing else is done.
        """
        self._answers = {ask: found for ask, found in self._answers.items() if ask == WHICH}
        while self._accept():
            pass
        for client in [*self._clients.values()]:
            self._hear(client)
        if summary is not None:
            *others, total = event_text.summary_lines(summary)[-_SUMMED:]
            summed = [*([short(line), "info"] for line in others), [total, event_text.level(summary)]]
            for client in self._watching():
                said = client.take_untold() + summed
                client.send(encode({"said": said, "end": summary.data["exit_code"]}))
        for client in self._clients.values():
            client.connection.close()
        self._socket.close()
        self._directory.remove(self._name)

    # -- as a renderer ---------------------------------------------------------------------------------------

    @property
    def wants_board(self) -> bool:
        return bool(self._watching())

    def event(self, event: Event) -> None:
        text = event_text.line(event, verbose=True)
        if text is None:
            return
        for client in self._watching():
            client.untold.append([f"{clock(event.at)} {short(text)}", event_text.level(event)])

    def draw(self, board: Board) -> None:
        packet = board_packet(board)
        for client in self._watching():
            if client.has_read_all():
                client.send(encode({"said": client.take_untold()}))
                client.send(packet)

    def _watching(self) -> list[_Client]:
        return [client for client in self._clients.values() if client.watches]

    # -- clients ---------------------------------------------------------------------------------------------

    def _accept(self) -> bool:
        try:
            connection, _ = self._socket.accept()
        except OSError:  # no connection is left, or no descriptor
            return False
        connection.setblocking(False)
        if len(self._clients) >= _MOST_CLIENTS:
            connection.close()
        else:
            self._clients[connection.fileno()] = _Client(connection)
        return True

    def _hear(self, client: _Client) -> bool:
        """Whether the client begins to watch."""
        watched = client.watches
        for _ in range(_AT_ONCE):
            try:
                packet = client.connection.recv(LONGEST)
            except BlockingIOError:
                break
            except OSError:
                packet = b""
            if not packet:
                del self._clients[client.connection.fileno()]
                client.connection.close()
                return False
            self._reply(client, decode(packet) or {})
        return client.watches and not watched

    def _reply(self, client: _Client, question: dict[str, Any]) -> None:
        ask = question.get("ask")
        if ask == "watch":
            client.watches = True
            return
        answers = self._answers.get(ask) if isinstance(ask, str) else None
        found = answers(question) if answers is not None else {"error": "not understood"}
        if found is None:
            client.unanswered = question
        elif ask in self._acts:
            self._late.append((client, encode(found)))
        else:
            client.send(encode(found))


def _sweep(directory: Directory) -> None:
    """Remove the sockets that nobody listens at. Raises OSError."""
    for name in directory.names():
        if not name.startswith(PREFIX):
            continue
        asking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        with asking, suppress(OSError):  # what cannot be removed does no harm
            if asking.connect_ex(f"{directory.handle}/{name}") == errno.ECONNREFUSED:
                directory.remove(name)
