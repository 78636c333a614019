"""How a proxy refuses a request: in the form of the API that was called. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from slicer.config.serve import Kind, Server
from slicer.record import record, replace
from slicer.serve.classify import MOST_TO_CHOOSE, Body, RequestHead
from slicer.serve.kinds import KINDS
from slicer.serve.terms import RequestNeed, Unavailable
from slicer.text import visible

_LONGEST_RETRY_S = 120  # openai's client ignores a longer one
_SHORTEST_RETRY_S = 1
_UNKNOWN_RETRY_S = 10
_STATUS = {"busy": 503, "stopping": 503, "offloaded": 503, "failed": 502}
_CONFIRMATION = """\
<!doctype html><html lang="en"><meta charset="utf-8"><title>slicer</title>
<p>A page of another site may have led here. <a href="">Go on to {name}</a>, which takes a GPU.
"""
_ANTHROPIC_TYPES = {400: "invalid_request_error", 403: "permission_error", 503: "overloaded_error"}


@record
class OwnResponse:
    """An answer from slicer itself."""

    status: int
    headers: dict[str, str]
    body: bytes


def unavailable(kind: Kind, path: str, error: Unavailable) -> OwnResponse:
    """The answer to a request that cannot be forwarded now."""
    headers = {}
    if error.holder:
        headers["X-Slicer-Holder"] = visible(error.holder).encode("ascii", "backslashreplace").decode()
    wait_s = _UNKNOWN_RETRY_S if error.retry_after_s is None else error.retry_after_s
    if _STATUS[error.problem] == 503:
        headers["Retry-After"] = str(round(min(max(wait_s, _SHORTEST_RETRY_S), _LONGEST_RETRY_S)))
    if _STATUS[error.problem] != 503 or wait_s > _LONGEST_RETRY_S:
        headers["x-should-retry"] = "false"  # openai's client would otherwise retry at once
    return refusal(kind, path, _STATUS[error.problem], str(error), headers)


def refusal(
    kind: Kind, path: str, status: int, text: str, headers: dict[str, str] | None = None
) -> OwnResponse:
    """An error as clients of that API expect it."""
    text = f"slicer: {text}"
    found: object
    if "/v1/messages" in path:  # Anthropic's
        type_ = _ANTHROPIC_TYPES.get(status, "api_error")
        found = {"type": "error", "error": {"type": type_, "message": text}}
    elif "/v1/" in path or KINDS[kind].shape == "openai":
        type_ = "server_error" if status >= 500 else "invalid_request_error"
        found = {"error": {"message": text, "type": type_, "param": None, "code": str(status)}}
    elif KINDS[kind].shape == "ollama":
        found = {"error": text}
    else:
        content_type = "text/plain; charset=utf-8"
        return OwnResponse(status, {**(headers or {}), "Content-Type": content_type}, f"{text}\n".encode())
    return _json(found, status, headers)


def of_another_site(server: Server, asked: RequestHead, headers: Mapping[str, str]) -> OwnResponse:
    """The answer to a browser that does not ask for its own user. A link leads to a page with a question.

    A click there is the user's own: no other site may show that page in a frame.
    """
    wants_page = "text/html" in headers.get("Accept", "") and "Sec-Purpose" not in headers
    if asked.method == "GET" and wants_page and headers.get("Sec-Fetch-Dest", "document") == "document":
        page = _CONFIRMATION.format(name=escape(server.name)).encode()
        told = {"Content-Type": "text/html; charset=utf-8", "X-Frame-Options": "DENY"}
        return OwnResponse(403, told, page)
    origin = f"{headers.get('Origin') or 'another site'!r:.80}"
    text = f"not for pages of {origin}: if that is intended, add the host to hosts of [serve.{server.name}]"
    return refusal(server.kind, asked.path, 403, text)


def without_server(server: Server, route: str, asked: RequestNeed) -> OwnResponse | None:
    """slicer's answer for a server that is not running; None if slicer cannot answer.

    Monitors, and pages that wait for a server, send such requests. These must neither start the server nor
    make it look dead.
    """
    route = route.replace("HEAD ", "GET ", 1)
    if asked.need == "loaded" and route.startswith("POST "):
        empty: object = {"role": "assistant", "content": ""} if route == "POST /api/chat" else ""
        name = "message" if empty else "response"
        return _json({"model": asked.model, name: empty, "done": True, "done_reason": "unload"})
    if asked.need == "loaded":
        return _json({"models": []})
    method, _, path = route.partition(" ")
    if method != "GET":
        return None
    known = KINDS[server.kind]
    if path in known.listing and server.models:
        return model_list(server.models)
    if path.startswith("/v1/models/") and server.models:
        name = path.removeprefix("/v1/models/")
        missing = refusal(server.kind, path, 404, f"there is no model {name!r:.80}")
        return _json(_listed((name,))[0]) if name in server.models else missing
    told = dict(known.idle).get(path)
    if isinstance(told, str):
        return OwnResponse(200, {"Content-Type": "text/plain; version=0.0.4"}, told.encode())
    return None if told is None else _json(told)


def of_none(servers: Sequence[Server], asked: RequestHead, body: Body) -> OwnResponse:
    """The answer to a request that is for none of the servers at its address, as far as anybody can tell."""
    first, models = servers[0], [model for each in servers for model in each.models]
    need = RequestNeed("free", "", embeds=False)
    answer = without_server(replace(first, models=tuple(models)), asked.route, need)
    if answer is not None:
        return answer
    if body.is_cut and not body.model:
        text = f"which model? It is not in the first {MOST_TO_CHOOSE >> 20} MiB: put it before the rest"
        return refusal(first.kind, asked.path, 413, text)
    if asked.is_compressed:
        return refusal(first.kind, asked.path, 415, "which model? Send the body without compression")
    what = f"no server here has the model {body.model!r:.80}" if body.model else "which server? Name a model"
    known = ", ".join(models) or "none"
    text = f"{what}. Known: {known:.500}. default = true makes a server take all others"
    return refusal(first.kind, asked.path, 404, text)


def model_list(models: Iterable[str]) -> OwnResponse:
    """The configured models, as OpenAI's API lists them."""
    return _json({"object": "list", "data": _listed(models)})


def _listed(models: Iterable[str]) -> list[dict[str, object]]:
    return [{"id": each, "object": "model", "created": 0, "owned_by": "slicer"} for each in models]


def _json(found: object, status: int = 200, headers: dict[str, str] | None = None) -> OwnResponse:
    told = {**(headers or {}), "Content-Type": "application/json"}
    return OwnResponse(status, told, json.dumps(found).encode())
