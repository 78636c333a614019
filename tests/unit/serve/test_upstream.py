"""What slicer asks of servers: only a whole answer counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.unit.serve.front import Peer, Upstream, saying

pytest.importorskip("aiohttp")

from slicer.serve import upstream
from slicer.serve.upstream import Loaded

pytestmark = pytest.mark.both_pythons


def _json(text: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(text), text)


def ask(
    answer: bytes, story: Callable[[upstream.Upstream, Upstream], Awaitable[object]], kind: str = "ollama"
) -> object:
    """What comes of it with a server that answers so."""

    async def whole() -> object:
        async with Upstream(saying(answer)) as fake, asyncio.timeout(60):
            asked = upstream.Upstream(kind, fake.base)  # type: ignore[arg-type]
            try:
                return await story(asked, fake)
            finally:
                await asked.close()

    return asyncio.run(whole())


def test_the_loaded_models_and_where_they_lie() -> None:  # B6
    said = b'{"models": [{"name": "a", "model": "a:latest", "size": 10, "size_vram": 7}]}'
    assert ask(_json(said), lambda asked, _: asked.loaded()) == (Loaded("a:latest", 10, 7),)
    assert ask(_json(b'{"models": null}'), lambda asked, _: asked.loaded()) == ()
    assert ask(_json(said), lambda asked, _: asked.loaded(), "openai") == ()


@pytest.mark.parametrize(
    "answer",
    [
        _json(b'{"models": []}', b"500 No"), _json(b"{}"), _json(b"[]"), _json(b"nonsense"),
        _json(b'{"models": [1]}'), b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n{\"models\": []}", b"",
    ],
)  # fmt: skip
def test_half_an_answer_is_not_an_empty_gpu(answer: bytes) -> None:  # B6
    import aiohttp

    with pytest.raises((ValueError, aiohttp.ClientError)) as raised:
        ask(answer, lambda asked, _: asked.loaded())
    assert not isinstance(raised.value, upstream.Gone)


def test_an_answer_in_pieces_is_read_to_its_end() -> None:  # B6
    async def slowly(_: bytes, peer: Peer) -> None:
        for piece in (b"HTTP/1.1 200 OK\r\n\r\n", b'{"models": [{"model": ', b'"a"}]}'):
            peer[1].write(piece)
            await peer[1].drain()
            await asyncio.sleep(0)

    async def whole() -> object:
        async with Upstream(slowly) as fake:
            asked = upstream.Upstream("ollama", fake.base)
            try:
                return await asked.loaded()
            finally:
                await asked.close()

    assert asyncio.run(whole()) == (Loaded("a", 0, 0),)


def test_a_server_that_is_not_there_is_gone() -> None:  # B6
    async def gone(asked: upstream.Upstream, upstream: Upstream) -> object:
        assert upstream._server is not None
        upstream._server.close()
        assert not await asked.is_ready("/api/version")
        assert not await asked.is_ready("")
        return await asked.loaded()

    with pytest.raises(upstream.Gone):
        ask(b"", gone)


def test_ready_is_an_answer_of_200_or_a_port() -> None:  # B6
    assert ask(_json(b"{}"), lambda asked, _: asked.is_ready("/health"))
    assert not ask(_json(b"{}", b"503 Loading"), lambda asked, _: asked.is_ready("/health"))
    assert not ask(b"nonsense\r\n\r\n", lambda asked, _: asked.is_ready("/health"))
    assert ask(b"", lambda asked, _: asked.is_ready(""))


def test_a_model_is_loaded_in_its_own_way() -> None:  # B6
    async def both(asked: upstream.Upstream, upstream: Upstream) -> object:
        said = [await asked.load("m", embeds=False), await asked.load("m", embeds=True)]
        assert [head.split()[1] for head in upstream.heads] == [b"/api/generate", b"/api/embed"]
        return said

    assert ask(_json(b"{}"), both) == ["", ""]
    assert ask(_json(b'{"error": "no such model"}', b"404 No"), both) == ["no such model"] * 2
    assert ask(_json(b"oh", b"500 No"), both) == ["status 500"] * 2


def test_comfyui_is_busy_while_its_queue_is_not_empty() -> None:  # B6
    for text, expected in (
        (b'{"queue_running": [[1]], "queue_pending": []}', True),
        (b'{"queue_running": [], "queue_pending": [[1]]}', True),
        (b'{"queue_running": [], "queue_pending": []}', False),
    ):
        assert ask(_json(text), lambda asked, _: asked.is_busy(), "comfyui") is expected
    assert ask(b"", lambda asked, _: asked.is_busy(), "raw") is False
