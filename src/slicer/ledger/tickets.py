"""The queue on disk: a ticket's file name encodes its place and its request, and its bell wakes its owner.

A decision for thousands of tickets reads one directory and opens nothing. Sorting the names gives the order.
``100-0000000012345678-3f2a9c01b7de-cpu=1of4-2x8192+512`` is a request of priority 0 that arrived 12.345678 s
after boot. Job 3f2a… wants 1 of 4 CPU slots, and 8 GiB (and 512 MiB of margin) on each of 2 GPUs. Several
slots are separated by commas, each with its ``NAME=1of4``; ``0`` is none. ``0x`` is no GPU, ``2xall`` are
whole ones. ``~3600`` after that is the estimate of the job's length in seconds. With a final ``s`` the file
lists the GPUs that the job may use. If the names of slots are too long for a file name, there is a ``*``, and
the file lists them, too.

A bell is a FIFO that the ticket's owner reads. It only means: look again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from slicer import faults
from slicer.model import PREEMPTIBLE, PRIORITY_MAX, Request
from slicer.state.directory import failing
from slicer.state.statefile import COUNT_MAX, MIB_MAX, SECONDS_MAX, are_slots, is_job_id, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.state.directory import Directory

_BEFORE_SLOTS = 3  # rank, arrival and job; a slot's name may contain a "-"
_NO_SLOTS = "0"
_IN_FILE = "*"
_LONGEST_SLOTS = 150  # of the 255 bytes that a file name may have


def name_of(request: Request) -> str:
    """The ticket's file name."""
    return _name(request, _slots_text(request.slots, request.slot_limits))


def _slots_text(slots: dict[str, int], limits: dict[str, int]) -> str:
    text = ",".join([f"{name}={slots[name]}of{limits[name]}" for name in sorted(slots)]) or _NO_SLOTS
    return text if len(text) <= _LONGEST_SLOTS else _IN_FILE


def _name(request: Request, slots: str) -> str:
    rank = PRIORITY_MAX - request.priority
    arrived_us = round(request.arrived_s * 1e6)
    if not request.gpus:
        gpus = "0x"
    elif request.vram_mib is None:
        gpus = f"{request.gpus}xall"
    else:
        gpus = f"{request.gpus}x{request.vram_mib}+{request.margin_mib}"
    length = "" if request.est_s is None else f"~{round(request.est_s)}"
    choice = "s" if request.gpu_choice else ""
    return f"{rank:03d}-{arrived_us:016d}-{request.job}-{slots}-{gpus}{length}{choice}"


def says_all(name: str) -> bool:
    """Whether the name alone specifies the job's request: its GPUs and its slots."""
    return not name.endswith("s") and f"-{_IN_FILE}-" not in name


def job_of(name: str) -> str:
    """The job in a ticket's name; "" for any other name."""
    parts = name.split("-", _BEFORE_SLOTS)
    return parts[2] if len(parts) > _BEFORE_SLOTS and "-" in parts[-1] else ""


def wants_gpus(name: str) -> bool:
    return not name.endswith("-0x")


def parse_name(name: str) -> Request | None:
    """The request in a name from :func:`name_of`; None for any other name.

    It lacks the data that only the file has (see :func:`says_all`).
    """
    try:
        rank, arrived_us, job, wanted = name.removesuffix("s").split("-", _BEFORE_SLOTS)
        text, _, gpus = wanted.rpartition("-")
        slots, limits = _slots(text)
        gpus, has_length, length = gpus.partition("~")
        count, size = gpus.split("x")
        vram, _, margin = ("", "", "") if size in ("", "all") else size.partition("+")
        request = Request(
            number(count), (), number(vram) if vram else None, number(margin) if margin else 0, slots,
            PRIORITY_MAX - number(rank), job, number(arrived_us) / 1e6, limits,
            float(number(length)) if has_length else None,
        )  # fmt: skip
    except ValueError:
        return None
    # A name is not ours if we would have written it differently ("+5", "1_000").
    is_ours = is_job_id(job) and _name(request, text) == name.removesuffix("s")
    return request if is_ours and _is_sane(request) else None


_Slots = tuple[dict[str, int], dict[str, int]]  # and their limits

# The meanings of slots in names: thousands of tickets request a few kinds.
_known: dict[str, _Slots] = {_NO_SLOTS: ({}, {}), _IN_FILE: ({}, {})}
_KNOWN_MAX = 1000


def _slots(text: str) -> _Slots:
    """Read the text of :func:`_slots_text`. Raises ValueError for any other spelling."""
    found = _known.get(text)
    if found is None:
        found = _parse_slots(text)
        if len(_known) < _KNOWN_MAX:
            _known[text] = found
    return found


def _parse_slots(text: str) -> _Slots:
    slots: dict[str, int] = {}
    limits: dict[str, int] = {}
    for word in text.split(","):
        name, _, counts = word.partition("=")
        wanted, limit = counts.split("of")
        slots[name], limits[name] = number(wanted), number(limit)
    if _slots_text(slots, limits) != text or not (are_slots(slots) and are_slots(limits)):
        raise ValueError("not the slots of a ticket's name")
    return slots, limits


def _is_sane(request: Request) -> bool:
    """Whether a ticket's file may contain the same. Repeated here: a decision reads thousands of names."""
    return (
        PREEMPTIBLE <= request.priority <= PRIORITY_MAX
        and request.arrived_s <= SECONDS_MAX
        and request.gpus <= COUNT_MAX
        and max(request.vram_mib or 0, request.margin_mib) <= MIB_MAX
        and (request.est_s or 0) <= SECONDS_MAX
    )


def make_bell(bells: Directory, job: str) -> int:
    """Create the FIFO and open it for reading; returns the descriptor. Raises StateError."""
    with failing(f"{bells.path}/{job}", "cannot be created"):
        bells.make_fifo(job)
        faults.point("ledger-bell-made")
        # For reading and writing: without a writer a FIFO is at its end.
        return bells.open(job, os.O_RDWR)


def ring(bells: Directory, job: str) -> bool:
    """Wake the bell's owner, if there is one; False if this is no bell. Never waits.

    A ringing bell is left alone, so that others can tell how long it has been unanswered.
    """
    try:
        fd = bells.open(job, os.O_RDWR)
    except OSError as error:
        return error.errno in (errno.ENOENT, errno.ENXIO)  # removed, or its owner is dead
    try:
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            return False
        if not _rings(fd):
            os.write(fd, b"\0")
    finally:
        os.close(fd)
    return True


def ringing(bells: Directory, job: str) -> int | None:
    """The number of a bell's present ringing, which is unique; None if it does not ring."""
    try:
        fd = bells.open(job, os.O_RDONLY)
    except OSError:
        return None  # its owner has left the queue
    try:
        info = os.fstat(fd)
        return info.st_mtime_ns if stat.S_ISFIFO(info.st_mode) and _rings(fd) else None
    finally:
        os.close(fd)


def _rings(bell: int) -> bool:
    import termios

    return bool(fcntl.ioctl(bell, termios.FIONREAD, b"\0" * 4).strip(b"\0"))


def silence(bell: int) -> None:
    """Stop the bell's ringing."""
    try:
        while os.read(bell, 4096):
            pass
    except BlockingIOError:
        pass
