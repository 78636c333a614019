"""The broker's sockets: whole calls come out, replies go in, and nobody else can hold anything up.

A caller may send half a message and sleep, send without an end, never read, connect ten thousand times, or
pass descriptors that hang whoever closes them. Each of these costs itself:

- One call at a time is read of a connection, and nothing while it is being answered.
- Who says nothing, or half of something, or does not read its answer, is left after 10 s. Who waits may wait.
- A user has so many connections, so much unread output, and a part of the broker's time.
- A descriptor is taken only where :class:`.messages.Start` wants one. All others are discarded by the kernel,
  in flight. What was taken and is no pidfd is kept open: a close asks the file system that it is on, and
  that may be the caller's own program.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time

from slicer.broker.protocol import interface, wire
from slicer.broker.protocol.messages import MOST_BYTES, Start
from slicer.broker.server.peers import NoPeer, Peer, is_pidfd, peer_of
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    class Due(Protocol):
        def cancel(self) -> None: ...

    class Loop(Protocol):
        """What calls back when a descriptor is ready, or a time has come."""

        def watch(self, fd: int, act: Callable[[int], None], events: int = ...) -> None: ...
        def forget(self, fd: int) -> None: ...
        def after(self, seconds: float, act: Callable[[], None]) -> Due: ...

    class Failure(Protocol):
        """Why a call is not served: as :func:`.wire.encode_error` takes it."""

        name: str
        message: str
        where: str
        hint: str
        more: dict[str, Any]


_READ = select.EPOLLIN | select.EPOLLRDHUP
_LISTEN_ONLY = select.EPOLLRDHUP  # = POLLRDHUP; whether it has gone; what it sends stays with the kernel
_ENDS = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_ONE_DESCRIPTOR = socket.CMSG_LEN(4)
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ROOT = 0


@record
class Bounds:
    """What a caller may cost."""

    connections: int = 4096  # of all users; root's are not counted
    connections_each: int = 1024  # of a user
    silence_s: float = 10.0
    output_each: int = 4 << 20  # bytes that a user does not read
    descriptors_each: int = 8  # of a user, that are no pidfds and so stay open
    accepted_at_once: int = 64
    part_of_time: float = 0.25  # of the broker's, for one user ...
    burst_s: float = 0.5  # ... beyond so much of it


BOUNDS = Bounds()


class Account:
    """What the connections of one user cost together."""

    def __init__(self, uid: int) -> None:
        self.uid = uid
        self.connections: set[Connection] = set()
        self.output = 0
        self.debt_s = 0.0
        self.paid_s = time.monotonic()
        self.kept: list[int] = []  # descriptors that are no pidfds

    def pay(self, part: float) -> float:
        """The debt that is left by now."""
        now_s = time.monotonic()
        self.debt_s = max(0.0, self.debt_s - (now_s - self.paid_s) * part)
        self.paid_s = now_s
        return self.debt_s


class Call:
    """A call that came. Its descriptors are the receiver's to close."""

    def __init__(self, connection: Connection, message: Any, more: bool, fds: tuple[int, ...]) -> None:
        self.connection = connection
        self.message = message
        self.more = more
        self.fds = fds


class Connection:
    """One caller. At most one call of it is being answered."""

    def __init__(self, owner: Connections, sock: socket.socket, peer: Peer, account: Account) -> None:
        self.peer = peer
        self._owner = owner
        self._sock = sock
        self._account = account
        self._heard = b""  # of a message whose end has not come
        self._out: list[bytes] = []  # the first may be the rest of a frame; then what was not begun
        self._is_update = False  # the last of them is a reply that a newer one may replace
        self._more = False
        self._is_asking = False  # a call of it has no final reply yet
        self._is_open = True
        self._silence: Due | None = None

    @property
    def is_open(self) -> bool:
        """Whether anything that is sent could still arrive."""
        return self._is_open

    def send(self, message: Any, continues: bool = False) -> None:
        """Answer its call.

        With ``continues`` more replies follow, of which a newer one may take an unread one's place.
        Nothing is sent where the caller has gone, or asked for a single reply and this is not it.
        """
        if continues and not self._more:
            return
        self._answer(wire.encode_reply(message, continues), continues)

    def fail(self, error: Failure) -> None:
        """Answer its call with an error."""
        frame = wire.encode_error(error.name, error.message, error.where, error.hint, **error.more)
        self._answer(frame, False)

    def close(self) -> None:
        """End the connection. ``on_gone`` is not called. Safe to repeat."""
        self._owner._drop(self, is_told=False)

    # -- for Connections alone -----------------------------------------------------------------------------

    def _answer(self, frame: bytes, continues: bool) -> None:
        if not self._is_open:
            return
        self._owner._queue(self, frame, continues)


class Connections:
    """All callers. ``on_call`` gets each call; ``on_gone`` who has gone before its last answer."""

    def __init__(
        self, listener: int, loop: Loop, on_call: Callable[[Call], None],
        on_gone: Callable[[Connection], None], bounds: Bounds = BOUNDS,
    ) -> None:  # fmt: skip
        """``listener``: a descriptor that listens on a Unix stream socket. It stays the caller's."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, os.dup(listener))
        self._listener.setblocking(False)
        self._loop = loop
        self._on_call = on_call
        self._on_gone = on_gone
        self._bounds = bounds
        self._accounts: dict[int, Account] = {}
        self._open: set[Connection] = set()
        self._loop.watch(self._listener.fileno(), self._accept)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def must_stay(self) -> bool:
        """Whether the process had better not exit: that would close what is kept open, and might hang."""
        return any(account.kept for account in self._accounts.values())

    def close(self) -> None:
        """End all connections, and listen no longer."""
        for connection in list(self._open):
            self._drop(connection, is_told=False)
        self._loop.forget(self._listener.fileno())
        self._listener.close()

    # -- arriving and leaving --------------------------------------------------------------------------------

    def _accept(self, _events: int) -> None:
        for _ in range(self._bounds.accepted_at_once):
            try:
                sock, _address = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _SHORT:
                    raise
                self._pause_accepting()
                return
            sock.setblocking(False)
            self._arrive(sock)

    def _pause_accepting(self) -> None:
        """There are no descriptors left; those who wait to be accepted would wake us without end."""
        fd = self._listener.fileno()
        self._loop.forget(fd)
        self._loop.after(1.0, lambda: self._loop.watch(fd, self._accept) if fd >= 0 else None)

    def _arrive(self, sock: socket.socket) -> None:
        try:
            peer = peer_of(sock)
        except (NoPeer, OSError):
            sock.close()
            return
        account = self._accounts.setdefault(peer.uid, Account(peer.uid))
        if not self._has_room(account):
            _refuse(sock, f"uid {peer.uid} has {len(account.connections)} connections, all have {len(self)}")
            os.close(peer.pidfd)
            self._forget_account(account)
            return
        connection = Connection(self, sock, peer, account)
        account.connections.add(connection)
        self._open.add(connection)
        self._listen(connection)

    def _has_room(self, account: Account) -> bool:
        """Whether it may come in; for that the user with the most connections may have to lose one."""
        if account.uid == _ROOT:
            return True
        if len(account.connections) >= self._bounds.connections_each:
            return False
        if len(self._open) < self._bounds.connections:
            return True
        others = (each for each in self._accounts.values() if each.uid != _ROOT)
        largest = max(others, key=lambda each: len(each.connections))
        if len(largest.connections) <= 4 * (len(account.connections) + 1):
            return False
        self._drop(_least_loss(largest))
        return True

    def _drop(self, connection: Connection, *, is_told: bool = True) -> None:
        if not connection._is_open:
            return
        connection._is_open = False
        self._loop.forget(connection._sock.fileno())
        connection._sock.close()
        os.close(connection.peer.pidfd)
        if connection._silence is not None:
            connection._silence.cancel()
        account = connection._account
        account.output -= sum(map(len, connection._out))
        connection._out.clear()
        account.connections.discard(connection)
        self._open.discard(connection)
        self._forget_account(account)
        if connection._is_asking and is_told:  # not at once: whoever sends to many is in the midst of it
            self._loop.after(0.0, lambda: self._on_gone(connection))

    def _forget_account(self, account: Account) -> None:
        """A user who is gone costs nothing, unless it is remembered for something."""
        if not account.connections and not account.kept and not account.pay(self._bounds.part_of_time):
            self._accounts.pop(account.uid, None)

    # -- hearing ---------------------------------------------------------------------------------------------

    def _listen(self, connection: Connection) -> None:
        """Wait for the next call, or for its rest."""
        self._watch(connection)
        self._expect(connection)

    def _expect(self, connection: Connection) -> None:
        """The caller has some seconds for what it has to do next."""
        if connection._silence is not None:
            connection._silence.cancel()
        connection._silence = self._loop.after(self._bounds.silence_s, lambda: self._drop(connection))

    def _watch(self, connection: Connection) -> None:
        events = _LISTEN_ONLY if connection._is_asking else _READ
        if connection._out:
            events |= select.EPOLLOUT
        self._loop.watch(
            connection._sock.fileno(), lambda events: self._is_ready(connection, events), events
        )

    def _is_ready(self, connection: Connection, events: int) -> None:
        if events & select.EPOLLOUT:
            self._write(connection)
        if not connection._is_open:
            return
        if events & select.EPOLLIN and not connection._is_asking:
            self._read(connection)
        elif events & _ENDS and _has_gone(connection._sock):
            self._drop(connection)

    def _read(self, connection: Connection) -> None:
        account = connection._account
        over_s = account.pay(self._bounds.part_of_time) - self._bounds.burst_s
        if over_s > 0 and account.uid != _ROOT:
            self._pause(connection, over_s / self._bounds.part_of_time)
            return
        began_s = time.monotonic()
        try:
            found = connection._sock.recv(MOST_BYTES - len(connection._heard), socket.MSG_PEEK)
            end = found.find(b"\0")
            if end < 0:
                self._take_part(connection, found)
            else:
                self._take_call(connection, found[: end + 1])
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # reset by the peer
            self._drop(connection)
        finally:
            account.debt_s += time.monotonic() - began_s

    def _pause(self, connection: Connection, seconds: float) -> None:
        """The user has had its part of the broker's time: this call is read later."""
        fd = connection._sock.fileno()
        self._loop.watch(fd, lambda _events: self._drop(connection), _LISTEN_ONLY)
        if connection._silence is not None:
            connection._silence.cancel()
        connection._silence = self._loop.after(seconds, lambda: self._listen(connection))

    def _take_part(self, connection: Connection, found: bytes) -> None:
        """Take the beginning of a call. A descriptor that came with it is lost."""
        connection._sock.recv(len(found))
        connection._heard += found
        if not found or len(connection._heard) >= MOST_BYTES:
            self._drop(connection)

    def _take_call(self, connection: Connection, rest: bytes) -> None:
        try:
            call = wire.decode_call(connection._heard + rest)
        except wire.BadCall as bad:
            connection._sock.recv(len(rest))
            connection._heard = b""
            self._refuse_call(connection, bad)
            return
        fds: tuple[int, ...] = ()
        if isinstance(call.message, Start) and len(connection._account.kept) < self._bounds.descriptors_each:
            fds = self._take_descriptor(connection, len(rest))
        else:
            connection._sock.recv(len(rest))
        connection._heard = b""
        self._take(connection, call, fds)

    def _take(self, connection: Connection, call: wire.Call, fds: tuple[int, ...]) -> None:
        connection._is_asking = True
        connection._more = call.more
        if connection._silence is not None:
            connection._silence.cancel()
        self._watch(connection)
        if isinstance(call.message, (wire.GetInfo, wire.GetInterfaceDescription)):
            connection._answer(interface.answer(call.message), False)
            return
        self._on_call(Call(connection, call.message, call.more, fds))

    def _refuse_call(self, connection: Connection, bad: wire.BadCall) -> None:
        """Say what was wrong. Who sends noise is not listened to any longer."""
        connection._is_asking = True
        connection._more = False
        connection._answer(bad.reply, False)
        if bad.is_noise:
            self._drop(connection, is_told=False)

    def _take_descriptor(self, connection: Connection, size: int) -> tuple[int, ...]:
        """Take the call of ``size`` bytes, and the pidfd that came along. Several are refused."""
        _, control, flags, _ = connection._sock.recvmsg(size, _ONE_DESCRIPTOR, socket.MSG_CMSG_CLOEXEC)
        fds = [
            fd
            for level, kind, data in control
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS
            for fd in struct.unpack(f"{len(data) // 4}i", data[: len(data) // 4 * 4])
        ]
        strange = [fd for fd in fds if not is_pidfd(fd)]
        connection._account.kept += strange
        if strange or flags & socket.MSG_CTRUNC or len(fds) != 1:
            for fd in set(fds) - set(strange):
                os.close(fd)
            return ()
        return tuple(fds)

    # -- answering -------------------------------------------------------------------------------------------

    def _queue(self, connection: Connection, frame: bytes, continues: bool) -> None:
        out = connection._out
        was_idle = not out
        if len(out) > 1 and connection._is_update:
            connection._account.output -= len(out.pop())
        out.append(frame)
        connection._account.output += len(frame)
        connection._is_update = continues
        if not continues:
            connection._is_asking = False
        if was_idle:
            self._write(connection)
        if connection._account.output > self._bounds.output_each and connection._account.uid != _ROOT:
            self._drop(connection)
        if connection._is_open and not continues:
            self._listen(connection)

    def _write(self, connection: Connection) -> None:
        out = connection._out
        had = len(out)
        try:
            while out:
                sent = connection._sock.send(out[0], socket.MSG_NOSIGNAL)
                connection._account.output -= sent
                if sent < len(out[0]):
                    out[0] = out[0][sent:]
                else:
                    del out[0]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:  # it has gone
            self._drop(connection)
            return
        if bool(out) != bool(had) or len(out) != had:
            self._watch(connection)
            if not connection._is_asking:
                self._expect(connection)


def _has_gone(sock: socket.socket) -> bool:
    """Whether the peer has closed its end: an event may be of an older connection of the same descriptor."""
    poller = select.poll()
    poller.register(sock.fileno(), _LISTEN_ONLY)
    return bool(poller.poll(0))


def _least_loss(account: Account) -> Connection:
    """The connection of a user that is worth least: one that does not wait, if there is one."""
    return min(account.connections, key=lambda each: (each._is_asking, -each.peer.start))


def _refuse(sock: socket.socket, message: str) -> None:
    hint = "end some of your waiting jobs"
    try:
        sock.send(wire.encode_error("TooMany", message, hint=hint), socket.MSG_NOSIGNAL)
    except OSError:
        pass  # it has gone, or never reads
    finally:
        sock.close()
