"""The figures of ``slicer queue`` as tables, and whether its bars are met."""

from __future__ import annotations

from statistics import median
from typing import Any

from bench import queue
from bench.report import p99, verdict

SCOPES_BAR = 1.0
SLOW_BAR = 50.0
APPEND_BAR_MS = 50.0
KEEPER_BAR_MIB = 4.0
START_BAR_S, RSS_BAR_MIB, EVENT_BAR_MS = 3.0, 300.0, 50.0


def tables(figures: dict[str, Any]) -> str:
    """All tables of the queue as Markdown."""
    many = dict(figures["many"])
    long_append = many.pop("append")
    appends = {**figures["append"], f"plain, beside {queue.LINES:,} lines that wait": long_append}
    parts = [_scopes(figures["scopes"]), _plain(**figures["plain"]), _append(appends)]
    if "memory" in figures:
        parts.append(_memory(figures["memory"]))
    return "\n\n".join([*parts, _many(many)])


def _scopes(samples: dict[str, list[float]]) -> str:
    jobs = queue.SCOPE_JOBS
    base = jobs / median(samples[queue.XARGS])
    rows = [
        f"### {jobs} jobs that do nothing, each in a scope of its own",
        "",
        "| | jobs/s, median | lowest | highest | ratio |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, values in samples.items():
        rates = [jobs / value for value in (median(values), max(values), min(values))]
        rows.append(
            f"| `{name}` | {' | '.join(f'{rate:.0f}' for rate in rates)} | {rates[0] / base:.2f} |".replace(
                "`xargs", f"`seq {jobs} \\| xargs"
            )
        )
    ratio = jobs / median(samples[queue.SLICER_SCOPES]) / base
    met = verdict(ratio >= SCOPES_BAR)
    rows.append(f"\nBar: slicer at least {SCOPES_BAR:.1f} times the first row: {met} ({ratio:.2f}).")
    return "\n".join(rows)


def _plain(samples: dict[str, list[float]], missing: dict[str, str]) -> str:
    few = (queue.SLICER_FEW, queue.SLOW_PEER)
    rate = {
        name: (queue.FEW_JOBS if name in few else queue.PLAIN_JOBS) / median(values)
        for name, values in samples.items()
        if values
    }
    rows = [
        f"### {queue.PLAIN_JOBS} jobs that do nothing, without scopes, 4 GPUs or slots",
        "",
        "| | jobs/s, median | seconds | slicer is ahead by | rounds |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, values in samples.items():
        if name not in rate:
            rows.append(f"| {name} | not measured: {missing.get(name, 'no samples')} | | | |")
            continue
        ours = queue.SLICER_FEW if name in few else queue.SLICER_PLAIN
        ahead = f"{rate[ours] / rate[name]:.2f}" if ours in rate and ours != name else ""
        rows.append(f"| {name} | {rate[name]:.1f} | {median(values):.2f} | {ahead} | {len(values)} |")
    bars = [
        (queue.SLICER_PLAIN, queue.FAST_PEER, 1.0, "ahead of"),
        (queue.SLICER_PLAIN, queue.GQ, 1.0, "ahead of"),
        (queue.SLICER_FEW, queue.SLOW_PEER, SLOW_BAR, f"at least {SLOW_BAR:.0f} times"),
    ]
    rows.append("")
    for ours, peer, least, words in bars:
        if ours not in rate or peer not in rate:
            rows.append(f"Bar: {words} {peer}: NOT met, as there are no figures.")
            continue
        ratio = rate[ours] / rate[peer]
        met = verdict(ratio > least if least == 1.0 else ratio >= least)
        rows.append(f"Bar: {words} {peer}: {met} ({ratio:.2f}).")
    return "\n".join(rows)


def _append(samples: dict[str, list[float]]) -> str:
    rows = [
        "### From an appended line to its command's first instruction",
        "",
        "| | p50 ms | p99 ms | times |",
        "|---|--:|--:|--:|",
    ]
    for name, values in samples.items():
        rows.append(f"| {name} | {median(values):.1f} | {p99(values):.1f} | {len(values)} |")
    rows.append("")
    for name, values in samples.items():
        met = verdict(median(values) < APPEND_BAR_MS)
        rows.append(f"Bar: p50 under {APPEND_BAR_MS:.0f} ms, {name}: {met} ({median(values):.1f}).")
    return "\n".join(rows)


def _memory(found: dict[str, dict[str, list[dict[str, int]]]]) -> str:
    rows = [
        "### What a running job of a queue costs, while others start and end beside it",
        "",
        "| jobs | its keeper: private MiB, median | largest | PSS, median | the queue: private MiB | PSS |"
        " its starters together: private MiB | PSS |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    largest = 0.0
    for jobs, processes in found.items():
        keepers, (ours,) = processes["keeper"], processes["queue"]
        private = [each["private"] / 1024 for each in keepers]
        largest = max(largest, *private)
        kib = [median(each["pss"] for each in keepers), ours["private"], ours["pss"]]
        kib += [sum(each[what] for each in processes["starter"]) for what in ("private", "pss")]
        mib = " | ".join(f"{each / 1024:.1f}" for each in kib)
        rows.append(f"| {jobs} | {median(private):.1f} | {max(private):.1f} | {mib} |")
    met = verdict(largest <= KEEPER_BAR_MIB)
    rows.append(f"\nBar: each keeper at most {KEEPER_BAR_MIB:.0f} MiB private: {met} ({largest:.1f}).")
    return "\n".join(rows)


def _many(found: dict[str, dict[str, Any]]) -> str:
    rows = [
        f"### {queue.LINES:,} lines that wait, one job at a time",
        "",
        "| | s to the first start | RSS MiB | its peak | end to next start: p50 ms | p99 | worst |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, at in found.items():
        mib = f"{at['rss_kib'] / 1024:.0f} | {at['peak_kib'] / 1024:.0f}"
        gaps = at["gaps_ms"]
        ms = f"{median(gaps):.1f} | {p99(gaps):.1f} | {max(gaps):.1f}"
        rows.append(f"| {name} | {at['start_s']:.2f} | {mib} | {ms} |")
    long = [at for name, at in found.items() if name != queue.FEW_LINES]
    start = max(at["start_s"] for at in long)
    rss = max(at["peak_kib"] for at in long) / 1024
    event = max(p99(at["gaps_ms"]) for at in long)
    rows += [
        f"\nBar: the first start within {START_BAR_S:.0f} s: {verdict(start < START_BAR_S)} ({start:.2f}).",
        f"Bar: under {RSS_BAR_MIB:.0f} MiB, at its peak: {verdict(rss < RSS_BAR_MIB)} ({rss:.0f}).",
        f"Bar: an event handled in under {EVENT_BAR_MS:.0f} ms, p99: "
        f"{verdict(event < EVENT_BAR_MS)} ({event:.1f}).",
    ]
    return "\n".join(rows)
