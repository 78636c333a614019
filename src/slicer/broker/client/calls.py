"""One call, one answer."""

from __future__ import annotations

from slicer.broker.client.connection import ANSWER_S, Connection
from slicer.broker.client.failures import failure_of
from slicer.broker.protocol.wire import ErrorReply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def ask(path: str, call: Any, deadline_s: float = ANSWER_S) -> Any:
    """What the broker at ``path`` answers. ``deadline_s``: how long it may take, in seconds.

    Raises BrokerError where it does not answer, and what it answers with.
    """
    connection = Connection(path)
    try:
        return connection.ask(call, timeout_s=deadline_s)
    except ErrorReply as error:
        raise failure_of(error) from None
    finally:
        connection.close()
