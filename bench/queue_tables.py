"""The figures of ``slicer queue`` as tables, and whether its bars are met."""

from __future__ import annotations

from statistics import median
from typing import Any

from bench import queue
from bench.markdown import bar, figures, p99, table

SCOPES_BAR = 1.0
APPEND_BAR_MS = 50.0
KEEPER_BAR_MIB = 4.0
START_BAR_S, RSS_BAR_MIB, EVENT_BAR_MS = 3.0, 300.0, 50.0


def tables(found: dict[str, Any]) -> str:
    """All tables of the queue as Markdown."""
    many = dict(found["many"])
    long_append = many.pop("append")
    appends = {**found["append"], f"plain, beside {queue.LINES:,} lines that wait": long_append}
    parts = [_scopes(found["scopes"]), _plain(found["plain"]), _append(appends)]
    if "memory" in found:
        parts.append(_memory(found["memory"]))
    return "\n\n".join([*parts, _many(many)])


def _scopes(samples: dict[str, list[float]]) -> str:
    jobs = queue.SCOPE_JOBS
    base = jobs / median(samples[queue.XARGS])

    def row(name: str, values: list[float]) -> list[str]:
        shown = f"`{name}`".replace("`xargs", f"`seq {jobs} \\| xargs")
        rates = [jobs / value for value in (median(values), max(values), min(values))]
        return [shown, *figures(rates, 0), f"{rates[0] / base:.2f}"]

    ratio = jobs / median(samples[queue.SLICER_SCOPES]) / base
    words = f"slicer at least {SCOPES_BAR:.1f} times the first row"
    return table(
        f"### {jobs} jobs that do nothing, each in a scope of its own",
        ["", "jobs/s, median", "lowest", "highest", "ratio"],
        [row(name, values) for name, values in samples.items()],
        [bar(words, ratio >= SCOPES_BAR, f"{ratio:.2f}")],
    )


def _plain(samples: dict[str, list[float]]) -> str:
    return table(
        f"### {queue.PLAIN_JOBS} jobs that do nothing, without scopes, 4 simulated GPUs or slots",
        ["", "jobs/s, median", "seconds", "rounds"],
        [
            [name, f"{queue.PLAIN_JOBS / median(values):.1f}", f"{median(values):.2f}", len(values)]
            for name, values in samples.items()
        ],
    )


def _append(samples: dict[str, list[float]]) -> str:
    middle = {name: median(values) for name, values in samples.items()}
    return table(
        "### From an appended line to its command's first instruction",
        ["", "p50 ms", "p99 ms", "times"],
        [[name, *figures((middle[name], p99(at))), len(at)] for name, at in samples.items()],
        [
            bar(f"p50 under {APPEND_BAR_MS:.0f} ms, {name}", p50 < APPEND_BAR_MS, f"{p50:.1f}")
            for name, p50 in middle.items()
        ],
    )


def _memory(found: dict[str, dict[str, list[dict[str, int]]]]) -> str:
    def row(jobs: str, processes: dict[str, list[dict[str, int]]]) -> list[str]:
        keepers, supervisors, (ours,) = processes["keeper"], processes["supervisor"], processes["queue"]
        private = [each["private"] for each in keepers]
        kib = [median(private), max(private), median(each["pss"] for each in keepers)]
        kib += [median(each[what] for each in supervisors) for what in ("private", "pss")]
        kib += [ours["private"], ours["pss"]]
        return [jobs, *figures(each / 1024 for each in kib)]

    largest = max(each["private"] for at in found.values() for each in at["keeper"]) / 1024
    words = f"each keeper at most {KEEPER_BAR_MIB:.0f} MiB private"
    return table(
        "### What a running job of a queue costs, while others start and end beside it",
        [
            "jobs", "its keeper: private MiB, median", "largest", "PSS, median",
            "its supervisor: private MiB", "PSS", "the queue: private MiB", "PSS",
        ],
        [row(jobs, processes) for jobs, processes in found.items()],
        [bar(words, largest <= KEEPER_BAR_MIB, f"{largest:.1f}")],
        texts=0,
    )  # fmt: skip


def _many(found: dict[str, dict[str, Any]]) -> str:
    def row(name: str, at: dict[str, Any]) -> list[str]:
        mib, gaps = (at["rss_kib"] / 1024, at["peak_kib"] / 1024), at["gaps_ms"]
        ms = figures((median(gaps), p99(gaps), max(gaps)))
        return [name, f"{at['start_s']:.2f}", *figures(mib, 0), *ms]

    long = [at for name, at in found.items() if name != queue.FEW_LINES]
    start = max(at["start_s"] for at in long)
    rss = max(at["peak_kib"] for at in long) / 1024
    event = max(p99(at["gaps_ms"]) for at in long)
    return table(
        f"### {queue.LINES:,} lines that wait, one job at a time",
        ["", "s to the first start", "RSS MiB", "its peak", "end to next start: p50 ms", "p99", "worst"],
        [row(name, at) for name, at in found.items()],
        [
            bar(f"the first start within {START_BAR_S:.0f} s", start < START_BAR_S, f"{start:.2f}"),
            bar(f"under {RSS_BAR_MIB:.0f} MiB, at its peak", rss < RSS_BAR_MIB, f"{rss:.0f}"),
            bar(
                f"an event handled in under {EVENT_BAR_MS:.0f} ms, p99", event < EVENT_BAR_MS, f"{event:.1f}"
            ),
        ],
    )
