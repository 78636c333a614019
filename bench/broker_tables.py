"""The broker's figures to tables."""

from __future__ import annotations

from statistics import median, quantiles
from typing import Any

from bench.broker import COLD, LAUNCH, MANY, PEER
from bench.markdown import bar, figures, launches, p99, table

LAUNCH_BAR = 1.5
HANDOFF_BAR = 1.0
DECISION_BAR_MS = 20.0
MEMORY_BAR_MIB = 30.0
COLD_BAR_MS = 150.0


def tables(found: dict[str, Any]) -> str:
    """All tables as Markdown."""
    parts = [_launch(where, samples) for where, samples in found["launch"].items()]
    parts += [_handoff(length, samples) for length, samples in found["handoff"].items()]
    return "\n\n".join([*parts, _many(found["many"]), _memory(found), _cold(found["cold"])])


def _launch(where: str, samples: dict[str, list[float]]) -> str:
    ratio = median(samples[LAUNCH]) / median(samples[PEER])
    words = f"`{LAUNCH}` through the broker at most {LAUNCH_BAR:.1f} times the first row"
    bars = [bar(words, ratio <= LAUNCH_BAR, f"{ratio:.2f}")]
    return launches(
        f"### Launching `true` through a warm broker, {where}",
        samples,
        PEER,
        bars if where.startswith("three") else [],
    )


def _handoff(length: str, samples: dict[str, list[float]]) -> str:
    peer, ours, *_ = samples
    base = median(samples[peer])
    ratio = median(samples[ours]) / base
    return table(
        f"### Hand-off between users {length}: a job's end to the next one's first instruction",
        ["", "median ms", "p10", "p99", "ratio", "hand-offs"],
        [
            [
                name, *figures((median(values), quantiles(values, n=10)[0], p99(values))),
                f"{median(values) / base:.2f}", len(values),
            ]
            for name, values in samples.items()
        ],
        [
            bar(
                f"`{LAUNCH}` through the broker at most {HANDOFF_BAR:.1f} times the first row",
                ratio <= HANDOFF_BAR, f"{ratio:.2f}",
            )
        ],
    )  # fmt: skip


def _many(found: dict[str, Any]) -> str:
    rows = {
        "a slot is given back, until the next one hears that it has it": found["served"],
        "one more asks and does not wait, until it hears why not": found["refused"],
    }
    largest = max(median(values) for values in rows.values()) * 1e3
    words = f"a decision takes less than {DECISION_BAR_MS:.0f} ms"
    return table(
        f"### A decision while {MANY} connections of three users wait for one slot",
        ["", "median ms", "p99", "largest", "samples"],
        [
            [name, *figures(value * 1e3 for value in (median(values), p99(values), max(values))), len(values)]
            for name, values in rows.items()
        ],
        [bar(f"{words}, with both ways of the message", largest < DECISION_BAR_MS, f"{largest:.1f}")],
    )


def _memory(found: dict[str, Any]) -> str:
    rows = {f"{MANY} wait": found["many"]["memory"], "nobody waits any more": found["lone"]}
    largest = max(at["pss"] for at in rows.values()) / 1024
    return table(
        "### The broker's memory",
        ["", "PSS MiB", "private MiB", "RSS MiB"],
        [
            [name, *figures(at[kind] / 1024 for kind in ("pss", "private", "rss"))]
            for name, at in rows.items()
        ],
        [bar(f"at most {MEMORY_BAR_MIB:.0f} MiB PSS", largest <= MEMORY_BAR_MIB, f"{largest:.1f}")],
    )


def _cold(found: dict[str, list[float]]) -> str:
    largest = median(found["it has left"]) * 1e3
    return table(
        f"### A call of the broker, from connect to the answer ({COLD} times)",
        ["", "median ms", "p99"],
        [
            [f"when {name}", *figures(value * 1e3 for value in (median(values), p99(values)))]
            for name, values in found.items()
        ],
        [bar(f"at most {COLD_BAR_MS:.0f} ms with its start", largest <= COLD_BAR_MS, f"{largest:.1f}")],
    )
