"""curl and the clients of Ollama and OpenAI through the proxy, before a server that behaves as theirs.

The owner of the server is made up here: what it does is tried elsewhere.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slicer.serve.terms import Unavailable
from tests.browser import Page
from tests.patience import LONGEST_S, until
from tests.unit import made_up

pytest.importorskip("aiohttp")
from tests.unit.serve.front import FakeOwner, proxy

ROOT = str(Path(__file__).resolve().parents[2])


class Running:
    """A fake server, a proxy before it in a thread, and what they know."""

    def __init__(self, owner: FakeOwner, process: subprocess.Popen[bytes], log: Path) -> None:
        self.owner = owner
        self.process = process
        self.port = 0
        self._log = log

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [each for each in map(json.loads, lines) if each["event"] == event]


class Bench:
    """Starts them, and ends them after the test."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._ends: list[Callable[[], object]] = []

    def start(self, *options: str, kind: str = "ollama", **settings: object) -> Running:
        log = self._place / f"log-{len(self._ends)}"
        port = _free_port()
        words = ("--kind", kind, "--port", str(port), "--log", str(log), *options)
        process = subprocess.Popen([sys.executable, "-m", "tests.fake_server", *words], cwd=ROOT)
        self._ends.append(lambda: (process.kill(), process.wait()))
        owner = FakeOwner(made_up.server(kind=kind, **settings), f"http://127.0.0.1:{port}")
        running = Running(owner, process, log)
        self._front(running)
        until(lambda: _connects(port) or process.poll(), "the fake server listens")
        return running

    def _front(self, running: Running) -> None:
        loop, ended = asyncio.new_event_loop(), asyncio.Event()

        async def serve() -> None:
            async with proxy(running.owner) as through:
                running.port = through.port
                await ended.wait()

        thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
        thread.start()
        self._ends.append(lambda: (loop.call_soon_threadsafe(ended.set), thread.join(), loop.close()))
        until(lambda: running.port, "the proxy listens")

    def at_end(self, end: Callable[[], object]) -> None:
        self._ends.append(end)

    def close(self) -> None:
        for end in reversed(self._ends):
            end()


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _connects(port: int) -> bool:
    import socket

    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def curl(*arguments: str, code: int | None = 0) -> bytes:
    """What curl prints."""
    env = {"PATH": os.environ["PATH"]}
    found = subprocess.run(
        ["curl", "-sS", "--noproxy", "*", *arguments], capture_output=True, env=env, check=False
    )
    assert code is None or found.returncode == code, found.stderr
    return found.stdout


# -- ollama --------------------------------------------------------------------------------------------------


def _ollama(bench: Bench, running: Running) -> Any:
    client = pytest.importorskip("ollama").Client(host=running.url, trust_env=False)
    bench.at_end(client.close)
    return client


def test_the_ollama_client_works_as_with_ollama_itself(bench: Bench) -> None:  # B6
    running = bench.start("--tokens", "3")
    client = _ollama(bench, running)
    said = client.generate("m", "hello")
    assert said.response == "w0 w1 w2 "
    words = [each.response for each in client.generate("m", "hello", stream=True)]
    assert words == ["w0 ", "w1 ", "w2 ", ""]
    chat = client.chat("m", [{"role": "user", "content": "hello"}], stream=True)
    assert "".join(each.message.content for each in chat) == "w0 w1 w2 "
    assert len(client.embed("m", ["a", "b"]).embeddings) == 2
    assert [each.model for each in client.ps().models] == ["m"]
    assert [each.model for each in client.list().models] == ["m"]
    assert client.show("m").details.format == "gguf"
    assert [each.status for each in client.pull("m", stream=True)][-1] == "success"
    assert client.generate("m", keep_alive=0).done_reason == "unload"
    until(lambda: not client.ps().models, "it is unloaded")
    needs = [each.need for each in running.owner.used]
    assert needs == ["gpu"] * 4
    assert client.generate("m").done_reason == "load"
    assert running.owner.used[-1].need == "load"


def test_the_ollama_client_says_why(bench: Bench) -> None:  # B6
    ollama = pytest.importorskip("ollama")
    running = bench.start()
    client = _ollama(bench, running)
    with pytest.raises(ollama.ResponseError, match="model 'other' not found"):
        client.generate("other", "hello")
    running.owner.problem = Unavailable("busy", "train has the GPU", retry_after_s=7200.0)
    with pytest.raises(ollama.ResponseError, match="slicer: train has the GPU") as raised:
        client.chat("m", [])
    assert raised.value.status_code == 503


def test_an_ollama_client_that_leaves_stops_the_work(bench: Bench) -> None:  # B6
    running = bench.start("--tokens", "1000000", "--token-time", "0.01")
    client = _ollama(bench, running)
    stream = client.generate("m", "hello", stream=True)
    assert next(stream).response == "w0 "
    stream.close()
    until(lambda: running.events("disconnect"), "the server hears of it")
    until(lambda: not running.owner.open, "the request has ended")
    body = '{"model": "m", "prompt": "x", "stream": false}'
    curl("-m", "0.2", "-d", body, f"{running.url}/api/generate", code=28)
    until(lambda: len(running.events("disconnect")) == 2, "the server hears of that one, too")


def test_blobs_pass_without_being_held(bench: Bench, tmp_path: Path) -> None:  # B6
    running = bench.start()
    size = 192 << 20
    with (tmp_path / "blob").open("wb") as file:
        file.truncate(size)
    digest = hashlib.sha256(bytes(size)).hexdigest()
    url = f"{running.url}/api/blobs/sha256:{digest}"
    found = curl("-T", str(tmp_path / "blob"), "-X", "POST", "-o", "/dev/null", "-w", "%{http_code}", url)
    assert found == b"201"
    assert running.events("blob")[0]["sha256"] == digest
    assert not running.owner.used


# -- openai --------------------------------------------------------------------------------------------------


def _openai(running: Running) -> Any:
    openai = pytest.importorskip("openai")
    httpx2 = pytest.importorskip("httpx2")
    client = httpx2.Client(trust_env=False)
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", http_client=client)


def test_the_openai_client_works_as_with_its_own_server(bench: Bench) -> None:  # B6
    running = bench.start("--tokens", "3", kind="openai")
    client = _openai(running)
    until(lambda: running.events("loaded"), "the model is loaded")
    said: list[Any] = [{"role": "user", "content": "hello"}]
    with client:
        answer = client.chat.completions.create(model="m", messages=said)
        assert answer.choices[0].message.content == "w0 w1 w2 "
        stream = client.chat.completions.create(model="m", messages=said, stream=True)
        assert "".join(each.choices[0].delta.content for each in stream) == "w0 w1 w2 "
        assert client.completions.create(model="m", prompt="hello").choices[0].text == "w0 w1 w2 "
        vectors = client.embeddings.create(model="m", input="x", encoding_format="float").data
        assert vectors[0].embedding == [0.5, 0.25]
        assert [each.id for each in client.models.list()] == ["m"]
    assert [each.need for each in running.owner.used] == ["gpu"] * 4
    assert curl("-X", "POST", "-w", "%{http_code}", "-o", "/dev/null", f"{running.url}/sleep") == b"403"
    assert not running.events("sleep")


@pytest.mark.parametrize(("left_s", "attempts"), [(0.0, 3), (7200.0, 1)])
def test_the_openai_client_comes_again_only_where_it_is_of_use(
    bench: Bench, left_s: float, attempts: int
) -> None:  # B6
    openai = pytest.importorskip("openai")
    running = bench.start(kind="openai")
    running.owner.problem = Unavailable("busy", "train has it", holder="train", retry_after_s=left_s)
    problem = pytest.raises(openai.InternalServerError, match="slicer: train has it")
    with _openai(running) as client, problem as raised:
        client.chat.completions.create(model="m", messages=[])
    assert raised.value.status_code == 503
    assert raised.value.response.headers["X-Slicer-Holder"] == "train"
    assert len(running.owner.used) == attempts


def test_a_stream_that_is_cut_is_an_error_for_its_client(bench: Bench) -> None:  # B6
    openai = pytest.importorskip("openai")
    running = bench.start("--tokens", "9", "--cut-after", "4", kind="openai")
    until(lambda: running.events("loaded"), "the model is loaded")
    got: list[str] = []
    with _openai(running) as client:
        stream = client.chat.completions.create(model="m", messages=[], stream=True)
        with pytest.raises(openai.APIConnectionError):
            got.extend(each.choices[0].delta.content for each in stream)
    assert got == ["w0 ", "w1 ", "w2 ", "w3 "]
    assert running.process.wait(LONGEST_S) == -signal.SIGKILL


# -- curl ----------------------------------------------------------------------------------------------------


def test_curl_gets_what_the_server_said(bench: Bench, tmp_path: Path) -> None:  # B6
    running = bench.start(kind="raw", path="")
    (tmp_path / "body").write_bytes(bytes(range(256)) * 20000)
    digest = hashlib.sha256((tmp_path / "body").read_bytes()).hexdigest()
    for options in (
        ("-H", "Expect: 100-continue"), ("-H", "Transfer-Encoding: chunked"), ("--http1.0",),
        ("--compressed",),
    ):  # fmt: skip
        url = f"{running.url}/a%2Fb?x=%20y"
        got = json.loads(curl(*options, "-X", "PUT", "--data-binary", f"@{tmp_path}/body", url))
        assert (got["method"], got["path"], got["sha256"]) == ("PUT", "/a%2Fb?x=%20y", digest)
    whole = curl("-x", running.url, "--noproxy", "", f"{running.url}/whole?url=1")
    assert json.loads(whole)["path"] == "/whole?url=1"
    head = curl("-I", f"{running.url}/x")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    status = curl("-H", "Host: evil.example", "-w", "%{http_code}", "-o", "/dev/null", f"{running.url}/x")
    assert status == b"403"


def test_a_big_answer_to_a_slow_client_is_not_held(bench: Bench) -> None:  # B6
    running = bench.start(kind="raw")
    size = 64 << 20
    url = f"{running.url}/x?bytes={size}"
    got = curl("--limit-rate", "40M", "-o", "/dev/null", "-w", "%{size_download}", url)
    assert got == str(size).encode()


def test_two_hundred_streams_at_once(bench: Bench) -> None:  # B6
    running = bench.start("--tokens", "20", "--token-time", "0.02")
    body = r'"{\"model\":\"m\",\"prompt\":\"x\"}"'
    config = "next\n".join([f'url = "{running.url}/api/generate"\ndata = {body}\noutput = "-"\n'] * 200)
    env = {"PATH": os.environ["PATH"]}
    at_once = ("--parallel", "--parallel-immediate", "--parallel-max", "200")
    found = subprocess.run(
        ["curl", "-sS", "--noproxy", "*", *at_once, "-K", "-"],
        input=config.encode(), capture_output=True, env=env, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert sum(line["done"] for line in lines) == 200
    assert len(lines) == 200 * 21
    assert running.owner.open == 0


def test_comfyui_is_used_until_its_queue_is_empty(bench: Bench) -> None:  # B6
    running = bench.start("--tokens", "3", "--token-time", "0.2", kind="comfyui")
    assert b"prompt_id" in curl("-d", "{}", f"{running.url}/prompt")
    assert running.owner.open == 1
    assert json.loads(curl(f"{running.url}/queue"))["queue_running"]
    until(lambda: running.events("answered"), "the work is done")
    until(lambda: running.owner.open == 0, "it is used no more")


# -- a browser -----------------------------------------------------------------------------------------------

EVIL_PAGE = """\
<!doctype html><meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">
<link rel="prefetch" href="{url}/"><link rel="preload" as="image" href="{url}/">
<img src="{url}/"><script src="{url}/"></script><iframe src="{url}/"></iframe>
<form action="{url}/prompt" method="post" enctype="text/plain" target="frame"><input name="a"></form>
<iframe name="frame"></iframe><a href="{url}/?from=there">a link</a>
<script>
addEventListener("load", async () => {{
    document.forms[0].submit();
    await Promise.allSettled([
        fetch("{url}/", {{mode: "no-cors"}}), fetch("{url}/prompt", {{mode: "no-cors", method: "POST"}}),
        new Promise((end) => {{ new WebSocket("{url}/ws".replace("http", "ws")).onerror = end; }}),
    ]);
    document.title = "tried";
}});
</script>
"""


@pytest.fixture
def evil(bench: Bench) -> Callable[[str], str]:
    """Serves a text as a page of another site, and returns its address."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    def serve(text: str) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever).start()
        bench.at_end(lambda: (server.shutdown(), server.server_close()))
        return f"http://evil.example:{server.server_port}/"

    return serve


def test_in_a_browser_only_the_user_starts_a_server(
    bench: Bench, evil: Callable[[str], str], page: Page
) -> None:  # B6, S9
    running = bench.start(kind="comfyui")
    page.go(evil(EVIL_PAGE.format(url=running.url)))
    page.until("document.title === 'tried'")
    assert running.owner.used == []
    page.evaluate("document.querySelector('a').click()")
    page.until("document.querySelector('a')?.innerText.startsWith('Go on to')")
    assert running.owner.used == []
    page.evaluate("document.querySelector('a').click()")
    page.until("document.title === 'ComfyUI'")
    assert page.evaluate("location.search") == "?from=there"
    assert len(running.owner.used) == 1
    page.go(running.url)  # as from the address bar
    page.until("document.title === 'ComfyUI'")
    assert len(running.owner.used) == 2
    assert page.evaluate("fetch('/prompt', {method: 'POST', body: '{}'}).then((said) => said.status)") == 200
    first = "new Promise((end) => { new WebSocket('/ws').onmessage = (said) => end(said.data) })"
    assert json.loads(page.evaluate(first))["type"] == "status"
