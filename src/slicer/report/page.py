"""A report as a page: one file with everything in it, which needs no script."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from slicer.quantity import format_duration, format_mib
from slicer.report import plots
from slicer.report.figures import WAITS
from slicer.report.markup import Html, element
from slicer.report.parts import Report, WaitTimes
from slicer.report.summary import hours, summary

_MOST_ROWS = 40  # of a table
# The browser lets the page do nothing over the network, and lets no script run.
_HEAD = """\
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
"""


def made(report: Report, title: str) -> str:
    """The page. ``title`` says whose jobs they are."""
    with open(os.path.join(os.path.dirname(__file__), "page.css"), encoding="utf-8") as file:
        style = Html(file.read())
    body = [
        element("h1", title), element("p", _period(report), class_="period"),
        element("ul", *(element("li", line) for line in summary(report)), class_="summary"),
    ]  # fmt: skip
    if report.jobs:
        memory = [_memory(report)] if report.memory else []  # some job that ended used a GPU
        body += [_plots(report), *memory, _waiting(report), _endings(report)]
    head = element("head", Html(_HEAD), element("title", title), element("style", style))
    return f"<!DOCTYPE html>\n{element('html', head, element('body', *body), lang='en')}\n"


def _period(report: Report) -> str:
    began, ended = (
        time.strftime("%a %d %b %Y %H:%M", time.localtime(at))
        for at in (report.period.began, report.period.ended)
    )
    return f"{began} to {ended} ({time.strftime('%Z, UTC%z', time.localtime(report.period.ended))})"


def _plots(report: Report) -> Html:
    key = "user" if len({job.user for job in report.jobs}) > 1 else "profile"
    names = Counter(getattr(job, key) for job in report.jobs if job.gpus).most_common(len(plots.COLOURS))
    colours = dict(zip((name for name, _ in names), plots.COLOURS, strict=False))
    others = {"others": plots.REST} if len(colours) == len(plots.COLOURS) else {}
    legend = (
        element("li", element("i", style=f"background: {colour}"), name or "-")
        for name, colour in (colours | others).items()
    )
    note = (
        "Faint is what jobs held, strong what they used (of a job, the peak of its GPU memory). Red edges "
        "mark failures. A bar's text appears under the mouse; the tables below have the sums."
    )
    return _section(
        "Over time", note, element("ul", *legend, class_="legend", aria_label=f"Colours by {key}"),
        element("figure", plots.drawn(report, colours, key), aria_hidden="true"),
    )  # fmt: skip


def _section(title: str, note: str, *parts: Html) -> Html:
    return element("section", element("h2", title), element("p", note, class_="note"), *parts)


def _memory(report: Report) -> Html:
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
    return _section("GPU memory: held and needed", note, _table(heads, rows))


def _waiting(report: Report) -> Html:
    heads = "|jobs>|half within>|9 of 10 within>|longest>|" + "|".join(f"{word}>" for _, word in WAITS)
    tables = (
        _table(what + heads, map(_waiting_row, found))
        for what, found in (("profile", report.by_profile), ("user", report.by_user))
    )
    note = "The right half counts the jobs by how long they waited for what they hold."
    return _section("Waiting", note, *tables)


def _waiting_row(each: WaitTimes) -> list[str]:
    times = [format_duration(value) for value in (each.median_s, each.p90_s, each.longest_s)]
    parts = ((f"{count:,}" if count else "", f"--part: {count / each.jobs:.3f}") for count in each.counts)
    shares = (element("td", text, class_="n share", style=style) for text, style in parts)
    return [each.of, f"{each.jobs:,}", *times, *shares]


def _endings(report: Report) -> Html:
    most = report.endings[0].jobs
    failed = {job.ending for job in report.jobs if job.has_failed}
    rows = [
        [
            each.ending, f"{each.jobs:,}", f"{each.jobs / len(report.jobs):.1%}", hours(each.gpu_s),
            _bar(each.jobs / most, 1.0, "bar bad" if each.ending in failed else "bar"),
        ]
        for each in report.endings
    ]  # fmt: skip
    note = "Each job's GPU-hours count, also of jobs that shared a GPU."
    return _section("How jobs ended", note, _table("ended|jobs>|share>|GPU-hours>|", rows))


def _bar(held: float, used: float, kind: str = "bar") -> Html:
    parts = f"--held-part: {held:.1%}; --used-part: {used:.1%}"
    return element("td", element("i", style=parts), class_=kind)


def _table(heads: str, rows: Iterable[Sequence[str]]) -> Html:
    """A table. A head that ends in > is of numbers. Cells that are HTML are whole elements."""
    titles = heads.split("|")
    kinds = ["n" if title.endswith(">") else "" for title in titles]
    head = (
        element("th", title.removesuffix(">"), class_=kind, scope="col")
        for title, kind in zip(titles, kinds, strict=True)
    )
    every = list(rows)
    lines = [
        element("tr", *(
            cell if isinstance(cell, Html) else element("td", cell or "-", class_=kind)
            for cell, kind in zip(row, kinds, strict=True)
        ))
        for row in every[:_MOST_ROWS]
    ]  # fmt: skip
    cut = [element("caption", f"the first {len(lines)} of {len(every):,}")] if len(every) > len(lines) else []
    table = element("table", *cut, element("thead", element("tr", *head)), element("tbody", *lines))
    # It scrolls on a phone, by keys, too.
    return element("div", table, class_="scroll", tabindex="0", role="region", aria_label=f"by {titles[0]}")
