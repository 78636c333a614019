"""The HTTP side: each request is forwarded byte for byte, once its server may be used.

slicer sends what it received: bodies and compressed content unchanged, at once, with no limit of size or
time. If a client disconnects, its upstream request ends; if an upstream is cut, so is its client.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
from aiohttp import web
from multidict import CIMultiDictProxy
from yarl import URL

from slicer.config import serve
from slicer.serve import classify, refusing, seats, websockets
from slicer.serve.classify import Body, RequestHead
from slicer.serve.hosts import asker, is_address, is_meant, is_own
from slicer.serve.refusing import OwnResponse
from slicer.serve.terms import RequestNeed, ServerHandle, Unavailable, Use
from slicer.serve.upstream import Upstream, make_session

_HOP_BY_HOP = frozenset((
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te",
    "trailer", "transfer-encoding", "upgrade", "expect", "host",
))  # fmt: skip
_LONGEST_LINE = 1 << 16  # bytes of a header line
_QUEUE_LOOK_S = 1.0
_READ_AHEAD = 64 << 20  # bytes for all waiting requests at an address
_ROOM_S = 30.0  # how long a large body waits for room
_STALLED_S = 10.0  # without a byte of a body
_ALWAYS_PEEKED = 64 << 10  # bytes for each
_OWN_FILES = 64  # descriptors for all else
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: the peer sees the close as an error


class Front:
    def __init__(self, servers: Sequence[ServerHandle], report: Callable[[str], None]) -> None:
        """``report`` gets messages that only slicer's own user can act on. Use it within one event loop."""
        self._settings = [each.settings for each in servers]
        self._by_name = {each.settings.name: each for each in servers}
        self._report = report
        self._refused_hosts: set[str] = set()
        self._queued: set[asyncio.Task[None]] = set()
        self._held: dict[str, set[asyncio.Task[aiohttp.ClientWebSocketResponse]]] = {}
        self._session: aiohttp.ClientSession | None = None
        self.room = _READ_AHEAD  # bytes that may still be read in advance
        self.freed = asyncio.Event()  # some of it was given back
        self.choosing = asyncio.Lock()  # whoever reads more, to find out whose the request is
        self.connections = 0  # requests in any state; without any, a proxy may exit

    def runner(self) -> web.ServerRunner:
        """The aiohttp runner, without sites yet. Its handlers are cancelled when their clients leave."""
        most = (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OWN_FILES) // 2  # with one to the server
        return web.ServerRunner(
            seats.FairServer(
                self.handle, most, auto_decompress=False,
                max_line_size=_LONGEST_LINE, max_field_size=_LONGEST_LINE,
            )
        )  # fmt: skip

    async def close(self) -> None:
        for task in self._queued:
            task.cancel()
        await asyncio.gather(*self._queued, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def has_room(self) -> None:
        """Return when there is room again. Raises Unavailable if that takes too long."""
        end_s = asyncio.get_running_loop().time() + _ROOM_S
        while self.room <= 0:
            self.freed.clear()
            try:
                async with asyncio.timeout_at(end_s):
                    await self.freed.wait()
            except TimeoutError:
                raise Unavailable("busy", "too many large requests wait") from None

    # -- one request -----------------------------------------------------------------------------------------

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.connections += 1
        try:
            return await self._handle(request)
        finally:
            self.connections -= 1

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        first = self._settings[0]
        target = classify.origin_form(request.raw_path)
        asked = classify.request(request.method, target, request.headers)
        if not target:
            return _sent(refusing.refusal(first.kind, asked.path, 400, f"{request.method} is not forwarded"))
        if not is_meant(request.headers.get("Host"), first.hosts):
            return _sent(self._foreign_host(request, first, asked))
        incoming = _Incoming(request, target, self)
        try:
            return await self._decide(incoming, asked)
        finally:
            incoming.give_back()

    async def _decide(self, incoming: _Incoming, asked: RequestHead) -> web.StreamResponse:
        first = self._settings[0]
        try:
            body = await incoming.peek(classify.bytes_to_peek(self._settings, asked))
        except web.RequestPayloadError as error:
            return _sent(refusing.refusal(first.kind, asked.path, 400, f"the body cannot be read: {error}"))
        except TimeoutError:
            return _sent(refusing.refusal(first.kind, asked.path, 408, "the body does not arrive"))
        except Unavailable as error:
            return _sent(refusing.unavailable(first.kind, asked.path, error))
        if len(self._settings) > 1 and asked.route == "GET /v1/models":
            return _sent(refusing.model_list(each for server in self._settings for each in server.models))
        settings = classify.choose(self._settings, asked, body)
        if settings is None:
            return _sent(refusing.of_none(self._settings, asked, body))
        try:
            return await self._answer(incoming, self._by_name[settings.name], asked, body)
        except Unavailable as error:
            return _sent(refusing.unavailable(settings.kind, asked.path, error))

    async def _answer(
        self, incoming: _Incoming, server: ServerHandle, asked: RequestHead, body: Body
    ) -> web.StreamResponse:
        settings = server.settings
        meant = classify.classify(settings, asked, body)
        if meant.need == "forbidden":
            text = f"{asked.path} is administrative: routes_allow of [serve.{settings.name}] permits it"
            return _sent(refusing.refusal(settings.kind, asked.path, 403, text))
        headers = incoming.request.headers
        who = asker(asked.method, headers, settings.hosts)
        if who == "elsewhere" or (who == "unknown" and meant.need in ("gpu", "load")):
            return _sent(refusing.of_another_site(settings, asked, headers))
        if meant.need in ("gpu", "load"):
            return await self._with_gpu(incoming, server, asked, meant)
        async with server.beside(meant) as base:
            if base is not None:
                return await self._forward(incoming, base, asked)
        if asked.is_websocket and "Sec-WebSocket-Protocol" not in headers:
            return await self._hold(incoming, server, meant)
        answer = refusing.without_server(settings, asked.route, meant)
        if answer is None:
            raise Unavailable("stopping", f"{settings.name} is not running: a request for work starts it")
        return _sent(answer)

    async def _hold(
        self, incoming: _Incoming, server: ServerHandle, meant: RequestNeed
    ) -> web.StreamResponse:
        """Answer a websocket that starts no server, and connect it once another request has started that.

        ComfyUI's clients open theirs first. An open page's comes again and again.
        """

        async def connect() -> aiohttp.ClientWebSocketResponse:
            await server.appears()
            async with server.beside(meant) as base:
                if base is None:
                    raise Unavailable("stopping", f"{server.settings.name} has ended")
                url = self._url(base, incoming)
                return await websockets.connect(self._upstreams(), url, _forwarded(incoming.request, url), [])

        upstream = asyncio.ensure_future(connect())
        held = self._held.setdefault(server.settings.name, set())
        held.add(upstream)
        upstream.add_done_callback(held.discard)
        return await websockets.join(incoming.request, upstream, [])

    async def _with_gpu(
        self, incoming: _Incoming, server: ServerHandle, asked: RequestHead, meant: RequestNeed
    ) -> web.StreamResponse:
        async with AsyncExitStack() as use:
            async with incoming.read_ahead():
                base = await use.enter_async_context(server.use(meant))
            incoming.tell = server.tell
            try:
                if held := self._held.get(server.settings.name):  # they want to hear of this request
                    await asyncio.wait(held, timeout=_STALLED_S)
                return await self._forward(incoming, base, asked)
            finally:
                incoming.end_use()
                if classify.is_queued(server.settings, asked, incoming.request.headers):
                    task = asyncio.ensure_future(_until_done(use.pop_all(), server.settings, base))
                    self._queued.add(task)
                    task.add_done_callback(self._queued.discard)

    async def _forward(self, incoming: _Incoming, base: str, asked: RequestHead) -> web.StreamResponse:
        request, url = incoming.request, self._url(base, incoming)
        headers = _forwarded(request, url)
        if asked.is_websocket:
            return await websockets.relay(self._upstreams(), request, url, headers)
        try:
            upstream = await self._upstreams().request(
                request.method, url, headers=headers, data=incoming.body(), allow_redirects=False
            )
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable("failed", f"the server does not answer: {error}") from error
        try:
            return await _pass_on(request, upstream)
        finally:
            upstream.close()

    def _upstreams(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = make_session()
        return self._session

    def _url(self, base: str, incoming: _Incoming) -> URL:
        return URL(base.rstrip("/") + incoming.target, encoded=True)

    def _foreign_host(self, request: web.BaseRequest, first: serve.Server, asked: RequestHead) -> OwnResponse:
        host = f"{request.headers.get('Host', '')!r:.80}"
        text = f"not for the host {host}: if that is intended, add it to hosts of [serve.{first.name}]"
        if host not in self._refused_hosts and len(self._refused_hosts) < 10:
            self._refused_hosts.add(host)
            self._report(f"{first.name}: refused a request {text}")
        return refusing.refusal(first.kind, asked.path, 403, text)


class _Incoming:
    """A client's request, whose body is read on demand."""

    def __init__(self, request: web.BaseRequest, target: str, front: Front) -> None:
        self.request = request
        self.target = target
        self._front = front
        self._ahead = 0  # bytes that this request uses of the front's room
        self._peeked = bytearray()
        self.tell: Callable[[Use], None] | None = None  # the server, while this request uses it
        self._is_stalled = False
        self._is_awaited = request.headers.get("Expect", "").lower() == "100-continue"

    async def peek(self, most: int) -> Body:
        """Read the beginning of the body, up to ``most`` bytes."""
        if not most or not self.request.body_exists:
            return classify.NO_BODY if not most else classify.read_body(b"", is_whole=True)
        self._invite()
        is_to_choose = most >= classify.MOST_TO_CHOOSE
        await self._peek(_ALWAYS_PEEKED if is_to_choose else most, has_room=False)
        is_more = not self.request.content.at_eof() and classify.may_name_a_model(bytes(self._peeked))
        if is_to_choose and is_more:
            # Only one at a time, so none keeps room that another needs to go on.
            async with self._front.choosing:
                await self._front.has_room()
                await self._peek(most, has_room=True)
        return classify.read_body(bytes(self._peeked), is_whole=self.request.content.at_eof())

    async def _peek(self, most: int, *, has_room: bool) -> None:
        """Raises TimeoutError if nothing comes any more."""
        while len(self._peeked) < most and (
            has_room or self._front.room > 0 or len(self._peeked) < _ALWAYS_PEEKED
        ):
            async with asyncio.timeout(_STALLED_S):
                chunk = await self.request.content.readany()
            if not chunk:
                return
            self._take(chunk)

    def body(self) -> AsyncIterator[bytes | bytearray] | None:
        """The whole body as it arrives; to be called once."""
        return self._chunks() if self.request.body_exists else None

    async def _chunks(self) -> AsyncIterator[bytes | bytearray]:
        self._invite()
        if self._peeked:
            peeked, self._peeked = self._peeked, bytearray()
            yield peeked
            self.give_back()
        while chunk := await self._next():
            yield chunk

    async def _next(self) -> bytes:
        """The next part of the body; b"" at its end. If none comes, the request is no use of the server."""
        reading = asyncio.ensure_future(self.request.content.readany())
        try:
            await asyncio.wait([reading], timeout=_STALLED_S)
            self._stall(is_stalled=not reading.done())
            return await reading
        finally:
            reading.cancel()
            self._stall(is_stalled=False)

    def _stall(self, *, is_stalled: bool) -> None:
        if self.tell is not None and is_stalled != self._is_stalled:
            self._is_stalled = is_stalled
            self.tell("done" if is_stalled else "began")

    def end_use(self) -> None:
        """The server is told no more of it. Safe to repeat."""
        self._stall(is_stalled=False)
        self.tell = None

    def _invite(self) -> None:
        if self._is_awaited and self.request.transport is not None and self.request.version >= (1, 1):
            self.request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._is_awaited = False

    @asynccontextmanager
    async def read_ahead(self) -> AsyncIterator[None]:
        """Read the body in advance: aiohttp notices only after it that the client is gone."""
        reading = asyncio.ensure_future(self._read_ahead())
        try:
            yield
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read_ahead(self) -> None:
        if self.request.body_exists:
            self._invite()
        while self._front.room > 0 and (chunk := await self.request.content.readany()):
            self._take(chunk)

    def _take(self, chunk: bytes) -> None:
        self._peeked += chunk
        self._ahead += len(chunk)
        self._front.room -= len(chunk)

    def give_back(self) -> None:
        """Nothing that was read in advance is needed any more. Safe to repeat."""
        self._front.room += self._ahead
        self._front.freed.set()
        self._ahead = 0


async def _pass_on(request: web.BaseRequest, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(status=upstream.status, reason=upstream.reason)
    for name, value in _end_to_end(upstream.headers):
        response.headers.add(name, value)
    response.headers.setdefault("Server", "slicer")
    await response.prepare(request)
    try:
        async for chunk in upstream.content.iter_any():
            await response.write(chunk)
        await response.write_eof()
    except aiohttp.ClientError:
        _cut(request, response)  # a clean end would look like a complete answer
    return response


def _cut(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Close the connection so that the client notices the missing rest."""
    if request.transport is None:
        return
    is_of_known_length = request.version >= (1, 1) or "Content-Length" in response.headers
    if not is_of_known_length:
        peer: socket.socket = request.transport.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    request.transport.close()


async def _until_done(use: AsyncExitStack, settings: serve.Server, base: str) -> None:
    """Keep a request open until the server has finished the work that it continues."""
    async with use:
        upstream = Upstream(settings.kind, base)
        try:
            while await _is_busy(upstream):
                await asyncio.sleep(_QUEUE_LOOK_S)
        finally:
            await upstream.close()


async def _is_busy(upstream: Upstream) -> bool:
    try:
        return await upstream.is_busy()
    except TimeoutError:
        return True  # too busy to answer
    except (aiohttp.ClientError, ValueError):
        return False  # it has ended


def _sent(answer: OwnResponse) -> web.Response:
    return web.Response(status=answer.status, headers=answer.headers, body=answer.body)


def _forwarded(request: web.BaseRequest, url: URL) -> list[tuple[str, str]]:
    is_local = is_own(url.host or "", ()) or is_address(url.host or "", only_loopback=True)
    # A server on loopback checks the host (Ollama does). The client's own host was checked here.
    host = f"localhost:{url.port}" if is_local else url.authority
    origin, asked = request.headers.get("Origin", ""), request.headers.get("Host", "")
    if origin.lower().partition("://")[2] != asked.lower():
        return [*_end_to_end(request.headers), ("Host", host)]
    # Its own page's. ComfyUI refuses that if its origin is not the host.
    kept = (each for each in _end_to_end(request.headers) if each[0].lower() != "origin")
    return [*kept, ("Host", host), ("Origin", f"http://{host}")]


def _end_to_end(headers: CIMultiDictProxy[str]) -> list[tuple[str, str]]:
    named = {each.strip().lower() for text in headers.getall("Connection", ()) for each in text.split(",")}
    return [
        (name, value)
        for name, value in headers.items()
        if name.lower() not in _HOP_BY_HOP and name.lower() not in named and _is_utf8(value)
    ]


def _is_utf8(value: str) -> bool:
    """Whether aiohttp can send it."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
