"""The command line: see ``--help``."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys

from aiohttp import web

from tests.fake_server import comfyui, ollama, openai, raw
from tests.fake_server.models import Journal, Models, Options

_KINDS = {"ollama": ollama.routes, "openai": openai.routes, "comfyui": comfyui.routes, "raw": raw.routes}


def _default_port() -> int:
    """As the real ones: by the variables that slicer sets, too."""
    host = os.environ.get("OLLAMA_HOST", "")
    return int(host.rpartition(":")[2] or os.environ.get("LLAMA_ARG_PORT", "11434"))


def _model(text: str) -> tuple[str, int]:
    name, _, mib = text.rpartition("=")
    return name, int(mib)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fake_server", description=__doc__)
    add = parser.add_argument
    add("--kind", choices=_KINDS, default="ollama")
    add("--port", type=int, default=_default_port())
    add("--log", default="", help="each event is appended to it, as JSON")
    add("--model", action="append", type=_model, default=[], metavar="NAME=MIB", help="there is [m=1000]")
    add("--start-time", type=float, default=0.0, help="seconds until it listens")
    add("--load-time", type=float, default=0.0, help="seconds until a model is loaded")
    add("--tokens", type=int, default=5, help="of an answer")
    add("--token-time", type=float, default=0.0, help="seconds for each")
    add("--cut-after", type=int, default=-1, help="so many tokens it dies")
    add("--unload-time", type=float, default=0.0, help="seconds until unloaded memory is free")
    add("--stuck-unload", action="store_true", help="what was loaded stays")
    add("--keep-memory", action="store_true", help="what was unloaded leaves /api/ps, but not the GPU")
    add("--ignore-sigterm", action="store_true")
    add("--die-at-start", type=int, default=-1, metavar="CODE", help="with some last words")
    add("--never-ready", action="store_true", help="it lives, and does not listen")
    return parser.parse_args()


async def _serve(parsed: argparse.Namespace) -> None:
    journal = Journal(parsed.log)
    models = Models(
        Options(parsed.load_time, parsed.tokens, parsed.token_time, parsed.cut_after, parsed.unload_time,
                parsed.stuck_unload, parsed.keep_memory),
        dict(parsed.model or [("m", 1000)]), journal,
    )  # fmt: skip
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def stop() -> None:
        journal.add("sigterm")
        if not parsed.ignore_sigterm:
            ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    journal.add("start", pid=os.getpid(), gpus=models.gpus, environ=sorted(os.environ))
    await asyncio.sleep(parsed.start_time)
    if not parsed.never_ready:
        app = web.Application(client_max_size=0, handler_args={"auto_decompress": False})
        _KINDS[parsed.kind](app.router, models)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", parsed.port).start()
        if parsed.kind == "openai":
            await models.load(next(iter(models.sizes)))
    await ended.wait()
    models.close()
    journal.add("end")
    os._exit(0)  # what it answers is cut, as Ollama does it


def main() -> None:
    parsed = _parsed()
    if parsed.die_at_start >= 0:
        print("loading weights", "RuntimeError: no such quantization: q9", sep="\n", file=sys.stderr)
        raise SystemExit(parsed.die_at_start)
    asyncio.run(_serve(parsed))


main()
