"""A proxy in this process, between a server and clients that say and see every byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, ParamSpec

from slicer.config import serve
from slicer.serve.terms import RequestNeed, Unavailable
from slicer.state.standings import ServerStanding
from tests.patience import Deadline

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]
P = ParamSpec("P")


def played(story: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """A test that plays a story to its end, within a minute."""

    @wraps(story)
    def test(*args: P.args, **kwargs: P.kwargs) -> None:
        async def whole() -> None:
            async with asyncio.timeout(60):
                await story(*args, **kwargs)

        asyncio.run(whole())

    return test


class FakeOwner:
    """A server whose upstream is there, or not, as the test says; notes what it is asked for."""

    def __init__(self, settings: serve.Server, base: str | None) -> None:
        self.settings = settings
        self.base = base
        self.free_base = base
        self.problem: Unavailable | None = None
        self.granted = asyncio.Event()
        self.granted.set()
        self.used: list[RequestNeed] = []
        self.waiting = 0
        self.open = 0  # requests that have the GPU

    @asynccontextmanager
    async def use(self, asked: RequestNeed) -> AsyncIterator[str]:
        self.used.append(asked)
        self.waiting += 1
        try:
            await self.granted.wait()
        finally:
            self.waiting -= 1
        if self.problem is not None:
            raise self.problem
        assert self.base is not None
        self.open += 1
        try:
            yield self.base
        finally:
            self.open -= 1

    async def appears(self) -> None:
        await self.granted.wait()
        self.free_base = self.base

    def tell(self, event: str) -> None:
        self.open += {"began": 1, "done": -1}[event]

    @asynccontextmanager
    async def beside(self, asked: RequestNeed) -> AsyncIterator[str | None]:
        is_loaded = self.granted.is_set() and self.base is not None
        yield self.free_base if asked.need != "loaded" else self.base if is_loaded else None

    def standing(self) -> ServerStanding:
        raise NotImplementedError("no request asks for it")


class Upstream:
    """A server that a test writes itself: it is given each connection, with the head of its request."""

    def __init__(self, answer: Callable[[bytes, Peer], Awaitable[None]]) -> None:
        self._answer = answer
        self._server: asyncio.Server | None = None
        self.heads: list[bytes] = []
        self.left = 0  # clients that went before they were answered
        self.base = ""

    async def __aenter__(self) -> Upstream:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.base = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            await self._answer(self.heads[-1], (reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left += 1
        finally:
            writer.close()

    def header(self, name: str) -> str:
        """That of the last request; "" where it has none."""
        lines = self.heads[-1].decode("latin-1").split("\r\n")[1:]
        named = dict(line.split(": ", 1) for line in lines if ": " in line)
        return {key.lower(): value for key, value in named.items()}.get(name.lower(), "")


def saying(answer: bytes) -> Callable[[bytes, Peer], Awaitable[None]]:
    """An upstream's answer, whatever it is asked."""

    async def answered(_: bytes, peer: Peer) -> None:
        peer[1].write(answer)
        await peer[1].drain()

    return answered


class Proxy:
    """A running proxy, and connections to it."""

    def __init__(self, port: int, reports: list[str], front: Any) -> None:
        self.port = port
        self.reports = reports
        self.front = front

    async def connect(self) -> Peer:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, request: bytes) -> bytes:
        """All that comes back until the connection is closed."""
        reader, writer = await self.connect()
        try:
            writer.write(request)
            return await reader.read()
        finally:
            writer.close()


@asynccontextmanager
async def proxy(*owners: FakeOwner) -> AsyncIterator[Proxy]:
    """A proxy before these servers."""
    from aiohttp import web

    from slicer.serve.proxy import Front

    reports: list[str] = []
    front = Front(owners, reports.append)
    runner = front.runner()
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield Proxy(runner.addresses[0][1], reports, front)
    finally:
        await runner.cleanup()
        await front.close()


def get(path: str, *headers: str, method: str = "GET", version: str = "1.1") -> bytes:
    """A request without a body, after which the connection is closed."""
    lines = [f"{method} {path} HTTP/{version}", "Host: localhost", "Connection: close", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def post(path: str, body: bytes, *headers: str) -> bytes:
    """A request with a body, after which the connection is closed."""
    return get(path, f"Content-Length: {len(body)}", *headers, method="POST") + body


def parted(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers (in small letters) and the rest of an answer."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    return int(first.split()[1]), headers, rest


async def until(look: Callable[[], object], what: str) -> None:
    """Wait for an event while everything else in this loop goes on."""
    deadline = Deadline(30.0)
    while not look():
        assert not deadline.has_passed(), f"still not: {what}"
        await asyncio.sleep(0.005)
