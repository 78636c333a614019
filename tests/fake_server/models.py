"""What the server has in memory, and what happened to it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from slicer.cli.simjob import Meter
from slicer.gpu.sim.driver import simulated_gpus
from slicer.gpu.sim.job import visible_gpus
from slicer.gpu.sim.usage import UsageFolder
from slicer.state import simulated, statedir


@dataclass(frozen=True)
class Options:
    """How it behaves. Times in seconds."""

    load_time: float
    tokens: int
    token_time: float
    cut_after: int
    unload_time: float
    stuck_unload: bool
    keep_memory: bool


class Journal:
    """The log: one JSON object a line."""

    def __init__(self, path: str) -> None:
        self._path = path

    def add(self, event: str, **more: object) -> None:
        if self._path:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"event": event, "at": time.time(), **more}) + "\n")


class Models:
    """The models by name with their sizes in MiB, of which some are loaded."""

    def __init__(self, options: Options, sizes: dict[str, int], journal: Journal) -> None:
        self.options = options
        self.sizes = sizes
        self.journal = journal
        self.loaded: dict[str, int] = {}  # MiB on the GPU, by name
        self._used = 0  # MiB on the GPU
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._meter: Meter | None = None
        self.gpus: list[int] = []
        if text := os.environ.get(simulated.VARIABLE):
            every = simulated_gpus(simulated.parse_spec(text))
            shown = visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"), every)
            self.gpus = [gpu.index for gpu in shown]
            if shown:
                folder = UsageFolder(statedir.locate(os.environ, os.geteuid()).base, every)
                self._meter = Meter(folder, shown[:1], 50)

    def close(self) -> None:
        if self._meter is not None:
            self._meter.close()

    async def load(self, name: str) -> None:
        """Into the GPU's memory, as far as it fits. Cancelled, nothing is loaded."""
        async with self._lock:
            if name in self.loaded:
                return
            self.journal.add("load", model=name)
            try:
                await asyncio.sleep(self.options.load_time)
            except asyncio.CancelledError:
                self.journal.add("load aborted", model=name)
                raise
            self.loaded[name] = self._take(self.sizes[name])
            self.journal.add("loaded", model=name, vram=self.loaded[name])

    def _take(self, mib: int) -> int:
        if self._meter is None:
            return 0
        lacking = self._meter.now_uses(self._used + mib)
        if lacking is not None:
            mib = max(0, lacking.free_mib - self._used)
            self._meter.now_uses(self._used + mib)
        self._used += mib
        return mib

    def unload(self, name: str) -> None:
        """Soon: the caller is answered before."""
        self.journal.add("unload", model=name)
        if not self.options.stuck_unload and name in self.loaded:
            task = asyncio.ensure_future(self._unload(self.loaded.pop(name)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _unload(self, mib: int) -> None:
        await asyncio.sleep(self.options.unload_time)
        if not self.options.keep_memory and self._meter is not None:
            self._used -= mib
            self._meter.now_uses(self._used)
        self.journal.add("unloaded", mib=mib)

    async def words(self) -> AsyncIterator[str]:
        """An answer, token by token. Raises CancelledError when its client goes."""
        try:
            for number in range(self.options.tokens):
                if number == self.options.cut_after:
                    self.journal.add("cut")
                    os.kill(os.getpid(), signal.SIGKILL)
                await asyncio.sleep(self.options.token_time)
                yield f"w{number} "
        except (asyncio.CancelledError, GeneratorExit):
            self.journal.add("disconnect")
            raise
        self.journal.add("answered")
