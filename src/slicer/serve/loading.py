"""The models of a ready server: slicer loads them itself, and checks whether they fit on the GPU."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import aiohttp

from slicer.config.serve import Server
from slicer.serve.life import Event
from slicer.serve.terms import RequestNeed, Unavailable
from slicer.serve.upstream import Loaded, Upstream

_KNOWN_FOR_S = 2.0  # a request this soon after another needs no new check


class Loading:
    """The models of one run of a server. A load counts as a separate request, whoever asked for it."""

    def __init__(
        self, settings: Server, upstream: Upstream, report: Callable[[str], None],
        tell: Callable[[Event], None],
    ) -> None:  # fmt: skip
        self.upstream = upstream
        self._settings = settings
        self._report = report
        self._tell = tell
        self._known_until_s: dict[str, float] = {}
        self._loads: dict[str, asyncio.Task[Unavailable | None]] = {}
        self._wanted: dict[str, int] = {}  # the number of requests that wait for each load
        self._said: set[str] = set()

    async def loaded(self, asked: RequestNeed) -> None:
        """Return when the model is loaded or cannot be loaded; then the request itself will fail.

        Raises Unavailable if the model does not fit on the GPU and on_offload says to refuse it.
        """
        model = full_name(asked.model)
        if self._settings.kind != "ollama" or not self._settings.load_first:
            return
        if time.monotonic() < self._known_until_s.get(model, 0.0):
            return
        load = self._loads.get(model)
        if load is None:
            load = self._loads[model] = asyncio.ensure_future(self._load(asked, model))
            load.add_done_callback(lambda _: self._loads.pop(model, None))
        self._wanted[model] = self._wanted.get(model, 0) + 1
        try:
            await asyncio.wait([load])
        finally:
            self._wanted[model] -= 1
            if not self._wanted[model] and not load.done():
                # Nobody waits any more. The load may finish, for later requests, but must not hang for ever.
                loop = asyncio.get_running_loop()
                loop.call_later(self._settings.ready_timeout_s, self._give_up, model, load)
        if load.cancelled():
            raise Unavailable("stopping", f"{self._settings.name} is being stopped")
        error = load.result()
        if error is not None:
            raise error

    def _give_up(self, model: str, load: asyncio.Task[Unavailable | None]) -> None:
        if not self._wanted.get(model):
            load.cancel()

    async def _load(self, asked: RequestNeed, model: str) -> Unavailable | None:
        self._tell("began")
        try:
            # The request itself will get the error.
            with suppress(aiohttp.ClientError, TimeoutError, ValueError):
                found = await self._find(model)
                if found is None and not await self.upstream.load(asked.model, embeds=asked.embeds):
                    found = await self._find(model)
                if found is not None:
                    return self._judged(found, model)
            return None
        finally:
            self._tell("done")

    async def _find(self, model: str) -> Loaded | None:
        loaded = await self.upstream.loaded()
        return next((each for each in loaded if full_name(each.name) == model), None)

    def _judged(self, found: Loaded, model: str) -> Unavailable | None:
        if found.size_vram < found.size:
            part = round(100 * (1 - found.size_vram / found.size))
            text = f"{part} % of {found.name} is in main memory, because the GPU's memory is too small for it"
            if self._settings.on_offload == "fail":
                return Unavailable("offloaded", text)
            if text not in self._said:
                self._said.add(text)
                self._report(f"{self._settings.name}: {text}")
        self._known_until_s[model] = time.monotonic() + _KNOWN_FOR_S
        return None

    async def close(self) -> None:
        loads = list(self._loads.values())
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
        await self.upstream.close()


def full_name(model: str) -> str:
    """The name of a model with its tag, as in /api/ps."""
    return model if ":" in model.rpartition("/")[2] else f"{model}:latest"
