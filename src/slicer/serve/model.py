"""The words of ``slicer serve`` as types: what a proxy asks of a server, and what it is answered. Pure."""

from __future__ import annotations

from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from typing import Literal, Protocol

    from slicer.config import serve

    # stopped: nothing is held. waiting: for the lease. starting: the lease is held, the server not ready.
    # ready: requests are forwarded. draining: these come to their end, new ones wait. releasing: its models
    # are unloaded or its job is stopped, and its memory has to come back. stuck: the memory did not.
    State = Literal["stopped", "waiting", "starting", "ready", "draining", "releasing", "stuck"]

    # gpu: takes the lease and keeps it. free: answered without one, and no reason to keep one. loaded: as
    # free, and about what is loaded (/api/ps, an unload). load: as gpu, with nothing but the model to be
    # loaded. forbidden: administrative, and not forwarded.
    Need = Literal["gpu", "free", "loaded", "load", "forbidden"]

    Problem = Literal["busy", "failed", "stopping", "offloaded"]


@record
class Asked:
    """A request, as far as it decides something."""

    need: Need
    model: str  # "" where it names none
    embeds: bool  # its model is one that makes embeddings, which is loaded in another way


class Unavailable(Exception):
    """The server cannot be used now. The text is for the client's user."""

    def __init__(
        self, problem: Problem, text: str, *, holder: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(text)
        self.problem = problem
        self.holder = holder  # the name of the job that has the GPU
        self.retry_after_s = retry_after_s  # None: nothing is known


@record
class Standing:
    """How a server stands, for ``slicer status``. Times by the wall clock, in seconds since the epoch."""

    name: str
    kind: str
    listen: tuple[str, ...]
    state: State
    since_s: float  # in this state
    requests: int  # that need the GPU and have not ended
    served: int  # such requests that have ended, since the proxy began
    idle_since_s: float | None  # None while there are requests, or nothing is held
    job: str  # its job or lease, as in `slicer status`; "" where it has none
    trouble: str  # what went wrong last; "" after a success
    pid: int  # the proxy's


if TYPE_CHECKING:

    class Server(Protocol):
        """What the HTTP side needs of one ``[serve.NAME]``; :class:`slicer.serve.owner.Owner` is it."""

        settings: serve.Server

        def standing(self) -> Standing: ...

        def use(self, asked: Asked) -> AbstractAsyncContextManager[str]:
            """The upstream's base URL, once it is ready, and the model loaded if slicer loads it.

            The request counts from the call to the exit. Cancelled while it waits, it leaves the line: with
            the last one goes the request for the lease. Raises Unavailable.
            """
            ...

        def beside(self, asked: Asked) -> AbstractAsyncContextManager[str | None]:
            """The base URL of an upstream that can answer without a lease, which is not kept for this.

            For "loaded" that is the one that has the GPU. None: nobody can answer just now.
            Raises Unavailable.
            """
            ...
