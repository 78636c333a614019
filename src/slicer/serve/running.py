"""A server that runs on its own: slicer holds a lease while it is in use, and then unloads its models."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import aiohttp

from slicer import api, api_async
from slicer.config import profiles
from slicer.config.profiles import Overrides
from slicer.config.serve import Server
from slicer.errors import SlicerError
from slicer.quantity import format_size
from slicer.serve import looking
from slicer.serve.started import job_names
from slicer.serve.terms import Unavailable
from slicer.serve.upstream import Gone, Upstream

_LOOK_S = 0.5
_TOLERANCE_MIB = 512  # for a CUDA context that the first request creates, and that stays


class RunningServer:
    """One burst of requests to the server."""

    def __init__(self, settings: Server, environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._environ = environ
        self.base = settings.upstream
        self.job = ""  # the lease's id, once it is held
        self._lease: api.Lease | None = None
        self._before_mib: dict[str, int] = {}  # memory that no job used when the lease began
        self._over = asyncio.Event()

    async def start(self) -> None:
        """Wait for the lease. If cancelled, leave the line. Raises Unavailable."""
        settings = self._settings
        vram = None if settings.vram_mib is None else f"{settings.vram_mib}M"
        try:
            config = profiles.load(dict(self._environ), profiles.host())
            profile = config.profile(settings.profile, Overrides(gpus=settings.gpus, vram=vram))
            has_memory = profile.vram_mib is not None
            self._lease = await api_async.acquire_async(
                job_names(settings)[0], gpus=profile.gpus, gpu=profile.gpu_choice or None,
                vram=f"{profile.vram_mib}M" if has_memory else None,
                margin=f"{profile.margin_mib}M" if has_memory else None,
                slots=profile.slots, priority=profile.priority, wait=settings.max_wait_s > 0,
            )  # fmt: skip
        except api.ResourceBusy as error:
            raise Unavailable("busy", "the GPU is busy") from error
        except (SlicerError, ValueError) as error:
            raise Unavailable("failed", str(error)) from error
        self.job = self._lease.job
        try:
            self._before_mib = await self._foreign_mib()
        except BaseException:
            self._give_back()
            raise

    @property
    def is_running(self) -> bool:
        """Always true: slicer has not started the server, and cannot tell."""
        return True

    def check_listener(self) -> None:
        """Does nothing: whoever listens at the configured address is the intended server."""

    def failure(self) -> Unavailable:
        return Unavailable("failed", f"{self._settings.name} does not answer at {self.base}")

    async def ended(self) -> None:
        """Return when the burst is over."""
        await self._over.wait()

    async def stop(self) -> None:
        """Unload all models, and return when the memory is free and the lease given back.

        Raises Unavailable if memory is still in use after release_timeout. Then call it again.
        """
        if self._lease is None:
            return
        left = ""
        try:
            async with asyncio.timeout(self._settings.release_timeout_s):
                await unload(self._settings)
                while left := self._left(await self._foreign_mib()):
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            what = left or "a model is still loaded"
            text = f"{self._settings.name} does not free its memory: {what}"
            raise Unavailable("failed", text) from None
        self._give_back()
        self._over.set()

    def _left(self, now_mib: dict[str, int]) -> str:
        """What is in use that was not when the lease began, as text."""
        for gpu, before_mib in self._before_mib.items():
            mib = now_mib.get(gpu)
            if mib is None:
                return f"GPU {gpu} cannot be examined"
            if mib > before_mib + _TOLERANCE_MIB:
                return f"{format_size((mib - before_mib) << 20)} more than before are in use on GPU {gpu}"
        return ""

    async def _foreign_mib(self) -> dict[str, int]:
        """The memory that no job uses on the lease's GPUs. Raises Unavailable if that is unknown."""
        gpus = self._lease.gpus if self._lease is not None else ()
        try:
            return looking.foreign_mib(await looking.status(self._environ), gpus)
        except SlicerError as error:
            raise Unavailable("failed", f"the use of the GPU is unknown: {error}") from error

    def _give_back(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None


async def unload(settings: Server) -> None:
    """Unload all of the server's models, and return when it reports that none is left."""
    upstream = Upstream(settings.kind, settings.upstream)
    try:
        while True:
            try:
                loaded = await upstream.loaded()
                for each in loaded:
                    await upstream.unload(each.name)
                if not loaded:
                    return
            except Gone:
                return  # nothing listens any more; memory still in use will be noticed
            except (aiohttp.ClientError, ValueError):
                pass  # it was cut, or the answer makes no sense: try again
            await asyncio.sleep(_LOOK_S)
    finally:
        await upstream.close()
