"""The messages on the control socket: one JSON object a packet, with the protocol's version. Pure.

A question has an ``ask``: describe the queue (``standing``), find the lines that a ``word`` names
(``lines``), describe the line with a ``key`` once it has begun or ended (``line``), cancel it (``stop``), run
failed ``jobs`` again (``retry``), read its file (``look``), or report all events from now on (``watch``).
The answer has the result, or an ``error``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar, get_args

from slicer.errors import EX_TEMPFAIL, RequestCancelled
from slicer.queue.model import FINAL, Board, BoardState, GpuRow, JobRow, Status
from slicer.record import as_dict, record, replace
from slicer.state.statefile import JsonRules, json_reader
from slicer.text import without_middle

_T = TypeVar("_T")

VERSION = 1
PREFIX = "queue-"  # of the names of the sockets
WHICH = "standing"  # the question that a queue answers with its RunningQueue
LONGEST = 128 << 10  # bytes of a packet: the kernel's default takes one of them, and a little more
_TEXT_MOST = 300  # characters of a text in a packet
_CANCELLED = RequestCancelled.exit_code  # of a line that never began
_ROWS = (100, 20, 4, 0)  # of each part of a board, tried until it fits into a packet


@record
class RunningQueue:
    """A running queue, as it describes itself."""

    file: str  # the jobs file, absolute
    log_dir: str  # absolute
    pid: int
    unit: str  # its service (--detach); "" for none
    state: str  # as Board.state
    began_at: float  # seconds since the epoch
    counts: dict[Status, int]
    eta_s: float | None  # until all is done; None: no basis for an estimate
    warning: str  # why it cannot continue



@record
class QueuedLine:
    """A line of a running queue's file, or a job that it ran."""

    key: str  # as Entry.key
    label: str  # jobs.txt#7
    no: int
    name: str  # "" for none
    command: str
    status: Status  # "pending" until its command begins
    attempts: int  # the number of begun ones
    began_at: float  # seconds since the epoch, of the last attempt; before the first: of the queue
    job: str  # the id of the last attempt; "" before the first
    log: str  # its log, absolute; "" before the first
    waits_for: str  # why it does not run yet, as on the board; "" if unknown, or not waiting
    exit_code: int
    reason: str  # as JobState.reason
    jobs_file: str  # absolute
    log_dir: str  # absolute
    pid: int  # the queue's

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    @property
    def code_for_others(self) -> int:
        """The exit code of `slicer wait`: that of a `slicer run` that ended in this way."""
        if self.status == "cancelled":
            return self.exit_code or _CANCELLED
        return EX_TEMPFAIL if self.status == "pending" else self.exit_code


def encode(message: Mapping[str, object]) -> bytes:
    """A packet. Paths may hold bytes that are not UTF-8, as lone surrogates."""
    text = json.dumps({"v": VERSION, **message}, separators=(",", ":"), default=as_dict, ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def decode(packet: bytes) -> dict[str, Any] | None:
    """A packet's object; None if it is not one of this version."""
    try:
        found = json.loads(packet)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.get("v") == VERSION else None


def short(text: str) -> str:
    return without_middle(text, _TEXT_MOST)


def board_packet(board: Board) -> bytes:
    """The board, with as many rows as fit."""
    packet = b""
    for most in _ROWS:
        parts: dict[str, Any] = {
            "running": tuple(map(_shortened, board.running[:most])),
            "pending": tuple(map(_shortened, board.pending[:most])),
            "done": tuple(map(_shortened, board.done[-most:] if most else ())),
            "title": short(board.title), "warning": short(board.warning),
        }  # fmt: skip
        packet = encode({"board": replace(board, **parts)})
        if len(packet) <= LONGEST:
            break
    return packet


def _shortened(row: JobRow) -> JobRow:
    return replace(row, command=short(row.command), reason=short(row.reason), waits_for=short(row.waits_for))


def read_board(value: Any) -> Board:
    """Raises TypeError, ValueError, KeyError."""
    board = read(Board, value)
    if board.state not in get_args(BoardState):
        raise ValueError("an unknown state")
    return board


def read(kind: type[_T], value: Any) -> _T:
    """A record from JSON. Raises TypeError, ValueError, KeyError."""
    fields = kind.__annotations__.items()
    return kind(**{name: json_reader(how, _RULES)(value[name]) for name, how in fields})


_RULES = JsonRules(records={each.__name__: partial(read, each) for each in (JobRow, GpuRow)})
