"""``slicer web``: the live board as a page."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from typing import Any

import click

from slicer.backend import broker_socket
from slicer.broker.client.calls import ask
from slicer.broker.client.standing import status_reader
from slicer.broker.protocol.messages import PastLease, PastLeases, Recent
from slicer.cli import metrics, output, say
from slicer.cli.history import ended
from slicer.cli.live.changes import ChangeWaiter
from slicer.cli.queue import rows
from slicer.cli.serve_look import need_aiohttp
from slicer.cli.status_rows import later_rows, marks_of, reason
from slicer.columns import Line
from slicer.errors import EX_OK, SlicerError, UsageError
from slicer.kernel import listeners
from slicer.kernel.epoch import epoch_s
from slicer.kernel.users import user_name
from slicer.ledger.status import LedgerStatus
from slicer.outcome import history
from slicer.serve import listening
from slicer.serve.hosts import is_address
from slicer.state import standings
from slicer.state.statefile import is_digits
from slicer.text import one_line
from slicer.web.board import DAY_S, VERSION, board, timeline

_ADDRESS = "127.0.0.1:8750"
_ADDRESS_OF = {2: "{}:{}", 4: "[{}]:{}"}  # a socket's name, of IPv4 and IPv6
_INTERVAL_S = 2.0  # between two looks at the GPUs, which report no changes
_MOST_FAILED = 500
_PAST_S = 10.0  # at least, between two looks at the last day
_DRIFT_S = 2.0


@click.command(
    "web",
    epilog="""\
\b
Examples:
  slicer web                          http://127.0.0.1:8750/ until Ctrl-C
  slicer web --listen unix:/run/user/1000/slicer-web
                                      a socket for yourself, or for a proxy
  sudo slicer install --web           for all users; a request starts it

\b
The page is read-only. Everybody who can connect sees it, on 127.0.0.1 every
user of this machine. So it shows names of jobs and users, but no commands, no
paths and no processes. /board.json has the same data, /metrics the figures of
`slicer metrics`. docs/web.md shows how others can reach it.""",
)
@click.option("--listen", "address", metavar="ADDRESS", default=_ADDRESS, show_default=True,
              help="HOST:PORT or unix:PATH. Sockets from systemd are used instead.")  # fmt: skip
@click.option("--public", is_flag=True, help="The address may be one that other machines can reach.")
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="Answer to this name, too: a proxy's.")
def command(address: str, public: bool, hosts: tuple[str, ...]) -> int:
    """Serve a page with GPUs and their holders, jobs, who waits and why, and the last day, live."""
    import asyncio

    need_aiohttp("slicer web")
    from slicer.web.server import run

    is_by_socket = os.environ.get("LISTEN_PID") == str(os.getpid())
    sockets = listening.handed(os.environ) if is_by_socket else [_opened(address)]
    for each in sockets:
        _refuse_public(each, public)
    if not is_by_socket:
        at = sockets[0].getsockname()
        shown = address if isinstance(at, str) else f"http://{_ADDRESS_OF[len(at)].format(*at)}/"
        output.show([Line(f"the board is at {shown} until Ctrl-C")])
        sys.stdout.flush()
    with closing(BoardReader()) as reader:
        try:
            asyncio.run(run(sockets, reader, hosts, say.line, leaves=is_by_socket))
        finally:
            listening.remove({address: sockets[0]}, os.environ)
    return EX_OK


def _opened(address: str) -> socket.socket:
    """The listening socket. Raises UsageError."""
    if not address.startswith("unix:"):
        host, _, port = address.rpartition(":")
        if not host or not is_digits(port) or int(port) >= 1 << 16:
            raise UsageError("expected HOST:PORT or unix:PATH", where=f"--listen {address}")
    try:
        return listening.open_all((address,), os.environ)[address]
    except UsageError as error:
        owners = () if address.startswith("unix:") else listeners.uids(*listening.split(address))
        whose = f", which {', '.join(map(user_name, sorted(owners)))} has in use" if owners else ""
        hint = f"{_ADDRESS.rpartition(':')[0]}:PORT is another address"
        raise UsageError(f"{error.message}{whose}", where=f"--listen {address}", hint=hint) from error


def _refuse_public(sock: socket.socket, public: bool) -> None:
    if sock.family == socket.AF_UNIX or public or is_address(sock.getsockname()[0], only_loopback=True):
        return
    hint = "docs/web.md shows safer ways; --public allows it"
    raise UsageError("other machines could reach this address", where=sock.getsockname()[0], hint=hint)


class BoardReader:
    """Reads the board, whenever it may have changed. Only one thread uses it, but for :meth:`wake`."""

    def __init__(self) -> None:
        self._reader = status_reader(os.environ)
        self._changes = ChangeWaiter(self._reader, _INTERVAL_S)
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._status: LedgerStatus | None = None
        self._board: dict[str, Any] = {}
        self._timeline = self._blindness = ""  # the latter: why the last day is unknown
        self._seen: tuple[str, ...] = ()  # the jobs at the last look at the last day
        self._looked_s = -_PAST_S
        self._zero_s = epoch_s()

    def close(self) -> None:
        self._changes.close()
        self._reader.close()
        os.close(self._woken)

    def wake(self) -> None:
        os.eventfd_write(self._woken, 1)

    def wait(self) -> None:
        self._changes.wait([self._woken])

    def read(self) -> dict[str, str]:
        """The last day and the board, as JSON. What cannot be read is said on the board."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._woken)
        self._changes.begin()
        zero_s = epoch_s()
        if abs(zero_s - self._zero_s) > _DRIFT_S:  # the clock was set
            self._zero_s = zero_s
        notes: list[str] = []
        try:
            status = self._status = self._reader.read(notes.append)
            servers, queues = standings.read(os.environ, notes.append), rows.running(status.directory)
            begins = {row.key: row.begins for row in later_rows(status, os.geteuid(), time.time())}
            self._board = board(
                status, servers, queues, self._zero_s, lambda each: reason(each, status),
                lambda each: marks_of(each, status, status.gpus),
                lambda each: begins[each.job], os.geteuid(),
            )  # fmt: skip
            self._look_back(status)
        except SlicerError as error:
            if self._status is None:
                raise
            notes.append(str(error))
        self._changes.end()
        notes += filter(None, (self._changes.problem, self._blindness))
        shown = {"version": VERSION, "host": socket.gethostname(), **self._board}
        shown["notes"] = list(map(one_line, notes))
        return {"timeline": self._timeline, "board": json.dumps(shown)}

    def metrics(self, *, is_open: bool) -> tuple[bytes, str]:
        metrics.need_prometheus()
        from slicer.web.metrics import text

        assert self._status is not None
        return text(self._status, metrics.totals(), is_open=is_open)

    def _look_back(self, status: LedgerStatus) -> None:
        """Read the last day again if a job has come or gone since."""
        jobs = tuple(lease.job for lease in status.leases)
        if time.monotonic() - self._looked_s < _PAST_S or (jobs == self._seen and self._timeline):
            return
        self._looked_s, self._seen = time.monotonic(), jobs
        now, self._blindness = time.time(), ""
        try:
            own = history.read(history.default_path(), limit=_MOST_FAILED, failed=True)
            failed = [(each, ended(each)) for each in own if each.started_at + each.wall_s >= now - DAY_S]
            self._timeline = json.dumps(timeline(_past(now - DAY_S), failed, status, now))
        except SlicerError as error:
            self._blindness = f"the last day is unknown: {error}"


def _past(since: float) -> Iterable[PastLease]:
    """The leases on GPUs that ended since then: all users' if there is a broker. Raises SlicerError."""
    path = broker_socket(os.environ)
    if path:
        found: PastLeases = ask(path, Recent(since))
        return found.rows
    own = history.held_gpus(history.default_path(), since)
    return [PastLease(os.geteuid(), *each) for each in own]
