"""The terms of ``slicer serve`` as types: what a proxy asks of a server, and the answers. Pure."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

from slicer.config import serve
from slicer.record import record
from slicer.state.standings import ServerStanding

# stopped: holds nothing. waiting: for the lease. starting: holds the lease, but the server is not ready.
# ready: forwards requests. draining: finishes these, while new ones wait. releasing: its models are being
# unloaded or its job stopped, and its memory has to become free. stuck: the memory did not.
State = Literal["stopped", "waiting", "starting", "ready", "draining", "releasing", "stuck"]

# gpu: takes the lease and keeps it. free: answered without a lease, and does not keep one. loaded: the
# same, but about loaded models (/api/ps, an unload). load: the same as gpu, but only loads the model.
# forbidden: administrative, and not forwarded.
Need = Literal["gpu", "free", "loaded", "load", "forbidden"]

Use = Literal["began", "done"]
Problem = Literal["busy", "failed", "stopping", "offloaded"]


@record
class RequestNeed:
    """The parts of a request that decide something."""

    need: Need
    model: str  # "" if it names none
    embeds: bool  # its model makes embeddings, and is loaded in a different way


class Unavailable(Exception):
    """The server cannot be used now. The text is for the client's user."""

    def __init__(
        self, problem: Problem, text: str, *, holder: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(text)
        self.problem = problem
        self.holder = holder  # the name of the job that has the GPU
        self.retry_after_s = retry_after_s  # None: unknown


class ServerHandle(Protocol):
    """The HTTP side's view of one ``[serve.NAME]``, implemented by :class:`slicer.serve.owner.Owner`."""

    settings: serve.Server

    def standing(self) -> ServerStanding: ...

    def use(self, asked: RequestNeed) -> AbstractAsyncContextManager[str]:
        """The upstream's base URL, once it is ready, and the model loaded if slicer loads it.

        The request counts from the call to the exit. If it is cancelled while it waits, it leaves the
        line; with the last one, the request for the lease ends. Raises Unavailable.
        """
        ...

    async def appears(self) -> None:
        """Return when a request has started the server. Raises Unavailable if it is to end instead."""
        ...

    def tell(self, event: Use) -> None:
        """The body of a request that uses it stalls, or goes on."""
        ...

    def beside(self, asked: RequestNeed) -> AbstractAsyncContextManager[str | None]:
        """The base URL of an upstream that can answer without a lease, and that does not keep one.

        For "loaded" it is the one that has the GPU. None: nobody can answer now. Raises Unavailable.
        """
        ...
