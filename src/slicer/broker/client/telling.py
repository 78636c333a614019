"""What became of a job, told to the broker for the accounts of all users."""

from __future__ import annotations

from slicer.broker.client.calls import ask
from slicer.broker.client.failures import GoneError
from slicer.broker.protocol.messages import Finished

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.model import Outcome

_TELL_S = 2.0  # nobody waits longer for the accounts


def tell_finished(path: str, outcome: Outcome) -> None:
    """Tell it while the keeper is in the scope. Raises BrokerError."""
    call = Finished(
        job=outcome.job, reason=outcome.reason, exit_code=outcome.exit_code, wall_s=outcome.wall_s,
        waited_s=outcome.waited_s, cpu_s=outcome.usage.cpu_s,
        memory_peak_bytes=outcome.usage.memory_peak_bytes, vram_peak_mib=outcome.vram_peak_mib,
    )  # fmt: skip
    try:
        ask(path, call, _TELL_S)
    except GoneError:
        pass  # its scope has ended already, and is booked
