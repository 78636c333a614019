"""How many jobs fit on GPUs side by side. Pure.

GPU memory is given out as the ledger does it: to one job after the other, on the GPUs with the least room
that have ``vram`` and the margin free; of that, ``vram`` is taken. Without ``vram`` a job takes whole idle
GPUs.
"""

from __future__ import annotations

from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.model import Gpu

_MOST = 10_000  # jobs of one destination that are looked at


@record
class Load:
    """The jobs of one destination."""

    name: str
    jobs: int | None  # None: as many as fit
    gpus: int  # of each job
    choice: tuple[str, ...]  # indices, or the beginnings of UUIDs; empty: any
    vram_mib: int | None  # None: whole GPUs
    margin_mib: int


class Room:
    """What is left of one GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.left_mib = gpu.memory_mib
        self.jobs: dict[str, int] = {}
        self.is_whole = False  # taken by one job

    def suits(self, load: Load) -> bool:
        """Whether the job could run here, if the GPU were idle."""
        if load.choice and not any(_is_meant(word, self.gpu) for word in load.choice):
            return False
        return load.vram_mib is None or self.gpu.memory_mib >= load.vram_mib + load.margin_mib

    def has_room(self, load: Load) -> bool:
        """Whether one more of these jobs fits beside those that are here."""
        if not self.suits(load) or self.is_whole:
            return False
        if load.vram_mib is None:
            return not self.jobs
        return self.left_mib >= load.vram_mib + load.margin_mib

    def take(self, load: Load) -> None:
        """Put one more here."""
        self.jobs[load.name] = self.jobs.get(load.name, 0) + 1
        self.is_whole = load.vram_mib is None
        self.left_mib = 0 if load.vram_mib is None else self.left_mib - load.vram_mib


def _is_meant(word: str, gpu: Gpu) -> bool:
    return word == str(gpu.index) if word.isdigit() else gpu.uuid.startswith(word)


def pack(loads: list[Load], rooms: list[Room]) -> dict[str, int]:
    """Fill the rooms with all jobs; how many of each destination have a place.

    Jobs that want whole GPUs come first, then those that want most. Those without a number come last.
    """
    placed = {}
    for load in sorted(loads, key=_hardest_first):
        placed[load.name] = 0
        while placed[load.name] < (_MOST if load.jobs is None else load.jobs):
            able = sorted((room for room in rooms if room.has_room(load)), key=lambda room: room.left_mib)
            if len(able) < load.gpus:
                break
            for room in able[: load.gpus]:
                room.take(load)
            placed[load.name] += 1
    return placed


def _hardest_first(load: Load) -> tuple[bool, bool, int]:
    return load.jobs is None, load.vram_mib is not None, -(load.vram_mib or 0)
