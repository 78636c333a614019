"""Whether other jobs wait for what the servers hold: an idle server gives way, one with a rival in time.

It watches the ledger's tickets. If they change, it asks ``slicer status``, but only while a server holds
something. Users cannot see the broker's tickets, so with a broker it asks at intervals.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from slicer.backend import broker_socket
from slicer.errors import SlicerError
from slicer.kernel.inotify import CREATE, DELETE, MOVED_FROM, MOVED_TO, Inotify
from slicer.ledger.tickets import wants_gpus
from slicer.serve import looking
from slicer.serve.life import next_to_go
from slicer.serve.looking import Pressure
from slicer.serve.owner import Owner
from slicer.serve.started import job_names
from slicer.state import BROKER_DIRECTORY, statedir

_BETWEEN_LOOKS_S = 0.5
_BROKER_LOOK_S = 5.0
_CHANGES = CREATE | DELETE | MOVED_FROM | MOVED_TO
_BROKER_TICKETS = f"{BROKER_DIRECTORY}/tickets"


class WaitingJobs:
    """The waiting jobs that matter to the servers of one proxy."""

    def __init__(
        self, owners: Sequence[Owner], environ: Mapping[str, str], report: Callable[[str], None]
    ) -> None:
        self._owners = owners
        self._environ = environ
        self._report = report
        self._wake = asyncio.Event()
        self._held: tuple[str, ...] = ()
        for owner in owners:
            owner.listeners.append(self._hear)

    def _hear(self) -> None:
        """An owner has changed. This matters only if the held jobs are different now."""
        held = tuple(each.job for each in self._owners)
        if held != self._held:
            self._held = held
            self._wake.set()

    async def watch(self) -> None:
        """Tell the owners, for ever, whether others wait for what they hold."""
        while True:
            try:
                await self._watch()
            except (SlicerError, OSError) as error:
                self._report(f"cannot see now whether other jobs wait: {error}")
            await asyncio.sleep(_BROKER_LOOK_S)

    async def _watch(self) -> None:
        state = statedir.locate(self._environ, os.geteuid())
        inotify = Inotify(state.path)
        loop = asyncio.get_running_loop()
        try:
            inotify.add(state.tickets.handle, _CHANGES)
            has_broker = bool(broker_socket(self._environ))
            is_seen = os.access(_BROKER_TICKETS, os.R_OK | os.X_OK)
            if has_broker and is_seen:
                inotify.add(_BROKER_TICKETS, _CHANGES)
            loop.add_reader(inotify.fd, self._take, inotify)
            while True:
                if any(self._held):
                    await self._look(has_broker or any(map(wants_gpus, state.tickets.names())))
                    await asyncio.sleep(_BETWEEN_LOOKS_S)
                asks_again = any(self._held) and has_broker and not is_seen
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), _BROKER_LOOK_S if asks_again else None)
                self._wake.clear()
        finally:
            loop.remove_reader(inotify.fd)
            inotify.close()
            state.close()

    def _take(self, inotify: Inotify) -> None:
        inotify.take()
        self._wake.set()

    async def _look(self, is_waited: bool) -> None:
        """Tell each owner about its pressure. Raises StateError."""
        held = [each for each in self._owners if each.job]
        document = await looking.status(self._environ) if is_waited else None
        found = {each: self._pressure(each, document) for each in held if each.job}
        crowded = [each.life for each in found if each.settings.give_way and found[each].is_crowded]
        goes = next_to_go(crowded)
        for owner, pressure in found.items():
            is_crowded = pressure.is_crowded and (owner.life is goes or not owner.life.is_idle)
            if owner.life.is_rivalled != pressure.is_rivalled:
                owner.tell("rivalled" if pressure.is_rivalled else "unrivalled")
            if owner.life.is_crowded != is_crowded:
                owner.tell("crowded" if is_crowded else "uncrowded")

    def _pressure(self, owner: Owner, document: dict[str, Any] | None) -> Pressure:
        if document is None:
            return Pressure()
        names = [job_names(each.settings)[0] for each in self._owners if is_rival(each, owner)]
        return looking.pressure(document, owner.job, names, os.geteuid())


def is_rival(one: Owner, other: Owner) -> bool:
    """Whether both are servers at one address."""
    return one is not other and not set(one.settings.listen).isdisjoint(other.settings.listen)
