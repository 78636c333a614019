"""The routes of OpenAI's API, as vLLM and Ollama have them, and Anthropic's messages."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from tests.fake_server.models import Models


def routes(router: web.UrlDispatcher, models: Models) -> None:
    """Those of a server that loads its only model when it starts."""

    async def health(_: web.Request) -> web.Response:
        return web.Response(status=200 if models.loaded else 503)

    async def sleep(_: web.Request) -> web.Response:
        models.journal.add("sleep")
        return web.Response()

    router.add_get("/health", health)
    router.add_post("/sleep", sleep)
    v1_routes(router, models)


def v1_routes(router: web.UrlDispatcher, models: Models) -> None:
    """Those below /v1."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            said = json.loads(await request.content.read())
            name = said["model"]
        except (ValueError, KeyError, TypeError) as error:
            return _error(400, f"invalid request: {error}")
        if name not in models.sizes:
            return _error(404, f"The model `{name}` does not exist.")
        await models.load(name)
        if request.path == "/v1/embeddings":
            data = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]
            usage = {"prompt_tokens": 1, "total_tokens": 1}
            return web.json_response({"object": "list", "model": name, "data": data, "usage": usage})
        if said.get("stream"):
            return await _streamed(request, models, name)
        return web.json_response(_whole(request.path, name, "".join([word async for word in models.words()])))

    async def listed(_: web.Request) -> web.Response:
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "fake"} for name in models.sizes]
        return web.json_response({"object": "list", "data": data})

    for path in ("chat/completions", "completions", "embeddings", "messages"):
        router.add_post(f"/v1/{path}", handle)
    router.add_get("/v1/models", listed)


def _error(status: int, text: str) -> web.Response:
    error = {"message": text, "type": "invalid_request_error", "param": None, "code": None}
    return web.json_response({"error": error}, status=status)


def _whole(path: str, name: str, text: str) -> dict[str, Any]:
    if path == "/v1/messages":
        content = [{"type": "text", "text": text}]
        return {"id": "1", "type": "message", "role": "assistant", "model": name, "content": content}
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "finish_reason": "stop", "message": message, "text": text}
    kind = "chat.completion" if "chat" in path else "text_completion"
    usage = {"prompt_tokens": 1, "completion_tokens": 5, "total_tokens": 6}
    return {"id": "1", "object": kind, "created": 0, "model": name, "choices": [choice], "usage": usage}


async def _streamed(request: web.Request, models: Models, name: str) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    async for word in models.words():
        delta = {"role": "assistant", "content": word}
        choice = {"index": 0, "delta": delta, "text": word, "finish_reason": None}
        known = {"id": "1", "object": "chat.completion.chunk", "created": 0}
        chunk = {**known, "model": name, "choices": [choice]}
        await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    return response
