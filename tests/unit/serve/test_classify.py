"""Which requests need the GPU, and which server they are for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slicer.serve import classify
from slicer.serve.classify import NO_BODY, Body, read_body
from tests.unit import made_up

WORK = {"model": "m", "prompt": "p"}
EMPTY = {"model": "m"}


def need(kind: str, route: str, body: object = None, **settings: object) -> str:
    """What it is taken for; ``body``: JSON, or text that is sent as it is."""
    method, _, target = route.partition(" ")
    server = made_up.server(kind=kind, **settings)
    headers = {"Upgrade": "websocket"} if method == "WS" else {}
    asked = classify.request("GET" if method == "WS" else method, classify.origin_form(target), headers)
    if classify.bytes_to_peek([server], asked):
        text = body if isinstance(body, str) else "" if body is None else json.dumps(body)
        return classify.classify(server, asked, read_body(text.encode(), is_whole=True)).need
    return classify.classify(server, asked, NO_BODY).need


OLLAMA: dict[str, list[Any]] = {
    "gpu": [
        ("POST /api/generate", WORK), ("POST /api/chat", {"model": "m", "messages": [{"role": "user"}]}),
        ("POST /api/embed", EMPTY), ("POST /api/embeddings", WORK), ("POST /v1/chat/completions", EMPTY),
        ("POST /v1/completions", WORK), ("POST /v1/embeddings", WORK), ("POST /v1/responses", WORK),
        ("POST /v1/messages", WORK), ("POST /v1/audio/transcriptions", "--b\r\nform"), ("POST /new", WORK),
        ("POST //api/./generate/?x=1", WORK), ("POST /api%2Fgenerate", WORK), ("post /api/generate", WORK),
        ("POST /api/generate", {**WORK, "keep_alive": 0}), ("POST /api/generate", {"images": ["x"]}),
        ("POST /api/generate", '{"model": "m", "PROMPT": "p"}'),  # Go's field names have no case
        ("POST /api/generate", '{"prompt": "", "Prompt": "p", "keep_alive": 0}'),
        ("POST /api/generate", '{"model": "m", "prompt": "p"} and more'),  # Go takes the first value
    ],
    "load": [
        ("POST /api/generate", EMPTY), ("POST /api/chat", {"model": "m", "messages": []}),
        ("POST /api/generate", {"model": "m", "prompt": "", "keep_alive": "10m"}),
        ("POST /api/generate", {"model": "m", "keep_alive": -1}),
        ("POST /api/generate", {"model": "m", "keep_alive": False}),
    ],
    "loaded": [
        ("GET /api/ps", None), ("HEAD /api/ps", None),
        ("POST /api/generate", {"model": "m", "keep_alive": 0}),
        ("POST /api/chat", {"model": "m", "keep_alive": "0s", "messages": []}),
        ("POST /api/generate", {"model": "m", "keep_alive": "0h0m0s"}),
        ("POST /api/generate", {"model": "m", "keep_alive": "-0"}),
        ("POST /api/generate", {"model": "m", "keep_alive": 0.0}),
    ],
    "free": [
        ("GET /", None), ("HEAD /", None), ("GET /api/version", None), ("GET /api/tags", None),
        ("POST /api/show", EMPTY), ("POST /api/copy", None), ("POST /api/pull", EMPTY),
        ("POST /api/push", EMPTY), ("POST /api/create", WORK), ("POST /api/blobs/sha256:1", "x"),
        ("HEAD /api/blobs/sha256:1", None), ("DELETE /api/delete", EMPTY), ("DELETE /api/user/keys/k", None),
        ("POST /api/experimental/web_search", WORK), ("GET /v1/models", None), ("GET /v1/models/m", None),
        ("OPTIONS /api/generate", None), ("WS /api/generate", None),
        ("POST /api/generate", "no JSON"), ("POST /api/generate", "[1]"), ("POST /api/chat", ""),
        ("POST /api/chat", {"model": "gpt-oss:120b-cloud", "messages": ["hi"]}),
        ("POST /v1/chat/completions", {"model": "glm:cloud"}),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("expected", "route", "body"), [(name, *each) for name, all_ in OLLAMA.items() for each in all_]
)
def test_what_ollama_needs_for_a_request(expected: str, route: str, body: object) -> None:  # B6
    assert need("ollama", route, body) == expected


@pytest.mark.parametrize(
    ("kind", "route", "expected"),
    [
        ("openai", "POST /v1/chat/completions", "gpu"), ("openai", "GET /v1/models", "free"),
        ("openai", "GET /health", "free"), ("openai", "GET /metrics", "free"),
        ("openai", "POST /tokenize", "gpu"), ("openai", "WS /v1/realtime", "gpu"),
        ("openai", "DELETE /v1/x", "gpu"),
        ("openai", "POST /sleep", "forbidden"), ("openai", "POST /wake_up?tags=x", "forbidden"),
        ("openai", "GET /unload", "forbidden"), ("openai", "OPTIONS /sleep", "free"),
        ("llamacpp", "POST /completion", "gpu"), ("llamacpp", "GET /props", "free"),
        ("llamacpp", "POST /models/unload", "forbidden"), ("llamacpp", "GET /models", "free"),
        ("llamacpp", "GET /", "gpu"), ("llamacpp", "GET /v1/stream?conv_id=1", "gpu"),
        ("llamacpp", "POST /v1/streams/lookup", "free"), ("llamacpp", "DELETE /v1/stream?conv_id=1", "free"),
        ("comfyui", "GET /", "gpu"), ("comfyui", "GET /queue", "free"), ("comfyui", "POST /prompt", "gpu"),
        ("comfyui", "POST /upload/image", "gpu"), ("comfyui", "POST /interrupt", "free"),
        ("comfyui", "WS /ws?clientId=1", "free"), ("comfyui", "POST /api/free", "forbidden"),
        ("comfyui", "HEAD /", "free"),
        ("raw", "POST /anything", "gpu"), ("raw", "GET /", "free"), ("raw", "WS /", "gpu"),
        ("raw", "POST /sleep", "gpu"),
    ],
)  # fmt: skip
def test_what_other_kinds_need(kind: str, route: str, expected: str) -> None:  # B6
    assert need(kind, route) == expected


def test_the_configuration_has_the_last_word() -> None:  # B6
    assert need("raw", "GET /run/3", routes_gpu=("GET /run/*",)) == "gpu"
    assert need("raw", "POST /log", routes_free=("/log",)) == "free"
    assert need("ollama", "POST /api/show", EMPTY, routes_gpu=("POST /api/show",)) == "gpu"
    assert need("openai", "POST /sleep", routes_allow=("/sleep",)) == "gpu"
    assert need("openai", "GET /sleep", routes_allow=("POST /sleep",)) == "forbidden"
    assert need("raw", "WS /", ignore_websockets=True) == "free"
    assert need("comfyui", "WS /ws", routes_gpu=("GET /ws",)) == "gpu"
    assert need("openai", "WS /v1/realtime", routes_free=("/v1/realtime",)) == "free"
    assert need("openai", "POST /llm/sleep", path="/llm") == "forbidden"
    assert need("ollama", "POST /o/api/show", path="/o/") == "free"


@pytest.mark.parametrize(
    ("target", "forwarded"),
    [
        ("/a?b#c", "/a?b"), ("http://h:1/a?b", "/a?b"), ("HTTPS://h", "/"), ("http://h?x", "/?x"), ("*", ""),
        ("h:443", ""), ("ftp://h/a", ""), ("", ""), ("/\udcff\xe9 x", "/%FF%C3%A9%20x"),
    ],
)  # fmt: skip
def test_a_target_becomes_a_path(target: str, forwarded: str) -> None:  # B6
    assert classify.origin_form(target) == forwarded


@given(st.binary(max_size=40), st.booleans())
def test_no_body_is_too_odd(text: bytes, is_whole: bool) -> None:  # B6
    for odd in (text, b"{" + text, b'{"model": ' + text, b"--" + text):
        assert isinstance(read_body(odd, is_whole=is_whole).model, str)


FIELDS = st.dictionaries(st.text("abcdef"), st.integers() | st.text() | st.lists(st.text()) | st.booleans())


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # several tests share a CPU
@given(FIELDS, st.integers(0, 500), st.sampled_from([None, 1]))
def test_of_a_body_that_is_cut_off_the_first_fields_are_known(
    fields: dict[str, object], at: int, indent: int | None
) -> None:  # B6
    fields = {"model": "big", **fields, "last": "x"}
    text = json.dumps(fields, indent=indent).encode()
    found = read_body(text[:at], is_whole=False).fields
    assert list(found.items()) == list(fields.items())[: len(found)]
    assert at <= 20 or found["model"] == "big"


def test_the_deepest_json_is_no_trouble() -> None:  # B6
    assert read_body(b"[" * 1_000_000, is_whole=True).is_broken
    assert read_body(b'{"model": "m", "x": ' + b"[" * 1_000_000, is_whole=False).model == "m"


def test_bodies_are_read_where_they_decide() -> None:  # B6
    def most(route: str, *servers: object, **headers: str) -> int:
        method, _, path = route.partition(" ")
        return classify.bytes_to_peek(servers, classify.request(method, path, headers))  # type: ignore[arg-type]

    ollama, openai = made_up.server(), made_up.server("v", kind="openai", models=("m",))
    assert most("POST /api/generate", ollama) == 1 << 20
    assert most("POST /api/blobs/sha256:1", ollama) == most("GET /api/tags", ollama) == 0
    assert most("POST /api/generate", ollama, **{"Content-Encoding": "zstd"}) == 0
    assert most("POST /v1/completions", openai) == 0
    assert most("POST /v1/completions", openai, made_up.server("w", kind="openai")) == 1 << 25
    assert most("POST /api/show", ollama, made_up.server("other", models=("m",))) == 1 << 25


SERVERS = [
    made_up.server("first", models=("a",)), made_up.server("b", models=("b", "c:latest"), path="/b"),
    made_up.server("bb", path="/b/b/"), made_up.server("any"),
]  # fmt: skip


def chosen(path: str, model: str = "", *, has_default: bool = False, body: Body | None = None) -> str | None:
    if body is None:
        body = read_body(json.dumps({"model": model}).encode(), is_whole=True) if model else NO_BODY
    servers = [*SERVERS, made_up.server("rest", default=True)] if has_default else SERVERS
    found = classify.choose(servers, classify.request("POST", path, {}), body)
    return found.name if found else None


def test_a_server_is_chosen_by_model_then_by_path() -> None:  # B6
    assert chosen("/v1/x", "a") == chosen("/v1/models/a") == chosen("/v1/x", "a", has_default=True) == "first"
    assert chosen("/v1/x", "c") == chosen("/b/b", "b:latest") == chosen("/v1/models/c") == "b"
    assert chosen("/b/x") == chosen("/b") == chosen("/b/x", "unknown") == "b"
    assert chosen("/b/b/x") == "bb"
    one = made_up.server("alone", models=("a",))
    assert classify.choose([one], classify.request("POST", "/x", {}), NO_BODY) is one


CUT = [b'{"messages": "', b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nRIFF']


def test_what_is_for_no_server_goes_to_none_but_a_default() -> None:  # B6
    for path, model in (("/v1/x", ""), ("/bx", ""), ("/v1/x", "unknown"), ("/v1/models/unknown", "")):
        assert chosen(path, model) is None
        assert chosen(path, model, has_default=True) == "rest"
    for beginning in CUT:
        cut = read_body(beginning, is_whole=False)
        assert chosen("/v1/x", body=cut, has_default=True) is None  # it may be for another
        assert chosen("/b/x", body=cut) == "b"
    blob = read_body(b"GGUF", is_whole=False)  # it names no model
    assert chosen("/v1/x", body=blob, has_default=True) == "rest"


def test_a_form_names_its_model() -> None:  # B6
    form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--b\r\n'
    assert read_body(form, is_whole=False).model == "whisper"
