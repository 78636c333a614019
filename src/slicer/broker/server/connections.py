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
from contextlib import nullcontext

from slicer.broker.protocol import interface, wire
from slicer.broker.protocol.messages import MOST_BYTES, Start
from slicer.broker.server.connection import BOUNDS, Account, Bounds, Call, Connection
from slicer.broker.server.peers import NoPeer, is_pidfd, peer_of, uid_of
from slicer.broker.server.subordinate import Subordinates

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Protocol

    from slicer.broker.server.connection import Due

    class Loop(Protocol):
        """What calls back when a descriptor is ready, or a time has come."""

        def watch(self, fd: int, act: Callable[[int], None], events: int = ...) -> None: ...
        def forget(self, fd: int) -> None: ...
        def after(self, seconds: float, act: Callable[[], None]) -> Due: ...


__all__ = ["Call", "Connection", "Connections"]

_READ = select.EPOLLIN | select.EPOLLRDHUP
_LISTEN_ONLY = select.EPOLLRDHUP  # = POLLRDHUP; whether it has gone; what it sends stays with the kernel
_ENDS = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_ONE_DESCRIPTOR = socket.CMSG_LEN(4)
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_SHORTAGE_S = 1.0
_ROOT = 0


class Connections:
    """All callers. ``on_call`` gets each call; ``on_gone`` who has gone before its last answer."""

    def __init__(
        self, listener: int, loop: Loop, on_call: Callable[[Call], None],
        on_gone: Callable[[Connection], None], bounds: Bounds = BOUNDS,
        impatience: AbstractContextManager[None] | None = None,
    ) -> None:  # fmt: skip
        """``listener``: a descriptor that listens on a Unix stream socket. It stays the caller's.

        ``impatience``: within it, no system call waits for what somebody has sent.
        """
        self._impatience = impatience or nullcontext()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, os.dup(listener))
        self._listener.setblocking(False)
        self._loop = loop
        self._on_call = on_call
        self._on_gone = on_gone
        self._bounds = bounds
        self._accounts: dict[int, Account] = {}
        self._open: set[Connection] = set()
        self._subordinates = Subordinates()
        self._callers: set[Account] = set()  # since the last charge
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
            self.drop(connection, is_told=False)
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
        self._loop.forget(self._listener.fileno())
        self._loop.after(_SHORTAGE_S, self._accept_again)

    def _accept_again(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.watch(self._listener.fileno(), self._accept)

    def _arrive(self, sock: socket.socket) -> None:
        began_s = time.process_time()
        uid = uid_of(sock)
        account = self._accounts.setdefault(uid, Account(uid))
        if objection := self._objection(account):
            _refuse(sock, objection)
            self._close(sock)
        else:
            try:
                self._let_in(Connection(self, sock, peer_of(sock), account))
            except (NoPeer, OSError):
                self._close(sock)
        account.debt_s += time.process_time() - began_s
        self._forget_account(account)

    def _let_in(self, connection: Connection) -> None:
        connection.account.connections.add(connection)
        self._open.add(connection)
        self._listen(connection)

    def _objection(self, account: Account) -> bytes:
        """The error that a newcomer is told instead of being let in."""
        uid = account.uid
        if owner := self._subordinates.owner_of(uid):
            text = f"uid {uid} is a subordinate uid of {owner} (/etc/subuid)"
            return wire.encode_error("NotAllowed", text, hint=f"ask as {owner}, outside of a container")
        if self._has_room(account):
            return b""
        text = f"uid {uid} has {len(account.connections)} connections, all users together {len(self)}"
        return wire.encode_error("TooMany", text, hint="end some of your waiting jobs")

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
        self.drop(_least_loss(largest))
        return True

    def drop(self, connection: Connection, *, is_told: bool = True) -> None:
        if not connection.is_open:
            return
        connection.is_open = False
        self._loop.forget(connection.sock.fileno())
        self._close(connection.sock)
        os.close(connection.peer.pidfd)
        if connection.silence is not None:
            connection.silence.cancel()
        account = connection.account
        account.output -= sum(map(len, connection.out))
        connection.out.clear()
        account.connections.discard(connection)
        self._open.discard(connection)
        self._forget_account(account)
        if connection.is_asking and is_told:  # not at once: whoever sends to many is in the midst of it
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
        if connection.silence is not None:
            connection.silence.cancel()
        connection.silence = self._loop.after(self._bounds.silence_s, lambda: self.drop(connection))

    def _watch(self, connection: Connection) -> None:
        events = _LISTEN_ONLY if connection.is_asking else _READ
        if connection.out:
            events |= select.EPOLLOUT
        self._loop.watch(
            connection.sock.fileno(), lambda events: self._is_ready(connection, events), events
        )

    def _is_ready(self, connection: Connection, events: int) -> None:
        if events & select.EPOLLOUT:
            self._write(connection)
        if not connection.is_open:
            return
        if events & select.EPOLLIN and not connection.is_asking:
            self._read(connection)
        elif events & _ENDS and _has_gone(connection.sock):
            self.drop(connection)

    def _read(self, connection: Connection) -> None:
        account = connection.account
        if account.uid != _ROOT and (account.held or self._over_s(account) > 0):
            self._hold(connection)
        else:
            self._hear(connection)

    def _hear(self, connection: Connection) -> None:
        began_s = time.process_time()
        try:
            with self._impatience:
                found = connection.sock.recv(MOST_BYTES - len(connection.heard), socket.MSG_PEEK)
            end = found.find(b"\0")
            if end < 0:
                self._take_part(connection, found)
            else:
                self._take_call(connection, found[: end + 1])
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # reset by the peer
            self.drop(connection)
        finally:
            connection.account.debt_s += time.process_time() - began_s

    def charge(self, seconds: float) -> None:
        """Share what was done for all who called since the last time among them."""
        for account in self._callers:
            account.debt_s += seconds / len(self._callers)
        self._callers.clear()

    def _over_s(self, account: Account) -> float:
        """By how much a user has had more than its part of the broker's time."""
        return account.pay(self._bounds.part_of_time) - self._bounds.burst_s

    def _hold(self, connection: Connection) -> None:
        """The user has had its part of the broker's time: its calls are read later, one by one."""
        account = connection.account
        self._loop.watch(connection.sock.fileno(), lambda _: self._is_ready(connection, _ENDS), _LISTEN_ONLY)
        if connection.silence is not None:
            connection.silence.cancel()
        account.held.append(connection)
        if len(account.held) == 1:
            self._resume_later(account)

    def _resume_later(self, account: Account) -> None:
        wait_s = max(0.0, self._over_s(account)) / self._bounds.part_of_time
        self._loop.after(wait_s, lambda: self._resume(account))

    def _resume(self, account: Account) -> None:
        """Hear the first of a user's connections that were held."""
        connection = account.held[0]
        if connection.is_open:
            self._listen(connection)
            self._hear(connection)
        del account.held[0]
        if account.held:
            self._resume_later(account)

    def _take_part(self, connection: Connection, found: bytes) -> None:
        """Take the beginning of a call. A descriptor that came with it is lost."""
        self._discard(connection, len(found))
        connection.heard += found
        if not found or len(connection.heard) >= MOST_BYTES:
            self.drop(connection)

    def _take_call(self, connection: Connection, rest: bytes) -> None:
        try:
            call = wire.decode_call(connection.heard + rest)
        except wire.BadCall as bad:
            self._discard(connection, len(rest))
            connection.heard = b""
            self._refuse_call(connection, bad)
            return
        fds: tuple[int, ...] = ()
        if isinstance(call.message, Start) and len(connection.account.kept) < self._bounds.descriptors_each:
            fds = self._take_descriptor(connection, len(rest))
        else:
            self._discard(connection, len(rest))
        connection.heard = b""
        self._take(connection, call, fds)

    def _take(self, connection: Connection, call: wire.Call, fds: tuple[int, ...]) -> None:
        connection.is_asking = True
        connection.more = call.more
        if connection.silence is not None:
            connection.silence.cancel()
        self._watch(connection)
        if isinstance(call.message, (wire.GetInfo, wire.GetInterfaceDescription)):
            connection.answer(interface.answer(call.message), False)
            return
        self._callers.add(connection.account)
        self._on_call(Call(connection, call.message, call.more, fds))

    def _refuse_call(self, connection: Connection, bad: wire.BadCall) -> None:
        """Say what was wrong. Who sends noise is not listened to any longer."""
        connection.is_asking = True
        connection.more = False
        connection.answer(bad.reply, False)
        if bad.is_noise:
            self.drop(connection, is_told=False)

    def _discard(self, connection: Connection, size: int) -> None:
        """Take so many bytes off the socket, and what came along."""
        with self._impatience:
            connection.sock.recv(size)

    def _close(self, sock: socket.socket) -> None:
        with self._impatience:
            sock.close()

    def _take_descriptor(self, connection: Connection, size: int) -> tuple[int, ...]:
        """Take the call of ``size`` bytes, and the pidfd that came along. Several are refused."""
        with self._impatience:
            _, control, flags, _ = connection.sock.recvmsg(size, _ONE_DESCRIPTOR, socket.MSG_CMSG_CLOEXEC)
        fds = [
            fd
            for level, kind, data in control
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS
            for fd in struct.unpack(f"{len(data) // 4}i", data[: len(data) // 4 * 4])
        ]
        strange = [fd for fd in fds if not is_pidfd(fd)]
        connection.account.kept += strange
        if strange or flags & socket.MSG_CTRUNC or len(fds) != 1:
            for fd in set(fds) - set(strange):
                os.close(fd)
            return ()
        return tuple(fds)

    # -- answering -------------------------------------------------------------------------------------------

    def queue(self, connection: Connection, frame: bytes, continues: bool) -> None:
        out = connection.out
        was_idle = not out
        if len(out) > 1 and connection.is_update:
            connection.account.output -= len(out.pop())
        out.append(frame)
        connection.account.output += len(frame)
        connection.is_update = continues
        if not continues:
            connection.is_asking = False
        if was_idle:
            self._write(connection)
        if connection.account.output > self._bounds.output_each and connection.account.uid != _ROOT:
            self.drop(connection)
        if connection.is_open and not continues:
            self._listen(connection)

    def _write(self, connection: Connection) -> None:
        out = connection.out
        had = len(out)
        try:
            while out:
                sent = connection.sock.send(out[0], socket.MSG_NOSIGNAL)
                connection.account.output -= sent
                if sent < len(out[0]):
                    out[0] = out[0][sent:]
                else:
                    del out[0]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:  # it has gone
            self.drop(connection)
            return
        if bool(out) != bool(had) or len(out) != had:
            self._watch(connection)
            if not connection.is_asking:
                self._expect(connection)


def _has_gone(sock: socket.socket) -> bool:
    """Whether the peer has closed its end: an event may be of an older connection of the same descriptor."""
    poller = select.poll()
    poller.register(sock.fileno(), _LISTEN_ONLY)
    return bool(poller.poll(0))


def _least_loss(account: Account) -> Connection:
    """The connection of a user that is worth least: one that does not wait, if there is one."""
    return min(account.connections, key=lambda each: (each.is_asking, -each.peer.start))


def _refuse(sock: socket.socket, frame: bytes) -> None:
    try:
        sock.send(frame, socket.MSG_NOSIGNAL)
    except OSError:
        pass  # it has gone
