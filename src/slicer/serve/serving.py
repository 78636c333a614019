"""``slicer serve`` from start to end: the sockets, the servers behind them, signals."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence

from aiohttp import web

from slicer.config.serve import Server
from slicer.errors import StateError
from slicer.quantity import format_duration
from slicer.serve import listening, looking
from slicer.serve.owner import Owner
from slicer.serve.proxy import Front
from slicer.serve.running import unload
from slicer.serve.started import end_jobs, job_names, trim_log
from slicer.serve.terms import Unavailable
from slicer.serve.waiting import WaitingJobs
from slicer.state.standings import StandingWriter
from slicer.text import counted

_BETWEEN_NOTES_S = 0.05
_BETWEEN_TRIMS_S = 60.0
_LISTEN_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


async def run(servers: Sequence[Server], environ: Mapping[str, str], report: Callable[[str], None]) -> int:
    """Serve until SIGTERM or SIGINT; started by systemd's socket, also until idle. Returns the exit code.

    Raises UsageError for an address in use, StateError if another proxy runs one of the servers, or if the
    job that an earlier proxy left cannot be ended.
    """
    inner = {name: value for name, value in environ.items() if name not in _LISTEN_VARIABLES}
    board = StandingWriter(inner)
    try:
        for each in servers:
            board.claim(each.name)
        await _clear(servers, inner, report)
        owners = [Owner(each, f"{board.logs}/{each.name}.log", inner, report) for each in servers]
        await _serve(owners, environ, inner, board, report)
    finally:
        board.close()
    return 0


async def _clear(
    servers: Sequence[Server], environ: Mapping[str, str], report: Callable[[str], None]
) -> None:
    """End the jobs that a killed proxy left. Raises StateError."""
    names = [name for each in servers for name in job_names(each)]
    left = looking.own_jobs(await looking.status(environ), names, os.geteuid())
    if left:
        report(f"ending jobs that an earlier slicer serve left behind: {' '.join(left)}")
        try:
            await end_jobs(environ, *left)
        except Unavailable as error:
            raise StateError(str(error)) from error
    for each in servers:
        if not each.command:
            try:
                await asyncio.wait_for(unload(each), each.release_timeout_s)
            except TimeoutError:
                report(f"{each.name}: models are still loaded at {each.upstream}, but no lease covers them")


async def _serve(
    owners: Sequence[Owner], environ: Mapping[str, str], inner: Mapping[str, str], board: StandingWriter,
    report: Callable[[str], None],
) -> None:  # fmt: skip
    is_by_socket = environ.get("LISTEN_PID") == str(os.getpid())
    addresses = tuple(dict.fromkeys(address for each in owners for address in each.settings.listen))
    sockets = listening.open_all(addresses, environ)
    fronts = {
        address: Front([each for each in owners if address in each.settings.listen], report)
        for address in addresses
    }
    runners = {address: front.runner() for address, front in fronts.items()}
    beside = [asyncio.ensure_future(WaitingJobs(owners, inner, report).watch())]
    beside += [asyncio.ensure_future(_note(owner, board, report)) for owner in owners]
    beside += [asyncio.ensure_future(_trim(owners))]
    try:
        for address, runner in runners.items():
            await runner.setup()
            await web.SockSite(runner, sockets[address], backlog=listening.BACKLOG).start()
        await listening.until_the_end(
            lambda: any(each.connections for each in fronts.values()) or any(each.is_used for each in owners),
            leaves=is_by_socket,
        )
        _hurry_at_signals(owners, report)
        for runner in runners.values():
            for site in list(runner.sites):
                await site.stop()
        await asyncio.gather(*(owner.close() for owner in owners))
    finally:
        for runner in runners.values():
            await runner.cleanup()
        listening.remove(sockets, environ)
        for front in fronts.values():
            await front.close()
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)


async def _note(owner: Owner, board: StandingWriter, report: Callable[[str], None]) -> None:
    """Record the server's state after each change."""
    changed = asyncio.Event()
    owner.listeners.append(changed.set)
    while True:
        changed.clear()
        try:
            board.write(owner.standing())
        except OSError as error:
            report(f"{owner.settings.name}: slicer status does not show its state: {error}")
        await asyncio.sleep(_BETWEEN_NOTES_S)
        await changed.wait()


async def _trim(owners: Sequence[Owner]) -> None:
    """Keep the servers' logs, which are in memory, from filling it."""
    while True:
        await asyncio.sleep(_BETWEEN_TRIMS_S)
        for owner in owners:
            trim_log(owner.log)


def _hurry_at_signals(owners: Sequence[Owner], report: Callable[[str], None]) -> None:
    """Report what slicer waits for, and that a second signal cuts it off."""

    def hurry() -> None:
        for owner in owners:
            owner.tell("close")

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, hurry)
    for owner in owners:
        if owner.life.running:
            within = format_duration(owner.settings.drain_s)
            requests = counted(owner.life.running, "request")
            report(f"{owner.settings.name}: waits at most {within} for {requests}; Ctrl-C cuts them off")
