"""The asyncio form of :mod:`slicer.api`, apart from it: importing asyncio takes longer than all the rest."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from slicer import api
from slicer.leasing import Cancel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from slicer.model import Then


class acquire_async:
    """:func:`slicer.acquire` for asyncio: ``async with slicer.acquire_async(…) as lease:``, or ``await`` it.

    Takes the same arguments and raises the same errors. While it waits, the loop runs on; a cancelled task
    leaves the queue.
    """

    def __init__(
        self,
        name: str = "",
        *,
        gpus: int = 1,
        vram: str | int | None = None,
        gpu: Sequence[int | str] | int | str | None = None,
        margin: str | int | None = None,
        cpu_slots: int = 0,
        priority: int = 0,
        expected_seconds: float | None = None,
        wait: bool = False,
        max_wait: float | None = None,
        then: Then | None = None,
    ) -> None:
        self._asked = api.Asked(
            name, gpus, vram, gpu, margin, cpu_slots, priority, expected_seconds, wait, max_wait, then
        )
        self._lease: api.Lease | None = None

    def __await__(self) -> Generator[object, None, api.Lease]:
        return self._acquire().__await__()

    async def _acquire(self) -> api.Lease:
        cancel = Cancel()
        thread = ThreadPoolExecutor(
            1, "slicer-acquire"
        )  # one of its own: waiting must not fill a shared pool
        work = thread.submit(api.obtain, self._asked, api.inside.get(), cancel)
        thread.shutdown(wait=False)
        try:
            return api.entered(await asyncio.shield(asyncio.wrap_future(work)))
        except asyncio.CancelledError:
            cancel.ask()
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, _undo, work))
            raise

    async def __aenter__(self) -> api.Lease:
        self._lease = await self._acquire()
        return self._lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lease is not None:
            self._lease.release()


def _undo(work: Future[api.Lease]) -> None:
    """Wait until the thread has left the queue; give back what it got all the same."""
    if work.exception() is None:
        work.result().release()
