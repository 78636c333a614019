"""One call, one answer."""

from __future__ import annotations

from slicer.broker.client.connection import ANSWER_S, Connection, NoBroker
from slicer.broker.client.failures import HINT, failure_of
from slicer.broker.protocol.wire import ErrorReply
from slicer.errors import BrokerError

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
    except NoBroker as error:
        raise no_broker(path) from error
    except ErrorReply as error:
        raise failure_of(error) from None
    finally:
        connection.close()


def no_broker(path: str) -> BrokerError:
    """What to raise where the socket has just been there, and is gone."""
    return BrokerError("the broker's socket is gone", where=path, hint=HINT)
