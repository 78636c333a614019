"""How well days of jobs are packed: 1,000 jobs arrive over 24 h on 8 GPUs, in virtual time, no processes.

Both tools decide with their own code: slicer as its queue asks the ledger (a ticket for the first job of
each kind, see ``slicer.queue.engine.local.lease_requests``), at every event and at once; gpusched by its
``find_allocation`` over all that waits, every 5 s. A poll at which nothing has changed decides what the one
before did, and is left out. Jobs use what they declare, and what decisions cost is not counted. slicer knows
how long jobs run in several ways (``KNOWN``); gpusched does not ask.
Deterministic. Standard library, slicer and gpusched only.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import mean, median, quantiles
from typing import TYPE_CHECKING, Any, Protocol

from bench.markdown import figures, table
from slicer.model import Lease, Request, Ticket
from slicer.placement import decision, forecast
from slicer.placement.devices import Device
from slicer.placement.lengths import Lengths, estimate
from slicer.placement.order import in_order
from slicer.placement.policy import Policy
from slicer.queue.model import Attributes, Entry, JobState, Kind
from slicer.queue.start.pending import Pending
from slicer.record import replace

if TYPE_CHECKING:
    from slicer.model import EstimateSource

PEERS = Path("/src/build/bench-peers")
GPUS, JOBS, TOTAL_MIB = 8, 1000, 80 * 1024
DAY_S = 86_400.0
MARGIN_MIB = 512  # both tools' default
POLL_S = 5.0  # gpusched's default
MOST_KINDS = 128  # that the queue asks for at a time
SEEDS = range(1, 21)
PEER = "gpusched 0.4.0"
FORECAST_EACH = 10  # every tenth job's start is forecast, if it has to wait
COMMANDS = 40  # different ones; the runs of one vary much less than those of all
_SPREAD = 0.4  # sigma of the lengths of one command's runs
# How slicer knows a job's length, and the words for it.
KNOWN = {
    "runs": "lengths by earlier runs",
    "exact": "exact lengths",
    "limits": "time limits, of half of the jobs",
    "short": "a fifth of each length",
    "nothing": "nothing known",
}
OURS = {how: f"slicer queue, {words}" for how, words in KNOWN.items()}
# GiB that one-GPU jobs declare, and how common each is; larger jobs are not small ones.
_ONE = {2: 6, 4: 10, 6: 8, 8: 14, 10: 8, 12: 8, 16: 12, 20: 8, 24: 10, 32: 6, 40: 5, 48: 4, 64: 3, 70: 4}
_SMALL = {2: 6, 4: 10, 6: 8, 8: 14, 10: 8, 12: 8, 16: 6}
_LARGE = {16: 2, 24: 3, 32: 3, 40: 3, 64: 2, 70: 3}
_WHOLE = {TOTAL_MIB // 1024 - 1: 1}  # less the margin


@dataclass(frozen=True)
class Mix:
    """A kind of day."""

    load: float  # declared memory x time, to what the GPUs have in 24 h
    widths: Mapping[int, int]  # numbers of GPUs, and how common each is
    one: Mapping[int, int]  # GiB of jobs with one GPU
    more: Mapping[int, int]  # GiB on each GPU of the others
    sigma: float = 1.2  # of the lognormal lengths
    part: float = 1.0  # of the number of jobs


MIXES = {
    "a busy day": Mix(0.80, {1: 88, 2: 8, 4: 4}, _ONE, _LARGE),
    "an overfull day": Mix(1.05, {1: 88, 2: 8, 4: 4}, _ONE, _LARGE),
    "a day of small jobs": Mix(0.90, {1: 97, 4: 3}, _SMALL, _LARGE),
    "a day of whole GPUs": Mix(0.85, {1: 70, 2: 18, 4: 9, 8: 3}, _WHOLE, _WHOLE, sigma=2.0, part=0.3),
    "a day of very different lengths": Mix(0.80, {1: 88, 2: 8, 4: 4}, _ONE, _LARGE, sigma=1.8),
}


@dataclass(frozen=True)
class Job:
    """One job of the day. ``vram_mib`` on each of its GPUs."""

    number: int
    arrives_s: float
    lasts_s: float
    gpus: int
    vram_mib: int
    command: int
    limit_s: float | None  # half of the jobs have one


@dataclass(frozen=True)
class Run:
    """A job on its GPUs, from 0 to 7."""

    job: Job
    gpus: tuple[int, ...]
    since_s: float


@dataclass(frozen=True)
class Forecast:
    """What was said of a job's start."""

    made_s: float
    start_s: float | None  # None: it is not known


class Tool(Protocol):
    """Decides which jobs start where."""

    def looks_at(self, event_s: float) -> float:
        """When it takes notice of what happens at a time."""

    def add(self, jobs: Iterable[Job]) -> None:
        """These have been appended to the file."""

    def start(self, running: Mapping[int, Run], now_s: float) -> list[Run]:
        """What starts now."""


def day(seed: int, mix: Mix) -> list[Job]:
    """The jobs in the order of their arrival; most come around 14 h, and few of them are long."""
    random, count = Random(seed), round(JOBS * mix.part)
    arrivals = sorted(random.triangular(0, 24, 14) * 3600 for _ in range(count))
    widths = random.choices(list(mix.widths), list(mix.widths.values()), k=count)
    sizes = [mix.one if width == 1 else mix.more for width in widths]
    gib = [random.choices(list(each), list(each.values()))[0] for each in sizes]
    usual = [random.lognormvariate(0, math.sqrt(mix.sigma**2 - _SPREAD**2)) for _ in range(COMMANDS)]
    commands = [random.randrange(COMMANDS) for _ in range(count)]
    lasts = [min(max(usual[each] * random.lognormvariate(0, _SPREAD), 0.02), 60.0) for each in commands]
    area = sum(w * g * long for w, g, long in zip(widths, gib, lasts, strict=True))
    scale_s = mix.load * GPUS * (TOTAL_MIB / 1024) * DAY_S / area
    limits = [random.uniform(1.2, 4) if random.random() < 0.5 else None for _ in range(count)]
    made = zip(arrivals, lasts, widths, gib, commands, limits, strict=True)
    return [
        Job(n, at, long * scale_s, w, g * 1024, command, None if limit is None else limit * long * scale_s)
        for n, (at, long, w, g, command, limit) in enumerate(made)
    ]


def starts(jobs: list[Job], tool: Tool) -> dict[int, float]:
    """When each job starts, in seconds since the day began."""
    running: dict[int, Run] = {}
    began: dict[int, float] = {}
    coming = jobs[:]
    while coming or running:
        events = [run.since_s + run.job.lasts_s for run in running.values()]
        now_s = tool.looks_at(min([*events, *(job.arrives_s for job in coming[:1])]))
        arrived = [job for job in coming if job.arrives_s <= now_s]
        del coming[: len(arrived)]
        running = {n: run for n, run in running.items() if run.since_s + run.job.lasts_s > now_s}
        if arrived:
            tool.add(arrived)
        for run in tool.start(running, now_s):
            running[run.job.number] = run
            began[run.job.number] = now_s
    if len(began) < len(jobs):
        raise AssertionError(f"{len(jobs) - len(began)} jobs were never started")
    return began


# -- slicer --------------------------------------------------------------------------------------------------

_UUIDS = tuple(f"GPU-{place}" for place in range(GPUS))
_LEASE = Lease(
    job="", name="", command="", pid=1, pid_start=1, keeper=2, boot_id="b", uid=1000, backend="systemd",
    manager="system", unit="", cgroup="", gpus=(), vram_mib=None, vram_peak_mib=(), slots={}, priority=0,
    forced=0, since_s=0.0, expect_s=None,
)  # fmt: skip


_TICKET = Ticket(
    job="", name="", command="", pid=1, pid_start=1, boot_id="b", uid=1000, inside=(), priority=0,
    arrived_s=0.0, gpus=0, gpu_choice=(), vram_mib=None, margin_mib=0, slots={}, slot_limits={},
    expect_s=None, est_s=None,
)  # fmt: skip


class Slicer:
    """As ``slicer.queue`` does it: the first job of each kind has a ticket."""

    def __init__(self, how: str) -> None:
        """``how``: of KNOWN."""
        self._how = how
        self._lengths = Lengths()
        self._jobs: dict[str, Job] = {}
        self._running: dict[int, Run] = {}  # at the last look
        self._est_s: dict[int, tuple[float | None, EstimateSource]] = {}  # by the jobs' numbers
        self._entries: list[Entry] = []
        self._states: dict[str, JobState] = {}
        self._pending = Pending((), self._states)
        self._asks: dict[Kind, Request] = {}
        self.forecasts: dict[int, Forecast] = {}  # by the jobs' numbers

    def looks_at(self, event_s: float) -> float:
        return event_s

    def add(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            key, said = f"{job.number:012x}", Attributes(Kind(job.vram_mib, job.gpus))
            self._jobs[key] = job
            self._states[key] = JobState(key, job.number, "")
            self._entries.append(Entry(job.number + 1, key, "", said))
        self._pending = Pending(self._entries, self._states, self._octave)

    def _estimate(self, job: Job) -> float | None:
        given = {"exact": job.lasts_s, "short": job.lasts_s / 5, "limits": job.limit_s}
        if self._how == "runs":
            return estimate(self._lengths, str(job.command), None, job.limit_s)[0]
        return given.get(self._how)

    def _source(self, job: Job) -> EstimateSource:
        if self._how != "runs":
            return ""
        return estimate(self._lengths, str(job.command), None, job.limit_s)[1]

    def _octave(self, entry: Entry) -> int | None:
        est_s = self._estimate(self._jobs[entry.key])
        return None if est_s is None else int(math.log2(max(est_s, 1.0)))

    def start(self, running: Mapping[int, Run], now_s: float) -> list[Run]:
        for run in self._running.values():
            if run.job.number not in running:
                self._lengths = self._lengths.with_run(str(run.job.command), run.job.lasts_s)
        self._running = dict(running)
        self._pending.regroup(self._octave)
        policy = self._policy()
        leases = tuple(self._lease(run) for run in running.values())
        begun: list[Run] = []
        while True:
            self._ask(now_s)
            devices = _devices(leases)
            queue = in_order(self._asks.values(), devices, policy, now_s)
            grants = decision.decide(queue, devices, leases, policy, now_s).grants
            granted = next(((kind, ask) for kind, ask in self._asks.items() if ask.job in grants), None)
            if granted is None:
                self._forecast(queue, devices, leases, policy, now_s)
                return begun
            kind, ask = granted
            run = Run(self._jobs[ask.job], tuple(map(_UUIDS.index, grants[ask.job])), now_s)
            self._est_s[run.job.number] = ask.est_s, self._source(run.job)
            self._running[run.job.number] = run
            leases = (*leases, self._lease(run))
            begun.append(run)
            del self._asks[kind]
            self._begun(ask)

    def _begun(self, ask: Request) -> None:
        """The job is no longer pending."""
        self._states[ask.job].status = "running"
        self._pending.take(ask.job)

    def _forecast(
        self, queue: Sequence[Request], devices: tuple[Device, ...], leases: tuple[Lease, ...],
        policy: Policy, now_s: float,
    ) -> None:  # fmt: skip
        """Forecast the starts of some jobs that have got a ticket and wait, as `slicer status` does."""
        if self._how != "runs":
            return
        numbers = {ask.job: self._jobs[ask.job].number for ask in queue}
        new = [job for job, no in numbers.items() if no % FORECAST_EACH == 0 and no not in self.forecasts]
        if not new:
            return
        tickets = [replace(_ticket(ask), est_from=self._source(self._jobs[ask.job])) for ask in queue]
        found = forecast.start_times(tickets, devices, leases, policy, now_s)
        for job in new:
            in_s = found.get(job)
            self.forecasts[numbers[job]] = Forecast(now_s, None if in_s is None else now_s + in_s)

    def _policy(self) -> Policy:
        return Policy(mean_job_s=self._lengths.mean_s)

    def _lease(self, run: Run) -> Lease:
        est_s, est_from = self._est_s.get(run.job.number, (None, ""))
        return replace(_lease(run), est_s=est_s, est_from=est_from)

    def _ask(self, now_s: float) -> None:
        """A ticket for the first job of each kind, in the file's order."""
        heads = self._pending.heads()[:MOST_KINDS]
        known, self._asks = self._asks, {}
        places = self._pending.places
        for kind, entry in heads:
            if kind not in known or known[kind].job != entry.key:
                after = [ask.arrived_s for ask in known.values() if places[ask.job] > places[entry.key]]
                arrived_s = min(after) - 1e-6 if after else now_s
                known[kind] = Request(
                    job=entry.key, priority=0, arrived_s=arrived_s, gpus=kind.gpus or 1, gpu_choice=(),
                    vram_mib=kind.vram_mib, margin_mib=MARGIN_MIB, slots={}, slot_limits={},
                    est_s=self._estimate(self._jobs[entry.key]),
                )  # fmt: skip
            self._asks[kind] = known[kind]


def _ticket(ask: Request) -> Ticket:
    said = {name: getattr(ask, name) for name in Request.__annotations__}
    return replace(_TICKET, **said)


def _lease(run: Run) -> Lease:
    job = run.job
    return replace(
        _LEASE, job=f"{job.number:012x}", gpus=tuple(_UUIDS[place] for place in run.gpus),
        vram_mib=job.vram_mib, vram_peak_mib=(job.vram_mib,) * job.gpus, since_s=run.since_s,
    )  # fmt: skip


def _devices(leases: tuple[Lease, ...]) -> tuple[Device, ...]:
    used: dict[str, dict[str, int]] = {uuid: {} for uuid in _UUIDS}
    for lease in leases:
        for uuid in lease.gpus:
            used[uuid][lease.job] = lease.vram_mib or 0
    return tuple(Device(uuid, TOTAL_MIB, sum(by.values()), by, 0, ()) for uuid, by in used.items())


# -- gpusched ------------------------------------------------------------------------------------------------


class Gpusched:
    """As its scheduler does it: at each poll, all that is pending is tried in the file's order."""

    def __init__(self) -> None:
        """Raises ImportError where it is not installed."""
        if PEERS.is_dir() and str(PEERS) not in sys.path:
            sys.path.append(str(PEERS))
        from gpusched import allocation, backend, jobspec

        self._allocation, self._backend, self._jobspec = allocation, backend, jobspec
        self._pending: list[tuple[Job, Any]] = []

    def looks_at(self, event_s: float) -> float:
        return math.ceil(event_s / POLL_S) * POLL_S

    def add(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            line = f"[vram={job.vram_mib} gpus={job.gpus}] true"
            self._pending.append((job, self._jobspec.parse_line(line, job.number + 1, job.number)))

    def start(self, running: Mapping[int, Run], now_s: float) -> list[Run]:
        used = dict.fromkeys(range(GPUS), 0)
        for run in running.values():
            for gpu in run.gpus:
                used[gpu] += run.job.vram_mib
        snapshot = self._backend.GpuSnapshot(
            gpus={gpu: self._backend.GpuStat(gpu, TOTAL_MIB, mib) for gpu, mib in used.items()}
        )
        occupants = [self._occupant(run, is_new=False) for run in running.values()]
        options = self._allocation.AllocOptions()
        external = dict.fromkeys(range(GPUS), 0)
        begun, blocked = [], []
        for job, spec in self._pending:
            gpus = self._allocation.find_allocation(
                spec, snapshot, occupants, set(range(GPUS)), options, external
            )
            if gpus is None:
                blocked.append((job, spec))
                continue
            begun.append(Run(job, tuple(gpus), now_s))
            occupants.append(self._occupant(begun[-1], is_new=True))
        self._pending = blocked
        return begun

    def _occupant(self, run: Run, *, is_new: bool) -> Any:
        use = {} if is_new else dict.fromkeys(run.gpus, run.job.vram_mib)
        return self._allocation.Occupant(run.gpus, run.job.vram_mib, use, use)


# -- the figures ---------------------------------------------------------------------------------------------


@dataclass
class Found:
    """Hours and minutes of one day by one tool."""

    makespan_h: float
    mean_min: float
    p95_min: float
    longest_min: float
    mean_wide_min: float  # of the jobs that want 4 GPUs or more
    longest_wide_min: float


def figures_of(jobs: list[Job], began: Mapping[int, float]) -> Found:
    waits = [(began[job.number] - job.arrives_s) / 60 for job in jobs]
    wide = [wait for wait, job in zip(waits, jobs, strict=True) if job.gpus >= 4]
    makespan_h = max(began[job.number] + job.lasts_s for job in jobs) / 3600
    p95 = quantiles(waits, n=20)[-1]
    return Found(makespan_h, mean(waits), p95, max(waits), mean(wide), max(wide))


def bound_h(jobs: list[Job]) -> float:
    """Hours that no schedule can beat: what arrives from a moment on must be done after it.

    By memory x time; by GPU x time of the jobs that cannot share a GPU with one another, for they take more
    than half of it; and by each job's own length.
    """
    least = max(job.arrives_s + job.lasts_s for job in jobs)
    memory = alone = 0.0
    for job in reversed(jobs):
        memory += job.gpus * job.lasts_s * job.vram_mib / (GPUS * TOTAL_MIB)
        alone += job.gpus * job.lasts_s / GPUS if job.vram_mib * 2 > TOTAL_MIB else 0.0
        least = max(least, job.arrives_s + max(memory, alone))
    return least / 3600


# For how many minutes a job waited on after the forecast of its start, and by how many it began later.
_Late = tuple[float, float | None]


def _day(name: str, seed: int) -> tuple[float, dict[str, dict[str, float]], list[_Late]]:
    """The bound of one day in hours, the figures of each tool, and how right forecasts were."""
    jobs = day(seed, MIXES[name])
    tools: dict[str, Tool] = {PEER: Gpusched(), **{words: Slicer(how) for how, words in OURS.items()}}
    began = {tool: starts(jobs, made) for tool, made in tools.items()}
    ours = tools[OURS["runs"]]
    assert isinstance(ours, Slicer)
    at = began[OURS["runs"]]
    late = [
        ((at[no] - said.made_s) / 60, None if said.start_s is None else (at[no] - said.start_s) / 60)
        for no, said in ours.forecasts.items()
    ]
    return bound_h(jobs), {tool: vars(figures_of(jobs, each)) for tool, each in began.items()}, late


def measure() -> dict[str, Any]:
    """By mix: the figures of each tool for each of the days, and the bounds; or why there are none."""
    try:
        Gpusched()
    except ImportError as error:
        return {"missing": f"gpusched could not be imported: {error}"}
    found: dict[str, Any] = {}
    with ProcessPoolExecutor() as pool:
        for name, mix in MIXES.items():
            days = list(pool.map(_day, [name] * len(SEEDS), SEEDS))
            found[name] = {
                "load": mix.load,
                "bound_h": [bound for bound, _, _ in days],
                "tools": {tool: [figures[tool] for _, figures, _ in days] for tool in (PEER, *OURS.values())},
                "forecasts": [each for _, _, late in days for each in late],
            }
    return found


# The bars, each to gpusched: mean wait, p95, longest wait of wide jobs, makespan.
_BARS = (1.0, 1.0, 0.75, 1.05)


def tables(found: dict[str, Any]) -> str:
    """The figures as Markdown."""
    title = f"### Jobs that arrive over a day on {GPUS} GPUs of {TOTAL_MIB >> 10} GiB"
    if "missing" in found:
        return f"{title}\n\nNot measured: {found['missing']}."
    return "\n\n".join([title, *(_of_mix(name, at) for name, at in found.items())])


def _of_mix(name: str, found: dict[str, Any]) -> str:
    bound = mean(found["bound_h"])
    means = {
        tool: {what: mean(day[what] for day in days) for what in days[0]}
        for tool, days in found["tools"].items()
    }
    peer = means[PEER]

    def row(tool: str, at: dict[str, float]) -> list[str]:
        waits = [at[f"{what}_min"] for what in ("mean", "p95", "longest", "longest_wide")]
        ratios = [at[what] / peer[what] for what in ("mean_min", "p95_min", "longest_wide_min", "makespan_h")]
        return [tool, *figures(waits, 0), f"{at['makespan_h']:.1f}", *figures(ratios, 2)]

    ours = means[OURS["runs"]]
    ratios = [ours[what] / peer[what] for what in ("mean_min", "p95_min", "longest_wide_min", "makespan_h")]
    missed = [bar for bar, ratio in zip(_BARS, ratios, strict=True) if ratio > bar]
    bars = ", ".join(str(bar) for bar in _BARS)
    return table(
        f"{name.capitalize()}: declared memory x time is {found['load']:.0%} of what the GPUs have in 24 h. "
        f"Means of {len(found['bound_h'])} days; waiting in minutes; no schedule can end before "
        f"{bound:.1f} h.",
        ["", "mean wait", "p95", "longest", "4 GPUs: longest", "makespan h",
         "mean, to gpusched's", "p95", "4 GPUs: longest", "makespan"],
        [row(*each) for each in means.items()],
        [
            f"Bars with lengths by earlier runs, to gpusched: {bars}: {'NOT met' if missed else 'met'}.",
            *_of_forecasts(found["forecasts"]),
        ],
    )  # fmt: skip


def _of_forecasts(found: list[_Late]) -> list[str]:
    """How right the forecasts were."""
    late = [(waited, by) for waited, by in found if by is not None]
    if len(late) < 2:
        return []
    off = [abs(by) for _, by in late]
    more_min, later = mean(each for each, _ in late), sum(by > 0 for _, by in late) / len(late)
    return [
        f"{len(found)} jobs that had to wait asked when they would start, with lengths by earlier runs. "
        f"{len(late) / len(found):.0%} were told, and waited {more_min:.0f} minutes more "
        f"in the mean. Half of the forecasts were right to {median(off):.0f} minutes, nine of ten to "
        f"{quantiles(off, n=10)[-1]:.0f}; {later:.0%} of the jobs began later than forecast."
    ]


if __name__ == "__main__":
    print(tables(measure()))
