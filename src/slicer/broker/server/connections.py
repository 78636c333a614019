"""The broker's sockets: they read complete calls, write replies, and let no caller delay others.

A caller may send half a message and sleep, send without end, never read, connect ten thousand times, or pass
descriptors that block the process that closes them. Each of these harms only the caller:

- Only one call at a time is read from a connection, and nothing while it is being answered.
- A client that sends nothing, stalls in mid-message or does not read its answer is disconnected after 10 s;
  one that waits for a grant is not.
- The connections, the unread output and the broker's CPU time are limited for each user.
- No descriptor is ever received or closed here: a client that sends one is disconnected, and :mod:`.closing`
  does the rest.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Callable

from slicer.broker.protocol import interface, wire
from slicer.broker.protocol.messages import MOST_BYTES
from slicer.broker.server.closing import Closer, refuse_descriptors
from slicer.broker.server.connection import BOUNDS, Account, CallerConnection, CallerLimits, ReceivedCall
from slicer.broker.server.loop import Loop
from slicer.broker.server.names import Subordinates
from slicer.broker.server.peers import NoPeer, peer_of
from slicer.kernel.peer import credentials

__all__ = ["CallerConnection", "Connections", "ReceivedCall"]

_READ = select.EPOLLIN | select.EPOLLRDHUP
_LISTEN_ONLY = select.EPOLLRDHUP  # = POLLRDHUP: only a disconnect; what the caller sends stays in the kernel
_ENDS = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_SHORTAGE_S = 1.0
_ROOT = 0


class Connections:
    """All callers. ``on_call`` gets each call; ``on_gone`` each that disconnects before its last answer."""

    def __init__(
        self, listener: int, loop: Loop, on_call: Callable[[ReceivedCall], None],
        on_gone: Callable[[CallerConnection], None], bounds: CallerLimits = BOUNDS,
        is_user: Callable[[int], bool | None] = lambda uid: None,
    ) -> None:  # fmt: skip
        """``listener``: a descriptor that listens on a Unix stream socket. The caller keeps it.

        ``is_user``: as in :class:`Subordinates`.
        """
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, os.dup(listener))
        self._listener.setblocking(False)
        refuse_descriptors(self._listener)
        self._loop = loop
        self._closer = Closer(loop)
        self._on_call = on_call
        self._on_gone = on_gone
        self._bounds = bounds
        self._accounts: dict[int, Account] = {}
        self._open: set[CallerConnection] = set()
        self._subordinates = Subordinates(is_user)
        self._callers: set[Account] = set()  # since the last charge
        self._loop.watch(self._listener.fileno(), self._accept)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def must_stay(self) -> bool:
        """Whether connections that have ended are not closed yet."""
        return self._closer.is_busy

    def close(self) -> None:
        for connection in list(self._open):
            self.drop(connection, is_told=False)
        self._loop.forget(self._listener.fileno())
        self._listener.close()
        self._closer.end()

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
                # No descriptors are left. Clients that wait to be accepted would wake us again and again.
                self._loop.forget(self._listener.fileno())
                self._loop.after(_SHORTAGE_S, self._accept_again)
                return
            sock.setblocking(False)
            # Out-of-band data would wake us without being readable, and could contain descriptors.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
            self._arrive(sock)

    def _accept_again(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.watch(self._listener.fileno(), self._accept)

    def _arrive(self, sock: socket.socket) -> None:
        """Admit a new connection; later, if its user has used up its CPU time, because others come first."""
        uid = credentials(sock)[1]
        account = self._accounts.setdefault(uid, Account(uid))
        if not self._must_wait(account):
            self._admit(account, sock)
        elif len(account.held) < self._bounds.connections_each:
            self._hold(account, sock)
        else:
            self._closer.close(sock, uid)

    def _admit(self, account: Account, sock: socket.socket) -> None:
        began_s, uid = time.process_time(), account.uid
        if objection := self._objection(account):
            _refuse(sock, objection)
            self._closer.close(sock, uid)
        else:
            try:
                connection = CallerConnection(self, sock, peer_of(sock), account)
                account.connections.add(connection)
                self._open.add(connection)
                self._listen(connection)
            except (NoPeer, OSError):
                self._closer.close(sock, uid)
        account.debt_s += time.process_time() - began_s
        self._forget_account(account)

    def _objection(self, account: Account) -> bytes:
        """The error that a new connection gets instead of being admitted, or b""."""
        uid = account.uid
        if owner := self._subordinates.owner_of(uid):
            text = f"uid {uid} is a subordinate uid of {owner} (/etc/subuid)"
            hint = f"ask as {owner}, outside of a container; if it is a user: user_uids in the policy"
            return wire.encode_error("NotAllowed", text, hint=hint)
        if self._has_room(account):
            return b""
        text = f"uid {uid} has {len(account.connections)} connections, all users together {len(self)}"
        return wire.encode_error("TooMany", text, hint="end some of your waiting jobs")

    def _has_room(self, account: Account) -> bool:
        """Whether it can be admitted. The user with the most connections may have to lose one for it."""
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

    def drop(self, connection: CallerConnection, *, is_told: bool = True) -> None:
        if not connection.is_open:
            return
        connection.is_open = False
        self._loop.forget(connection.sock.fileno())
        self._closer.close(connection.sock, connection.peer.uid)
        os.close(connection.peer.pidfd)
        if connection.silence is not None:
            connection.silence.cancel()
        account = connection.account
        account.output -= sum(map(len, connection.out))
        connection.out.clear()
        account.connections.discard(connection)
        self._open.discard(connection)
        self._forget_account(account)
        if connection.is_asking and is_told:  # not at once: the caller of this method may be sending to many
            self._loop.after(0.0, lambda: self._on_gone(connection))

    def _forget_account(self, account: Account) -> None:
        """Forget a user without connections, unless there is something to remember."""
        if not account.connections and not account.held and not account.pay(self._bounds.part_of_time):
            self._accounts.pop(account.uid, None)

    # -- hearing ---------------------------------------------------------------------------------------------

    def _listen(self, connection: CallerConnection) -> None:
        """Wait for the next call, or for the rest of it."""
        self._watch(connection)
        self._expect(connection)

    def _expect(self, connection: CallerConnection) -> None:
        """Give the caller some seconds for its next step."""
        if connection.silence is not None:
            connection.silence.cancel()
        connection.silence = self._loop.after(self._bounds.silence_s, lambda: self.drop(connection))

    def _watch(self, connection: CallerConnection) -> None:
        events = _LISTEN_ONLY if connection.is_asking else _READ
        if connection.out:
            events |= select.EPOLLOUT
        self._loop.watch(connection.sock.fileno(), lambda events: self._is_ready(connection, events), events)

    def _is_ready(self, connection: CallerConnection, events: int) -> None:
        if events & select.EPOLLOUT:
            self._write(connection)
        if not connection.is_open:
            return
        if events & select.EPOLLIN and not connection.is_asking:
            (self._pause if self._must_wait(connection.account) else self._hear)(connection)
        elif events & _ENDS and _has_gone(connection.sock):
            self.drop(connection)

    def _hear(self, connection: CallerConnection) -> None:
        began_s = time.process_time()
        try:
            room = MOST_BYTES - len(connection.heard)
            found, _, flags, _ = connection.sock.recvmsg(room, 0, socket.MSG_PEEK)
            end = found.find(b"\0")
            if flags & socket.MSG_CTRUNC:  # it contains descriptors, for which no room was given
                reply = wire.encode_error("NotAllowed", "calls must not pass file descriptors")
                self._refuse_call(connection, reply, is_noise=True)
            elif end < 0:
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
        """Charge the CPU time to all users that have called since the last charge."""
        for account in self._callers:
            account.debt_s += seconds / len(self._callers)
        self._callers.clear()

    def _must_wait(self, account: Account) -> bool:
        """Whether the user has used up its CPU time, or has others that wait for that reason."""
        return account.uid != _ROOT and (bool(account.held) or self._over_s(account) > 0)

    def _over_s(self, account: Account) -> float:
        """The CPU time by which a user exceeds its part."""
        return account.pay(self._bounds.part_of_time) - self._bounds.burst_s

    def _pause(self, connection: CallerConnection) -> None:
        """The user has used up its part of the CPU time: its calls are read later, one by one."""
        self._loop.watch(connection.sock.fileno(), lambda _: self._is_ready(connection, _ENDS), _LISTEN_ONLY)
        if connection.silence is not None:
            connection.silence.cancel()
        self._hold(connection.account, connection)

    def _hold(self, account: Account, one: CallerConnection | socket.socket) -> None:
        account.held.append(one)
        if len(account.held) == 1:
            self._resume_later(account)

    def _resume_later(self, account: Account) -> None:
        wait_s = max(0.0, self._over_s(account)) / self._bounds.part_of_time
        self._loop.after(wait_s, lambda: self._resume(account))

    def _resume(self, account: Account) -> None:
        """Read from the first of a user's connections that were held, or admit it."""
        first = account.held[0]
        if isinstance(first, socket.socket):
            self._admit(account, first)
        elif first.is_open:
            self._listen(first)
            self._hear(first)
        del account.held[0]
        if account.held:
            self._resume_later(account)

    def _take_part(self, connection: CallerConnection, found: bytes) -> None:
        connection.sock.recv(len(found))
        connection.heard += found
        if not found or len(connection.heard) >= MOST_BYTES:
            self.drop(connection)

    def _take_call(self, connection: CallerConnection, rest: bytes) -> None:
        connection.sock.recv(len(rest))
        frame, connection.heard = connection.heard + rest, b""
        try:
            call = wire.decode_call(frame)
        except wire.BadCall as bad:
            self._refuse_call(connection, bad.reply, is_noise=bad.is_noise)
        else:
            self._take(connection, call)

    def _take(self, connection: CallerConnection, call: wire.WireCall) -> None:
        connection.is_asking = True
        connection.more = call.more
        if connection.silence is not None:
            connection.silence.cancel()
        self._watch(connection)
        if isinstance(call.message, (wire.GetInfo, wire.GetInterfaceDescription)):
            connection.answer(interface.answer(call.message), False)
            return
        self._callers.add(connection.account)
        self._on_call(ReceivedCall(connection, call.message))

    def _refuse_call(self, connection: CallerConnection, reply: bytes, *, is_noise: bool) -> None:
        """Report the error. A client that sends noise is disconnected."""
        connection.is_asking = True
        connection.more = False
        connection.answer(reply, False)
        if is_noise:
            self.drop(connection, is_told=False)

    # -- answering -------------------------------------------------------------------------------------------

    def queue(self, connection: CallerConnection, frame: bytes, continues: bool) -> None:
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

    def _write(self, connection: CallerConnection) -> None:
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
        except OSError:  # it has disconnected
            self.drop(connection)
            return
        if bool(out) != bool(had) or len(out) != had:
            self._watch(connection)
            if not connection.is_asking:
                self._expect(connection)


def _has_gone(sock: socket.socket) -> bool:
    """Whether the peer has closed its end: an event may be of an earlier connection's descriptor."""
    poller = select.poll()
    poller.register(sock.fileno(), _LISTEN_ONLY)
    return bool(poller.poll(0))


def _least_loss(account: Account) -> CallerConnection:
    """A user's least valuable connection: one that does not wait, if there is one."""
    return min(account.connections, key=lambda each: (each.is_asking, -each.peer.start))


def _refuse(sock: socket.socket, frame: bytes) -> None:
    try:
        sock.send(frame, socket.MSG_NOSIGNAL)
    except OSError:
        pass  # it has disconnected
