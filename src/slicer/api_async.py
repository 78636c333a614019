"""The asyncio form of :mod:`slicer.api`, apart from it: importing asyncio takes longer than all the rest."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

from slicer import api
from slicer.api_arguments import Arguments
from slicer.ledger.leasing import CancelToken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from types import TracebackType

    from slicer.model import Then


class acquire_async:
    """:func:`slicer.acquire` for asyncio: ``async with slicer.acquire_async(…) as lease:``, or ``await`` it.

    It takes the same arguments and raises the same errors. The loop runs on while it waits; a cancelled task
    leaves the queue. The task that awaits it holds the lease. So use ``max_wait`` or ``asyncio.timeout`` for
    a time limit:
    ``asyncio.wait_for`` awaits in another task under Python 3.11.
    """

    def __init__(
        self,
        name: str = "",
        *,
        gpus: int = 1,
        vram: str | None = None,
        gpu: Sequence[int | str] | int | str | None = None,
        margin: str | None = None,
        cpu_slots: int = 0,
        slots: Mapping[str, int] | None = None,
        priority: int = 0,
        expected_seconds: float | None = None,
        wait: bool = False,
        max_wait: float | None = None,
        then: Then | None = None,
    ) -> None:
        self._arguments = Arguments(
            name, gpus, vram, gpu, margin, cpu_slots, slots, priority, expected_seconds, wait, max_wait, then
        )
        self._lease: api.Lease | None = None

    def __await__(self) -> Generator[object, None, api.Lease]:
        return self._acquire().__await__()

    async def _acquire(self) -> api.Lease:
        cancel, work = CancelToken(), Future[api.Lease]()
        around = api.inside.get()
        # A thread of its own: waiting must not fill a shared pool, nor keep the interpreter from exiting.
        threading.Thread(
            target=_obtain, args=(work, self._arguments, around, cancel), name="slicer-acquire", daemon=True
        ).start()
        done = asyncio.wrap_future(work)
        done.add_done_callback(asyncio.Future.exception)  # perhaps nobody is left to retrieve the error
        try:
            await asyncio.wait([done])  # cancelling this wait does not end the thread
            return api.entered(done.result())
        except BaseException as error:
            cancel.cancel()
            work.add_done_callback(_give_back)
            if isinstance(error, asyncio.CancelledError):
                await asyncio.wait([done])
            raise

    async def __aenter__(self) -> api.Lease:
        self._lease = await self._acquire()
        return self._lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lease is not None:
            self._lease.release()


def _obtain(
    work: Future[api.Lease], arguments: Arguments, around: tuple[api.Lease, ...], cancel: CancelToken
) -> None:
    try:
        work.set_result(api.obtain(arguments, around, cancel))
    except BaseException as error:
        work.set_exception(error)


def _give_back(work: Future[api.Lease]) -> None:
    """Give back a lease that the thread may have got, but nobody wants any more."""
    if work.exception() is None:
        work.result().release()
