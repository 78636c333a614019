"""Any HTTP server: it says what it got, sends as much as is wanted, and echoes what a websocket says."""

from __future__ import annotations

import hashlib

from aiohttp import WSMsgType, web

from tests.fake_server.models import Models


def routes(router: web.UrlDispatcher, models: Models) -> None:
    """Give a server these routes."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Upgrade", "").lower() == "websocket":
            peer = web.WebSocketResponse(max_msg_size=0)
            await peer.prepare(request)
            async for message in peer:
                await (peer.send_bytes if message.type == WSMsgType.BINARY else peer.send_str)(message.data)
            return peer
        if size := int(request.query.get("bytes", "0")):
            return await _bytes(request, size)
        digest, size = hashlib.sha256(), 0
        async for chunk in request.content.iter_any():
            digest.update(chunk)
            size += len(chunk)
        got = {
            "method": request.method, "path": request.raw_path, "headers": list(request.headers.items()),
            "size": size, "sha256": digest.hexdigest(),
        }  # fmt: skip
        models.journal.add("request", **got)
        return web.json_response(got)

    router.add_route("*", "/{rest:.*}", handle)


async def _bytes(request: web.Request, size: int) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": str(size)})
    await response.prepare(request)
    block = bytes(1 << 20)
    while size:
        await response.write(block[: min(size, len(block))])
        size -= min(size, len(block))
    return response
