"""slicer's own calls to a server: whether it is ready, what it has loaded, to load and to unload models."""

from __future__ import annotations

import asyncio
import json
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp

from slicer.config.serve import Kind
from slicer.record import record

T = TypeVar("T", dict[str, Any], list[Any])

_ANSWER_S = 10.0  # for calls that do no work
_MOST_BYTES = 1 << 24
_LONGEST_LINE = 1 << 16  # bytes of a header line

# Raised if nothing listens any more. After any other error the server may still be alive and hold its GPU.
Gone = aiohttp.ClientConnectorError


def make_session() -> aiohttp.ClientSession:
    """A session for upstreams. Each request has its own connection, so closing that ends the request."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        max_line_size=_LONGEST_LINE,
        max_field_size=_LONGEST_LINE,
    )


@record
class Loaded:
    """A model in a server's memory. Sizes in bytes."""

    name: str
    size: int
    size_vram: int  # if less than size, the CPU computes the rest


class Upstream:
    """A server, by its kind and base URL ("http://127.0.0.1:11435").

    Calls raise aiohttp.ClientError if the server cannot be reached (Gone) or the connection is cut,
    TimeoutError, and ValueError for an unexpected answer.
    """

    def __init__(self, kind: Kind, base: str) -> None:
        self.kind = kind
        self.base = base
        self._session = make_session()

    async def close(self) -> None:
        await self._session.close()

    async def is_ready(self, path: str) -> bool:
        """Whether it answers 200 at the path; without a path, whether it accepts a connection."""
        try:
            if path:
                status, _ = await self._call("GET", path, None, _ANSWER_S)
                return status == 200
            parts = urlsplit(self.base)
            async with asyncio.timeout(_ANSWER_S):
                _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return False
        writer.close()
        return True

    async def loaded(self) -> tuple[Loaded, ...]:
        """The models in Ollama's memory; () for other kinds. Models that are still loading are missing."""
        if self.kind != "ollama":
            return ()
        said = await self._answer("GET", "/api/ps", dict)
        try:
            return tuple(
                Loaded(str(each["model"]), int(each.get("size", 0)), int(each.get("size_vram", 0)))
                for each in said["models"] or ()
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"GET /api/ps was answered with {said!r:.200}") from error

    async def load(self, model: str, *, embeds: bool) -> str:
        """Load a model, however long it takes. Returns the server's error, or ""."""
        path = "/api/embed" if embeds else "/api/generate"
        status, text = await self._call("POST", path, {"model": model}, None)
        return "" if status == 200 else _error_of(text) or f"status {status}"

    async def unload(self, model: str) -> None:
        """Ask for a model to be unloaded. That takes a while, and its memory becomes free later still."""
        asked = {"model": model, "keep_alive": 0}
        status, _ = await self._call("POST", "/api/generate", asked, _ANSWER_S)
        if status != 200:  # the model only makes embeddings
            await self._call("POST", "/api/embed", asked, _ANSWER_S)

    async def is_busy(self) -> bool:
        """Whether it works on something for which no request waits: ComfyUI's queue, llama.cpp's slots."""
        if self.kind == "llamacpp":
            slots = await self._answer("GET", "/slots", list)
            return any(isinstance(each, dict) and each.get("is_processing") for each in slots)
        if self.kind != "comfyui":
            return False
        said = await self._answer("GET", "/queue", dict)
        return bool(said.get("queue_running") or said.get("queue_pending"))

    async def _answer(self, method: str, path: str, form: type[T]) -> T:
        status, text = await self._call(method, path, None, _ANSWER_S)
        found = json.loads(text) if status == 200 else None
        if not isinstance(found, form):
            raise ValueError(f"{method} {path} was answered with {status}: {text[:200]!r}")
        return found

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float | None
    ) -> tuple[int, bytes]:
        data = None if body is None else json.dumps({**body, "stream": False}).encode()
        headers = {"Content-Type": "application/json"} if data else {}
        url, text = self.base.rstrip("/") + path, bytearray()
        async with (
            asyncio.timeout(timeout_s),
            self._session.request(method, url, data=data, headers=headers, allow_redirects=False) as answer,
        ):
            async for chunk in answer.content.iter_any():
                text += chunk
                if len(text) > _MOST_BYTES:
                    raise ValueError(f"{method} {path} was answered with more than {_MOST_BYTES} bytes")
            return answer.status, bytes(text)


def _error_of(text: bytes) -> str:
    try:
        found = json.loads(text)
    except ValueError:
        return ""
    return str(found.get("error", "")) if isinstance(found, dict) else ""
