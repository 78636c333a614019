"""Whether as many of a route's jobs as allowed fit into the machine: GPU memory and main memory. Pure."""

from __future__ import annotations

from slicer.config.routes import source
from slicer.errors import ConfigError
from slicer.quantity import INFINITY, format_size, short_mib
from slicer.record import record, replace
from slicer.route.deciding import profile_for
from slicer.text import counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slicer.config.profiles import Config
    from slicer.config.routes import Destination, Route
    from slicer.model import Demand, Gpu, Profile

_MIB, _GIB = 2**20, 2**30
_MOST = 10_000  # jobs of one destination to consider
_RESERVE_PERCENT = 10  # of the machine's memory, for everything else, unless the route sets the reserve


@record
class Share:
    """What the jobs of one destination use when as many run as allowed."""

    name: str
    mode: str
    jobs: int | None  # None: unlimited
    limited_by: str  # "max_jobs", "slots.cpu", "GPU memory", or ""
    gpus: int  # per job
    vram_mib: int | None  # per job, on each GPU; None: whole GPUs, or none
    memory_bytes: int | None  # MemoryMax per job; None: unlimited
    memory_source: str  # where that is set
    is_declared: bool  # by the route or a file; False: only the cap of a built-in profile
    suggested_bytes: int | None = None  # a MemoryMax with which all jobs fit; None if unknown


@record
class Worksheet:
    """The budget of a route on one machine. It fits if there are no ``problems``."""

    route: str
    shares: tuple[Share, ...]
    gpus: tuple[Room, ...]
    machine_bytes: int
    reserve_bytes: int
    reserve_source: str
    needed_bytes: int  # all jobs with declared memory, and the reserve
    left_bytes: int  # negative: this much is missing
    problems: tuple[str, ...]  # each with its sum
    notes: tuple[str, ...]


def check(config: Config, route: Route) -> None:
    """Raise ConfigError, with the sum, if as many jobs as allowed could need more memory than there is.

    The ledger checks GPU memory, job by job. Nothing checks main memory until it is too late.
    """
    for problem in worksheet_here(config, route, None).problems:
        hint = f"slicer routes check {route.name} shows what would fit"
        declared = next(each for each in route.destinations if each.memory_bytes is not None)
        raise ConfigError(problem, where=source(route, declared, "memory"), hint=hint)


def worksheet_here(config: Config, route: Route, gpus: tuple[Gpu, ...] | None) -> Worksheet:
    """The budget of a route on this machine; ``gpus`` None: they were not examined."""
    profiles = {each.name: profile_for(config, route, each) for each in route.destinations}
    return worksheet(route, profiles, gpus, config.host.memory_bytes, config.slots)


def worksheet(
    route: Route,
    profiles: Mapping[str, Profile],
    gpus: tuple[Gpu, ...] | None,
    memory_bytes: int,
    slots: Mapping[str, int],
) -> Worksheet:
    """The budget of ``route``.

    ``profiles`` maps each destination's name to its profile
    (:func:`slicer.route.deciding.profile_for`). ``gpus`` is what the driver reports; None if unknown.
    ``memory_bytes`` is the machine's memory; ``slots`` has the number of slots by name ("cpu").
    """
    problems: list[str] = []
    notes: list[str] = []
    shares = [_share(each, profiles[each.name], slots) for each in route.destinations]
    rooms = [Room(gpu) for gpu in gpus or ()]
    if gpus is None:
        notes.append("GPU memory was not checked, because the GPUs are unknown")
    else:
        shares = _on_gpus(shares, profiles, rooms, problems, notes)
    reserve, source = _reserve(route, memory_bytes)
    needed = sum(_together(each) for each in shares if each.is_declared) + reserve
    left = memory_bytes - needed
    if left < 0:
        has = short_size(memory_bytes)
        problems.append(f"memory: {_memory_sum(shares, reserve)}, but the machine has {has}")
    notes += _memory_notes(shares)
    return Worksheet(
        route=route.name,
        shares=tuple(_suggested(each, shares, memory_bytes - reserve, left) for each in shares),
        gpus=tuple(rooms),
        machine_bytes=memory_bytes,
        reserve_bytes=reserve,
        reserve_source=source,
        needed_bytes=needed,
        left_bytes=left,
        problems=tuple(problems),
        notes=tuple(notes),
    )


def _share(destination: Destination, profile: Profile, slots: Mapping[str, int]) -> Share:
    limits = []
    if destination.max_jobs is not None:
        limits.append((destination.max_jobs, "max_jobs"))
    limits += [(slots[name] // n, f"slots.{name}") for name, n in profile.slots.items() if name in slots]
    jobs, limited_by = min(limits, default=(None, ""))
    found = profile.properties.get("MemoryMax")
    limit = found.value if found and isinstance(found.value, int) and found.value != INFINITY else None
    source = profile.sources.get("MemoryMax", "")
    is_declared = limit is not None and not source.startswith("built-in")
    return Share(
        destination.name, destination.mode, jobs, limited_by, profile.gpus, profile.vram_mib, limit, source,
        is_declared,
    )  # fmt: skip


def _on_gpus(
    shares: list[Share], profiles: Mapping[str, Profile], rooms: list[Room],
    problems: list[str], notes: list[str],
) -> list[Share]:  # fmt: skip
    """Place the jobs on the GPUs. Returns the shares, with a number of jobs where nothing else limits it."""
    placed = pack([each for each in shares if each.mode == "gpu" and each.gpus], profiles, rooms)
    found = []
    for each in shares:
        if each.name not in placed:
            found.append(each)
            continue
        fits, demand = placed[each.name], profiles[each.name]
        able = sum(room.suits(demand) for room in rooms)
        if each.jobs is None and not fits and able >= each.gpus:
            # Nobody asked for that many of the other jobs; with fewer of them, these run.
            notes.append(f"{each.name}: the others leave no GPU memory (max_jobs would keep some free)")
        elif fits < (1 if each.jobs is None else each.jobs):
            problems.append(_gpu_problem(each, demand, fits, rooms))
        unfit = [room.gpu.index for room in rooms if not room.suits(demand)]
        if fits and unfit and not demand.gpu_choice:
            which = ", ".join(map(str, unfit))
            need = short_mib(each.vram_mib or 0)
            notes.append(f"{each.name}: GPU {which} is too small for a job of {need}")
        if each.jobs is None:
            each = replace(each, jobs=fits, limited_by="GPU memory")
        found.append(each)
    return found


def _gpu_problem(share: Share, demand: Demand, fits: int, rooms: list[Room]) -> str:
    able = [room for room in rooms if room.suits(demand)]
    jobs = "a job" if share.jobs is None else counted(share.jobs, "job")
    on = f" on {share.gpus} GPUs each" if share.gpus > 1 else ""
    if not rooms:
        return f"{share.name}: there is no GPU for {jobs}"
    if share.vram_mib is None:
        wanted = f"{jobs} x {counted(share.gpus, 'whole GPU')}"
        there = f"{'is' if len(able) == 1 else 'are'} {counted(len(able), 'GPU')}"
        return f"{share.name}: {wanted}, but there {there}: {_remedy(fits)}"
    margin = f" and {short_mib(demand.margin_mib)} of margin" if demand.margin_mib else ""
    if len(able) < share.gpus:
        need = f"{short_mib(share.vram_mib)}{margin}{on}"
        return f"{share.name}: {jobs} of {need}, but {_sizes(rooms)}: no GPU is large enough"
    total = short_mib(share.vram_mib * (share.jobs or 1))
    wanted = f"{jobs} x {short_mib(share.vram_mib)}{on} = {total}{margin}"
    others = sorted({name for room in able for name in room.jobs} - {share.name})
    beside = f" next to {', '.join(others)}" if others else ""
    return f"{share.name}: {wanted}, but {_sizes(able)}{beside}: {_remedy(fits)}"


def _remedy(fits: int) -> str:
    return f"{counted(fits, 'job')} fit{'s' * (fits == 1)}" if fits else "none fits"


def _sizes(rooms: list[Room]) -> str:
    named = [f"GPU {room.gpu.index} has {short_mib(room.gpu.memory_mib)}" for room in rooms]
    return ", ".join(named[:8]) + ("…" if len(named) > 8 else "")


# -- jobs side by side on GPUs ------------------------------------------------------------------------------
#
# This follows the ledger: it gives GPU memory to one job after the other, on the GPUs with the least room
# that have ``vram`` and the margin free. The job takes ``vram`` of that. Without ``vram`` a job takes whole
# idle GPUs.


class Room:
    """One GPU, its free memory, and how many jobs of each destination run there."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.left_mib = gpu.memory_mib
        self.jobs: dict[str, int] = {}
        self.is_whole = False  # one job holds the whole GPU

    def suits(self, demand: Demand) -> bool:
        """Whether the job could run on this GPU if it were idle."""
        if demand.gpu_choice and not any(_is_meant(word, self.gpu) for word in demand.gpu_choice):
            return False
        return demand.need_mib is None or self.gpu.memory_mib >= demand.need_mib

    def has_room(self, demand: Demand) -> bool:
        """Whether another one of these jobs fits beside those already here."""
        if not self.suits(demand) or self.is_whole:
            return False
        return not self.jobs if demand.need_mib is None else self.left_mib >= demand.need_mib

    def take(self, name: str, vram_mib: int | None) -> None:
        """Place one more job of that destination here."""
        self.jobs[name] = self.jobs.get(name, 0) + 1
        self.is_whole = vram_mib is None
        self.left_mib = 0 if vram_mib is None else self.left_mib - vram_mib


def _is_meant(word: str, gpu: Gpu) -> bool:
    return word == str(gpu.index) if word.isdigit() else gpu.uuid.startswith(word)


def pack(shares: list[Share], demands: Mapping[str, Demand], rooms: list[Room]) -> dict[str, int]:
    """Place all jobs on the GPUs. Returns how many jobs of each destination found room.

    ``demands``: of one job, by the destination's name.

    Jobs that need whole GPUs come first, then those that need most. Unlimited ones come last.
    """
    placed = {}
    for each in sorted(
        shares, key=lambda it: (it.jobs is None, it.vram_mib is not None, -(it.vram_mib or 0))
    ):
        demand = demands[each.name]
        placed[each.name] = 0
        while placed[each.name] < (_MOST if each.jobs is None else each.jobs):
            able = sorted((room for room in rooms if room.has_room(demand)), key=lambda room: room.left_mib)
            if len(able) < each.gpus:
                break
            for room in able[: each.gpus]:
                room.take(each.name, each.vram_mib)
            placed[each.name] += 1
    return placed


def _reserve(route: Route, memory_bytes: int) -> tuple[int, str]:
    if route.memory_reserve_bytes is not None:
        return route.memory_reserve_bytes, route.sources.get("memory_reserve", "")
    return min(max(_GIB, memory_bytes * _RESERVE_PERCENT // 100), memory_bytes // 2), "default"


def _together(share: Share) -> int:
    return (share.jobs or 0) * (share.memory_bytes or 0)


def _memory_sum(shares: list[Share], reserve: int) -> str:
    parts = [
        f"{each.name} {each.jobs} x {short_size(each.memory_bytes)}"
        for each in shares
        if each.is_declared and each.jobs
    ]
    total = sum(_together(each) for each in shares if each.is_declared) + reserve
    return f"{' + '.join([*parts, f'{short_size(reserve)} of reserve'])} = {short_size(total)}"


def _memory_notes(shares: list[Share]) -> list[str]:
    notes = []
    for each in shares:
        if each.jobs is None:
            why = "their number is unlimited (max_jobs would limit it)"
            notes.append(f"{each.name}: {why}, so their memory is not in the sum")
        elif each.jobs and not each.is_declared:
            amount = each.memory_bytes
            limit = "none" if amount is None else f"{short_size(amount)}, {each.memory_source}"
            notes.append(f"{each.name}: no memory is declared (MemoryMax is {limit}): not in the sum")
    return notes


def _suggested(share: Share, shares: list[Share], available: int, left: int) -> Share:
    """The share with a MemoryMax with which all jobs fit.

    Jobs without a declaration divide what is left; if there are none, all jobs do. If too much is declared,
    each of those jobs gets less.
    """
    if not share.jobs or any(each.jobs is None for each in shares):
        return share
    silent = sum(each.jobs or 0 for each in shares if not each.is_declared)
    if share.is_declared and left < 0:
        declared = sum(_together(each) for each in shares if each.is_declared)
        found = (share.memory_bytes or 0) * available // declared
    elif share.is_declared:
        everybody = sum(each.jobs or 0 for each in shares)
        found = (share.memory_bytes or 0) + (0 if silent else left // everybody)
    else:
        found = left // silent if left > 0 else 0
    return replace(share, suggested_bytes=_floor(found) or None)


def _floor(amount: int) -> int:
    """The largest amount up to this one that is exact when shown with one decimal."""
    return amount * 10 // _GIB * _GIB // 10 if amount >= _GIB else amount // _MIB * _MIB


def short_size(amount: int | None) -> str:
    return format_size(amount).replace(".0", "")


def together_bytes(sheets: Sequence[Worksheet]) -> int:
    """The sum of all routes' declarations, and the largest of their reserves. Nothing divides main memory."""
    reserve = max((sheet.reserve_bytes for sheet in sheets), default=0)
    return sum(sheet.needed_bytes - sheet.reserve_bytes for sheet in sheets) + reserve
