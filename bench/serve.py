"""``slicer serve`` beside the server itself: latency, streams, cold start, memory.

The server is the tests' fake one, and the client is aiohttp in this process, so both rows of a table have the
same server and the same client. llama-swap, which comes from GitHub alone, could not be had.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp

from bench.markdown import bar, figures, p99, table
from bench.tools import QUIET

ANSWERS = 300
STREAMS = 64
ROUNDS = 5
TOKENS = 200
# A busy vLLM gives each of many clients some 50 tokens a second.
PACES = {"50 tokens/s each": ("paced", 0.02), "as fast as it can": ("fast", 0.0)}
LIMIT_S = 60.0
LATENCY_BAR_MS = 2.0
STREAMS_BAR = 0.8
DIRECT, SERVED = "direct", "slicer serve"
_BODY = {"model": "m", "prompt": "x", "stream": True}


def measure() -> dict[str, Any]:
    """The figures: milliseconds, tokens a second, KiB."""
    with tempfile.TemporaryDirectory(prefix="slicer-serve-") as directory:
        return asyncio.run(_Bench(Path(directory)).measure())


class _Bench:
    def __init__(self, base: Path) -> None:
        (base / "state").mkdir(mode=0o700)
        here = Path(__file__).resolve().parents[1]
        self._env = {**os.environ, "PYTHONPATH": str(here), "SLICER_STATE_DIR": f"{base}/state"}
        self._env |= {"XDG_STATE_HOME": f"{base}/history", "SLICER_CONFIG": f"{base}/config.toml"}
        self._config = base / "config.toml"
        names = ["one", *(name for name, _ in PACES.values())]
        self._direct = {name: _free_port() for name in names}
        self._served = {name: _free_port() for name in (*names, "cold")}

    async def measure(self) -> dict[str, Any]:
        paces = {"one": ("1", 0.0)} | {name: (str(TOKENS), pace_s) for name, pace_s in PACES.values()}
        tables = [
            self._table(name, str(self._direct[name]), "--tokens", tokens, "--token-time", str(pace_s))
            for name, (tokens, pace_s) in paces.items()
        ]
        self._config.write_text("".join((*tables, self._table("cold", "${PORT}"))))
        proxy = subprocess.Popen(["slicer", "serve"], env={**self._env, "SLICER_SIM": "4x24G"}, **QUIET)  # type: ignore[call-overload]
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(LIMIT_S)) as self._session:
                for port in self._served.values():
                    await _until_listening(port)
                found: dict[str, Any] = {"memory": {"nothing served yet": _memory(proxy.pid)}}
                for name in self._direct:
                    await self._first_ms(self._served[name])
                found |= {"latency": await self._latency(), "streams": await self._streams()}
                found |= {"cold": await self._cold()}
                found["memory"]["idle again"] = _memory(proxy.pid)
                return found
        finally:
            proxy.terminate()
            proxy.wait(LIMIT_S)

    def _table(self, name: str, port: str, *options: str) -> str:
        said: dict[str, object] = {"kind": "openai", "listen": [f"127.0.0.1:{self._served[name]}"]}
        said |= {"command": [*self._command(port), *options], "idle": "1ms" if name == "cold" else "10m"}
        if name in self._direct:
            said["upstream"] = f"http://127.0.0.1:{port}"  # where the server listens
        lines = (f"{key} = {json.dumps(value)}\n" for key, value in said.items())
        return f"[serve.{name}]\nvram = \"1G\"\ngive_way = false\n{''.join(lines)}"

    def _command(self, port: str) -> list[str]:
        return [sys.executable, "-m", "tests.fake_server", "--kind", "openai", "--port", port]

    def _fake(self, port: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command(str(port)), env=self._env, **QUIET)  # type: ignore[call-overload,no-any-return]

    @asynccontextmanager
    async def _ask(self, port: int) -> AsyncIterator[aiohttp.ClientResponse]:
        async with self._session.post(f"http://127.0.0.1:{port}/v1/completions", json=_BODY) as answer:
            answer.raise_for_status()
            yield answer

    async def _first_ms(self, port: int) -> float:
        """From the request to the first byte of the answer's body."""
        began_s = time.perf_counter()
        async with self._ask(port) as answer:
            await answer.content.readany()
            took_s = time.perf_counter() - began_s
            await answer.read()
        return took_s * 1e3

    async def _latency(self) -> dict[str, list[float]]:
        """One request at a time, by turns."""
        ways = {DIRECT: self._direct["one"], SERVED: self._served["one"]}
        samples: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(-10, ANSWERS):
            for name, port in ways.items():
                took_ms = await self._first_ms(port)
                if turn >= 0:
                    samples[name].append(took_ms)
        return samples

    async def _streams(self) -> dict[str, dict[str, list[float]]]:
        """Tokens a second of all streams together, by turns."""
        found: dict[str, dict[str, list[float]]] = {}
        for words, (name, _) in PACES.items():
            at = found[words] = {DIRECT: [], SERVED: []}
            for way, port in ((DIRECT, self._direct[name]), (SERVED, self._served[name])) * ROUNDS:
                began_s = time.perf_counter()
                lines = await asyncio.gather(*(self._count(port) for _ in range(STREAMS)))
                at[way].append(sum(lines) / (time.perf_counter() - began_s))
        return found

    async def _count(self, port: int) -> int:
        """The tokens of one whole answer."""
        async with self._ask(port) as answer:
            text = await answer.read()
        assert text.endswith(b"data: [DONE]\n\n"), text[-100:]
        return text.count(b"data: ") - 1

    async def _cold(self) -> dict[str, list[float]]:
        """To the first byte of a server that does not run yet; ms."""
        samples: dict[str, list[float]] = {DIRECT: [], SERVED: []}
        for _ in range(ROUNDS):
            port, began_s = _free_port(), time.perf_counter()
            process = self._fake(port)
            await _until_listening(port)
            await self._first_ms(port)
            samples[DIRECT].append((time.perf_counter() - began_s) * 1e3)
            process.terminate()
            process.wait(LIMIT_S)
            samples[SERVED].append(await self._first_ms(self._served["cold"]))
            await self._until_stopped("cold")
        return samples

    async def _until_stopped(self, name: str) -> None:
        limit_s = time.monotonic() + LIMIT_S
        while time.monotonic() < limit_s:
            command = ["slicer", "status", "--json"]
            env = {**self._env, "SLICER_SIM": "4x24G"}
            done = subprocess.run(command, env=env, check=True, capture_output=True)
            servers = json.loads(done.stdout)["servers"]
            if any((each["server"], each["state"]) == (name, "stopped") for each in servers):
                return
            await asyncio.sleep(0.1)
        raise TimeoutError(f"{name} did not stop")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


async def _until_listening(port: int) -> None:
    limit_s = time.monotonic() + LIMIT_S
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            if time.monotonic() > limit_s:
                raise
            await asyncio.sleep(0.01)
        else:
            writer.close()
            return


def _memory(pid: int) -> dict[str, int]:
    """KiB."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines()[1:]}
    return {"pss": sizes["Pss"], "private": sizes["Private_Clean"] + sizes["Private_Dirty"]}


def tables(found: dict[str, Any]) -> str:
    """The tables as Markdown."""
    latency, cold = found["latency"], found["cold"]
    added_ms = median(latency[SERVED]) - median(latency[DIRECT])
    rows = [
        [words, way, *figures((median(rates),), 0), f"{median(rates) / median(at[DIRECT]):.2f}"]
        for words, at in found["streams"].items()
        for way, rates in at.items()
    ]
    ratios = {words: median(at[SERVED]) / median(at[DIRECT]) for words, at in found["streams"].items()}
    parts = [
        table(
            "### A request to a server that is ready: to the first byte",
            ["", "median ms", "p99"],
            [[way, *figures((median(times), p99(times)), 2)] for way, times in latency.items()],
            [bar(f"at most {LATENCY_BAR_MS:.0f} ms more", added_ms <= LATENCY_BAR_MS, f"{added_ms:.2f} ms")],
        ),
        table(
            f"### {STREAMS} streams at once",
            ["", "", "tokens/s", "ratio"],
            rows,
            [
                bar(f"{words}: at least {STREAMS_BAR:.0%} of direct", ratio >= STREAMS_BAR, f"{ratio:.0%}")
                for words, ratio in ratios.items()
            ],
            texts=2,
        ),
        table(
            "### A request to a server that does not run",
            ["", "median ms to the first byte"],
            [[way, *figures((median(times),), 0)] for way, times in cold.items()],
        ),
        table(
            f"### `slicer serve` with {len(PACES) + 2} servers",
            ["", "PSS MiB", "private MiB"],
            [
                [when, *figures((kib["pss"] / 1024, kib["private"] / 1024))]
                for when, kib in found["memory"].items()
            ],
        ),
    ]
    return "\n\n".join(parts)
