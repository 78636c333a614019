"""A report as a page: one file with everything in it, whose text and tables need no script."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from bokeh.embed import json_item
from bokeh.resources import Resources

from slicer.quantity import format_duration, format_mib
from slicer.report import plots
from slicer.report.figures import WAITS
from slicer.report.model import Report, Waiting
from slicer.report.words import hours, summary

_MOST_ROWS = 40  # of a table
_SELECTS = (("user", "user"), ("profile", "profile"), ("ending", "ended"))


class Html(str):
    """Text that is HTML already."""


def made(report: Report, title: str) -> str:
    """The page. ``title`` says whose jobs they are."""
    key = "user" if len({job.user for job in report.jobs}) > 1 else "profile"
    names = Counter(getattr(job, key) for job in report.jobs if job.gpus).most_common(len(plots.COLOURS))
    colours = dict(zip((name for name, _ in names), plots.COLOURS, strict=False))
    data = json.dumps(json_item(plots.layout(report, colours, key))).replace("<", "\\u003c")
    scripts = [*Resources(mode="inline", components=["bokeh"]).js_raw, _read("page.js")]
    lines = Html("".join(_element("li", line) for line in summary(report)))
    body: list[str] = [
        _element("h1", title), _element("p", _period(report), "period"), _element("ul", lines, "summary"),
    ]  # fmt: skip
    if report.jobs:
        body += [_over_time(colours, key), _memory(report), _waiting(report), _endings(report)]
        body.append(f'<script type="application/json" id="data">{data}</script>\n')
        body += [f"<script>{script}</script>\n" for script in scripts]
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{_policy(scripts)}\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"{_element('title', title)}\n<style>\n{_read('page.css')}</style>\n</head>\n"
        f"<body>\n<main>\n{''.join(body)}</main>\n</body>\n</html>\n"
    )


def _read(name: str) -> str:
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        return file.read()


def _policy(scripts: Iterable[str]) -> str:
    """What the browser lets the page do: nothing over the network, and no script but these."""
    sums = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{each}'" for each in sums)
    return (
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data: blob:; "
        f"style-src 'unsafe-inline'; script-src {allowed}\">"
    )


def _element(tag: str, text: str, kind: str = "", **attributes: str) -> Html:
    """An element. Its text is escaped unless it is HTML already."""
    attributes = {**({"class": kind} if kind else {}), **attributes}
    said = "".join(f' {name}="{html.escape(value)}"' for name, value in attributes.items())
    return Html(f"<{tag}{said}>{text if isinstance(text, Html) else html.escape(text)}</{tag}>")


def _period(report: Report) -> str:
    began, ended = (
        time.strftime("%a %d %b %Y %H:%M", time.localtime(at))
        for at in (report.period.began, report.period.ended)
    )
    return f"{began} to {ended} ({time.strftime('%Z, UTC%z', time.localtime(report.period.ended))})"


def _over_time(colours: dict[str, str], key: str) -> str:
    """The plots' place, with the filter and the colours' meaning."""
    inputs = ['name or id <input name="word" type="search" autocomplete="off">']
    inputs += [f'{label} <select name="{name}"><option value="">all</select>' for name, label in _SELECTS]
    fields = "".join(_element("label", Html(each)) for each in inputs)
    fields += '<button type="reset">show all</button> <output id="count"></output>'
    others = [("others", plots.REST)] if len(colours) == len(plots.COLOURS) else []
    legend = "".join(
        _element("li", Html(_element("i", "", style=f"background: {colour}") + html.escape(name or "-")))
        for name, colour in [*colours.items(), *others]
    )
    note = (
        "Faint is what jobs held, strong what they used (of a job, the peak of its GPU memory). Red edges "
        "mark failures. Drag to move, Ctrl and the wheel to zoom; more tools appear beside a plot."
    )
    return _section("Over time", [
        _element("p", note, "note"), f'<form id="filter" aria-label="Filter the timeline">{fields}</form>',
        f'<ul class="legend" aria-label="Colours by {key}">{legend}</ul>',
        '<figure id="plots" role="img" aria-label="Timeline of the GPUs; the tables below have the figures" '
        'style="margin: .5rem 0"></figure><noscript>The plots need JavaScript.</noscript>',
    ])  # fmt: skip


def _section(title: str, parts: Iterable[str]) -> str:
    return f"<section>{_element('h2', title)}{''.join(parts)}</section>\n"


def _memory(report: Report) -> str:
    if not report.memory:
        return ""  # no job that ended used a GPU
    most = max(use.declared_mib for use in report.memory)
    rows = [
        [
            use.name, use.profile, f"{use.jobs:,}", hours(use.gpu_s),
            "whole GPU" if use.is_whole else format_mib(use.declared_mib), format_mib(round(use.typical_mib)),
            format_mib(use.peak_mib), format_mib(use.enough_mib), f"{use.saving_gib_h:,.1f}",
            _bar(use.declared_mib / most, use.peak_mib / use.declared_mib),
        ]
        for use in report.memory
    ]  # fmt: skip
    heads = "name|profile|jobs>|GPU-hours>|held>|typical peak>|highest peak>|enough>|saving GiB-h>|"
    note = (
        "Enough is the highest peak and a tenth, in steps of 512 MiB: declare it with --vram. Saving is the "
        "memory that others could have had meanwhile."
    )
    return _section("GPU memory: held and needed", [_element("p", note, "note"), _table(heads, rows)])


def _waiting(report: Report) -> str:
    heads = "|jobs>|half within>|9 of 10 within>|longest>|" + "|".join(f"{word}>" for _, word in WAITS)
    tables = [
        _table(what + heads, map(_waiting_row, found))
        for what, found in (("profile", report.by_profile), ("user", report.by_user))
    ]
    note = "The right half counts the jobs by how long they waited for what they hold."
    return _section("Waiting", [_element("p", note, "note"), *tables])


def _waiting_row(each: Waiting) -> list[str]:
    times = [format_duration(value) for value in (each.median_s, each.p90_s, each.longest_s)]
    shares = [
        _element("td", f"{count:,}" if count else "", "n share", style=f"--part: {count / each.jobs:.3f}")
        for count in each.counts
    ]
    return [each.of, f"{each.jobs:,}", *times, *shares]


def _endings(report: Report) -> str:
    most = report.endings[0].jobs
    failed = {job.ending for job in report.jobs if job.has_failed}
    rows = [
        [
            each.ending, f"{each.jobs:,}", f"{each.jobs / len(report.jobs):.1%}", hours(each.gpu_s),
            _bar(each.jobs / most, 1.0, "bar bad" if each.ending in failed else "bar"),
        ]
        for each in report.endings
    ]  # fmt: skip
    note = _element("p", "Each job's GPU-hours count, also of jobs that shared a GPU.", "note")
    return _section("How jobs ended", [note, _table("ended|jobs>|share>|GPU-hours>|", rows)])


def _bar(held: float, used: float, kind: str = "bar") -> Html:
    parts = f"--held-part: {held:.1%}; --used-part: {used:.1%}"
    return _element("td", _element("i", "", style=parts), kind)


def _table(heads: str, rows: Iterable[Sequence[str]]) -> str:
    """A table. A head that ends in > is of numbers. Cells that are HTML are whole elements."""
    titles = heads.split("|")
    kinds = ["n" if title.endswith(">") else "" for title in titles]
    head = "".join(
        _element("th", title.removesuffix(">"), kind, scope="col")
        for title, kind in zip(titles, kinds, strict=True)
    )
    every = list(rows)
    lines = []
    for row in every[:_MOST_ROWS]:
        texts = [
            cell if isinstance(cell, Html) else _element("td", cell or "-", kind)
            for cell, kind in zip(row, kinds, strict=True)
        ]
        lines.append(f"<tr>{''.join(texts)}</tr>\n")
    more = len(every) - len(lines)
    cut = _element("caption", f"the first {len(lines)} of {len(every):,}") if more else ""
    table = f"<table>{cut}<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    # It scrolls on a phone, by keys, too.
    return f'<div class="scroll" tabindex="0" role="region" aria-label="by {titles[0]}">{table}</div>\n'
