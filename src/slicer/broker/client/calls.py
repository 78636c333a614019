"""Calls with one answer."""

from __future__ import annotations

from slicer.broker.client.connection import ANSWER_S, HINT, Connection, TooOld
from slicer.broker.protocol.messages import MOST_SERIES, Detach, Finished, Sampled
from slicer.errors import BrokerError, GoneError
from slicer.kernel.proc import start_time
from slicer.record import fields_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from slicer.model import Outcome
    from slicer.outcome.series import Series


def ask(path: str, call: Any, deadline_s: float = ANSWER_S) -> Any:
    """Make a call, and return the broker's answer. ``deadline_s``: how long it may take, in seconds.

    Raises BrokerError if the broker does not answer, or the error that it answers with.
    """
    connection = Connection(path)
    try:
        return connection.ask(call, timeout_s=deadline_s)
    finally:
        connection.close()


def detach(path: str, job: str, description: str, pid: int) -> None:
    """Have a process put into a scope of its own. Raises BrokerError, BackendError, NotAllowedError."""
    ask(path, Detach(job, description, pid, start_time(pid) or 0), _MOVE_S)


_MOVE_S = 30.0  # systemd can be slow when memory is short
_TELL_S = 2.0  # the longest wait for the accounts


def tell_sampled(path: str, job: str, series: Series) -> None:
    """Send what a job used over time, for the accounts. Raises BrokerError, or its other errors."""
    import binascii

    from slicer.outcome.series import encode

    text = binascii.b2a_base64(encode(series, MOST_SERIES), newline=False).decode()
    try:
        ask(path, Sampled(job=job, series=text), _TELL_S)
    except TooOld:
        pass  # it keeps no samples


def tell_finished(path: str, outcome: Outcome) -> Callable[[], None]:
    """Send the job's end while the keeper is in the scope. Returns a function that waits for an answer.

    The caller can do other things in between. Both raise BrokerError.
    """
    known = fields_for(Finished, outcome) | fields_for(Finished, outcome.usage)
    call = Finished(**(known | {"paused_s": outcome.paused_s or 0.0}))
    connection = Connection(path)
    connection.send(call)

    def hear() -> None:
        try:
            if connection.receive(_TELL_S) is None:
                raise BrokerError(f"no answer within {_TELL_S:g} s", where=path, hint=HINT)
        except GoneError:
            pass  # its scope has ended already, and is booked
        finally:
            connection.close()

    return hear
