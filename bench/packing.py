"""How well days of jobs are packed: 1,000 jobs arrive over 24 h on 8 GPUs, in virtual time, no processes.

slicer decides with its own code, as its queue asks the ledger (a ticket for the first job of each kind, see
``slicer.queue.engine.local.arrivals``). It is compared with first-fit, which starts whatever fits, in
the order of arrival. Both act at every event and at once; jobs use what they declare. slicer knows how long
jobs run in several ways (``KNOWN``); first-fit does not ask. Deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from random import Random
from statistics import mean, quantiles
from typing import Any, Protocol

from bench.markdown import figures, table
from slicer.model import Lease, Request
from slicer.placement import decision
from slicer.placement.devices import Device
from slicer.placement.lengths import Lengths, estimate
from slicer.placement.order import in_order
from slicer.placement.settings import Policy
from slicer.queue.model import Attributes, Entry, JobState, Kind
from slicer.queue.start.pending import Pending
from slicer.record import replace

GPUS, JOBS, TOTAL_MIB = 8, 1000, 80 * 1024
DAY_S = 86_400.0
MARGIN_MIB = 512  # slicer's default
MOST_KINDS = 128  # that the queue asks for at a time
SEEDS = range(1, 7)
PEER = "first-fit"
COMMANDS = 40  # different ones; the runs of one vary much less than those of all
_SPREAD = 0.4  # sigma of the lengths of one command's runs
# How slicer knows a job's length, and the words for it.
KNOWN = {
    "runs": "lengths by earlier runs",
    "exact": "exact lengths",
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


@dataclass(frozen=True)
class Run:
    """A job on its GPUs, from 0 to 7."""

    job: Job
    gpus: tuple[int, ...]
    since_s: float


class Tool(Protocol):
    """Decides which jobs start where."""

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
    made = zip(arrivals, lasts, widths, gib, commands, strict=True)
    return [Job(n, at, long * scale_s, w, g * 1024, of) for n, (at, long, w, g, of) in enumerate(made)]


def starts(jobs: list[Job], tool: Tool) -> dict[int, float]:
    """When each job starts, in seconds since the day began."""
    running: dict[int, Run] = {}
    began: dict[int, float] = {}
    coming = jobs[:]
    while coming or running:
        events = [run.since_s + run.job.lasts_s for run in running.values()]
        now_s = min([*events, *(job.arrives_s for job in coming[:1])])
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


class Slicer:
    """As ``slicer.queue`` does it: the first job of each kind has a ticket."""

    def __init__(self, how: str) -> None:
        """``how``: of KNOWN."""
        self._how = how
        self._lengths = Lengths()
        self._jobs: dict[str, Job] = {}
        self._running: dict[int, Run] = {}  # at the last look
        self._est_s: dict[int, float | None] = {}  # by the jobs' numbers
        self._entries: list[Entry] = []
        self._states: dict[str, JobState] = {}
        self._pending = Pending((), self._states)
        self._asks: dict[Kind, Request] = {}

    def add(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            key, said = f"{job.number:012x}", Attributes(Kind(job.vram_mib, job.gpus))
            self._jobs[key] = job
            self._states[key] = JobState(key, job.number, "")
            self._entries.append(Entry(job.number + 1, key, "", said))
        self._pending = Pending(self._entries, self._states, self._octave)

    def _estimate(self, job: Job) -> float | None:
        if self._how == "runs":
            return estimate(self._lengths, str(job.command), None, None)[0]
        return {"exact": job.lasts_s, "short": job.lasts_s / 5}.get(self._how)

    def _octave(self, entry: Entry) -> int | None:
        est_s = self._estimate(self._jobs[entry.key])
        return None if est_s is None else int(math.log2(max(est_s, 1.0)))

    def start(self, running: Mapping[int, Run], now_s: float) -> list[Run]:
        for run in self._running.values():
            if run.job.number not in running:
                self._lengths = self._lengths.with_run(str(run.job.command), run.job.lasts_s)
        self._running = dict(running)
        self._pending.regroup(self._octave)
        policy = Policy(mean_job_s=self._lengths.mean_s)
        leases = tuple(self._lease(run) for run in running.values())
        begun: list[Run] = []
        while True:
            self._ask(now_s)
            devices = _devices(leases)
            queue = in_order(self._asks.values(), devices, policy, now_s)
            grants = decision.decide(queue, devices, leases, policy, now_s).grants
            granted = next(((kind, ask) for kind, ask in self._asks.items() if ask.job in grants), None)
            if granted is None:
                return begun
            kind, ask = granted
            run = Run(self._jobs[ask.job], tuple(map(_UUIDS.index, grants[ask.job])), now_s)
            self._est_s[run.job.number] = ask.est_s
            self._running[run.job.number] = run
            leases = (*leases, self._lease(run))
            begun.append(run)
            del self._asks[kind]
            self._states[ask.job].status = "running"
            self._pending.take(ask.job)

    def _lease(self, run: Run) -> Lease:
        return replace(_lease(run), est_s=self._est_s.get(run.job.number))

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


class FirstFit:
    """At each event, all that wait are tried in the order of arrival, on the GPUs with the least room."""

    def __init__(self) -> None:
        self._pending: list[Job] = []

    def add(self, jobs: Iterable[Job]) -> None:
        self._pending += jobs

    def start(self, running: Mapping[int, Run], now_s: float) -> list[Run]:
        left = dict.fromkeys(range(GPUS), TOTAL_MIB - MARGIN_MIB)
        for run in running.values():
            for gpu in run.gpus:
                left[gpu] -= run.job.vram_mib
        begun, blocked = [], []
        for job in self._pending:
            able = sorted((gpu for gpu in left if left[gpu] >= job.vram_mib), key=left.__getitem__)
            if len(able) < job.gpus:
                blocked.append(job)
                continue
            begun.append(Run(job, tuple(able[: job.gpus]), now_s))
            for gpu in begun[-1].gpus:
                left[gpu] -= job.vram_mib
        self._pending = blocked
        return begun


# -- the figures ---------------------------------------------------------------------------------------------


@dataclass
class Found:
    """Hours and minutes of one day by one tool."""

    makespan_h: float
    mean_min: float
    p95_min: float
    longest_min: float
    longest_wide_min: float  # of the jobs that want 4 GPUs or more


def figures_of(jobs: list[Job], began: Mapping[int, float]) -> Found:
    waits = [(began[job.number] - job.arrives_s) / 60 for job in jobs]
    wide = [wait for wait, job in zip(waits, jobs, strict=True) if job.gpus >= 4]
    makespan_h = max(began[job.number] + job.lasts_s for job in jobs) / 3600
    p95 = quantiles(waits, n=20)[-1]
    return Found(makespan_h, mean(waits), p95, max(waits), max(wide))


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


def _day(name: str, seed: int) -> tuple[float, dict[str, dict[str, float]]]:
    """The bound of one day in hours, and the figures of each tool."""
    jobs = day(seed, MIXES[name])
    tools: dict[str, Tool] = {PEER: FirstFit(), **{words: Slicer(how) for how, words in OURS.items()}}
    return bound_h(jobs), {tool: vars(figures_of(jobs, starts(jobs, made))) for tool, made in tools.items()}


def measure() -> dict[str, Any]:
    """By mix: the figures of each tool for each of the days, and the bounds."""
    found: dict[str, Any] = {}
    with ProcessPoolExecutor() as pool:
        for name, mix in MIXES.items():
            days = list(pool.map(_day, [name] * len(SEEDS), SEEDS))
            found[name] = {
                "load": mix.load,
                "bound_h": [bound for bound, _ in days],
                "tools": {tool: [figures[tool] for _, figures in days] for tool in (PEER, *OURS.values())},
            }
    return found


# The bars, each to first-fit's: mean wait, p95, longest wait of wide jobs, makespan.
_BARS = (1.0, 1.0, 0.75, 1.05)


def tables(found: dict[str, Any]) -> str:
    """The figures as Markdown."""
    title = f"### Jobs that arrive over a day on {GPUS} GPUs of {TOTAL_MIB >> 10} GiB"
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
         "mean, to first-fit's", "p95", "4 GPUs: longest", "makespan"],
        [row(*each) for each in means.items()],
        [f"Bars with lengths by earlier runs, to first-fit: {bars}: {'NOT met' if missed else 'met'}."],
    )  # fmt: skip


if __name__ == "__main__":
    print(tables(measure()))
