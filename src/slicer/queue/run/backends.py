"""Who starts the scopes of a queue's jobs: the broker where there is one, else this user's own manager."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from slicer import backend as backends
from slicer.broker.client.backend import BrokerBackend
from slicer.model import Lease, manager_of

if TYPE_CHECKING:
    from slicer.backend import QueueBackend


class Backends:
    """The backend for each job. Jobs that want nothing can do without a broker that fails."""

    def __init__(self, wanted: str, broker: str) -> None:
        """``wanted``: as --backend has it; ``broker``: its socket, "" for none. Raises BackendError."""
        self._wanted = wanted
        self._broker = BrokerBackend(broker) if broker else None
        self._manager: QueueBackend | None = None  # beside a broker it is seldom needed
        self.usual: QueueBackend = self._broker or self._own()
        self.usual.preload()

    def of(self, broker: str) -> QueueBackend:
        """The backend for a job whose lease ``broker`` grants; "": the user's own ledger does."""
        return self._broker if broker and self._broker is not None else self._own()

    def of_lease(self, lease: Lease) -> QueueBackend:
        """A backend that reaches the scope of a job that runs."""
        return self._own() if lease.manager == manager_of(os.geteuid()) else self.usual

    def _own(self) -> QueueBackend:
        if self._manager is None:
            self._manager = backends.choose(self._wanted, os.geteuid())
        return self._manager

    def after_fork(self) -> None:
        """In a child: give up what only the parent may use."""
        for backend in self._made():
            backend.after_fork()

    def close(self) -> None:
        """Give up the connections."""
        for backend in self._made():
            backend.close()

    def _made(self) -> list[QueueBackend]:
        return [backend for backend in (self._manager, self._broker) if backend is not None]
