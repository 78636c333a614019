"""aiohttp's server with a bound on its connections, by which no user can shut out another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError

from slicer.kernel import listeners

_LOGGER = logging.getLogger("slicer.serve")  # what is no HTTP deserves no traceback: anybody can send it
_LOGGER.addFilter(lambda told: not (told.exc_info and isinstance(told.exc_info[1], HttpProcessingError)))


class Seats:
    """Places for connections. If all are taken, whoever has the most loses one to whoever has fewer."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._whose: dict[asyncio.Transport, str] = {}  # in the order of their arrival

    def __len__(self) -> int:
        return len(self._whose)

    def take(self, connection: asyncio.Transport) -> bool:
        """Take a place, perhaps from another connection, which is cut. False: there is none."""
        try:
            who = listeners.peer(connection.get_extra_info("socket"))
        except OSError:
            return False  # it is gone
        if len(self) >= self._most:
            held: dict[str, list[asyncio.Transport]] = {who: []}
            for each, whose in self._whose.items():
                held.setdefault(whose, []).append(each)
            largest = max(held.values(), key=len)
            if len(largest) <= len(held[who]) + 1:
                return False
            self.give_back(largest[-1])
            largest[-1].abort()
        self._whose[connection] = who
        return True

    def give_back(self, connection: asyncio.Transport) -> None:
        """Safe to repeat."""
        self._whose.pop(connection, None)


class FairServer(web.Server):
    """aiohttp's server, whose connections have such places."""

    def __init__(
        self, handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], most: int, **options: Any
    ) -> None:
        super().__init__(handle, access_log=None, handler_cancellation=True, logger=_LOGGER, **options)
        self.seats = Seats(most)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Called by aiohttp."""
        super().connection_made(handler, transport)
        if not self.seats.take(transport):
            transport.abort()

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Called by aiohttp."""
        if handler in self._connections:
            self.seats.give_back(self._connections[handler])
        super().connection_lost(handler, exc)
