"""``slicer serve`` as a whole: leases, servers and clients, and what becomes of them when something dies."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from slicer.kernel import listeners
from tests.patience import LONGEST_S, until
from tests.process.harness import SLICER, Box, kill, unprivileged
from tests.process.serve_box import BODY, ServeBox, connects, free_port

pytest.importorskip("aiohttp")

LONG = ("--tokens", "1000000", "--token-time", "0.02")


@pytest.fixture
def serve(box: Box) -> Iterator[ServeBox]:
    made = ServeBox(box)
    yield made
    if made.proxy is not None and made.proxy.poll() is None:
        made.end()
    box.close()


# -- from the first request to the memory that is free again -------------------------------------------------


def test_the_gpu_is_held_only_while_it_is_asked_for(serve: ServeBox) -> None:  # B6
    serve.server("ollama", idle="500ms")
    serve.start()
    serve.reaches("ollama", "stopped")
    assert serve.jobs() == []
    status, text = serve.answer(BODY)
    assert status == 200
    assert json.loads(text.splitlines()[-1])["done"] is True
    standing = serve.reaches("ollama", "stopped")
    assert (standing["served"], standing["requests"], standing["job"]) == (1, 0, None)
    assert serve.jobs() == []
    assert serve.used_mib() == 0
    (outcome,) = serve.box.outcomes()
    assert (outcome.name, outcome.command) == ("serve:ollama", tuple(serve.fake("ollama")))
    assert re.search(r"ollama: ready after \S+, job [0-9a-f]{12}\n", serve.said)
    assert "ollama: has given back what it held\n" in serve.said


def test_however_many_ask_it_is_started_once(serve: ServeBox) -> None:  # B6
    serve.server("ollama", "--start-time", "0.5", "--load-time", "0.5")
    serve.start()
    clients = [serve.ask(BODY) for _ in range(20)]
    assert [client.end()[0] for client in clients] == [0] * 20
    assert serve.starts("ollama") == 1
    assert len(serve.events("ollama", "load")) == 1
    until(lambda: serve.standing("ollama")["served"] == 20, "all are counted")


def test_what_needs_no_gpu_takes_none_and_keeps_none(serve: ServeBox) -> None:  # B6
    serve.server("ollama", idle="300ms")
    serve.start()
    assert json.loads(serve.answer(path="/api/ps")[1]) == {"models": []}
    assert serve.events("ollama", "start") == []
    assert json.loads(serve.answer(path="/api/tags")[1])["models"][0]["name"] == "m"
    assert serve.answer({"model": "m", "keep_alive": 0})[0] == 200
    assert serve.starts("ollama") == 0
    until(lambda: [each.name for each in serve.box.outcomes()] == ["serve:ollama-free"], "it leaves")


def test_a_short_client_does_not_abort_the_load(serve: ServeBox) -> None:  # B6
    serve.server("ollama", "--load-time", "1")
    serve.start()
    client = serve.ask(BODY)
    until(lambda: serve.events("ollama", "load"), "the model is being loaded")
    client.process.terminate()
    until(lambda: serve.events("ollama", "loaded"), "it is loaded all the same")
    assert serve.answer(BODY)[0] == 200
    assert serve.events("ollama", "load aborted") == []
    assert len(serve.events("ollama", "load")) == 1


def test_a_model_that_does_not_fit_is_refused_where_that_is_wanted(serve: ServeBox) -> None:  # B6
    serve.server("ollama", "--model", "m=30000", gpus=1, vram="20G", on_offload="fail")
    serve.start()
    status, text = serve.answer(BODY)
    assert status == 503
    assert "is in main memory" in json.loads(text)["error"]


def test_comfyuis_websocket_comes_before_its_server(serve: ServeBox) -> None:  # B6
    """As in its own examples. At the end of the proxy an open one is in nobody's way."""
    import aiohttp

    serve.server("comfy", kind="comfyui", idle="300ms")
    serve.start()
    url = f"http://127.0.0.1:{serve.port}"

    async def story() -> None:
        async with aiohttp.ClientSession() as session, session.ws_connect(f"{url}/ws?clientId=1") as peer:
            await peer.send_str("features")
            assert serve.starts("comfy") == 0
            async with session.post(f"{url}/prompt", json={}) as answer:
                assert answer.status == 200
            assert (await peer.receive_json())["type"] == "status"
            assert await peer.receive_str() == "features"
            assert (await peer.receive()).type == aiohttp.WSMsgType.CLOSE  # it is idle
        async with aiohttp.ClientSession() as session, session.ws_connect(f"{url}/ws") as peer:
            assert serve.end() == 0
            assert (await peer.receive()).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)

    asyncio.run(story())
    assert serve.starts("comfy") == 1


# -- busy ----------------------------------------------------------------------------------------------------


def test_it_waits_in_line_and_comes_when_it_is_its_turn(serve: ServeBox) -> None:  # B6
    serve.server("ollama")
    serve.start()
    holder = serve.hold("train", "--gpus", "1")
    client = serve.ask(BODY)
    serve.reaches("ollama", "waiting")
    holder.terminate()
    assert client.end()[0] == 0


def test_without_max_wait_the_holder_is_told_at_once(serve: ServeBox) -> None:  # B6
    serve.server("ollama", max_wait="0s")
    serve.start()
    serve.hold("train", "--gpus", "1")
    status, text = serve.answer(BODY)
    assert status == 503
    assert "train has it" in json.loads(text)["error"]
    assert serve.starts("ollama") == 0
    assert serve.waiting() == []


def test_the_line_is_left_when_the_last_client_goes(serve: ServeBox) -> None:  # B6
    serve.server("ollama")
    serve.start()
    serve.hold("train", "--gpus", "1")
    clients = [serve.ask(BODY), serve.ask(BODY)]
    until(serve.waiting, "it waits")
    until(lambda: serve.standing("ollama")["requests"] == 2, "for two clients")
    clients[0].process.kill()
    until(lambda: serve.standing("ollama")["requests"] == 1, "one has gone")
    assert len(serve.waiting()) == 1
    clients[1].process.kill()
    until(lambda: not serve.waiting(), "it waits no more")
    serve.reaches("ollama", "stopped")


def test_an_idle_server_gives_way_and_a_busy_one_does_not(serve: ServeBox) -> None:  # B6
    serve.server("ollama", *LONG)
    serve.start()
    stream = serve.ask(BODY)
    stream.hears()
    job = serve.box.start("--gpus", "1", "--", "true")
    until(serve.waiting, "a job waits")
    serve.reaches("ollama", "ready")
    stream.process.kill()
    assert job.wait() == 0  # idle is five minutes
    serve.reaches("ollama", "stopped")


@pytest.mark.parametrize("gpus", [1, 2])
def test_no_more_idle_servers_give_way_than_it_takes(serve: ServeBox, gpus: int) -> None:  # B6, U8
    serve.box.env["SLICER_SIM"] = "2x24G"
    for name in ("one", "two"):
        serve.server(name, "--model", f"{name}=8000", kind="openai", vram="20G", models=[name])
    serve.start()
    for name in ("one", "two"):
        assert serve.answer({"model": name, "prompt": "x"}, "/v1/completions")[0] == 200
    assert serve.box.start("--gpus", str(gpus), "--", "true").wait() == 0  # idle is five minutes
    serve.reaches("one", "stopped")
    serve.reaches("two", "ready" if gpus == 1 else "stopped")


def test_servers_at_one_address_change_places(serve: ServeBox) -> None:  # B6
    for name in ("one", "two"):
        serve.server(name, "--model", f"{name}=8000", kind="openai", vram="20G", models=[name], min_hold="0s")
    serve.start()
    for name in ("one", "two", "one"):
        status, text = serve.answer({"model": name, "prompt": "x"}, "/v1/completions")
        assert (status, json.loads(text)["model"]) == (200, name)
    assert (serve.starts("one"), serve.starts("two")) == (2, 1)


# -- deaths --------------------------------------------------------------------------------------------------


def test_the_next_proxy_ends_what_a_killed_one_has_left(serve: ServeBox) -> None:  # B6, K2
    serve.server("ollama")
    first = serve.start()
    assert serve.answer(BODY)[0] == 200
    left = serve.reaches("ollama", "ready")["job"]
    kill(first.pid, signal.SIGKILL)
    first.wait()
    assert [each["job"] for each in serve.status()["jobs"] if each["gpus"]] == [left]
    assert serve.status()["servers"] == []
    serve.start()
    assert f"ending jobs that an earlier slicer serve left behind: {left}" in serve.said
    assert serve.jobs() == []
    assert serve.answer(BODY)[0] == 200
    assert serve.reaches("ollama", "ready")["job"] != left


def test_a_proxy_that_is_killed_while_it_waits_leaves_no_place_in_line(serve: ServeBox) -> None:  # B6, K2
    serve.server("ollama")
    first = serve.start()
    holder = serve.hold("train", "--gpus", "1")
    client = serve.ask(BODY)
    until(serve.waiting, "it waits")
    kill(first.pid, signal.SIGKILL)
    first.wait()
    assert client.end()[0] != 0
    until(lambda: not serve.waiting(), "it leaves the line")
    holder.terminate()
    until(lambda: not serve.jobs(), "nothing is started for nobody")
    assert serve.starts("ollama") == 0


def test_a_stream_whose_server_is_killed_is_cut(serve: ServeBox) -> None:  # B6
    serve.server("ollama", *LONG)
    serve.start()
    client = serve.ask(BODY)
    client.hears()
    (server,) = (each["pid"] for each in serve.events("ollama", "start") if each["gpus"])
    kill(server, signal.SIGKILL)
    code, _ = client.end()
    assert code == 18  # a part of the file
    standing = serve.reaches("ollama", "stopped")
    assert "ollama ended with 137" in standing["trouble"]
    assert serve.jobs() == []


def test_one_that_dies_at_its_start_says_why(serve: ServeBox) -> None:  # B6
    serve.server("ollama", "--die-at-start", "3")
    serve.start()
    status, text = serve.answer(BODY)
    assert status == 502
    assert "ollama ended with 3; loading weights; RuntimeError: no such quantization: q9" in text
    assert serve.jobs() == []
    words = [*SLICER, "logs", "-n", "1", "serve:ollama"]
    done = subprocess.run(words, env=serve.box.env, capture_output=True, text=True, check=False)
    assert done.stdout == "RuntimeError: no such quantization: q9\n", done


def test_one_that_is_never_ready_is_ended(serve: ServeBox) -> None:  # B6
    serve.server("ollama", "--never-ready", ready_timeout="1s")
    serve.start()
    status, text = serve.answer(BODY)
    assert status == 502
    assert "was not ready after 1s" in text
    until(lambda: not serve.jobs(), "the lease is back")


def test_one_that_ignores_sigterm_is_killed(serve: ServeBox) -> None:  # B6
    serve.server("ollama", "--ignore-sigterm", idle="100ms", release_timeout="1s")
    serve.start()
    assert serve.answer(BODY)[0] == 200
    serve.reaches("ollama", "stopped")
    assert serve.events("ollama", "sigterm")
    assert serve.jobs() == []
    assert serve.used_mib() == 0


def test_at_its_end_it_lets_requests_end_and_gives_all_back(serve: ServeBox) -> None:  # B6
    serve.server("ollama", "--tokens", "20", "--token-time", "0.05")
    serve.start()
    client = serve.ask(BODY)
    client.hears()
    assert serve.end() == 0
    code, text = client.end()
    assert code == 0
    assert json.loads(text.splitlines()[-1])["done"] is True
    assert serve.jobs() == []
    assert serve.status()["servers"] == []


def test_a_stream_that_does_not_end_is_cut_after_drain(serve: ServeBox) -> None:  # B6
    serve.server("ollama", *LONG, drain="500ms")
    serve.start()
    client = serve.ask(BODY)
    client.hears()
    assert serve.end() == 0
    assert client.end()[0] == 18
    assert serve.jobs() == []


def test_a_second_signal_cuts_off_what_is_waited_for(serve: ServeBox) -> None:  # B6
    serve.server("ollama", *LONG, drain="1h")
    proxy = serve.start()
    client = serve.ask(BODY)
    client.hears()
    proxy.send_signal(signal.SIGINT)
    told = "ollama: waits at most 1h for 1 request; Ctrl-C cuts them off"
    until(lambda: told in serve.said, "it says so")
    proxy.send_signal(signal.SIGINT)
    assert proxy.wait(LONGEST_S) == 0
    assert client.end()[0] == 18
    assert serve.jobs() == []


def test_two_proxies_do_not_run_one_server(serve: ServeBox) -> None:  # B6
    serve.server("ollama")
    serve.start()
    done = subprocess.run([*SLICER, "serve"], env=serve.box.env, capture_output=True, text=True, check=False)
    assert done.returncode == 125
    assert "another slicer serve runs ollama" in done.stderr


# -- one that runs already -----------------------------------------------------------------------------------


def test_a_running_server_is_unloaded_and_the_driver_asked(serve: ServeBox) -> None:  # B6
    process, port = serve.running("ollama", "--unload-time", "0.5")
    serve.configure("ollama", kind="ollama", upstream=f"http://127.0.0.1:{port}", idle="2s")
    serve.start()
    assert serve.answer(BODY)[0] == 200
    assert serve.jobs() == ["serve:ollama"]
    serve.reaches("ollama", "ready")  # it is written down a moment later
    serve.reaches("ollama", "stopped")
    assert serve.used_mib() == 0
    assert len(serve.events("ollama", "unloaded")) == 1
    assert process.poll() is None


@pytest.mark.parametrize("fault", ["--stuck-unload", "--keep-memory"])
def test_a_gpu_that_stays_full_is_not_given_back(serve: ServeBox, fault: str) -> None:  # B6
    process, port = serve.running("ollama", fault)
    url = f"http://127.0.0.1:{port}"
    serve.configure("ollama", kind="ollama", upstream=url, idle="200ms", release_timeout="1s")
    serve.start()
    assert serve.answer(BODY)[0] == 200
    standing = serve.reaches("ollama", "stuck")
    assert "does not free its memory" in standing["trouble"]
    assert serve.jobs() == ["serve:ollama"]
    kill(process.pid, signal.SIGKILL)
    process.wait()
    assert serve.end() == 0
    until(lambda: not serve.jobs(), "its memory is back, and so is the lease")


def test_a_running_server_whose_models_a_killed_proxy_left_is_unloaded(serve: ServeBox) -> None:  # B6, K2
    _, port = serve.running("ollama")
    serve.configure("ollama", kind="ollama", upstream=f"http://127.0.0.1:{port}")
    first = serve.start()
    assert serve.answer(BODY)[0] == 200
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    serve.start()
    until(lambda: serve.used_mib() == 0, "the models are unloaded")
    assert serve.status()["jobs"] == []


# -- other users ---------------------------------------------------------------------------------------------

LISTEN = """\
import socket, sys, time
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
listening = socket.create_server((sys.argv[1], int(sys.argv[2])), family=family)
time.sleep(1000)
"""
LISTEN_UNTIL_TOLD = """\
import http.server, sys, time
class Once(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(200), self.end_headers()
        self.server.is_over = True
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Once)
server.is_over = False
while not server.is_over:
    server.handle_request()
server.server_close()
time.sleep(1000)
"""


def mallory(serve: ServeBox, address: str, port: int) -> None:
    """Another user's process that listens."""
    words = [*unprivileged(65534), sys.executable, "-c", LISTEN, address, str(port)]
    process = subprocess.Popen(words, env=serve.box.env)
    serve.box.adopt(process)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
    until(lambda: connects(port, host), "mallory listens")


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process can only be started by root")
def test_what_is_asked_is_told_to_no_other_user(serve: ServeBox) -> None:  # B6, S9
    """He knows the port by the command line, and may be quicker than a server that starts slowly."""
    port = free_port()
    mallory(serve, "0.0.0.0", port)
    server = serve.fake("slow", "--kind", "raw", "--port", str(port), "--start-time", "1000")
    serve.configure("slow", kind="raw", command=server, upstream=f"http://127.0.0.1:{port}")
    serve.start()
    status, text = serve.answer(BODY, "/x")
    assert status == 502
    assert f"nobody listens at its port {port}" in text
    until(lambda: not serve.jobs(), "it is ended")


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process can only be started by root")
@pytest.mark.parametrize("address", ["127.0.0.2", "::1", "::"])
def test_who_listens_beside_a_server_is_no_hindrance(serve: ServeBox, address: str) -> None:  # B6, S9
    port = free_port()
    serve.server("ollama", "--port", str(port), upstream=f"http://localhost:{port}")
    serve.start()
    assert serve.answer(BODY)[0] == 200
    mallory(serve, address, port)
    assert serve.answer(BODY)[0] == 200


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process can only be started by root")
def test_a_server_whose_address_another_user_took_holds_no_gpu(serve: ServeBox) -> None:  # B6, S9
    """It lives on without listening. Each request that is refused would begin its idle time anew."""
    port = free_port()
    server = [sys.executable, "-c", LISTEN_UNTIL_TOLD, str(port)]
    serve.configure("odd", kind="raw", command=server, upstream=f"http://127.0.0.1:{port}")
    serve.start()
    assert serve.answer({}, "/x")[0] == 200
    assert serve.reaches("odd", "ready")
    mallory(serve, "127.0.0.1", port)
    status, text = serve.answer({}, "/x")
    assert status == 502
    assert f"nobody listens at its port {port}" in text
    until(lambda: not serve.jobs(), "it is ended")


BOUND = {
    "127.0.0.1": {"127.0.0.1"}, "127.0.0.2": {"127.0.0.2"}, "0.0.0.0": {"127.0.0.1", "127.0.0.2"},
    "::1": {"::1"}, "::": {"127.0.0.1", "127.0.0.2", "::1"}, "::ffff:127.0.0.1": {"127.0.0.1"},
}  # fmt: skip


@pytest.mark.parametrize("has_sock_diag", [True, False])
@pytest.mark.parametrize("bound", BOUND)
def test_who_listens_at_an_address_is_whoever_a_connection_reaches(
    monkeypatch: pytest.MonkeyPatch, bound: str, *, has_sock_diag: bool
) -> None:  # B6
    if not has_sock_diag:
        monkeypatch.setattr(listeners, "_SOCK_DIAG", 1 << 10)  # no protocol of netlink's
    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    with socket.socket(family) as listening:
        listening.bind((bound, 0))
        listening.listen()
        port = listening.getsockname()[1]
        for host in ("127.0.0.1", "127.0.0.2", "::1"):
            is_reached = connects(port, host)
            assert is_reached == (host in BOUND[bound])
            assert listeners.uids(host, port) == ({os.geteuid()} if is_reached else set())
        for host in ("0.0.0.0", "a.name"):
            assert listeners.uids(host, port) == {os.geteuid()}
    assert listeners.uids("127.0.0.1", port) == frozenset()


def test_a_socket_for_ipv6_alone_takes_nobody_elses_connections() -> None:  # B6
    with socket.create_server(("::", 0), family=socket.AF_INET6) as listening:
        port = listening.getsockname()[1]
        assert not connects(port)
        assert listeners.uids("127.0.0.1", port) == frozenset()
        assert listeners.uids("::1", port) == {os.geteuid()}
