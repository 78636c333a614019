"""The owner of one server: it receives all events in order, and does what :mod:`.life` decides."""

from __future__ import annotations

import asyncio
import contextvars
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

from slicer.config.serve import Server
from slicer.errors import SlicerError
from slicer.quantity import format_duration
from slicer.serve import life, looking
from slicer.serve.life import Action, Event, Life, LifeTimings
from slicer.serve.loading import Loading
from slicer.serve.running import RunningServer
from slicer.serve.spare import SpareServer
from slicer.serve.started import StartedServer, until_ready
from slicer.serve.terms import RequestNeed, Unavailable
from slicer.serve.upstream import Upstream
from slicer.state.standings import ServerStanding

_AGAIN_S = 10.0  # the pause while the memory does not become free
_STUCK_AFTER_S = 15.0  # beyond release_timeout, when the job is killed
_LONGEST_TROUBLE = 2000  # characters


class Owner:
    """A configured server; implements :class:`slicer.serve.terms.ServerHandle`."""

    def __init__(
        self, settings: Server, log: str, environ: Mapping[str, str], report: Callable[[str], None]
    ) -> None:
        """``log``: the path for its job's output. ``report`` gets messages for the user."""
        self.settings = settings
        self.life = Life()
        self.listeners: list[Callable[[], None]] = []  # called after each change
        self.log = log
        self._environ = environ
        self._report = report
        self._bounds = LifeTimings(
            settings.idle_s, settings.min_hold_s, settings.drain_s, give_way=settings.give_way
        )
        self._wall_s = time.time()  # the last change of state
        self._waiters: set[asyncio.Future[None]] = set()
        self._trouble = ""
        self._refusal: Unavailable | None = None  # for the requests that wait
        self._served = 0
        self._form: StartedServer | RunningServer | None = None
        self._start_task: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._loading: Loading | None = None  # while the server is ready
        self._spare = SpareServer(settings, log, environ, report)
        self._holder: asyncio.Task[tuple[str, float | None]] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        # One task's lease must not look like an outer job's lease to the next task.
        self._context = contextvars.copy_context()

    # -- for the HTTP side -----------------------------------------------------------------------------------

    @asynccontextmanager
    async def use(self, asked: RequestNeed) -> AsyncIterator[str]:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(turn)
        self.tell("came")
        try:
            await self._admitted(turn)
        except BaseException:
            if turn in self._waiters:
                self._waiters.discard(turn)
                self.tell("gave_up")
            elif turn.done() and not turn.cancelled() and turn.exception() is None:
                self.tell("done")  # admitted at the moment when its client left
            raise
        try:
            loading = self._loading
            if loading is None:  # the server has just died
                raise Unavailable("failed", self._trouble or f"{self.settings.name} has ended")
            if asked.model:
                await loading.loaded(asked)
            self._check_listener()
            yield loading.upstream.base
        finally:
            self._served += 1
            self.tell("done")

    def _check_listener(self) -> None:
        """Raise Unavailable, and end the server, if another user has its address: it is of no use then."""
        if self._form is None or self._loading is None:
            return
        try:
            self._form.check_listener()
        except Unavailable as error:
            self._note_trouble(str(error))
            self.tell("ended")
            raise

    async def _admitted(self, turn: asyncio.Future[None]) -> None:
        """Raises Unavailable if max_wait ends without a lease, and any error for all that wait."""
        # Without max_wait the ledger answers at once. Only a release of its own may have to come first.
        await asyncio.wait([turn], timeout=self.settings.max_wait_s or self.settings.release_timeout_s)
        if not turn.done() and self.life.state not in ("starting", "ready"):
            raise await self._busy()
        await turn

    @asynccontextmanager
    async def beside(self, asked: RequestNeed) -> AsyncIterator[str | None]:
        if not self.settings.command:
            yield self.settings.upstream
        elif self.settings.kind == "ollama" and asked.need == "free":
            async with self._spare.use() as base:
                yield base
        else:
            self._check_listener()
            yield self._loading.upstream.base if self._loading is not None else None

    async def appears(self) -> None:
        moved = asyncio.Event()
        self.listeners.append(moved.set)
        try:
            while self._loading is None:
                if self.life.is_closing:
                    raise Unavailable("stopping", f"{self.settings.name} is being stopped")
                moved.clear()
                await moved.wait()
        finally:
            self.listeners.remove(moved.set)

    def standing(self) -> ServerStanding:
        idle_for_s = time.monotonic() - self.life.idle_since_s
        return ServerStanding(
            name=self.settings.name, kind=self.settings.kind, listen=self.settings.listen,
            state=self.life.state, since_s=self._wall_s, requests=self.life.waiting + self.life.running,
            served=self._served, idle_since_s=time.time() - idle_for_s if self.life.is_idle else None,
            job=self.job, trouble=self._trouble[:_LONGEST_TROUBLE], pid=os.getpid(),
        )  # fmt: skip

    @property
    def job(self) -> str:
        """The id of the job or lease that it holds; "" if none."""
        return self._form.job if self._form is not None else ""

    @property
    def is_used(self) -> bool:
        """Whether it holds or does anything."""
        return self.life.state != "stopped" or self._spare.is_running

    async def close(self) -> None:
        """Let requests finish for up to ``drain``, and return once everything is given back.

        What cannot be freed is reported and left. Then no lease covers its use, which the ledger notices.
        """
        moved = asyncio.Event()
        self.listeners.append(moved.set)
        self.tell("close")
        while self.life.state not in ("stopped", "stuck"):
            moved.clear()
            await moved.wait()
        await self._spare.close()
        for task in self._tasks if self.life.state == "stuck" else ():
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- events ----------------------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        before = self.life
        self.life, actions = life.step(self.life, event, time.monotonic(), self._bounds)
        if self.life.state != before.state:
            self._wall_s = time.time()
            self._report_move(before)
        for action in actions:
            self._act(action)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = life.due_s(self.life, self._bounds)
        if due_s is not None:
            after_s = max(0.0, due_s - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(after_s, self.tell, "time")
        self._changed()

    def _report_move(self, before: Life) -> None:
        if self.life.state == "ready" and before.state == "starting":
            took = format_duration(self.life.since_s - before.since_s)
            self._report(f"{self.settings.name}: ready after {took}, job {self.job}")
        elif self.life.state == "stopped" and before.state in ("releasing", "stuck"):
            self._report(f"{self.settings.name}: has given back what it held")

    def _changed(self) -> None:
        for listener in self.listeners:
            listener()

    def _act(self, action: Action) -> None:
        match action:
            case "acquire":
                self._start_task = self._do(self._start())
            case "withdraw" if self._start_task is not None:
                self._start_task.cancel()
            case "admit":
                self._answer(None)
            case "refuse":
                stopping = Unavailable("stopping", f"{self.settings.name} is being stopped")
                self._answer(stopping if self.life.is_closing else self._refusal or stopping)
            case "release":
                self._do(self._release())

    def _answer(self, error: Unavailable | None) -> None:
        """Let all waiting requests proceed, or raise the error in them."""
        for turn in self._waiters:
            if not turn.done():
                turn.set_result(None) if error is None else turn.set_exception(error)
        self._waiters.clear()

    async def _start(self) -> None:
        form: StartedServer | RunningServer
        if self.settings.command:
            form = StartedServer(self.settings, self.log, self._environ, without_gpu=False)
        else:
            form = RunningServer(self.settings, self._environ)
        async with self._starting:  # an earlier start may still be leaving the line
            try:
                await form.start()
            except asyncio.CancelledError:
                await self._end(form)  # it may have got its lease just now
                raise
            except Unavailable as error:
                self._refusal = await self._busy() if error.problem == "busy" else error
                self._note_trouble("" if error.problem == "busy" else str(error))
                self.tell("refused")
                return
            self._form = form
            self.tell("granted")
            self._do(self._run(form))

    async def _run(self, form: StartedServer | RunningServer) -> None:
        """Run the server from its lease to its end."""
        upstream = Upstream(self.settings.kind, form.base)
        try:
            await until_ready(self.settings, form, upstream)
        except Unavailable as error:
            await upstream.close()
            if self.life.state == "starting":
                self._refusal = error
                self._note_trouble(str(error))
                self.tell("failed")
            return
        if self.life.state != "starting":  # slicer serve has to end
            await upstream.close()
            return
        self._note_trouble("")
        self._loading = Loading(self.settings, upstream, self._report, self.tell)
        self.tell("ready")
        await form.ended()
        if self._form is form and self.life.state in ("ready", "draining"):
            self._note_trouble(str(form.failure()))
            self.tell("ended")

    async def _release(self) -> None:
        """End the server, or make it unload its models. Retries until that succeeds."""
        form, loading = self._form, self._loading
        self._loading = None
        if loading is not None:
            await loading.close()
        if form is not None:
            await self._end(form)
        if self.life.state == "stuck":
            self._note_trouble("")
        self._form = None
        self.tell("free")

    async def _end(self, form: StartedServer | RunningServer) -> None:
        while True:
            try:
                await asyncio.wait_for(form.stop(), self.settings.release_timeout_s + _STUCK_AFTER_S)
                return
            except (Unavailable, OSError) as error:  # a TimeoutError is one
                self._note_trouble(str(error) or f"{self.settings.name} does not end")
                self.tell("stuck")
            await asyncio.sleep(_AGAIN_S)

    async def _busy(self) -> Unavailable:
        """The error that others have the GPU, or that its memory does not become free."""
        if self.life.state == "stuck":
            return Unavailable("busy", f"{self.settings.name} cannot be used yet: {self._trouble}")
        if self._holder is None or self._holder.done():  # one look for all that ask now
            self._holder = self._do(self._look_for_holder())
        holder, left_s = await asyncio.shield(self._holder)
        about = "" if left_s is None else f", for about {format_duration(left_s)} more"
        has_it = f": {holder} has it{about}" if holder else ""
        return Unavailable("busy", f"the GPU is busy{has_it}", holder=holder, retry_after_s=left_s)

    async def _look_for_holder(self) -> tuple[str, float | None]:
        try:
            return looking.first_holder(await looking.status(self._environ))
        except SlicerError as error:
            self._report(f"{self.settings.name}: {error}")
            return "", None

    def _note_trouble(self, text: str) -> None:
        if text and text != self._trouble:
            self._report(f"{self.settings.name}: {text}")
        self._trouble = text
        self._changed()

    def _do(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
