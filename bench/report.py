"""Figures to tables: medians, spread, and the ratio to the peer."""

from __future__ import annotations

from statistics import median, quantiles
from typing import Any

PEER = "flock L systemd-run --scope"
SLICER = "slicer run --profile heavy"
LAUNCH_BAR = 2.0
MEMORY_BAR_MIB = 12.0
HANDOFF_BAR = 1.0
DEPTH_BAR = 1.5
WAITER_BAR_MIB = 10.0


def tables(figures: dict[str, Any]) -> str:
    """All tables as Markdown."""
    machine = figures["machine"]
    parts = [f"{machine['cpus']} CPUs, Linux {machine['kernel']}, Python {machine['python']}"]
    if "launch" in figures:
        parts += [_launch(where, samples) for where, samples in figures["launch"].items()]
    if "handoff" in figures:
        found = figures["handoff"]
        parts += [_side_by_side(length, at, found["missing"]) for length, at in found["side by side"].items()]
        parts.append(_by_depth(found["by depth"], found["failed"]))
    if "memory" in figures:
        parts.append(_memory(figures["memory"]))
    if "waiting" in figures:
        parts.append(_waiting(figures["waiting"]))
    if "decision" in figures:
        from bench import decision  # it imports slicer

        parts.append(decision.table(figures["decision"]))
    if "queue" in figures:
        from bench import queue_tables  # it takes from us

        parts.append(queue_tables.tables(figures["queue"]))
    if "packing" in figures:
        from bench import packing  # as decision

        parts.append(packing.table(figures["packing"]))
    return "\n\n".join(parts)


def _launch(where: str, samples: dict[str, list[float]]) -> str:
    base = median(samples[PEER])
    rows = [
        f"### Launching `true` {where}",
        "",
        "| | median ms | p10 | p90 | ratio |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, values in samples.items():
        deciles = quantiles(values, n=10)
        ms = [f"{value * 1e3:.1f}" for value in (median(values), deciles[0], deciles[-1])]
        rows.append(f"| {name} | {' | '.join(ms)} | {median(values) / base:.2f} |")
    ratio = median(samples[SLICER]) / base
    met = verdict(ratio <= LAUNCH_BAR)
    rows.append(f"\nBar: `slicer run` at most {LAUNCH_BAR:.1f} times the first row: {met} ({ratio:.2f}).")
    return "\n".join(rows)


def _side_by_side(length: str, samples: dict[str, list[float]], missing: dict[str, str]) -> str:
    base = median(samples[PEER])
    rows = [
        f"### Hand-off {length}: a job's end to the next one's first instruction",
        "",
        "| | median ms | p10 | p99 | ratio | hand-offs |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, values in samples.items():
        if name in missing or len(values) < 2:
            rows.append(f"| {name} | not measured: {missing.get(name, 'no samples')} | | | | |")
            continue
        low = quantiles(values, n=10)[0]
        cells = [f"{value:.1f}" for value in (median(values), low, p99(values))]
        rows.append(f"| {name} | {' | '.join(cells)} | {median(values) / base:.2f} | {len(values)} |")
    if SLICER in missing:
        rows.append("\nBar: NOT met, as slicer was not measured.")
    else:
        ratio = median(samples[SLICER]) / base
        met = verdict(ratio <= HANDOFF_BAR)
        rows.append(
            f"\nBar: `slicer run` at most {HANDOFF_BAR:.1f} times the first row: {met} ({ratio:.2f})."
        )
    return "\n".join(rows)


def _by_depth(samples: dict[str, dict[str, list[float]]], failed: list[str]) -> str:
    """JSON has made strings of the numbers that the inner keys were."""
    rows = [
        "### Hand-off by the number of waiting jobs",
        "",
        "| | waiting | median ms | p99 | to 1 waiting | to flock | hand-offs |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, depths in samples.items():
        alone = median(next(iter(depths.values())))
        for depth, values in depths.items():
            if not values:
                continue  # it is among the failed ones
            middle = median(values)
            ratios = f"{middle / alone:.2f} | {middle / median(samples[PEER][depth]):.2f}"
            rows.append(f"| {name} | {depth} | {middle:.1f} | {p99(values):.1f} | {ratios} | {len(values)} |")
    few, *_, many = samples[SLICER]
    rows += ["", *(f"Failed: {each}." for each in failed)] if failed else []
    if not samples[SLICER][many]:
        return "\n".join([*rows, f"\nBar: NOT met, as there is no hand-off with {many} waiting."])
    ratio = median(samples[SLICER][many]) / median(samples[SLICER][few])
    rows.append(
        f"\nBar: with {many} waiting at most {DEPTH_BAR:.1f} times that with {few}: "
        f"{verdict(ratio <= DEPTH_BAR)} ({ratio:.2f})."
    )
    return "\n".join(rows)


def p99(values: list[float]) -> float:
    """The 99th percentile; of fewer than 100 values the largest."""
    return max(values) if len(values) < 100 else quantiles(values, n=100, method="inclusive")[-1]


def _memory(found: dict[str, dict[str, dict[str, int]]]) -> str:
    rows = [
        "### Resident beside a running job",
        "",
        "| | process | PSS MiB | private MiB |",
        "|---|---|--:|--:|",
    ]
    for name, processes in found.items():
        for process, kib in processes.items():
            rows.append(f"| {name} | {process} | {kib['pss'] / 1024:.1f} | {kib['private'] / 1024:.1f} |")
        if not processes:
            rows.append(f"| {name} | nothing | 0 | 0 |")
    total = sum(kib["pss"] for kib in found["slicer run"].values()) / 1024
    met = verdict(total <= MEMORY_BAR_MIB)
    rows.append(
        f"\nBar: both halves of the supervisor at most {MEMORY_BAR_MIB:.0f} MiB PSS: {met} ({total:.1f})."
    )
    return "\n".join(rows)


def _waiting(found: dict[str, Any]) -> str:
    seconds, processes = found["seconds"], found["processes"]
    rows = [
        "### A process that waits",
        "",
        f"| | place | PSS MiB | private MiB | wake-ups in {seconds} s |",
        "|---|---|--:|--:|--:|",
    ]
    for queue, places in processes.items():
        for place, at in places.items():
            kib = f"{at['pss'] / 1024:.1f} | {at['private'] / 1024:.1f}"
            rows.append(f"| {queue} | {place} | {kib} | {at['switches']} |")
    every = [at for places in processes.values() for at in places.values()]
    largest = max(at["pss"] for at in every) / 1024
    wakes = max(at["switches"] for at in every)
    rows.append(
        f"\nBar: each at most {WAITER_BAR_MIB:.0f} MiB PSS, also with nobody to share pages with: "
        f"{verdict(largest <= WAITER_BAR_MIB)} ({largest:.1f})."
    )
    rows.append(f"Bar: nobody wakes up while nothing happens: {verdict(wakes == 0)} ({wakes}).")
    return "\n".join(rows)


def verdict(met: bool) -> str:
    """The word for a bar."""
    return "met" if met else "NOT met"
