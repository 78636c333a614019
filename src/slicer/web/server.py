"""The HTTP side: one page and its data, read-only, for many who look at once.

One thread reads the status for all of them. Each connection serves one request, and has ten seconds for it; a
stream of events lives longer, but each event has to be taken in that time. So nobody waits for a client.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol

from aiohttp import web

from slicer.errors import SlicerError
from slicer.serve import seats
from slicer.serve.hosts import is_meant
from slicer.serve.listening import BACKLOG, until_the_end


class BoardSource(Protocol):
    """Where the data comes from. Only one thread calls it, but for ``wake``."""

    def read(self) -> dict[str, str]:
        """What there is now, as JSON: "timeline", and "board". Takes back what :meth:`wake` said."""

    def wait(self) -> None:
        """Sleep until something may be new."""

    def wake(self) -> None:
        """End the sleep of :meth:`wait`, or the next one before a :meth:`read`."""

    def metrics(self, *, is_open: bool) -> tuple[bytes, str]:
        """The metrics of the last reading, with their content type. Raises SlicerError."""


_PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "page")
_FILES = {
    "/": ("index.html", "text/html"), "/board.js": ("board.js", "text/javascript"),
    "/board.css": ("board.css", "text/css"), "/icon.svg": ("icon.svg", "image/svg+xml"),
}  # fmt: skip
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "slicer",
}
MOST_CONNECTIONS = 256
MOST_VIEWERS = 128
_PATIENCE_S = 10.0  # for a request and its answer, and for each event
_PULSE_S = 15.0  # between two events or signs of life
_FRESH_S = 1.0  # an answer may be that old
_OPEN = "application/openmetrics-text"


class LiveBoard:
    """Answers requests. Use it within one event loop."""

    def __init__(self, source: BoardSource, hosts: Sequence[str], report: Callable[[str], None]) -> None:
        """``hosts``: further names that it answers to. ``report`` gets messages for its own user."""
        self._source, self._hosts, self._report = source, hosts, report
        self._thread = ThreadPoolExecutor(1)
        self._lock = asyncio.Lock()
        self._reading: dict[str, str] = {}
        self._read_s = -_FRESH_S
        self._news = asyncio.Event()  # set, and replaced, when there is a new reading
        self._seats = seats.Seats(MOST_VIEWERS)
        self._viewers: dict[web.RequestHandler, asyncio.Transport] = {}
        self._watch: asyncio.Task[None] | None = None
        self._files = {path: (_bytes(name), kind) for path, (name, kind) in _FILES.items()}
        self.server = BoardServer(self)

    async def close(self) -> None:
        for transport in list(self._viewers.values()):
            transport.abort()
        self._viewers.clear()
        self._source.wake()
        if self._watch is not None:
            await asyncio.gather(self._watch, return_exceptions=True)
        self._thread.shutdown()

    def expire(self, handler: web.RequestHandler) -> None:
        """Cut a connection that is no stream: its time is over."""
        if handler not in self._viewers and handler.transport is not None:
            handler.transport.abort()

    # -- requests --------------------------------------------------------------------------------------------

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request, and close its connection."""
        try:
            answer = await self._answer(request)
        except SlicerError as error:
            answer = _text(503, str(error))
        answer.force_close()
        return answer

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method not in ("GET", "HEAD"):
            return _text(405, "only GET and HEAD", {"Allow": "GET, HEAD"})
        if not is_meant(request.headers.get("Host"), self._hosts):
            return _text(421, "this Host is unknown: slicer web --host NAME makes it known")
        if found := self._files.get(request.path):
            return web.Response(body=found[0], content_type=found[1], charset="utf-8", headers=_HEADERS)
        if request.path == "/board.json":
            text = (await self._fresh())["board"]
            return web.Response(text=text, content_type="application/json", headers=_HEADERS)
        if request.path == "/metrics":
            await self._fresh()
            is_open = _OPEN in request.headers.get("Accept", "")
            data, kind = await self._in_thread(lambda: self._source.metrics(is_open=is_open))
            return web.Response(body=data, headers={**_HEADERS, "Content-Type": kind})
        if request.path == "/events":
            return await self._stream(request)
        return _text(404, "there is nothing here")

    async def _stream(self, request: web.BaseRequest) -> web.StreamResponse:
        handler, transport = request.protocol, request.transport
        if transport is None or not self._seats.take(transport):
            return _text(503, "too many look already", {"Retry-After": "60"})
        made = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
        made.force_close()
        await made.prepare(request)
        if request.method == "HEAD":
            self._seats.give_back(transport)
            return made
        self._viewers[handler] = transport
        try:
            await self._send_all(made)
        except (TimeoutError, ConnectionError):
            transport.abort()  # it does not read, or is gone
        finally:
            self._viewers.pop(handler, None)
            self._seats.give_back(transport)
            if not self._viewers:
                self._source.wake()
        return made

    async def _send_all(self, response: web.StreamResponse) -> None:
        """Send the last reading, and then each new one; of several at once, only the last."""
        sent: dict[str, str] = {}
        if self._watch is None or self._watch.done():
            self._watch = asyncio.ensure_future(self._watched())
        while True:
            reading, news = self._reading, self._news
            data = ": still here\n\n" if reading and reading == sent else ""
            for name, text in reading.items():
                if text != sent.get(name, ""):
                    data += f"event: {name}\ndata: {text}\n\n"
            async with asyncio.timeout(_PATIENCE_S):
                await response.write(data.encode())
            sent = reading
            with suppress(TimeoutError):
                async with asyncio.timeout(_PULSE_S):
                    await news.wait()

    # -- the one reader --------------------------------------------------------------------------------------

    async def _watched(self) -> None:
        """Read whenever something is new, as long as somebody looks."""
        try:
            while self._viewers:
                await self._fresh(0.0)
                await self._in_thread(self._source.wait)
        except Exception as error:
            self._report(f"the board cannot be read: {error}")
            for transport in list(self._viewers.values()):
                transport.abort()  # its browser connects again, and this is tried again

    async def _fresh(self, age_s: float = _FRESH_S) -> dict[str, str]:
        """The last reading, or a new one if it is older."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            if loop.time() - self._read_s >= age_s:
                self._source.wake()
                found = await self._in_thread(self._source.read)
                self._read_s = loop.time()
                if found != self._reading:
                    self._reading = found
                    self._news.set()
                    self._news = asyncio.Event()
        return self._reading

    async def _in_thread(self, act: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, act)


class BoardServer(seats.FairServer):
    """aiohttp's server, with a bound on the time of each connection."""

    def __init__(self, board: LiveBoard) -> None:
        super().__init__(board.handle, MOST_CONNECTIONS, lingering_time=0)
        self._board = board

    def __call__(self) -> Any:
        handler = super().__call__()
        asyncio.get_running_loop().call_later(_PATIENCE_S, self._board.expire, handler)
        return handler


async def run(
    sockets: Sequence[socket.socket], source: BoardSource, hosts: Sequence[str],
    report: Callable[[str], None], *, leaves: bool,
) -> None:  # fmt: skip
    """Serve until SIGTERM or SIGINT; with ``leaves`` also until nobody has looked for 30 s."""
    loop = asyncio.get_running_loop()
    board = LiveBoard(source, hosts, report)
    servers = [await loop.create_server(board.server, sock=each, backlog=BACKLOG) for each in sockets]
    try:
        await until_the_end(lambda: bool(board.server.seats), leaves=leaves)
    finally:
        for each in servers:
            each.close()
        await board.close()
        await board.server.shutdown(1.0)


def _bytes(name: str) -> bytes:
    with open(os.path.join(_PAGE, name), "rb") as file:
        return file.read()


def _text(status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=status, text=f"slicer: {text}\n", headers={**_HEADERS, **(headers or {})})
