"""Decides by method, path and body whether a request needs the GPU, and which server it is for. Pure."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from string import punctuation
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from slicer.config.serve import Server
from slicer.record import record, replace
from slicer.serve.kinds import KINDS
from slicer.serve.terms import Need, RequestNeed

_MODELS = "/v1/models/"
_READING = ("GET", "HEAD", "OPTIONS")
_EMBEDS = ("/api/embed", "/api/embeddings", "/v1/embeddings")
_ZERO = re.compile(r"[+-]?([0.]*0[0.]*(h|m|s|ms|us|µs|ns)?)+")  # as a duration in Go
_FORM_MODEL = re.compile(rb'name="?model"?\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,500})\r\n')
_PEEKED = 1 << 20
MOST_TO_CHOOSE = 1 << 25  # openai's client writes the model after the messages and their images


@record
class RequestHead:
    """What is known of a request before its body is read."""

    method: str
    path: str  # decoded once, without a query, double slashes, dots or a slash at the end
    is_websocket: bool
    is_compressed: bool  # the body is compressed

    @property
    def route(self) -> str:
        return f"{self.method} {self.path}"


def origin_form(target: str) -> str:
    """The path and query of a request line, in the form to forward; "" if the line has none.

    A client that takes slicer for an HTTP proxy sends the whole URL. Bytes beyond ASCII are percent-encoded.
    """
    if not target.startswith("/"):
        parts = urlsplit(target)
        if parts.scheme not in ("http", "https"):
            return ""
        target = target[target.index("//") + 2 :]
        target = target[len(parts.netloc) :]
        target = target if target.startswith("/") else f"/{target}"
    return quote(target.partition("#")[0].encode("utf-8", "surrogateescape"), safe=punctuation)


def request(method: str, target: str, headers: Mapping[str, str]) -> RequestHead:
    """``target`` has the form of :func:`origin_form`. ``headers`` must find names in any case."""
    path = posixpath.normpath("/" + unquote(target.partition("?")[0]).lstrip("/"))
    is_websocket = method == "GET" and headers.get("Upgrade", "").lower() == "websocket"
    is_compressed = headers.get("Content-Encoding", "identity") != "identity"
    return RequestHead(method.upper(), path, is_websocket, is_compressed)


def bytes_to_peek(servers: Sequence[Server], asked: RequestHead) -> int:
    """How much of the body to read before the decision; 0: nothing."""
    if asked.method in _READING or asked.is_compressed:
        return 0
    if len(servers) > 1 and any(each.models for each in servers):
        return MOST_TO_CHOOSE
    return _PEEKED if any(each.kind == "ollama" and _need(each, asked) == "gpu" for each in servers) else 0


@record
class Body:
    """The part of a body that was read in advance."""

    fields: dict[str, Any]  # the JSON object's, as far as it could be read; names are case-folded
    is_broken: bool  # the body is complete, but not a JSON object
    is_cut: bool = False  # there is more than was read, which may name the model

    @property
    def model(self) -> str:
        found = self.fields.get("model") or self.fields.get("name")
        return found if isinstance(found, str) else ""


NO_BODY = Body({}, is_broken=False)


def read_body(peeked: bytes, *, is_whole: bool) -> Body:
    """Parse the body. If it is longer than ``peeked``, only the fields at its beginning count."""
    is_cut = not is_whole and may_name_a_model(peeked)
    if peeked.startswith(b"--"):
        found = _FORM_MODEL.search(peeked)
        fields = {"model": found[1].decode(errors="replace")} if found else {}
        return Body(fields, is_broken=False, is_cut=is_cut)
    text = peeked.decode(errors="replace").lstrip(" \t\r\n")
    if not is_whole:
        return Body(_first_fields(text), is_broken=False, is_cut=is_cut)
    try:
        # Go takes the first value, and field names in any case. The body must mean the same to both.
        found, _ = json.JSONDecoder(object_pairs_hook=_folded).raw_decode(text)
    except (ValueError, RecursionError):
        return Body({}, is_broken=True)
    return Body(found, is_broken=False) if isinstance(found, dict) else Body({}, is_broken=True)


def may_name_a_model(beginning: bytes) -> bool:
    """Whether a body begins as a JSON object or a form."""
    return beginning.lstrip(b" \t\r\n").startswith((b"{", b"--")) or not beginning


def classify(server: Server, asked: RequestHead, body: Body) -> RequestNeed:
    """What the request asks for. A truncated or compressed body counts as work."""
    need, path = _need(server, asked), _own(server, asked).path
    if need == "gpu" and server.kind == "ollama":
        need = _ollama_need(asked.route, body)
    elif need == "free" and server.kind == "ollama" and path == "/api/ps":
        need = "loaded"
    return RequestNeed(need, body.model, path in _EMBEDS)


def is_queued(server: Server, asked: RequestHead, headers: Mapping[str, str]) -> bool:
    """Whether the server may go on working after the request. Headers as in :func:`request`."""
    known = KINDS[server.kind]
    return _fits(_own(server, asked), known.queued) and (not known.queued_by or known.queued_by in headers)


def choose(servers: Sequence[Server], asked: RequestHead, body: Body) -> Server | None:
    """One of the servers at an address: by the model, by the longest matching path, or the default.

    None if the request is for none of them, or nobody can tell: it must not reach the wrong one.
    """
    if len(servers) == 1:
        return servers[0]
    model = body.model or asked.path.removeprefix(_MODELS) * asked.path.startswith(_MODELS)
    for server in servers:
        if model and any(_same(model, each) for each in server.models):
            return server
    fitting = [each for each in servers if each.path and _is_below(asked.path, each.path)]
    if fitting:
        return max(fitting, key=lambda each: len(each.path))
    is_unread = (body.is_cut or asked.is_compressed) and not model
    return None if is_unread else next((each for each in servers if each.default), None)


def _same(model: str, listed: str) -> bool:
    """Whether the names match. Ollama's clients may omit ":latest"."""
    return model.removesuffix(":latest") == listed.removesuffix(":latest")


def _is_below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix.rstrip("/") + "/")


def _own(server: Server, asked: RequestHead) -> RequestHead:
    """With the path without the prefix that selected the server; its kind's paths are relative to that."""
    if server.path and _is_below(asked.path, server.path):
        return replace(asked, path="/" + asked.path[len(server.path.rstrip("/")) :].lstrip("/"))
    return asked


def _need(server: Server, asked: RequestHead) -> Need:
    """The need by method and path alone."""
    known, own = KINDS[server.kind], _own(server, asked)
    need: Need
    if own.method != "OPTIONS" and _fits(own, known.forbidden) and not _fits(own, server.routes_allow):
        return "forbidden"
    if own.is_websocket and server.ignore_websockets:
        return "free"
    is_work = own.method not in _READING if not own.is_websocket else known.is_websocket_work
    for routes, need in (
        (server.routes_free, "free"), (server.routes_gpu, "gpu"), (known.free, "free"), (known.gpu, "gpu"),
    ):  # fmt: skip
        if _fits(own, routes):
            return need
    return "gpu" if is_work else "free"


def _fits(asked: RequestHead, routes: Sequence[str]) -> bool:
    for each in routes:
        text = asked.path if each.startswith("/") else asked.route
        if text == each or (each.endswith("*") and text.startswith(each[:-1])):
            return True
    return False


def _ollama_need(route: str, body: Body) -> Need:
    """Ollama's need. A call without work loads or unloads a model, as from `ollama run` and `ollama stop`."""
    if body.is_broken or body.model.endswith((":cloud", "-cloud")):
        return "free"  # Ollama refuses it, or ollama.com computes it
    fields = body.fields
    if route not in ("POST /api/generate", "POST /api/chat") or not fields:
        return "gpu"
    if any(fields.get(each) for each in ("prompt", "messages", "images")):
        return "gpu"
    return "loaded" if _is_zero(fields.get("keep_alive")) else "load"


def _is_zero(keep_alive: object) -> bool:
    if isinstance(keep_alive, str):
        return _ZERO.fullmatch(keep_alive) is not None
    return isinstance(keep_alive, int | float) and not isinstance(keep_alive, bool) and keep_alive == 0


def _folded(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name.casefold(): value for name, value in pairs}


def _first_fields(text: str) -> dict[str, Any]:
    """The complete fields at the beginning of a truncated object."""
    decoder, fields, at = json.JSONDecoder(object_pairs_hook=_folded), {}, 1
    try:
        while text.startswith("{"):
            name, at = decoder.raw_decode(text, _behind(text, at, ","))
            value, at = decoder.raw_decode(text, _behind(text, at, ":"))
            if _behind(text, at, "") < len(text):  # otherwise a number may continue
                fields[str(name).casefold()] = value
    except (ValueError, RecursionError):
        pass  # the text ends here
    return fields


def _behind(text: str, at: int, mark: str) -> int:
    """The position of the next token, after spaces and a mark."""
    while at < len(text) and text[at] in (" ", "\t", "\r", "\n", mark):
        at += 1
    return at
