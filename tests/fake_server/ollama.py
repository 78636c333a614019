"""Ollama's routes, as of 0.33."""

from __future__ import annotations

import hashlib
import ipaddress
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from tests.fake_server import openai
from tests.fake_server.models import Models

_MIB = 1 << 20
_WHEN = "2026-01-01T00:00:00Z"
_DETAILS = {"format": "gguf", "family": "llama", "parameter_size": "1B", "quantization_level": "Q4"}


def routes(router: web.UrlDispatcher, models: Models) -> None:
    """Give a server these routes."""

    def add(method: str, path: str, answer: Callable[[Any, Models], Awaitable[web.StreamResponse]]) -> None:
        async def handle(request: web.Request) -> web.StreamResponse:
            if not _is_local(request.host):
                return web.Response(status=403)
            return await answer(request, models)

        router.add_route(method, path, handle)

    add("GET", "/", _text)
    for path, answer in {"version": _version, "tags": _tags, "ps": _ps}.items():
        add("GET", f"/api/{path}", answer)
        router.add_head(f"/api/{path}", lambda _: _done())
    router.add_head("/", lambda _: _done())
    for path in ("generate", "chat"):
        add("POST", f"/api/{path}", _generate)
    for path in ("embed", "embeddings"):
        add("POST", f"/api/{path}", _embed)
    add("POST", "/api/show", _show)
    for path in ("pull", "push", "create"):
        add("POST", f"/api/{path}", _progress)
    add("POST", "/api/blobs/{digest}", _blob)
    add("DELETE", "/api/delete", _show)
    openai.v1_routes(router, models)


def _is_local(host: str) -> bool:
    name = host.rpartition(":")[0] or host
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return name in ("localhost", "127.0.0.1")


async def _done() -> web.Response:
    return web.Response()


async def _text(_: web.Request, __: Models) -> web.Response:
    return web.Response(text="Ollama is running")


async def _version(_: web.Request, __: Models) -> web.Response:
    return web.json_response({"version": "0.33.0-fake"})


async def _tags(_: web.Request, models: Models) -> web.Response:
    return web.json_response({"models": [_listed(models, name) for name in models.sizes]})


async def _ps(_: web.Request, models: Models) -> web.Response:
    more = {"expires_at": _WHEN, "context_length": 4096}
    loaded = models.loaded.items()
    found = [{**_listed(models, name), **more, "size_vram": mib * _MIB} for name, mib in loaded]
    return web.json_response({"models": found})


def _listed(models: Models, name: str) -> dict[str, Any]:
    size = models.sizes[name] * _MIB
    known = {"digest": "0" * 64, "details": _DETAILS, "modified_at": _WHEN}
    return {"name": name, "model": name, "size": size, **known}


async def _show(request: web.Request, models: Models) -> web.Response:
    said = await _said(request, models)
    if isinstance(said, web.Response):
        return said
    return web.json_response({"details": _DETAILS, "capabilities": [], "model_info": {}})


async def _said(request: web.Request, models: Models) -> dict[str, Any] | web.Response:
    """The body, or what is to be answered instead. Field names have no case, as in Go."""
    try:
        said = {name.lower(): value for name, value in json.loads(await request.content.read()).items()}
    except (ValueError, AttributeError) as error:
        return web.json_response({"error": str(error)}, status=400)
    name = said.get("model") or said.get("name") or ""
    if name not in models.sizes:
        return web.json_response({"error": f"model '{name}' not found"}, status=404)
    return {**said, "model": name}


async def _generate(request: web.Request, models: Models) -> web.StreamResponse:
    said = await _said(request, models)
    if isinstance(said, web.Response):
        return said
    is_chat, name = request.path == "/api/chat", said["model"]
    base = {"model": name, "created_at": _WHEN}

    def part(text: str, **more: object) -> dict[str, object]:
        word = {"message": {"role": "assistant", "content": text}} if is_chat else {"response": text}
        return {**base, **word, "done": bool(more), **more}

    if not (said.get("messages") if is_chat else said.get("prompt")):
        if said.get("keep_alive") in (0, "0", "0s"):
            models.unload(name)
            return web.json_response(part("", done_reason="unload"))
        await models.load(name)
        return web.json_response(part("", done_reason="load"))
    await models.load(name)
    last = part("", done_reason="stop", eval_count=models.options.tokens)
    if said.get("stream", True):
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        async for word in models.words():
            await response.write(json.dumps(part(word)).encode() + b"\n")
        await response.write(json.dumps(last).encode() + b"\n")
    else:
        whole = "".join([word async for word in models.words()])
        response = web.json_response({**last, **part(whole), "done": True})
    if said.get("keep_alive") in (0, "0", "0s"):
        models.unload(name)
    return response


async def _embed(request: web.Request, models: Models) -> web.Response:
    said = await _said(request, models)
    if isinstance(said, web.Response):
        return said
    await models.load(said["model"])
    given = said.get("input") or said.get("prompt") or []
    count = len(given) if isinstance(given, list) else 1
    if said.get("keep_alive") in (0, "0", "0s"):
        models.unload(said["model"])
    vectors = [[0.5, 0.25]] * count
    return web.json_response({"model": said["model"], "embeddings": vectors, "embedding": [0.5, 0.25]})


async def _progress(request: web.Request, models: Models) -> web.StreamResponse:
    await request.content.read()
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await response.prepare(request)
    done = 0
    async for _ in models.words():
        done += 1
        line = {"status": "pulling", "digest": "0" * 64, "total": models.options.tokens, "completed": done}
        await response.write(json.dumps(line).encode() + b"\n")
    await response.write(b'{"status": "success"}\n')
    return response


async def _blob(request: web.Request, models: Models) -> web.Response:
    digest, size = hashlib.sha256(), 0
    async for chunk in request.content.iter_any():
        digest.update(chunk)
        size += len(chunk)
    models.journal.add("blob", size=size, sha256=digest.hexdigest())
    is_whole = request.match_info["digest"] == f"sha256:{digest.hexdigest()}"
    return web.Response(status=201 if is_whole else 400)
