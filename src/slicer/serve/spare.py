"""A second instance of a server without a GPU, for calls that need none.

Both share the models on the disk. A pull of hours is not cut when the GPU is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from slicer.config.serve import Server
from slicer.serve.started import StartedServer, until_ready
from slicer.serve.terms import Unavailable
from slicer.serve.upstream import Upstream

_AGAIN_S = 10.0


class SpareServer:
    """The first call starts it. It ends after the server's own idle time."""

    def __init__(
        self, settings: Server, log: str, environ: Mapping[str, str], report: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._log = log
        self._environ = environ
        self._report = report
        self._started: StartedServer | None = None
        self._users = 0
        self._changing = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self._started is not None

    @asynccontextmanager
    async def use(self) -> AsyncIterator[str]:
        """Its base URL, once it is ready. Raises Unavailable."""
        self._users += 1
        try:
            async with self._changing:
                if self._started is None or not self._started.is_running:
                    await self._start()
                assert self._started is not None
                self._started.check_listener()
                base = self._started.base
            yield base
        finally:
            self._users -= 1
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(self._settings.idle_s, self._end_if_idle)

    async def _start(self) -> None:
        started = StartedServer(self._settings, self._log, self._environ, without_gpu=True)
        await started.start()
        self._started = started
        upstream = Upstream(self._settings.kind, started.base)
        try:
            await until_ready(self._settings, started, upstream)
        except BaseException:
            self._started = None
            await started.stop()
            raise
        finally:
            await upstream.close()

    def _end_if_idle(self) -> None:
        self._ending = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        async with self._changing:
            if self._started is None or self._users:
                return
            try:
                await self._started.stop()
                self._started = None
            except Unavailable as error:
                self._report(f"{self._settings.name}: {error}")
                self._timer = asyncio.get_running_loop().call_later(_AGAIN_S, self._end_if_idle)

    async def close(self) -> None:
        """End it, even if it is in use."""
        if self._timer is not None:
            self._timer.cancel()
        async with self._changing:
            if self._started is not None:
                await self._started.stop()
                self._started = None
