"""What slicer knows about each kind of server: its paths, its address variables, its errors. Pure.

From the sources of Ollama 0.33, llama.cpp's server, vLLM, SGLang, LM Studio and ComfyUI, as of August 2026.
"""

from __future__ import annotations

from typing import Literal

from slicer.config.serve import Kind
from slicer.record import record

Shape = Literal["ollama", "openai", "text"]


@record
class ServerKind:
    """A kind of server.

    Routes are "METHOD /path", or "/path" for every method; a final "*" matches any rest. A request that
    matches no route needs the GPU, except for GET, HEAD and OPTIONS.
    """

    shape: Shape  # of errors, unless the path decides
    ready_path: str = ""  # answers 200 once the server can work; "": it then accepts connections
    port_variables: tuple[tuple[str, str], ...] = ()  # set its address; ${PORT} stands for the port
    gpu: tuple[str, ...] = ()  # need the GPU, with any method
    free: tuple[str, ...] = ()  # need no GPU, with any method
    forbidden: tuple[str, ...] = ()  # administrative: they free or take memory without slicer's knowledge
    queued: tuple[str, ...] = ()  # the work may go on after the answer (see asking.is_busy)
    queued_by: str = ""  # only with this header; "": always
    is_websocket_work: bool = False  # an open websocket counts as a request
    listing: tuple[str, ...] = ("/v1/models",)  # what lists the models, as OpenAI's API does
    idle: tuple[tuple[str, object], ...] = ()  # GET by monitors: the answer without a server, text or JSON


_HEALTHY = (("/health", {"status": "ok"}), ("/v1/health", {"status": "ok"}))
_NO_FIGURES = ("/metrics", "# slicer: the server is not running; a request for work starts it\n")

KINDS: dict[Kind, ServerKind] = {
    "ollama": ServerKind(
        shape="ollama",
        ready_path="/api/version",
        port_variables=(("OLLAMA_HOST", "127.0.0.1:${PORT}"),),
        free=(
            "POST /api/show", "POST /api/copy", "POST /api/me", "POST /api/signout", "POST /api/pull",
            "POST /api/push", "POST /api/create", "POST /api/blobs/*", "DELETE /api/delete",
            "DELETE /api/user/keys/*", "POST /api/experimental/*",
        ),
    ),
    "openai": ServerKind(
        shape="openai",
        ready_path="/health",
        forbidden=(
            "/sleep", "/wake_up", "/collective_rpc", "/reset_prefix_cache", "/unload", "/models/load",
            "/models/unload", "/api/v1/models/load", "/api/v1/models/unload", "/release_memory_occupation",
            "/resume_memory_occupation",
        ),
        is_websocket_work=True,  # /v1/realtime
        idle=(*_HEALTHY, _NO_FIGURES),
    ),
    "llamacpp": ServerKind(
        shape="openai",
        ready_path="/health",
        port_variables=(("LLAMA_ARG_PORT", "${PORT}"), ("LLAMA_ARG_HOST", "127.0.0.1")),
        gpu=("GET /", "GET /v1/stream"),  # its page starts the server; a client resumes its stream
        free=("POST /v1/streams/lookup", "POST /v1/chat/completions/control", "DELETE /v1/stream"),
        forbidden=("/models/load", "/models/unload"),
        queued=("POST /v1/chat/completions",),  # its page may close and fetch the answer later
        queued_by="X-Conversation-Id",
        listing=("/v1/models", "/models"),
        idle=(*_HEALTHY, _NO_FIGURES, ("/props", {"is_sleeping": True}), ("/slots", [])),
    ),
    "comfyui": ServerKind(
        shape="text",
        ready_path="/system_stats",
        gpu=("GET /",),  # its page starts the server; the calls of an open page do not
        free=(
            "POST /queue", "POST /api/queue", "POST /interrupt", "POST /api/interrupt", "POST /history",
            "POST /api/history",
        ),
        forbidden=("/free", "/api/free"),
        queued=("POST /prompt", "POST /api/prompt"),
        is_websocket_work=False,  # it is open as long as the page is
    ),
    "raw": ServerKind(shape="text", is_websocket_work=True),
}  # fmt: skip
