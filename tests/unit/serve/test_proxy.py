"""What a client gets through the proxy, byte for byte, and what its server hears of it."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import resource
import sys
from collections.abc import Callable

import pytest

from slicer.serve.terms import Unavailable
from tests.process.harness import unprivileged
from tests.unit import made_up
from tests.unit.serve.front import (
    FakeOwner,
    Peer,
    Proxy,
    Upstream,
    get,
    parted,
    played,
    post,
    proxy,
    saying,
    until,
)  # fmt: skip

pytestmark = pytest.mark.both_pythons

pytest.importorskip("aiohttp")

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: text/plain\r\n\r\nok"
WORK = b'{"model": "m", "prompt": "hello"}'


def owner_of(upstream: Upstream) -> FakeOwner:
    return FakeOwner(made_up.server(), upstream.base)


async def asked_through(
    answer: bytes, request: bytes, kind: str = "ollama"
) -> tuple[bytes, Upstream, FakeOwner]:
    async with Upstream(saying(answer)) as upstream:
        owner = FakeOwner(made_up.server(kind=kind, command=("x",)), upstream.base)
        async with proxy(owner) as through:
            return await through.ask(request), upstream, owner


# -- answers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (OK, 200, b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b'HTTP/1.1 304 Not Modified\r\nETag: "a"\r\n\r\n', 304, b""),
        (b"HTTP/1.1 404 Nothing Here\r\nContent-Length: 4\r\n\r\nnone", 404, b"none"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n", 302, b""),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", 200, b"d\r\nuntil the end\r\n0\r\n\r\n"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" + OK, 200, b"ok"),
    ],
    ids=["200", "204", "304", "404", "302", "until-closed", "103"],
)
@played
async def test_answers_pass_as_they_are(answer: bytes, status: int, body: bytes) -> None:  # B6
    said, _, _ = await asked_through(answer, get("/api/tags"))
    assert parted(said)[0::2] == (status, body)


@played
async def test_compressed_content_and_repeated_headers_pass_untouched() -> None:  # B6
    packed = gzip.compress(b"text" * 100)
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n"
        "Set-Cookie: a=1\r\nSet-Cookie: b=2\r\nConnection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n\r\n"
    )
    said, _, _ = await asked_through(head.encode() + packed, get("/api/tags"))
    _, headers, body = parted(said)
    assert body == packed
    assert headers["content-encoding"] == "gzip"
    assert said.count(b"Set-Cookie: ") == 2
    assert "x-hop" not in headers
    assert "keep-alive" not in headers


@played
async def test_head_keeps_the_length_and_has_no_body() -> None:  # B6
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n"
    said, upstream, _ = await asked_through(answer, get("/", method="HEAD"))
    status, headers, body = parted(said)
    assert (status, headers["content-length"], body) == (200, "17", b"")
    assert upstream.heads[0].startswith(b"HEAD / HTTP/1.1\r\n")


@played
async def test_a_client_of_http_1_0_gets_no_chunks() -> None:  # B6
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
    said, _, _ = await asked_through(answer, get("/api/tags", version="1.0"))
    assert parted(said)[2] == b"onetwo"


@played
async def test_each_piece_comes_at_once() -> None:  # B6
    """The server sends the next piece only when the client has the last one."""
    seen = asyncio.Event()

    async def streams(_: bytes, peer: Peer) -> None:
        peer[1].write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in (b"{}\n", b"{1}\n", b""):
            await seen.wait()
            seen.clear()
            peer[1].write(b"%x\r\n%s\r\n" % (len(piece), piece))

    async with Upstream(streams) as upstream, proxy(owner_of(upstream)) as through:
        reader, writer = await through.connect()
        writer.write(post("/api/generate", WORK))
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")  # the head, before any of the body
        for piece in (b"3\r\n{}\n\r\n", b"4\r\n{1}\n\r\n", b"0\r\n\r\n"):
            seen.set()
            assert await reader.readexactly(len(piece)) == piece
        writer.close()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize(
    "head", [b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", b"Content-Length: 8\r\n\r\nhalf"]
)
@played
async def test_a_server_that_dies_cuts_its_client(head: bytes, version: str) -> None:  # B6
    async with (
        Upstream(saying(b"HTTP/1.1 200 OK\r\n" + head)) as upstream,
        proxy(owner_of(upstream)) as through,
    ):
        reader, writer = await through.connect()
        writer.write(get("/api/tags", version=version))
        try:
            said = await reader.read()
        except ConnectionResetError:
            assert version == "1.0"  # without a length nothing else can tell it
            return
        finally:
            writer.close()
        _, headers, body = parted(said)
        assert b"half" in body  # what came before is not lost
        assert not body.endswith(b"0\r\n\r\n")
        assert int(headers.get("content-length", "8")) == 8
        assert version == "1.1" or "content-length" in headers


# -- requests ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "forwarded"),
    [
        ("/api/tags?a=%20b&c", "/api/tags?a=%20b&c"),
        ("/a%2Fb/%C3%A9/..%2e/x;y=1?q=%3F", "/a%2Fb/%C3%A9/..%2e/x;y=1?q=%3F"),
        ("//double//slash/", "//double//slash/"),
        ("http://somewhere/api/tags?x=1", "/api/tags?x=1"),
        ("http://somewhere", "/"),
    ],
)
@played
async def test_paths_pass_as_they_were_written(target: str, forwarded: str) -> None:  # B6
    _, upstream, _ = await asked_through(OK, get(target))
    assert upstream.heads[0].split(b" ")[1].decode() == forwarded


@played
async def test_headers_pass_but_for_those_of_the_connection() -> None:  # B6
    sent = (
        "X-Own: 1", "Accept: text/x", "Authorization: Bearer k", "TE: trailers", "Proxy-Authorization: x",
        "Keep-Alive: 3", "Upgrade: h2c", "Cookie: a=b", "Origin: http://localhost:3000",
    )  # fmt: skip
    asked = get("/api/tags", *sent).replace(b"close", b"close, X-Gone\r\nX-Gone: 1")
    _, upstream, _ = await asked_through(OK, asked)
    for kept in (sent[0], sent[1], sent[2], sent[7], sent[8]):
        assert upstream.header(kept.split(":")[0]) == kept.split(": ")[1]
    for dropped in (
        "TE", "Proxy-Authorization", "Keep-Alive", "Upgrade", "X-Gone", "User-Agent", "Accept-Encoding",
    ):  # fmt: skip
        assert upstream.header(dropped) == ""
    assert upstream.header("Host") == f"localhost:{upstream.base.rpartition(':')[2]}"


@pytest.mark.parametrize("path", ["/api/generate", "/api/blobs/sha256:00"])
@pytest.mark.parametrize("coding", ["length", "chunked"])
@played
async def test_bodies_pass_byte_for_byte(path: str, coding: str) -> None:  # B6
    body = bytes(range(256)) * 4000  # as much as is peeked at, nearly
    got = bytearray()

    async def reads(head: bytes, peer: Peer) -> None:
        if coding == "length":
            got.extend(await peer[0].readexactly(len(body)))
        else:
            while size := int(await peer[0].readline(), 16):
                got.extend((await peer[0].readexactly(size + 2))[:-2])
        await saying(OK)(head, peer)

    async with Upstream(reads) as upstream, proxy(owner_of(upstream)) as through:
        if coding == "length":
            said = await through.ask(post(path, body))
            assert upstream.header("Content-Length") == str(len(body))
        else:
            starts = range(0, len(body), 1000)
            pieces = b"".join(b"%x\r\n%s\r\n" % (1000, body[at : at + 1000]) for at in starts)
            head = get(path, "Transfer-Encoding: chunked", method="POST")
            said = await through.ask(head + pieces + b"0\r\n\r\n")
            assert upstream.header("Transfer-Encoding") == "chunked"
        assert parted(said)[0] == 200
        assert got == body
        assert upstream.header("Content-Type") == ""


@played
async def test_a_compressed_body_is_not_unpacked() -> None:  # B6
    packed = gzip.compress(WORK)
    got = bytearray()

    async def reads(head: bytes, peer: Peer) -> None:
        got.extend(await peer[0].readexactly(len(packed)))
        await saying(OK)(head, peer)

    async with Upstream(reads) as upstream:
        owner = FakeOwner(made_up.server(), upstream.base)
        async with proxy(owner) as through:
            await through.ask(post("/api/generate", packed, "Content-Encoding: gzip"))
        assert got == packed
        assert [each.need for each in owner.used] == ["gpu"]  # it cannot be looked into


@played
async def test_a_client_that_waits_for_100_continue_is_told_to_go_on() -> None:  # B6
    async def reads(head: bytes, peer: Peer) -> None:
        assert await peer[0].readexactly(len(WORK)) == WORK
        await saying(OK)(head, peer)

    async with Upstream(reads) as upstream, proxy(owner_of(upstream)) as through:
        for path in ("/api/generate", "/api/blobs/sha256:00"):
            whole = post(path, WORK, "Expect: 100-continue")
            reader, writer = await through.connect()
            writer.write(whole[: -len(WORK)])
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(WORK)
            assert b" 200 OK" in await reader.readline()
            assert upstream.header("Expect") == ""
            writer.close()


@played
async def test_a_huge_upload_waits_for_its_server() -> None:  # B6
    """A few buffers of it are in memory here: the client is not read from while the server does not read."""
    go_on = asyncio.Event()
    size = 256 << 20

    async def reads(head: bytes, peer: Peer) -> None:
        await go_on.wait()
        left = size
        while left:
            left -= len(await peer[0].read(min(left, 1 << 20)))
        await saying(OK)(head, peer)

    async with Upstream(reads) as upstream, proxy(owner_of(upstream)) as through:
        reader, writer = await through.connect()
        writer.write(get("/api/blobs/sha256:00", f"Content-Length: {size}", method="POST"))
        piece, sent = bytes(1 << 20), 0
        while sent < size:
            writer.write(piece)
            sent += len(piece)
            try:
                async with asyncio.timeout(None if go_on.is_set() else 1.0):
                    await writer.drain()
            except TimeoutError:
                assert sent < 64 << 20  # as it would be if all of it were taken in
                go_on.set()
                await writer.drain()
        assert go_on.is_set()
        assert b" 200 OK" in await reader.readline()
        writer.close()


# -- whose the GPU is ----------------------------------------------------------------------------------------


@played
async def test_a_client_that_goes_leaves_the_line() -> None:  # B6
    owner = FakeOwner(made_up.server(), "http://127.0.0.1:9")
    owner.granted.clear()
    async with proxy(owner) as through:
        for body in (WORK, b'{"prompt":"' + b"x" * (20 << 20)):  # the second is not read to its end
            _, writer = await through.connect()
            writer.write(post("/api/generate", body))
            await until(lambda: owner.waiting == 1, "it waits")
            writer.transport.abort()
            await until(lambda: owner.waiting == 0, "it has left")


@pytest.mark.parametrize("when", ["before the first byte", "in the middle"])
@played
async def test_a_client_that_goes_ends_its_request_at_the_server(when: str) -> None:  # B6
    async def streams(_: bytes, peer: Peer) -> None:
        await peer[0].readexactly(len(WORK))
        if when == "in the middle":
            peer[1].write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        assert await peer[0].read(1) == b""  # until it is closed
        raise ConnectionResetError

    async with Upstream(streams) as upstream:
        owner = FakeOwner(made_up.server(), upstream.base)
        async with proxy(owner) as through:
            _, writer = await through.connect()
            writer.write(post("/api/generate", WORK))
            await until(lambda: owner.open == 1, "it is forwarded")
            await until(lambda: upstream.heads, "the server has it")
            writer.close()
            await until(lambda: upstream.left == 1, "the server hears of it")
            await until(lambda: owner.open == 0, "the request has ended")


@played
async def test_a_request_counts_until_its_last_byte() -> None:  # B6
    end = asyncio.Event()

    async def streams(_: bytes, peer: Peer) -> None:
        peer[1].write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
        await end.wait()
        peer[1].write(b"k")

    async with Upstream(streams) as upstream:
        owner = FakeOwner(made_up.server(), upstream.base)
        async with proxy(owner) as through:
            asked = asyncio.ensure_future(through.ask(post("/api/generate", WORK)))
            await until(lambda: upstream.heads and owner.open == 1, "it is forwarded")
            assert through.front.connections == 1
            end.set()
            assert (await asked).endswith(b"ok")
            assert (owner.open, through.front.connections) == (0, 0)


@pytest.mark.parametrize("goes_on", [True, False])
@played
async def test_half_a_request_uses_no_gpu(
    monkeypatch: pytest.MonkeyPatch, *, goes_on: bool
) -> None:  # B6, S9
    monkeypatch.setattr("slicer.serve.proxy._STALLED_S", 0.1)

    async def reads(head: bytes, peer: Peer) -> None:
        assert await peer[0].readexactly(len(WORK)) == WORK
        await saying(OK)(head, peer)

    async with Upstream(reads) as upstream:
        owner = FakeOwner(made_up.server(kind="openai"), upstream.base)
        async with proxy(owner) as through:
            reader, writer = await through.connect()
            writer.write(post("/v1/completions", WORK)[:-1])
            await until(lambda: upstream.heads, "it is forwarded")
            await until(lambda: owner.open == 0, "it does not count")
            if goes_on:
                writer.write(WORK[-1:])
                assert b" 200 OK" in await reader.readline()
            writer.close()
            await until(lambda: through.front.connections == 0, "it has ended")
            assert owner.open == 0


@played
async def test_what_needs_no_gpu_takes_none() -> None:  # B6
    for request in (
        get("/api/tags"), get("/api/generate", method="OPTIONS"), post("/api/show", b'{"model": "m"}'),
        post("/api/generate", b"no JSON"),
    ):  # fmt: skip
        said, _, owner = await asked_through(OK, request)
        assert parted(said)[0] == 200
        assert not owner.used


@played
async def test_what_is_of_models_goes_to_the_server_that_has_them() -> None:  # B6
    unload = post("/api/generate", b'{"model": "m", "keep_alive": 0}')
    async with Upstream(saying(OK)) as with_gpu, Upstream(saying(OK)) as without:
        owner = FakeOwner(made_up.server(command=("x",)), with_gpu.base)
        owner.free_base = without.base
        async with proxy(owner) as through:
            for request in (get("/api/ps"), unload, get("/api/tags")):
                await through.ask(request)
            assert (len(with_gpu.heads), len(without.heads)) == (2, 1)
            owner.granted.clear()  # now none is loaded
            assert json.loads(parted(await through.ask(get("/api/ps")))[2]) == {"models": []}
            assert json.loads(parted(await through.ask(unload))[2])["done_reason"] == "unload"
            assert (len(with_gpu.heads), len(without.heads)) == (2, 1)
        assert not owner.used


@pytest.mark.parametrize(
    ("kind", "path", "told"),
    [
        ("openai", "/health", "ok"), ("llamacpp", "/health", "ok"), ("openai", "/v1/models", "big"),
        ("openai", "/v1/models/big", '"id": "big"'), ("llamacpp", "/models", "big"),
        ("llamacpp", "/props", '{"is_sleeping": true}'), ("llamacpp", "/slots", "[]"),
        ("openai", "/metrics", "# slicer: "), ("llamacpp", "/metrics", "# slicer: "),
    ],
)  # fmt: skip
@played
async def test_slicer_answers_for_a_server_that_does_not_run(kind: str, path: str, told: str) -> None:  # B6
    owner = FakeOwner(made_up.server(kind=kind, command=("x",), models=("big",)), None)
    async with proxy(owner) as through:
        status, _, text = parted(await through.ask(get(path)))
        assert (status, told in text.decode()) == (200, True)
        assert parted(await through.ask(get("/v1/models/other")))[0] == 404
        status, headers, _ = parted(await through.ask(get("/lora-adapters")))
        assert (status, headers["retry-after"]) == (503, "10")
    assert not owner.used


@played
async def test_comfyui_is_used_until_its_queue_is_empty() -> None:  # B6
    queue = {"queue_running": [1], "queue_pending": [2]}

    async def answers(head: bytes, peer: Peer) -> None:
        text = json.dumps(queue).encode() if head.startswith(b"GET /queue ") else b"{}"
        await saying(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))(head, peer)

    async with Upstream(answers) as upstream:
        owner = FakeOwner(made_up.server(kind="comfyui"), upstream.base)
        async with proxy(owner) as through:
            assert parted(await through.ask(post("/prompt", b"{}")))[0] == 200
            await until(lambda: any(b"/queue" in each for each in upstream.heads), "the queue is asked")
            assert owner.open == 1
            queue.update(queue_running=[], queue_pending=[])
            await until(lambda: owner.open == 0, "the work is done")


@pytest.mark.parametrize("goes_on", [True, False])
@played
async def test_llamacpp_is_used_for_as_long_as_it_goes_on_without_its_client(*, goes_on: bool) -> None:  # B6
    slots = [{"is_processing": False}, {"is_processing": True}]

    async def answers(head: bytes, peer: Peer) -> None:
        if head.startswith(b"GET /slots "):
            text = json.dumps(slots).encode()
            await saying(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))(head, peer)
        else:  # the beginning of an answer
            await saying(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\ndata:")(head, peer)
            await asyncio.sleep(60.0)

    async with Upstream(answers) as upstream:
        owner = FakeOwner(made_up.server(kind="llamacpp"), upstream.base)
        async with proxy(owner) as through:
            headers = ("x-conversation-id: 1",) if goes_on else ()
            reader, writer = await through.connect()
            writer.write(post("/v1/chat/completions", WORK, *headers))
            await reader.readuntil(b"data:")
            writer.close()
            if goes_on:
                await until(lambda: any(b"/slots" in each for each in upstream.heads), "they are asked")
                assert owner.open == 1
                slots[1]["is_processing"] = False
            await until(lambda: owner.open == 0, "the work is done")
            assert any(b"/slots" in each for each in upstream.heads) is goes_on


# -- refusals ------------------------------------------------------------------------------------------------


@played
async def test_a_busy_gpu_is_told_in_the_words_of_the_api() -> None:  # B6
    owner = FakeOwner(made_up.server(), "http://127.0.0.1:9")
    owner.problem = Unavailable("busy", "train has the GPU", holder="trä\nin", retry_after_s=900.0)
    async with proxy(owner) as through:
        status, headers, body = parted(await through.ask(post("/api/chat", WORK)))
        assert (status, headers["retry-after"], headers["x-should-retry"]) == (503, "120", "false")
        assert headers["x-slicer-holder"] == "tr\\xe4\\nin"
        assert json.loads(body) == {"error": "slicer: train has the GPU"}
        _, _, body = parted(await through.ask(post("/v1/chat/completions", WORK)))
        assert json.loads(body)["error"]["message"] == "slicer: train has the GPU"
        _, _, body = parted(await through.ask(post("/v1/messages", WORK)))
        assert json.loads(body)["error"]["type"] == "overloaded_error"


@played
async def test_a_server_that_does_not_answer_is_a_bad_gateway() -> None:  # B6
    said, _, owner = await asked_through(b"", post("/api/generate", WORK))
    assert parted(said)[0] == 502
    assert b"the server does not answer" in said
    assert owner.open == 0


async def _host(through: Proxy, host: str) -> int:
    asked = get("/api/tags").replace(b"Host: localhost", f"Host: {host}".encode())
    return parted(await through.ask(asked))[0]


@played
async def test_a_foreign_host_is_refused() -> None:  # B6
    async with Upstream(saying(OK)) as upstream:
        owner = FakeOwner(made_up.server(hosts=("GPU.example.org",)), upstream.base)
        async with proxy(owner) as through:
            for host in (
                "localhost:11434", "127.0.0.1:1", "[::1]:2", "192.168.1.9", "gpu.example.ORG:443",
                "app.localhost",
            ):  # fmt: skip
                assert await _host(through, host) == 200
            for host in (
                "evil.example", "localhost.evil.example:11434", "127.0.0.1.evil.example", "[evil]",
                "[::1]evil", "[::1]:1evil", "", "localhost:1:2", "a@localhost",
            ):  # fmt: skip
                assert await _host(through, host) == 403
            assert await _host(through, "evil.example") == 403
            assert len(through.reports) == 9  # each is told once
            asked = get("/api/tags", version="1.0").replace(b"Host: localhost\r\n", b"")
            assert parted(await through.ask(asked))[0] == 200  # a load balancer's check; no browser
        assert len(upstream.heads) == 7


@pytest.mark.parametrize("path", ["/sleep", "/sleep/", "//sleep", "/%73leep?level=1", "/./x/../sleep"])
@played
async def test_administrative_paths_are_not_forwarded(path: str) -> None:  # B6
    said, upstream, _ = await asked_through(OK, get(path, method="POST"), kind="openai")
    assert parted(said)[0] == 403
    assert not upstream.heads


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://evil.example", 403), ("https://127.0.0.1.evil.example", 403), ("null", 403),
        ("http://[", 403), ("http://localhost:x@evil.example", 403), ("http:x://localhost", 403),
        ("http://8.8.8.8", 403), ("http://friend.example:3000", 200), ("http://localhost.evil.example", 403),
        ("http://0.0.0.0:3000", 200), ("http://tauri.localhost", 200), ("https://app.localhost:1", 200),
        ("http://localhost:3000", 200), ("http://[::1]:8080", 200), ("tauri://localhost", 200),
        ("http://box:8080", 200),
    ],
)  # fmt: skip
@played
async def test_a_page_of_another_site_does_not_use_the_gpu(origin: str, status: int) -> None:  # B6
    """A browser asks nobody before it sends text/plain."""

    async with Upstream(saying(OK)) as upstream:
        owner = FakeOwner(made_up.server(kind="ollama", hosts=("friend.example", "box")), upstream.base)
        async with proxy(owner) as through:
            asked = post("/api/generate", b'{"model": "m", "prompt": "x"}', f"Origin: {origin}")
            asked = asked.replace(b"Host: localhost", b"Host: box:11434")
            assert parted(await through.ask(asked))[0] == status
            assert len(owner.used) == (status == 200)


FOREIGN = ("Sec-Fetch-Site: cross-site",)
OF_A_BROWSER = "User-Agent: Mozilla/5.0 (X11; Linux x86_64)"
PLAIN = (OF_A_BROWSER, "Host: 192.168.1.9:8188")  # browsers tell little to plain HTTP
ASKERS: list[tuple[tuple[str, ...], int]] = [
    ((), 200), (("User-Agent: curl/8.14",), 200), (("Referer: http://evil.example/", "User-Agent: x"), 200),
    ((OF_A_BROWSER, "Sec-Fetch-Site: none"), 200), ((OF_A_BROWSER, "Sec-Fetch-Site: same-origin"), 200),
    ((*FOREIGN, "Sec-Fetch-Dest: image"), 403), ((*FOREIGN, "Referer: http://evil.example/"), 403),
    (("Sec-Fetch-Site: same-site",), 403), ((*FOREIGN, "Referer: http://localhost:3000/"), 200),
    ((*FOREIGN, "Referer: https://friend.example/a"), 200), ((*FOREIGN, "Referer: nonsense"), 403),
    (("Sec-Fetch-Site: none", "Sec-Purpose: prefetch;prerender"), 403), (PLAIN, 403),
    ((*PLAIN, "Referer: http://evil.example/"), 403), ((*PLAIN, "Referer: http://192.168.1.9:8188/"), 200),
]  # fmt: skip


@pytest.mark.parametrize(("headers", "status"), ASKERS)
@played
async def test_what_takes_the_gpu_by_get_is_for_own_users(
    headers: tuple[str, ...], status: int
) -> None:  # B6, S9
    """An image of another site asks without an Origin."""

    async with Upstream(saying(OK)) as upstream:
        owner = FakeOwner(made_up.server(kind="comfyui", hosts=("friend.example",)), upstream.base)
        async with proxy(owner) as through:
            asked = get("/", *headers)
            if any(each.startswith("Host:") for each in headers):
                asked = asked.replace(b"Host: localhost\r\n", b"")
            assert parted(await through.ask(asked))[0] == status
            assert len(owner.used) == (status == 200)


@played
async def test_a_page_of_another_site_starts_nothing_at_all() -> None:  # B6, S9
    """Not the instance without a GPU, either."""

    preflight = get("/api/chat", "Origin: http://evil", method="OPTIONS")
    for request in (get("/api/tags", *FOREIGN), preflight):
        said, upstream, _ = await asked_through(OK, request)
        assert (parted(said)[0], upstream.heads) == (403, [])
    said, _, _ = await asked_through(OK, get("/api/tags", OF_A_BROWSER))
    assert parted(said)[0] == 200  # an old browser


@played
async def test_an_own_page_is_of_the_servers_own_origin() -> None:  # B6
    for origin in ("http://localhost", "https://localhost"):
        request = post("/upload/image", b"{}", f"Origin: {origin}")
        _, upstream, _ = await asked_through(OK, request, "comfyui")
        assert upstream.header("Origin") == f"http://{upstream.header('Host')}"


def two(first: Upstream, second: Upstream, **settings: object) -> list[FakeOwner]:
    """Two servers at one address."""
    return [
        FakeOwner(made_up.server("a", kind="openai", models=("small",), command=("x",)), first.base),
        FakeOwner(
            made_up.server("b", kind="openai", models=("big",), command=("x",), **settings), second.base
        ),
    ]  # fmt: skip


def _form(size: int) -> bytes:
    head = b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n'
    return head % b"file" + b"x" * size + b"\r\n" + head % b"model" + b"big\r\n--b--\r\n"


def _json(size: int) -> bytes:
    return json.dumps({"messages": ["x" * size], "model": "big"}).encode()


@pytest.mark.parametrize("default", [True, False])
@pytest.mark.parametrize("made", [_form, _json])
@played
async def test_a_model_too_far_behind_is_an_error_and_no_guess(
    made: Callable[[int], bytes], *, default: bool
) -> None:  # B6
    async with Upstream(saying(OK)) as first, Upstream(saying(OK)) as second:
        async with proxy(*two(first, second, default=default)) as through:
            said = await through.ask(post("/v1/audio/transcriptions", made(40 << 20)))
            assert parted(said)[0] == 413
            assert b"put it before the rest" in said
            await through.ask(post("/v1/audio/transcriptions", made(4 << 20)))
        assert (len(first.heads), len(second.heads)) == (0, 1)


@played
async def test_bodies_that_are_looked_at_wait_for_room(monkeypatch: pytest.MonkeyPatch) -> None:  # B6
    monkeypatch.setattr("slicer.serve.proxy._READ_AHEAD", 1 << 20)
    body, small = _json(8 << 20), b'{"model": "small"}'
    async with Upstream(saying(OK)) as first, Upstream(saying(OK)) as second:
        owners = two(first, second)
        owners[1].granted.clear()
        async with proxy(*owners) as through:
            one = asyncio.ensure_future(through.ask(post("/v1/chat/completions", body)))
            await until(lambda: owners[1].waiting == 1, "it waits for its server")
            two_ = asyncio.ensure_future(through.ask(post("/v1/chat/completions", body)))
            await until(through.front.choosing.locked, "another waits for room")
            assert parted(await through.ask(post("/v1/chat/completions", small)))[0] == 200
            monkeypatch.setattr("slicer.serve.proxy._ROOM_S", 0.01)
            owners[1].granted.set()
            await one
            await two_
            assert through.front.room == 1 << 20
        assert (len(first.heads), len(second.heads)) == (1, 2)


@played
async def test_half_a_body_makes_nobody_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:  # B6
    monkeypatch.setattr("slicer.serve.proxy._STALLED_S", 0.2)
    body = _json(8 << 20)
    async with Upstream(saying(OK)) as first, Upstream(saying(OK)) as second:
        async with proxy(*two(first, second)) as through:
            reader, writer = await through.connect()
            writer.write(post("/v1/chat/completions", body)[: 4 << 20])
            await until(through.front.choosing.locked, "it is read")
            assert parted(await through.ask(post("/v1/chat/completions", body)))[0] == 200
            assert b" 408 " in await reader.readline()
            writer.close()
        assert (len(first.heads), len(second.heads)) == (0, 1)


@played
async def test_what_is_no_request_is_answered_and_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:  # B6, S9
    async with Upstream(saying(OK)) as upstream, proxy(owner_of(upstream)) as through:
        for nonsense in (
            b"CONNECT other:443 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            get("*", method="OPTIONS"), b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
            get("/api/chat", "Transfer-Encoding: chunked", method="POST") + b"zz\r\n",
        ):  # fmt: skip
            assert parted(await through.ask(nonsense))[0] == 400
        assert not upstream.heads
        assert parted(await through.ask(get("/api/tags")))[0] == 200
    assert caplog.records == []  # or anybody fills the log


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
@played
async def test_no_user_shuts_out_another(monkeypatch: pytest.MonkeyPatch) -> None:  # B6, S9
    monkeypatch.setattr("slicer.serve.proxy._OWN_FILES", resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 16)
    async with Upstream(saying(OK)) as upstream, proxy(owner_of(upstream)) as through:
        held = [await through.connect() for _ in range(10)]
        script = (
            f"import http.client; c = http.client.HTTPConnection('127.0.0.1', {through.port});"
            "c.request('GET', '/api/tags'); print(c.getresponse().read().decode(), end='')"
        )
        words = [*unprivileged(65534), sys.executable, "-I", "-c", script]
        other = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        assert (await other.communicate())[0] == b"ok"
        for _, writer in held:
            writer.close()


# -- several servers at one address --------------------------------------------------------------------------


@played
async def test_the_model_chooses_the_server() -> None:  # B6
    async with Upstream(saying(OK)) as first, Upstream(saying(OK)) as second:
        owners = [
            FakeOwner(made_up.server("a", kind="openai", models=("small",)), first.base),
            FakeOwner(
                made_up.server("b", kind="openai", models=("big", "big:q4"), path="/b"), second.base
            ),
        ]
        async with proxy(*owners) as through:
            image = "x" * (2 << 20)
            behind = json.dumps({"messages": [image], "model": "big:q4"}).encode()
            for body in (b'{"model": "big"}', behind, b'{"model": "small"}'):
                assert parted(await through.ask(post("/v1/chat/completions", body)))[0] == 200
            await through.ask(post("/b/v1/chat/completions", b"{}"))
            for body in (b"{}", b'{"model": "none"}'):
                said = await through.ask(post("/v1/chat/completions", body))
                assert (parted(said)[0], b"Known: small, big" in said) == (404, True)
            packed = post("/v1/chat/completions", b"x", "Content-Encoding: gzip")
            assert parted(await through.ask(packed))[0] == 415
            assert parted(await through.ask(get("/health")))[0] == 200
            listed = json.loads(parted(await through.ask(get("/v1/models")))[2])
        assert [len(owner.used) for owner in owners] == [1, 3]
        assert [each["id"] for each in listed["data"]] == ["small", "big", "big:q4"]
