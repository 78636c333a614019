"""Controls a job in the system manager on behalf of a user who may not do so through systemd."""

from __future__ import annotations

import os

from slicer.backend import broker_socket
from slicer.backend.systemd import SystemdBackend
from slicer.broker.client.backend import BrokerBackend, limits_of
from slicer.broker.client.calls import ask
from slicer.broker.protocol.messages import Freeze, Set, Thaw
from slicer.model import job_of_unit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.model import Manager, Property

_FREEZE_S = 30.0  # systemd waits until every process has stopped


def control_of(manager: Manager) -> SystemdBackend:
    """The control of that manager's units, for this user. The caller closes it."""
    path = broker_socket(os.environ) if manager == "system" and os.geteuid() else ""
    return BrokerControl(path) if path else SystemdBackend(manager)


class BrokerControl(SystemdBackend):
    """Controls the user's own scopes through the broker. Reading from systemd is open to all."""

    def __init__(self, path: str) -> None:
        super().__init__("system")
        self._path = path

    def freeze(self, unit: str) -> None:
        ask(self._path, Freeze(job_of_unit(unit)), _FREEZE_S)

    def thaw(self, unit: str, directory: str) -> None:
        ask(self._path, Thaw(job_of_unit(unit)), _FREEZE_S)

    def request_end(self, job: str, unit: str) -> None:
        BrokerBackend(self._path).request_end(job, unit)

    def set_properties(self, unit: str, properties: tuple[Property, ...]) -> None:
        ask(self._path, Set(job_of_unit(unit), limits_of(properties)))
