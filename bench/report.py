"""Figures to tables: medians, spread, and the ratio to the peer."""

from __future__ import annotations

from statistics import median, quantiles
from typing import Any

PEER = "flock L systemd-run --scope"
LAUNCH_BAR = 2.0
MEMORY_BAR_MIB = 12.0


def tables(figures: dict[str, Any]) -> str:
    """All tables as Markdown."""
    machine = figures["machine"]
    parts = [f"{machine['cpus']} CPUs, Linux {machine['kernel']}, Python {machine['python']}"]
    if "launch" in figures:
        parts += [_launch(where, samples) for where, samples in figures["launch"].items()]
    if "memory" in figures:
        parts.append(_memory(figures["memory"]))
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
    ratio = median(samples["slicer run --profile heavy"]) / base
    verdict = _verdict(ratio <= LAUNCH_BAR)
    rows.append(f"\nBar: `slicer run` at most {LAUNCH_BAR:.1f} times the first row: {verdict} ({ratio:.2f}).")
    return "\n".join(rows)


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
    verdict = _verdict(total <= MEMORY_BAR_MIB)
    rows.append(
        f"\nBar: both halves of the supervisor at most {MEMORY_BAR_MIB:.0f} MiB PSS: {verdict} ({total:.1f})."
    )
    return "\n".join(rows)


def _verdict(met: bool) -> str:
    return "met" if met else "NOT met"
