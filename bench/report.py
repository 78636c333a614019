"""Figures to tables: medians, spread, and the ratio to the peer."""

from __future__ import annotations

from statistics import median, quantiles
from typing import Any

from bench import broker_tables, burst, packing, queue_tables, serve, slurm
from bench.markdown import bar, figures, launches, p99, table

PEER = "flock L systemd-run --scope"
SLICER = "slicer run --profile heavy"
LAUNCH_BAR = 2.0
MEMORY_BAR_MIB = 12.0
HANDOFF_BAR = 1.0
DEPTH_BAR = 1.5
WAITER_BAR_MIB = 10.0


def tables(found: dict[str, Any]) -> str:
    """All tables as Markdown."""
    machine = found["machine"]
    made = {
        "launch": _launches, "handoff": _handoffs, "memory": _memory, "waiting": _waiting,
        "queue": queue_tables.tables, "burst": burst.tables, "packing": packing.tables,
        "serve": serve.tables, "slurm": slurm.tables, "broker": broker_tables.tables,
    }  # fmt: skip
    parts = [f"{machine['cpus']} CPUs, Linux {machine['kernel']}, Python {machine['python']}"]
    return "\n\n".join([*parts, *(make(found[name]) for name, make in made.items() if name in found)])


def _launches(found: dict[str, Any]) -> str:
    return "\n\n".join(_launch(where, samples) for where, samples in found.items())


def _handoffs(found: dict[str, Any]) -> str:
    beside = [_side_by_side(length, at, found["missing"]) for length, at in found["side by side"].items()]
    return "\n\n".join([*beside, _by_depth(found["by depth"], found["failed"])])


def _launch(where: str, samples: dict[str, list[float]]) -> str:
    ratio = median(samples[SLICER]) / median(samples[PEER])
    return launches(
        f"### Launching `true` {where}",
        samples,
        PEER,
        [
            bar(
                f"`slicer run` at most {LAUNCH_BAR:.1f} times the first row",
                ratio <= LAUNCH_BAR,
                f"{ratio:.2f}",
            )
        ],
    )


def _side_by_side(length: str, samples: dict[str, list[float]], missing: dict[str, str]) -> str:
    base = median(samples[PEER])

    def row(name: str, values: list[float]) -> list[object]:
        if name in missing or len(values) < 2:
            return [name, f"not measured: {missing.get(name, 'no samples')}", "", "", "", ""]
        ms = figures((median(values), quantiles(values, n=10)[0], p99(values)))
        return [name, *ms, f"{median(values) / base:.2f}", len(values)]

    if SLICER in missing:
        met = "Bar: NOT met, as slicer was not measured."
    else:
        ratio = median(samples[SLICER]) / base
        words = f"`slicer run` at most {HANDOFF_BAR:.1f} times the first row"
        met = bar(words, ratio <= HANDOFF_BAR, f"{ratio:.2f}")
    return table(
        f"### Hand-off {length}: a job's end to the next one's first instruction",
        ["", "median ms", "p10", "p99", "ratio", "hand-offs"],
        [row(name, values) for name, values in samples.items()],
        [met],
    )


def _by_depth(samples: dict[str, dict[str, list[float]]], failed: list[str]) -> str:
    """JSON has made strings of the numbers that the inner keys were."""

    def row(name: str, depth: str, values: list[float]) -> list[object]:
        middle = median(values)
        ratios = middle / median(next(iter(samples[name].values()))), middle / median(samples[PEER][depth])
        return [name, depth, *figures((middle, p99(values))), *figures(ratios, 2), len(values)]

    few, *_, many = samples[SLICER]
    if samples[SLICER][many]:
        ratio = median(samples[SLICER][many]) / median(samples[SLICER][few])
        words = f"with {many} waiting at most {DEPTH_BAR:.1f} times that with {few}"
        met = bar(words, ratio <= DEPTH_BAR, f"{ratio:.2f}")
    else:
        met = f"Bar: NOT met, as there is no hand-off with {many} waiting."
    # Without values a row is among the failed ones.
    rows = [row(name, *at) for name, depths in samples.items() for at in depths.items() if at[1]]
    return table(
        "### Hand-off by the number of waiting jobs",
        ["", "waiting", "median ms", "p99", "to 1 waiting", "to flock", "hand-offs"],
        rows,
        [*(f"Failed: {each}." for each in failed), *([""] if failed else []), met],
    )


def _memory(found: dict[str, dict[str, dict[str, int]]]) -> str:
    rows: list[list[object]] = []
    for name, processes in found.items():
        rows += [[name, process, *mib(kib)] for process, kib in processes.items()]
        if not processes:
            rows.append([name, "nothing", 0, 0])
    total = sum(kib["pss"] for kib in found["slicer run"].values()) / 1024
    words = f"both halves of the supervisor at most {MEMORY_BAR_MIB:.0f} MiB PSS"
    return table(
        "### Resident beside a running job",
        ["", "process", "PSS MiB", "private MiB"],
        rows,
        [bar(words, total <= MEMORY_BAR_MIB, f"{total:.1f}")],
        texts=2,
    )


def _waiting(found: dict[str, Any]) -> str:
    seconds, processes = found["seconds"], found["processes"]
    every = [(name, place, at) for name, places in processes.items() for place, at in places.items()]
    largest = max(at["pss"] for _, _, at in every) / 1024
    wakes = max(at["switches"] for _, _, at in every)
    words = f"each at most {WAITER_BAR_MIB:.0f} MiB PSS, also with nobody to share pages with"
    return table(
        "### A process that waits",
        ["", "place", "PSS MiB", "private MiB", f"wake-ups in {seconds} s"],
        [[name, place, *mib(at), at["switches"]] for name, place, at in every],
        [
            bar(words, largest <= WAITER_BAR_MIB, f"{largest:.1f}"),
            bar("nobody wakes up while nothing happens", wakes == 0, str(wakes)),
        ],
        texts=2,
    )


def mib(kib: dict[str, int]) -> list[str]:
    """PSS and private memory in MiB."""
    return figures((kib["pss"] / 1024, kib["private"] / 1024))
