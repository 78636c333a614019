"""The layout of a job's file, the same as in ``preload/job_file.h``; a test compares the two. Pure.

slicer writes the head before the job starts. The job's processes write the rest, and may write anything. So
everything that is read is checked here.
"""

from __future__ import annotations

import struct

from slicer.record import record
from slicer.state.statefile import is_gpu, is_job_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.model import OverCap, Share

MAGIC = 0x726168736C73626A
VERSION = 1
MAX_GPUS = 16
MAX_PROCESSES = 256
LOCK_BYTE = 1 << 20

_HEAD = struct.Struct("@QII16sIiII768s16Q")
_UUID_CHARS = 48
_OVERHEAD = struct.Struct("@16Q")
_SAID = struct.Struct("@II16Q16Q")  # from the library: troubles, rows, counters, peaks
_PROCESS = struct.Struct("@iI16Q")

# Where each part begins, in bytes.
OFFSET_NOTED = 44
OFFSET_OVERHEAD = _HEAD.size
OFFSET_SAID = OFFSET_OVERHEAD + _OVERHEAD.size
OFFSET_PROCESSES = OFFSET_SAID + _SAID.size
SIZE = OFFSET_PROCESSES + MAX_PROCESSES * _PROCESS.size
PROCESS_SIZE = _PROCESS.size

NOTED_GOT_PAST = 1  # slicer saw the job use more than its cap
NOTED_DRIVER_CAP = 2  # the driver also enforces the cap, for the job's cgroup
NOTED_END = 4  # end a job that got past its cap; otherwise only warn

WANTS: dict[str, int] = {"lock": 1, "cap": 2, "both": 3}
_WORDS: dict[int, Share] = {1: "lock", 2: "cap", 3: "both"}
_MOST = 2**63 - 1  # the largest number in the history

# Why something could not be applied, by its bit, as in enum TROUBLE_… .
TROUBLES = {
    1: "no-arena",
    2: "too-many-processes",
    4: "too-many-functions",
    8: "mps",
    16: "other-gpu",
    32: "undrained",
    64: "arena-busy",
}


class DamagedFile(ValueError):
    """Not a valid job's file: truncated, of another version, or something else."""


@record
class Counters:
    """The library's counts over all processes of the job. Times are in nanoseconds."""

    gated: int
    passed: int
    turns: int
    held_ns: int
    waits: int
    waited_ns: int
    longest_ns: int
    undrained: int
    allocations: int
    refused: int
    uncounted: int


@record
class JobFileText:
    """The contents of a job's file. Tuples are in the order of ``gpus``; sizes are bytes."""

    job: str
    wants: Share
    priority: int
    gpus: tuple[str, ...]
    limit: tuple[int, ...]  # 0: no cap
    got_past_cap: int  # 1: slicer saw the job use more than its cap
    driver_cap: int  # 1: the driver also enforces the cap, for the job's cgroup
    over_cap: OverCap
    overhead: tuple[int, ...]
    troubles: tuple[str, ...]
    rows: int  # the number of processes that ever took one
    counters: Counters
    peak: tuple[int, ...]


def new(job: str, wants: Share, priority: int, gpus: tuple[str, ...], limit: int, noted: int = 0) -> bytes:
    """The complete file of a job that has not started. ``limit``: bytes on each GPU; 0: no cap.

    Raises ValueError for GPUs that do not fit into the layout.
    """
    if len(gpus) > MAX_GPUS or any(len(uuid) >= _UUID_CHARS or not is_gpu(uuid) for uuid in gpus):
        raise ValueError(f"at most {MAX_GPUS} GPUs, each with a name shorter than {_UUID_CHARS} characters")
    names = b"".join(uuid.encode("ascii").ljust(_UUID_CHARS, b"\0") for uuid in gpus)
    limits = [limit] * len(gpus) + [0] * (MAX_GPUS - len(gpus))
    head = _HEAD.pack(
        MAGIC, VERSION, SIZE, job.encode("ascii"), WANTS[wants], priority, len(gpus), noted, names, *limits
    )
    return head.ljust(SIZE, b"\0")


def decode(data: bytes) -> JobFileText:
    """Parse a file, except for the processes. Raises DamagedFile."""
    if len(data) != SIZE:
        raise DamagedFile("it has another size")
    magic, version, size, job_bytes, wants, priority, count, noted, names, *limit = _HEAD.unpack_from(data)
    if (magic, version, size) != (MAGIC, VERSION, SIZE):
        raise DamagedFile("it has another version")
    job = job_bytes.rstrip(b"\0").decode("ascii", "replace")
    gpus = tuple(
        names[at * _UUID_CHARS : (at + 1) * _UUID_CHARS].partition(b"\0")[0].decode("ascii", "replace")
        for at in range(min(count, MAX_GPUS))
    )
    if not is_job_id(job) or wants not in _WORDS or not -100 <= priority <= 100:
        raise DamagedFile("its head is invalid")
    if count > MAX_GPUS or not all(map(is_gpu, gpus)):
        raise DamagedFile("its GPUs are invalid")
    troubles, rows, *numbers = map(_bounded, _SAID.unpack_from(data, OFFSET_SAID))
    return JobFileText(
        job=job, wants=_WORDS[wants], priority=priority, gpus=gpus, limit=tuple(map(_bounded, limit[:count])),
        got_past_cap=int(noted & NOTED_GOT_PAST != 0), driver_cap=int(noted & NOTED_DRIVER_CAP != 0),
        over_cap="end" if noted & NOTED_END else "warn",
        overhead=tuple(map(_bounded, _OVERHEAD.unpack_from(data, OFFSET_OVERHEAD)[:count])),
        troubles=trouble_words(troubles), rows=min(rows, MAX_PROCESSES),
        counters=Counters(*numbers[: len(Counters.__annotations__)]), peak=tuple(numbers[16 : 16 + count]),
    )  # fmt: skip


def charges(data: bytes, row: int, count: int) -> tuple[int, ...]:
    """The bytes charged to the process of a row on each of ``count`` GPUs."""
    _, _, *charged = _PROCESS.unpack_from(data, OFFSET_PROCESSES + row * PROCESS_SIZE)
    return tuple(map(_bounded, charged[:count]))


def number(value: int) -> bytes:
    return struct.pack("@Q", _bounded(value))


def trouble_words(bits: int) -> tuple[str, ...]:
    """The words for the bits in ``troubles``."""
    known = tuple(word for bit, word in TROUBLES.items() if bits & bit)
    return (*known, "other") if bits & ~sum(TROUBLES) else known


def _bounded(value: int) -> int:
    return min(max(value, 0), _MOST)
