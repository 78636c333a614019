"""The starters: small processes that fork keepers and wait for systemd in the queue's place.

systemd takes some milliseconds to start a scope, and seconds when memory is short. The D-Bus library blocks
until the answer, so the queue leaves that to the starters. They are forked when the queue has opened only the
ledger. So a keeper inherits nothing that the queue gathers later: its jobs, the GPUs' driver, the files of
other leases.
"""

from __future__ import annotations

import errno
import gc
import os
import pickle
import resource
import signal
import socket
from collections.abc import Callable

from slicer import faults
from slicer.backend import QueueBackend
from slicer.broker.client.backend import BrokerBackend
from slicer.errors import BackendError, BrokerError, SlicerError
from slicer.job.job import Job
from slicer.job.plan import backend_of
from slicer.job.supervisor import cannot_fork
from slicer.kernel import proc
from slicer.kernel.open_files import close_all_but
from slicer.kernel.sleep import until_readable
from slicer.ledger.ledger import Ledger
from slicer.model import Lease, manager_of
from slicer.queue.engine.local import keeper
from slicer.record import record, replace

_STARTERS = 2  # enough to keep systemd busy, which does one thing at a time
_LONGEST = 1 << 16  # bytes of an answer
_MOST_FDS = 16  # in a message
# The kernel limits the number of descriptors in flight.
_SHORTAGES = (errno.ETOOMANYREFS, errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM)


@record
class StartedKeeper:
    """A keeper that waits in its scope for its order."""

    cgroup: str
    pid: int
    pidfd: int
    why_no_cap: str | None = None  # as in Backend


@record
class _Environment:
    """The environment for a job's lease, in place of :class:`Job`'s function, which cannot be pickled."""

    variables: dict[str, str]

    def __call__(self, gpus: tuple[str, ...]) -> dict[str, str]:
        return self.variables


class Starters:
    """All starters. ``mask`` is the signal mask for commands."""

    def __init__(self, backends: Backends, ledger: Ledger, mask: frozenset[int]) -> None:
        """To be called before the queue opens descriptors that keepers must not have. Raises BackendError."""
        keeper.preload()
        # Without systemd, one starter is enough.
        count = _STARTERS if backends.usual.name == "systemd" else 1
        # Commands get the original limit. The queue needs a higher one: it has four descriptors for each job.
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        queue = os.getpid()

        def serve(theirs: socket.socket) -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            _StarterProcess(theirs, backends, ledger, mask, queue).serve()

        self._starters = [_Starter(serve) for _ in range(count)]
        self._found: dict[str, StartedKeeper | SlicerError] = {}
        resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))

    def begin(self, job: Job, gpus: tuple[str, ...], descriptors: tuple[int, ...]) -> None:
        """Request a keeper and its scope. ``descriptors``: in the order of _be_keeper."""
        order = replace(job, env=_Environment(job.env(gpus)))
        min(self._starters, key=lambda starter: len(starter.asked)).ask(order, descriptors)

    def poll(self, job: str) -> StartedKeeper | None:
        """The keeper, once it is in its scope (returned once); None until then. Raises BackendError."""
        if job not in self._found:
            for starter in self._starters:
                self._found.update(starter.take())
        found = self._found.pop(job, None)
        if isinstance(found, SlicerError):
            raise found
        return found

    def forget(self, job: str) -> None:
        _discard(self._found.pop(job, None))
        for starter in self._starters:
            starter.asked.discard(job)

    def descriptors(self) -> list[int]:
        """The descriptors; readable when :meth:`poll` may have news."""
        return [starter.fd for starter in self._starters if starter.asked]

    def close(self) -> None:
        """End the starters. The keepers live on."""
        for starter in self._starters:
            starter.close()


class _Starter:
    """The queue's end of one starter. A killed starter is replaced."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        """``serve``: the starter's main function, called with its end of the socket. Raises BackendError."""
        self._serve = serve
        self.asked: set[str] = set()  # jobs without an answer
        self._answers: dict[str, StartedKeeper | SlicerError] = {}  # not taken yet
        self._begin()

    @property
    def fd(self) -> int:
        return self._socket.fileno()

    def _begin(self) -> None:
        """Fork the starter. Raises BackendError; then the next :meth:`ask` tries again."""
        self._pid = 0
        try:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise _no_descriptors(error) from error
        try:
            self._pid = os.fork()
        except OSError as error:
            theirs.close()
            raise cannot_fork(error) from error
        if self._pid == 0:
            proc.be_child(lambda: self._serve(theirs))
        theirs.close()
        self._socket.setblocking(False)

    def ask(self, job: Job, descriptors: tuple[int, ...]) -> None:
        """Request a keeper for the job. Raises BackendError."""
        if not self._pid:
            self._socket.close()
            self._begin()
        try:
            payload = os.memfd_create("slicer-job", os.MFD_CLOEXEC)  # for commands of any length
        except OSError as error:
            raise _no_descriptors(error) from error
        try:
            os.pwrite(payload, pickle.dumps(job, pickle.HIGHEST_PROTOCOL), 0)
            socket.send_fds(self._socket, [job.id.encode()], [payload, *descriptors])
        except OSError as error:
            if error.errno in _SHORTAGES:
                raise _no_descriptors(error) from error
            self._receive()  # its other requests get their answers now
            raise _gone() from None
        finally:
            os.close(payload)
        self.asked.add(job.id)

    def take(self) -> dict[str, StartedKeeper | SlicerError]:
        """The answers so far. If the process was killed, all its requests have one."""
        if self._pid:
            self._receive()
        found, self._answers = self._answers, {}
        return found

    def _receive(self) -> None:
        try:
            while True:
                data, descriptors, _, _ = socket.recv_fds(self._socket, _LONGEST, 1, socket.MSG_CMSG_CLOEXEC)
                if not data:
                    break
                job, answer = pickle.loads(data)
                answer = replace(answer, pidfd=descriptors[0]) if descriptors else answer
                if job in self.asked:
                    self.asked.remove(job)
                    self._answers[job] = answer
                else:
                    _discard(answer)
        except BlockingIOError:
            return
        except ConnectionResetError:
            pass
        self.close()
        for job in self.asked:
            self._answers[job] = _gone()
        self.asked.clear()

    def close(self) -> None:
        """End the process, and wait for it. SIGKILL ends even a stopped one. Safe to repeat."""
        self._socket.close()
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0


def _discard(found: StartedKeeper | SlicerError | None) -> None:
    if isinstance(found, StartedKeeper):
        os.close(found.pidfd)


def _no_descriptors(error: OSError) -> BackendError:
    return BackendError(f"the job cannot be handed to a starter: {error.strerror}", hint="see ulimit -n")


def _gone() -> BackendError:
    return BackendError("the process that starts keepers was killed")


class _StarterProcess:
    """The starter itself."""

    def __init__(
        self, theirs: socket.socket, backends: Backends, ledger: Ledger, mask: frozenset[int], queue: int
    ) -> None:
        self._socket = theirs
        self._backends = backends
        self._ledger = ledger
        self._mask = mask
        self._queue = queue
        self._keepers: dict[int, int] = {}  # their pids, by their pidfds

    def serve(self) -> None:
        gc.freeze()  # collecting garbage would copy the pages that all keepers share
        gc.disable()
        os.setsid()
        with open("/proc/self/comm", "wb", buffering=0) as comm:
            comm.write(b"slicer-starter")
        # A replacement for a killed starter is forked after the queue has opened everything.
        close_all_but((self._socket.fileno(), *self._ledger.descriptors()))
        self._ledger.after_fork()
        try:
            while self._serve_one():
                pass
        except (BrokenPipeError, ConnectionResetError):
            return  # the queue has ended

    def _serve_one(self) -> bool:
        """Wait for a request or for a keeper's end; False if there will be no more requests."""
        ready = until_readable([self._socket.fileno(), *self._keepers], None, None)
        for pidfd in ready & self._keepers.keys():
            os.waitpid(self._keepers.pop(pidfd), 0)
            os.close(pidfd)
        if self._socket.fileno() not in ready:
            return True
        data, descriptors, _, _ = socket.recv_fds(self._socket, _LONGEST, _MOST_FDS, socket.MSG_CMSG_CLOEXEC)
        if not data:
            return False
        faults.point("starter-asked")
        payload, *own = descriptors
        try:
            job: Job = pickle.loads(os.pread(payload, os.fstat(payload).st_size, 0))
        finally:
            os.close(payload)
        answer, told = self._start(job, own)
        faults.point("starter-answering")
        socket.send_fds(self._socket, [pickle.dumps((job.id, answer))], told)
        return True

    def _start(self, job: Job, own: list[int]) -> tuple[StartedKeeper | SlicerError, list[int]]:
        try:
            pid = os.fork()
            if pid == 0:
                proc.be_child(lambda: self._be_keeper(job, own))
        except OSError as error:
            return cannot_fork(error), []
        finally:
            for fd in own:
                os.close(fd)
        pidfd = os.pidfd_open(pid)
        self._keepers[pidfd] = pid
        faults.point("starter-forked")
        backend = self._backends.of(job.broker)
        try:
            cgroup = backend.start(job.spec, pid, lambda: None)
            return StartedKeeper(cgroup, pid, -1, backend.why_no_cap), [pidfd]
        except (BackendError, BrokerError) as error:
            backend.close()  # its connection may be broken: the next job gets a new one
            return type(error)(error.message, where=error.where, hint=error.hint), []
        except OSError as error:  # the keeper has just been killed
            return BackendError(f"{job.spec.unit} cannot be started: {error.strerror}"), []

    def _be_keeper(self, job: Job, own: list[int]) -> None:
        self._socket.close()
        for pidfd in self._keepers:
            os.close(pidfd)
        self._backends.after_fork()
        self._ledger.after_fork()
        down_read, up_write, logs, attempts, *lease = own
        backend = self._backends.of(job.broker)
        keeper.QueueKeeper(
            job, backend, self._ledger, self._mask, self._queue, up_write, down_read, logs, attempts
        ).run(tuple(lease))


class Backends:
    """The backend for each job. Jobs without a demand can run without a failing broker."""

    def __init__(self, wanted: str, broker: str) -> None:
        """``wanted``: the value of --backend; ``broker``: its socket, "" for none. Raises BackendError."""
        self._wanted = wanted
        self._broker = BrokerBackend(broker) if broker else None
        self._manager: QueueBackend | None = None  # with a broker it is seldom needed
        self.usual: QueueBackend = self._broker or self._own()
        self.usual.preload()

    def of(self, broker: str) -> QueueBackend:
        """The backend for a job whose lease ``broker`` grants; "": the user's own ledger does."""
        return self._broker if broker and self._broker is not None else self._own()

    def of_lease(self, lease: Lease) -> QueueBackend:
        """A backend that reaches the scope of a running job."""
        return self._own() if lease.manager == manager_of(os.geteuid()) else self.usual

    def _own(self) -> QueueBackend:
        if self._manager is None:
            self._manager = backend_of(self._wanted)
        return self._manager

    def after_fork(self) -> None:
        """In a child: release what only the parent may use."""
        for backend in self._made():
            backend.after_fork()

    def close(self) -> None:
        for backend in self._made():
            backend.close()

    def _made(self) -> list[QueueBackend]:
        return [backend for backend in (self._manager, self._broker) if backend is not None]
