"""``slicer web``: the live board over HTTP, for whoever can connect, and in a browser."""

from __future__ import annotations

import http.client
import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slicer.kernel.sleep import until_readable
from tests.browser import Page
from tests.fake_nvml import FakeNvml
from tests.patience import LONGEST_S, until
from tests.process.harness import SLICER, Box, Gate, unprivileged

pytest_plugins = ["tests.fake_nvml"]

EVIL = "<img/src=x/onerror=document.title='caught'>"


# Without its signs of life, which would bring a viewer what it has missed.
_QUIET = """\
import slicer.web.server as server
from slicer.__main__ import main
server._PULSE_S = 1e6
main()
"""


class Web:
    """A running ``slicer web``."""

    def __init__(self, box: Box, *options: str) -> None:
        line = [sys.executable, "-c", _QUIET, "web", "--listen", "127.0.0.1:0", *options]
        self.process = subprocess.Popen(line, env=box.env, cwd=box.root, stdout=subprocess.PIPE)
        box.adopt(self.process)
        assert self.process.stdout is not None
        said = self.process.stdout.readline().decode()
        assert "http://" in said, said
        self.url = said.split()[4]
        self.port = int(self.url.rstrip("/").rpartition(":")[2])

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port))

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        asked = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            asked.putrequest(method, path, skip_host="Host" in headers)
            for name, value in headers.items():
                asked.putheader(name, value)
            asked.endheaders()
            answer = asked.getresponse()
            return answer.status, dict(answer.headers), answer.read()
        finally:
            asked.close()

    def board(self) -> dict[str, Any]:
        return json.loads(self.ask("/board.json")[2])

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate()
        assert self.process.returncode == 0


@pytest.fixture(autouse=True)
def _gpus(box: Box, fake_nvml: FakeNvml) -> None:
    """Two GPUs, for all that runs in the box."""
    box.env |= fake_nvml.env


@pytest.fixture
def web(box: Box) -> Iterator[Web]:
    made = Web(box)
    yield made
    made.close()


class Stream:
    """The events that a browser gets."""

    def __init__(self, web: Web) -> None:
        self._socket = web.connect()
        self._socket.settimeout(LONGEST_S)
        self._socket.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self._file = self._socket.makefile("rb")
        assert self._file.readline() == b"HTTP/1.1 200 OK\r\n"

    def next(self, kind: str = "board") -> dict[str, Any]:
        while True:
            if self._file.readline().decode().strip() == f"event: {kind}":
                line = self._file.readline().decode()
                # Chunks may end anywhere between two lines.
                return json.loads(line.removeprefix("data: "))

    def close(self) -> None:
        self._file.close()
        self._socket.close()


# -- what it tells ------------------------------------------------------------------------------------------


def test_a_change_is_pushed_and_no_command_is_told(box: Box, web: Web, gate: Gate) -> None:  # U13
    stream = Stream(web)
    assert (first := stream.next())["jobs"] == []
    assert first["version"] == 1
    box.hold(gate, "--gpus", "1", name="train")
    while not (found := stream.next())["jobs"]:
        pass
    stream.close()
    (job,) = found["jobs"]
    assert (job["name"], job["gpus"]) == ("train", [0])
    assert [each["name"] for each in found["gpus"][0]["holders"]] == ["train"]
    for path in ("/board.json", "/metrics"):
        status, _, text = web.ask(path)
        assert status == 200
        assert b"read _" not in text  # what the job runs
        assert str(box.root).encode() not in text
    assert "slicer_jobs_running" in web.ask("/metrics")[2].decode()
    assert "openmetrics" in web.ask("/metrics", Accept="application/openmetrics-text")[1]["Content-Type"]
    gate.open()
    until(lambda: web.board()["jobs"] == [], "the job has left the board")


def test_the_last_day_is_there_from_the_beginning(box: Box) -> None:  # U13
    box.run("-q", "--gpus", "1", "--", "true")
    web = Web(box)
    stream = Stream(web)
    first, second = stream.next("timeline")["gpus"]
    ((user, began, ended),) = first["bars"]
    assert user == pwd.getpwuid(os.geteuid()).pw_name
    assert began <= ended <= time.time() + 1  # whole seconds
    assert second["bars"] == []
    stream.close()
    web.close()


def test_a_killed_viewer_and_one_that_comes_back_cost_nothing(web: Web) -> None:  # U13
    for _ in range(3):
        stream = Stream(web)
        stream.next()
        stream.close()
    assert web.board()["notes"] is not None


# -- whom it refuses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [
    "evil.example", "evil.example:80", "127.0.0.1.evil.example", "[evil]", "[::1]evil", "",
])  # fmt: skip
def test_a_page_of_another_site_cannot_read_it_by_rebinding_a_name(web: Web, host: str) -> None:  # U13
    for path in ("/", "/board.json", "/events", "/metrics"):
        assert web.ask(path, Host=host)[0] == 421


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8750", "[::1]:8750", "board.example"])
def test_it_answers_to_addresses_and_the_names_that_it_was_given(box: Box, host: str) -> None:  # U13
    web = Web(box, "--host", "board.example")
    assert web.ask("/board.json", Host=host)[0] == 200
    web.close()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_nothing_but_reading_is_possible(web: Web, method: str) -> None:  # U13
    status, headers, _ = web.ask("/board.json", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")
    assert "Access-Control-Allow-Origin" not in headers


def test_no_other_site_may_embed_the_page_and_it_loads_only_its_own_files(web: Web) -> None:  # U13
    for path in ("/", "/board.js", "/board.css", "/icon.svg", "/board.json", "/metrics", "/nothing"):
        _, headers, _ = web.ask(path)
        assert headers["Content-Security-Policy"].startswith("default-src 'none';")
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert (headers["X-Frame-Options"], headers["X-Content-Type-Options"]) == ("DENY", "nosniff")
        assert "Access-Control-Allow-Origin" not in headers
    text = web.ask("/")[2].decode()
    assert not any(word in text for word in ("http://", "https://", " style=", " onclick", "<script>"))
    assert "innerHTML" not in web.ask("/board.js")[2].decode()


@pytest.mark.parametrize("path", [
    "/../server.py", "/board.js/../../server.py", "/%2e%2e/server.py", "//etc/passwd", "/page/index.html",
    "/..%2fserver.py", "/board.js%00", "/index.html", "/.", "/events/", "/~root",
])  # fmt: skip
def test_there_are_no_other_files(web: Web, path: str) -> None:  # U13
    assert web.ask(path)[0] in (400, 404)


# -- clients that harm --------------------------------------------------------------------------------------


def closed_in_time(connection: socket.socket) -> bool:
    """Whether the server has hung up."""
    if not until_readable([connection.fileno()], 0.0, None):
        return False
    try:
        return connection.recv(1 << 16) == b""
    except ConnectionError:
        return True


@pytest.mark.slow
@pytest.mark.parametrize("said", [
    b"", b"GET / HTTP/1.1\r\nHost: a", b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n",
])  # fmt: skip
def test_a_client_that_dawdles_is_hung_up_on(web: Web, said: bytes) -> None:  # U13
    with web.connect() as slow:
        slow.sendall(said)
        until(lambda: closed_in_time(slow), "it hangs up", 60)
    assert web.ask("/")[0] == 200


@pytest.mark.slow
def test_a_viewer_that_does_not_read_delays_nobody(box: Box, web: Web, gate: Gate) -> None:  # U13
    names = "".join(f"{number:03}" for number in range(60))
    with socket.socket() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect(("127.0.0.1", web.port))
        stuck.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until(lambda: until_readable([stuck.fileno()], 0.0, None), "it is a viewer")
        other = Stream(web)
        for number in range(12):
            box.hold(gate, name=f"{number}{names}", env={"CPU_RUN_SLOTS": "20"})
            while len(other.next()["jobs"]) <= number:
                pass
        other.close()


def test_more_connections_than_it_takes_are_refused_and_it_goes_on(web: Web) -> None:  # U13
    from slicer.web.server import MOST_CONNECTIONS

    held = [web.connect() for _ in range(MOST_CONNECTIONS + 8)]
    until(lambda: all(map(closed_in_time, held[-4:])), "those beyond the bound are closed")
    assert not closed_in_time(held[0])
    for each in held:
        each.close()
    until(lambda: _answers(web), "it answers again")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize("path", ["/", "/metrics", "/events"])
def test_no_user_shuts_out_another(web: Web, path: str) -> None:  # U13, S9
    from slicer.web.server import MOST_CONNECTIONS, MOST_VIEWERS

    streams = [Stream(web) for _ in range(MOST_VIEWERS)]
    held = [web.connect() for _ in range(MOST_CONNECTIONS - MOST_VIEWERS + 8)]
    until(lambda: all(map(closed_in_time, held[-4:])), "all places are taken")
    words = ["curl", "-s", "--noproxy", "*", "-I", web.url.rstrip("/") + path]
    done = subprocess.run([*unprivileged(65534), *words], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("HTTP/1.1 200 "), done
    for stream in streams:
        stream.close()
    for each in held:
        each.close()


def _answers(web: Web) -> bool:
    try:
        return web.ask("/")[0] == 200
    except (ConnectionError, http.client.HTTPException):
        return False


def test_more_viewers_than_it_takes_are_told_so(web: Web) -> None:  # U13
    from slicer.web.server import MOST_VIEWERS

    streams = [Stream(web) for _ in range(MOST_VIEWERS)]
    assert web.ask("/events", "HEAD")[0] == 503
    assert web.ask("/board.json")[0] == 200
    for each in streams:
        each.close()
    until(lambda: web.ask("/events", "HEAD")[0] == 200, "there is room again")


# -- where it listens ---------------------------------------------------------------------------------------


def refused(box: Box, *options: str) -> str:
    done = subprocess.run(
        [*SLICER, "web", *options], env=box.env, cwd=box.root, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done
    return done.stderr


def test_an_address_that_others_reach_takes_an_option_of_its_own(box: Box) -> None:  # U13
    assert "other machines could reach this address" in refused(box, "--listen", "0.0.0.0:0")
    assert "other machines could reach this address" in refused(box, "--listen", "[::]:0")
    assert "expected HOST:PORT" in refused(box, "--listen", "8750")
    assert "expected HOST:PORT" in refused(box, "--listen", "localhost:http")


def test_a_port_that_another_process_has_is_said_with_its_user(box: Box) -> None:  # U13
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = refused(box, "--listen", f"127.0.0.1:{port}")
    assert "in use" in said
    assert "root has in use" in said or os.geteuid() != 0


def test_a_unix_socket_is_for_its_user_alone_and_leaves_nothing(box: Box, tmp_path: Path) -> None:  # U13
    path = tmp_path / "board"
    line = [*SLICER, "web", "--listen", f"unix:{path}"]
    with subprocess.Popen(line, env=box.env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert str(path) in process.stdout.readline().decode()
        assert oct(path.stat().st_mode & 0o777) == "0o600"
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"GET /board.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(15) == b"HTTP/1.1 200 OK"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
    assert not path.exists()


_ACTIVATED = """\
import os, slicer.serve.listening as listening
from slicer.__main__ import main
listening._LEAVES_AFTER_S = 1.0
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
main()
"""


def test_started_by_its_socket_it_leaves_when_nobody_looks(box: Box) -> None:  # U13
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def started() -> subprocess.Popen[bytes]:
            line = [sys.executable, "-c", _ACTIVATED, "web"]
            return subprocess.Popen(line, env=box.env, preexec_fn=lambda: os.dup2(listening.fileno(), 3),
                                    pass_fds=(3,))  # fmt: skip

        with started() as process, socket.create_connection(("127.0.0.1", port)) as viewer:
            viewer.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert viewer.recv(15) == b"HTTP/1.1 200 OK"
            assert process.poll() is None
            viewer.close()
            assert process.wait(LONGEST_S) == 0
        with started() as again, socket.create_connection(("127.0.0.1", port)) as asking:
            asking.sendall(b"GET /board.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert asking.recv(15) == b"HTTP/1.1 200 OK"
            assert again.wait(LONGEST_S) == 0


# -- in a browser -------------------------------------------------------------------------------------------


def text(page: Page, where: str) -> str:
    return page.evaluate(f"document.querySelector('{where}').innerText")


def test_the_page_shows_a_job_without_being_loaded_again(
    box: Box, web: Web, gate: Gate, page: Page
) -> None:  # U13
    page.go(web.url)
    page.until("document.getElementById('state').textContent === 'live'")
    page.until("document.querySelectorAll('#gpus tr').length === 2")
    assert "No jobs are running." in text(page, "#jobs")
    box.hold(gate, "--gpus", "2", name="train")
    page.until("document.querySelector('#jobs th')?.innerText.includes('train')")
    assert "GPU 0, 1" in text(page, "#jobs")
    assert "0 of 2 GPUs free" in text(page, "#summary")
    assert page.evaluate("document.querySelectorAll('#timeline rect').length") == 2
    box.wait_in_line("next", options=("--gpus", "2"))
    page.until("document.querySelector('#waiting')?.innerText.includes('held by train')")
    assert page.errors == []
    own = {web.url, *(web.url + name for name in ("board.js", "board.css", "icon.svg", "events"))}
    assert set(page.requests) <= own, page.requests
    gate.open()
    page.until("document.getElementById('jobs').innerText.includes('No jobs are running.')")


def test_what_begins_later_and_what_failed_are_on_the_page_and_a_short_job_is_seen(
    box: Box, web: Web, gate: Gate, page: Page
) -> None:  # U13
    for number in (1, 2):
        box.run("-q", "--gpus", "1", "--name", f"seed-{number}", "--", "false")
    box.hold(gate, "--gpus", "1", name="train")
    box.start("--after", "train", "--name", "publish", "--", "true")
    page.go(web.url)
    page.until("document.querySelector('#waiting')?.innerText.includes('begins after train:ok')")
    assert text(page, "#waiting").split()[0] == "publish"
    page.until("document.querySelector('#failed')?.innerText.includes('exit 1')")
    assert "seed-2" in text(page, "#failed")
    assert "and 1 alike" in text(page, "#failed")
    for width in (1280, 390):
        page.size(width, 800, is_phone=width < 400)
        bars = "[...document.querySelectorAll('#timeline rect')]"
        page.until(f"{bars}.every((each) => each.getBoundingClientRect().width > 2)")
        assert page.overflow() == []
    assert page.errors == []


def test_a_name_with_html_in_it_is_text(box: Box, web: Web, gate: Gate, page: Page) -> None:  # U13
    box.hold(gate, "--gpus", "1", name=EVIL)
    page.go(web.url)
    page.until("document.querySelector('#jobs th')?.innerText.includes('onerror')")
    page.until("document.querySelector('#gpus')?.innerText.includes('onerror')")
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert "caught" not in page.evaluate("document.title")
    assert page.errors == []


def test_the_keyboard_reaches_everything_and_the_filter_works(
    box: Box, web: Web, gate: Gate, page: Page
) -> None:  # U13
    box.hold(gate, name="alpha", env={"CPU_RUN_SLOTS": "2"})
    box.hold(gate, name="beta", env={"CPU_RUN_SLOTS": "2"})
    page.go(web.url)
    page.until("document.querySelectorAll('#jobs th').length === 2")
    page.press("/", 191, "/")
    for letter in "bet":
        page.press(letter, ord(letter.upper()), letter)
    page.until("document.querySelectorAll('#jobs th').length === 1")
    assert "beta" in text(page, "#jobs")
    page.press("Escape", 27)
    page.until("document.querySelectorAll('#jobs th').length === 2")
    reached = set()
    for _ in range(12):
        page.press("Tab", 9)
        reached.add(page.evaluate(
            "document.activeElement.getAttribute('aria-labelledby') || document.activeElement.tagName"
        ))  # fmt: skip
        is_seen = "getComputedStyle(document.activeElement).outlineStyle !== 'none'"
        assert page.evaluate(f"document.activeElement === document.body || {is_seen}")
    assert {"h-gpus", "h-jobs", "h-waiting", "SUMMARY", "A"} <= reached


_CONTRAST = """\
(() => {
    const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
    const linear = (v) => v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const paper = light(rgb(getComputedStyle(document.body).backgroundColor)), found = [];
    for (const node of document.querySelectorAll("body *")) {
        if (![...node.childNodes].some((each) => each.nodeType === 3 && each.data.trim())) continue;
        if (!node.getClientRects().length) continue;
        const style = getComputedStyle(node);
        const ink = light(rgb(node.tagName === "text" ? style.fill : style.color));
        const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
        if (ratio < 4.5) found.push(`${node.tagName} ${node.className} ${ratio.toFixed(2)}`);
    }
    return found;
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_can_be_read_in_light_and_dark_and_on_a_phone(
    box: Box, web: Web, gate: Gate, page: Page, scheme: str, width: int
) -> None:  # U13
    box.hold(gate, "--gpus", "2", name="train-a-model-with-a-long-name")
    box.wait_in_line("next", options=("--gpus", "2"))
    page.prefer(scheme)
    page.size(width, 800, is_phone=width < 500)
    page.go(web.url)
    page.until("document.querySelector('#waiting')?.innerText.includes('held by')")
    assert page.overflow() == []
    assert page.evaluate(_CONTRAST) == []
    headings = page.evaluate("[...document.querySelectorAll('h1, h2')].map((each) => each.tagName)")
    assert headings[0] == "H1"
    assert headings.count("H1") == 1
    cells = page.evaluate("document.querySelectorAll('th:not([scope])').length")
    assert cells == 0
