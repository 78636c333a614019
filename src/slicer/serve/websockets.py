"""Websockets: passes on messages of any size both ways."""

from __future__ import annotations

import asyncio

import aiohttp
from aiohttp import web
from yarl import URL

from slicer.serve.terms import Unavailable

Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse

_MESSAGES = (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.PING, aiohttp.WSMsgType.PONG)
_OWN = ("sec-websocket-key", "sec-websocket-version", "sec-websocket-extensions", "sec-websocket-protocol")


async def relay(
    session: aiohttp.ClientSession, request: web.BaseRequest, url: URL, headers: list[tuple[str, str]]
) -> web.StreamResponse:
    """Connect a client with a server until one side closes. Raises Unavailable without a server."""
    wanted = ",".join(request.headers.getall("Sec-WebSocket-Protocol", ()))
    protocols = [each.strip() for each in wanted.split(",") if each.strip()]
    try:  # the server first, because it chooses the protocol
        upstream = await connect(session, url, headers, protocols)
    except aiohttp.WSServerHandshakeError as error:
        return web.Response(status=error.status, text=error.message)
    except (aiohttp.ClientError, OSError) as error:
        raise Unavailable("failed", f"the server does not answer: {error}") from error
    found: asyncio.Future[aiohttp.ClientWebSocketResponse] = asyncio.get_running_loop().create_future()
    found.set_result(upstream)
    return await join(request, found, [upstream.protocol] if upstream.protocol else [])


async def connect(
    session: aiohttp.ClientSession, url: URL, headers: list[tuple[str, str]], protocols: list[str]
) -> aiohttp.ClientWebSocketResponse:
    """Raises aiohttp.ClientError, OSError."""
    return await session.ws_connect(
        url, protocols=protocols, max_msg_size=0, autoping=False,
        headers=[each for each in headers if each[0].lower() not in _OWN],
    )  # fmt: skip


async def join(
    request: web.BaseRequest, upstream: asyncio.Future[aiohttp.ClientWebSocketResponse], protocols: list[str]
) -> web.WebSocketResponse:
    """Answer a client, and connect it with a server, which may come later. It is cancelled at the end."""
    client = web.WebSocketResponse(protocols=protocols, max_msg_size=0, autoping=False)
    ways: list[asyncio.Task[None]] = []
    try:
        await client.prepare(request)
        ways = [asyncio.ensure_future(_up(client, upstream)), asyncio.ensure_future(_down(upstream, client))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        if not upstream.cancel() and not upstream.cancelled() and upstream.exception() is None:
            await upstream.result().close()
        await client.close()
    return client


async def _up(client: Socket, upstream: asyncio.Future[aiohttp.ClientWebSocketResponse]) -> None:
    first = await client.receive()  # the rest waits in the socket
    if first.type in _MESSAGES or upstream.done():
        await _copy(client, await asyncio.shield(upstream), first)


async def _down(upstream: asyncio.Future[aiohttp.ClientWebSocketResponse], client: Socket) -> None:
    await _copy(await asyncio.shield(upstream), client)


async def _copy(source: Socket, sink: Socket, first: aiohttp.WSMessage | None = None) -> None:
    """Pass on all messages, and at the end how the connection was closed."""
    while True:
        message, first = first or await source.receive(), None
        match message.type:
            case aiohttp.WSMsgType.TEXT:
                await sink.send_str(message.data)
            case aiohttp.WSMsgType.BINARY:
                await sink.send_bytes(message.data)
            case aiohttp.WSMsgType.PING:
                await sink.ping(message.data)
            case aiohttp.WSMsgType.PONG:
                await sink.pong(message.data)
            case aiohttp.WSMsgType.CLOSE:
                await sink.close(code=message.data or 1000, message=(message.extra or "").encode())
                return
            case _:  # the connection was cut
                await sink.close(code=aiohttp.WSCloseCode.GOING_AWAY)
                return
