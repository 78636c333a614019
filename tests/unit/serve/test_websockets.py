"""Websockets through the proxy: messages of any size, both ways, with their protocol and their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.unit import made_up
from tests.unit.serve.front import FakeOwner, Proxy, played, proxy, until

aiohttp = pytest.importorskip("aiohttp")
from aiohttp import web  # noqa: E402

pytestmark = pytest.mark.both_pythons

BIG = bytes(range(256)) * (48 << 10)  # 12 MiB; aiohttp's own limit is 4


@asynccontextmanager
async def between(
    handle: Callable[[web.Request], Awaitable[web.StreamResponse]], **settings: object
) -> AsyncIterator[tuple[Proxy, FakeOwner, Any]]:
    """A proxy before a server that answers so, and a client's session."""
    app = web.Application()
    app.router.add_get("/{rest:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    owner = FakeOwner(made_up.server(**{"kind": "raw", **settings}), f"http://127.0.0.1:{runner.addresses[0][1]}")
    try:
        async with proxy(owner) as through, aiohttp.ClientSession() as session:
            yield through, owner, session
    finally:
        await runner.cleanup()


async def _echo(request: web.Request) -> web.WebSocketResponse:
    """Each message comes back; "end" ends it with a code of its own."""
    peer = web.WebSocketResponse(protocols=["b", "a"], max_msg_size=0)
    await peer.prepare(request)
    async for message in peer:
        if message.data == "end":
            await peer.close(code=4001, message=b"enough")
        elif message.type == aiohttp.WSMsgType.TEXT:
            await peer.send_str(f"{message.data} {request.raw_path}")
        else:
            await peer.send_bytes(message.data)
    return peer


@played
async def test_messages_protocol_and_end_pass() -> None:  # B6
    async with between(_echo) as (through, owner, session):
        url = f"http://127.0.0.1:{through.port}/a%2Fws?x=1"
        async with session.ws_connect(url, protocols=["a", "b"], max_msg_size=0) as peer:
            assert peer.protocol == "a"
            assert owner.open == 1  # it is a request
            await peer.send_bytes(BIG)
            assert (await peer.receive()).data == BIG
            await peer.send_str("hällo")
            assert (await peer.receive()).data == "hällo /a%2Fws?x=1"
            await peer.send_str("end")
            last = await peer.receive()
            assert (last.type, last.data, last.extra) == (aiohttp.WSMsgType.CLOSE, 4001, "enough")
        await until(lambda: owner.open == 0, "the request has ended")


@pytest.mark.parametrize("settings", [{"ignore_websockets": True}, {"kind": "comfyui"}])
@played
async def test_a_websocket_that_is_no_request_holds_nothing(settings: dict[str, object]) -> None:  # B6
    async with between(_echo, **settings) as (through, owner, session):
        async with session.ws_connect(f"http://127.0.0.1:{through.port}/ws") as peer:
            await peer.send_str("x")
            assert (await peer.receive()).data == "x /ws"
        assert not owner.used
        owner.free_base = None  # it does not run, and only it can choose a protocol
        with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
            await session.ws_connect(f"http://127.0.0.1:{through.port}/ws", protocols=["a"])


@played
async def test_a_refused_handshake_passes() -> None:  # B6
    async def refuses(_: web.Request) -> web.StreamResponse:
        raise web.HTTPForbidden(text="no")

    async with between(refuses) as (through, _, session):
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await session.ws_connect(f"http://127.0.0.1:{through.port}/ws")


@pytest.mark.parametrize("who", ["client", "server"])
@played
async def test_either_end_that_goes_ends_the_other(who: str) -> None:  # B6
    ended = asyncio.Event()

    async def waits(request: web.Request) -> web.WebSocketResponse:
        peer = web.WebSocketResponse()
        await peer.prepare(request)
        if who == "server":
            assert request.transport is not None
            request.transport.abort()
        await peer.receive()
        ended.set()
        return peer

    async with between(waits) as (through, owner, session):
        peer = await session.ws_connect(f"http://127.0.0.1:{through.port}/ws")
        if who == "client":
            await until(lambda: owner.open == 1, "it is connected")
            assert peer._response.connection is not None
            peer._response.connection.transport.abort()
        else:
            assert (await peer.receive()).type == aiohttp.WSMsgType.CLOSE
            assert peer.close_code == aiohttp.WSCloseCode.GOING_AWAY
        await asyncio.wait_for(ended.wait(), 30)
        await until(lambda: owner.open == 0, "the request has ended")


@played
async def test_a_websocket_is_answered_before_its_server_runs() -> None:  # B6
    """ComfyUI's clients open one, then send the request that starts the server. It has to find both."""
    order: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        order.append(request.path)
        return await _echo(request) if request.path == "/ws" else web.Response()

    async with between(handle, kind="comfyui", command=("x",)) as (through, owner, session):
        owner.granted.clear()
        owner.free_base = None
        url = f"http://127.0.0.1:{through.port}/"
        async with session.ws_connect(f"{url}ws", max_msg_size=0) as peer:
            await peer.send_str("hello")
            await peer.send_bytes(BIG)
            asked = asyncio.ensure_future(session.get(url))
            await until(lambda: owner.waiting == 1, "the request waits for its server")
            assert (len(owner.used), order) == (1, [])
            owner.granted.set()
            assert (await asked).status == 200
            assert order == ["/ws", "/"]
            assert await peer.receive_str() == "hello /ws"
            assert await peer.receive_bytes() == BIG
            await peer.send_str("end")
            assert (await peer.receive()).data == 4001


@pytest.mark.parametrize("says", [True, False])
@played
async def test_a_client_that_leaves_before_its_server_runs_leaves_nothing(*, says: bool) -> None:  # B6
    async with between(_echo, kind="comfyui", command=("x",)) as (through, owner, session):
        owner.granted.clear()
        owner.free_base = None
        async with session.ws_connect(f"http://127.0.0.1:{through.port}/ws") as peer:
            if says:
                await peer.send_str("hello")
            assert owner.used == []
        await until(lambda: through.front.connections == 0, "it has left")
