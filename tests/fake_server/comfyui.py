"""ComfyUI's: work is queued, and nobody's request waits for it."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from aiohttp import WSMsgType, web

from tests.fake_server.models import Models


def routes(router: web.UrlDispatcher, models: Models) -> None:
    """Give a server these routes."""
    queue: list[int] = []
    tasks: set[asyncio.Task[None]] = set()

    async def work(number: int) -> None:
        await models.load(next(iter(models.sizes)))
        async for _ in models.words():
            pass
        queue.remove(number)

    async def prompt(request: web.Request) -> web.Response:
        if not is_its_page(request):
            return web.Response(status=403)
        await request.content.read()
        queue.append(len(queue))
        task = asyncio.ensure_future(work(queue[-1]))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return web.json_response({"prompt_id": str(queue[-1]), "number": queue[-1], "node_errors": {}})

    async def show(_: web.Request) -> web.Response:
        return web.json_response({"queue_running": queue[:1], "queue_pending": queue[1:]})

    async def stats(_: web.Request) -> web.Response:
        return web.json_response({"system": {}, "devices": []})

    async def page(_: web.Request) -> web.Response:
        return web.Response(text="<title>ComfyUI</title>", content_type="text/html")

    def is_its_page(request: web.Request) -> bool:
        """As its origin_only_middleware decides."""
        origin = urlsplit(request.headers.get("Origin", "")).netloc
        is_foreign = request.headers.get("Sec-Fetch-Site") == "cross-site"
        return not is_foreign and origin in ("", request.headers["Host"])

    async def socket(request: web.Request) -> web.WebSocketResponse:
        if not is_its_page(request):
            raise web.HTTPForbidden
        peer = web.WebSocketResponse()
        await peer.prepare(request)
        await peer.send_json({"type": "status", "data": {"queue_remaining": len(queue)}})
        async for message in peer:
            if message.type == WSMsgType.TEXT:
                await peer.send_str(message.data)
        return peer

    router.add_get("/", page)
    router.add_get("/system_stats", stats)
    router.add_get("/ws", socket)
    for prefix in ("", "/api"):
        router.add_get(f"{prefix}/queue", show)
        router.add_post(f"{prefix}/prompt", prompt)
