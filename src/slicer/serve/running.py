"""A server that runs already: slicer holds a lease while it is asked, and then has its models unloaded."""

from __future__ import annotations

import asyncio

import aiohttp

from slicer import api, api_async
from slicer.config import profiles
from slicer.config.profiles import Overrides
from slicer.errors import SlicerError
from slicer.quantity import format_size
from slicer.serve import looking
from slicer.serve.asking import Gone, Upstream
from slicer.serve.model import Unavailable
from slicer.serve.started import job_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicer.config.serve import Server

_LOOK_S = 0.5
_TOLERANCE_MIB = 512  # a CUDA context that comes with the first request, and stays


class RunningServer:
    """One burst of requests to it."""

    def __init__(self, settings: Server, environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._environ = environ
        self.base = settings.upstream
        self.job = ""  # the lease's id, once it is held
        self._lease: api.Lease | None = None
        self._before_mib: dict[str, int] = {}  # of no job, when the lease began
        self._over = asyncio.Event()

    async def start(self) -> None:
        """Wait for the lease. Cancelled, it leaves the line. Raises Unavailable."""
        settings = self._settings
        vram = None if settings.vram_mib is None else f"{settings.vram_mib}M"
        try:
            config = profiles.load(dict(self._environ), profiles.host())
            profile = config.profile(settings.profile, Overrides(gpus=settings.gpus, vram=vram))
            self._lease = await api_async.acquire_async(
                job_names(settings)[0], gpus=profile.gpus, vram=profile.vram_mib,
                gpu=profile.gpu_choice or None, margin=profile.margin_mib if profile.vram_mib else None,
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
        """Whether there is a use in asking it: slicer has not started it, and cannot tell."""
        return True

    def check_listener(self) -> None:
        """Whoever listens at the address that the configuration names is the one that is meant."""

    def failure(self) -> Unavailable:
        """Why it is not used."""
        return Unavailable("failed", f"{self._settings.name} does not answer at {self.base}")

    async def ended(self) -> None:
        """Return when the burst is over."""
        await self._over.wait()

    async def stop(self) -> None:
        """Unload all models, and return when the memory is back and the lease with it.

        Raises Unavailable for what is still there after release_timeout. To be called again then.
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
            text = f"{self._settings.name} does not give its memory back: {what}"
            raise Unavailable("failed", text) from None
        self._give_back()
        self._over.set()

    def _left(self, now_mib: dict[str, int]) -> str:
        """What is in use that was not when the lease began, in words."""
        for gpu, before_mib in self._before_mib.items():
            mib = now_mib.get(gpu)
            if mib is None:
                return f"GPU {gpu} cannot be looked at"
            if mib > before_mib + _TOLERANCE_MIB:
                return f"{format_size((mib - before_mib) << 20)} more than before are in use on GPU {gpu}"
        return ""

    async def _foreign_mib(self) -> dict[str, int]:
        """What is in use by no job on the GPUs of the lease. Raises Unavailable where it cannot be seen."""
        gpus = self._lease.gpus if self._lease is not None else ()
        try:
            return looking.foreign_mib(await looking.status(self._environ), gpus)
        except SlicerError as error:
            raise Unavailable("failed", f"what is on the GPU cannot be seen: {error}") from error

    def _give_back(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None


async def unload(settings: Server) -> None:
    """Have it unload all that it has loaded, and return when it says that nothing is left."""
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
                return  # nothing listens there. If its memory is still in use, that is seen
            except (aiohttp.ClientError, ValueError):
                pass  # it was cut, or answers nonsense: asked again
            await asyncio.sleep(_LOOK_S)
    finally:
        await upstream.close()
