"""Closes connections without waiting for anything that their callers have sent.

An unread message may contain descriptors, and closing the connection closes them: gigabytes of memory that
have to be cleared, a socket that lingers, a file on the caller's own file system (FUSE) that never answers.
From Linux 6.16 on the kernel sends none of them to the broker (SO_PASSRIGHTS). Before that, such a connection
is passed on to a child, one for each user, which closes it. The child may hang there for as long as the user
likes.
"""

from __future__ import annotations

import array
import errno
import os
import socket
from collections.abc import Callable
from contextlib import suppress

from slicer.broker.server.loop import Due, Loop, ProcessWatch
from slicer.kernel.proc import be_child

_SO_PASSRIGHTS = 83  # asm-generic/socket.h; Linux 6.16
_AGAIN_S = 0.5  # until the next try, when there was no room for a child, or in its queue
_IDLE_S = 5.0  # how long a child without work is kept
_NOT_NOW = (
    errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS, errno.ENOBUFS,
    errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN,
)  # fmt: skip  # there is no room for a child or in its queue, or it was killed


def refuse_descriptors(listener: socket.socket) -> None:
    """Make the kernel withhold descriptors from connections accepted from now on, if it supports that."""
    with suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)


class Closer:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._children: dict[int, _ClosingChild] = {}  # by their users' uids

    @property
    def is_busy(self) -> bool:
        return any(child.is_busy for child in self._children.values())

    def close(self, sock: socket.socket, uid: int) -> None:
        """End a connection of this user. The user can send nothing more over it."""
        sock.shutdown(socket.SHUT_RDWR)
        if not _may_bring_descriptors(sock):
            sock.close()
            return
        child = self._children.get(uid)
        if child is None:
            child = self._children[uid] = _ClosingChild(self._loop, lambda: self._forget(uid))
        child.take(sock)

    def _forget(self, uid: int) -> None:
        self._children.pop(uid, None)

    def end(self) -> None:
        """Release the children. They close their connections and exit."""
        for child in tuple(self._children.values()):
            child.end()


class _ClosingChild:
    """The child of one user. It exists while it has work."""

    def __init__(self, loop: Loop, ended: Callable[[], None]) -> None:
        self._loop = loop
        self._ended = ended
        self._left: list[socket.socket] = []  # not passed on yet
        self._given = 0  # passed on, and not closed yet
        self._is_let_go = True  # whether the last of these is closed here
        self._socket: socket.socket | None = None
        self._due: Due | None = None

    @property
    def is_busy(self) -> bool:
        return bool(self._left or self._given)

    def take(self, sock: socket.socket) -> None:
        self._left.append(sock)
        if len(self._left) == 1:
            self._pass_on()

    def _pass_on(self) -> None:
        try:
            if self._socket is None:
                self._start()
            while self._left or not self._is_let_go:
                self._give_next()
        except OSError as error:
            if error.errno not in _NOT_NOW:
                raise
            self._later(_AGAIN_S, self._pass_on)

    def _give_next(self) -> None:
        """Send a connection; the next message says that it is closed here and may be closed there."""
        assert self._socket is not None
        if not self._is_let_go:
            self._socket.send(b"x", socket.MSG_DONTWAIT)
            self._is_let_go = True
            return
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [self._left[0].fileno()]))]
        self._socket.sendmsg([b"x"], control, socket.MSG_DONTWAIT)
        self._left.pop(0).close()
        self._given += 1
        self._is_let_go = False

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if not pid:
            be_child(lambda: _close_all(theirs.fileno()))
        theirs.close()
        ProcessWatch(self._loop, os.pidfd_open(pid), lambda: _reap(pid))
        self._socket = ours
        self._loop.watch(ours.fileno(), self._heard)

    def _heard(self, _: int) -> None:
        """The child reports each connection that it has closed."""
        assert self._socket is not None
        try:
            is_there = bool(self._socket.recv(1, socket.MSG_DONTWAIT))
        except ConnectionResetError:
            is_there = False
        if not is_there:  # it was killed
            self._hang_up()
            self._given, self._is_let_go = 0, True
        else:
            self._given -= 1
        if not self.is_busy:
            self._later(_IDLE_S, self._end_if_idle)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        if self._due is not None:
            self._due.cancel()
        self._due = self._loop.after(seconds, act)

    def _end_if_idle(self) -> None:
        if not self.is_busy:
            self.end()

    def end(self) -> None:
        """Release the child: it exits when it has closed everything."""
        if self._due is not None:
            self._due.cancel()
        self._hang_up()
        self._ended()

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._loop.forget(self._socket.fileno())
            self._socket.close()
            self._socket = None


def _may_bring_descriptors(sock: socket.socket) -> bool:
    """Whether there is unread data on a connection over which descriptors can be sent."""
    try:
        if not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
            return False
    except OSError:  # reset by the peer: nothing is unread
        return False
    try:
        return bool(sock.getsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS))
    except OSError:
        return True  # an older kernel


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)  # it has ended already


def _close_all(inbox: int) -> None:
    """Close everything that arrives. Runs in the child."""
    os.closerange(3, inbox)
    os.closerange(inbox + 1, os.sysconf("SC_OPEN_MAX"))
    with socket.socket(fileno=inbox) as from_parent:
        while fds := socket.recv_fds(from_parent, 1, 1)[1]:
            from_parent.recv(1)  # the broker has closed its copy
            os.close(fds[0])
            from_parent.send(b"x", socket.MSG_NOSIGNAL)
