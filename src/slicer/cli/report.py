"""``slicer report``: what the GPUs did, who waited and what failed, as a page."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import click

from slicer.broker import accounts
from slicer.broker.accounts import AccountRow
from slicer.broker.client import standing
from slicer.cli import output, say
from slicer.cli.common import failing
from slicer.cli.common import since as time_ago
from slicer.cli.history import ended as how_ended
from slicer.cli.history import row_ended
from slicer.cli.job_register import settle
from slicer.columns import FAINT, Line
from slicer.errors import SlicerError, UsageError
from slicer.kernel.epoch import epoch_s
from slicer.kernel.users import user_name
from slicer.model import GAVE_WAY, Lease, Outcome
from slicer.outcome import history, samples
from slicer.outcome.outcome_file import put_own
from slicer.outcome.result import result_of
from slicer.outcome.series import Series
from slicer.report import page
from slicer.report.figures import made
from slicer.report.parts import OK, RUNNING, STOPPED, UNKNOWN, Card, Period, Report, ReportedJob
from slicer.report.summary import summary
from slicer.text import one_line, visible

_LONGEST = 80  # characters of a name
_CAUSES = {GAVE_WAY: GAVE_WAY, "gpu": "its GPU failed"}  # endings that say more than an exit code


@click.command(
    "report",
    epilog="""\
\b
Examples:
  slicer report
      The last seven days of your jobs, in report.html.
  slicer report --since 30d --name 'sweep*' --output sweep.html
      The jobs of a sweep.
  sudo slicer report --all-users --since 30d --output /root/november.html
      Everybody's jobs, if there is a broker.

\b
The page is one file that loads nothing from anywhere. It shows who held which
GPU and when, what was used of what was held, how long jobs waited, and how
they ended. It has no command lines, and no script.""",
)
@click.option(
    "--since", metavar="TIME", default="7d", show_default=True, help="From then on (12h, monday, 2026-11-20)."
)
@click.option("--until", metavar="TIME", help="Up to then.  [default: now]")
@click.option(
    "--output", "out", metavar="FILE", default="report.html", show_default=True, help="Write this file."
)
@click.option("--name", metavar="PATTERN", help="Only jobs with this name; a shell pattern such as 'train*'.")
@click.option("--all-users", is_flag=True, help="For root: everybody's jobs, as the broker recorded them.")
def command(since: str, until: str | None, out: str, name: str | None, all_users: bool) -> None:
    """Write a report about past and running jobs into a file, and print its path."""
    if not out.lower().endswith(".html"):
        hint = "the page can be printed, and a part of it copied as a picture, in a browser"
        raise UsageError(f"expected a name that ends in .html, not {out!r:.60}", where="--output", hint=hint)
    now = time.time()
    period = Period(time_ago(since) or 0.0, min(now, time_ago(until, "--until") or now))
    if period.began >= period.ended:
        raise UsageError("is not before --until", where="--since")
    report = _report(period, name, all_users=all_users)
    whose = "all users" if all_users else _user(os.geteuid())
    title = f"slicer report: {whose} on {visible(os.uname().nodename)}"
    with failing("the report cannot be written", out):
        put_own(page.made(report, title).encode(), out, 0o600 if all_users else 0o666)
    if output.is_terminal():
        output.show([*map(Line, summary(report)), Line("")], cuts=False)
    output.show([Line(f"wrote {out}", FAINT)])


def _report(period: Period, name: str | None, *, all_users: bool) -> Report:
    """Read what is known, and calculate the report."""
    if not all_users:
        settle()
    outcomes = [] if all_users else history.read(history.default_path(), limit=None)
    jobs = _of_all() if all_users else [_of_outcome(each) for each in outcomes]
    cards = {}
    try:
        status = standing.read(os.environ, say.line)
    except SlicerError as error:
        say.line(f"{error}; running jobs are not included")
    else:
        now, booted = time.time(), epoch_s()  # the status may be older than now
        ended, uid = {(job.id, job.user) for job in jobs}, os.geteuid()
        leases = [each for each in status.leases if all_users or each.uid == uid]
        running = [_of_lease(each, now, booted + each.since_s) for each in leases]
        jobs += [job for job in running if (job.id, job.user) not in ended]
        there = [each.gpu for each in status.gpus]
        cards = {gpu.uuid: Card(gpu.uuid, f"GPU {gpu.index}", gpu.memory_mib) for gpu in there}
    gone = {
        (index, uuid) for each in outcomes if each.started_at + each.wall_s >= period.began
        for uuid, index in zip(each.gpus, each.gpu_indices, strict=False) if uuid not in cards
    }  # fmt: skip
    cards.update({uuid: Card(uuid, f"GPU {index} {uuid[4:8]}", 0) for index, uuid in sorted(gone)})
    if name is not None:
        jobs = [job for job in jobs if fnmatchcase(job.name, name)]
    # Nothing is known of the time before the first job, which may be long on a first day.
    none = period.began if period.began > 0 else period.ended - 1
    first = min((job.began for job in jobs if job.began < period.ended), default=none)
    period = Period(min(max(period.began, first), period.ended - 1), period.ended)
    return made(jobs, list(cards.values()), period, _series(all_users=all_users))


def _series(*, all_users: bool) -> Callable[[Sequence[str]], dict[str, Series]]:
    """Reads the figures over time of jobs, by their keys."""
    if all_users:
        return functools.partial(accounts.samples, accounts.PATH)
    return functools.partial(samples.read, history.default_path())


def _of_all() -> list[ReportedJob]:
    """Everybody's ended jobs, as the broker recorded them."""
    if os.geteuid():
        hint = "leave it out for a report about your own jobs"
        raise UsageError("only root may see the jobs of all users", where="--all-users", hint=hint)
    return [_of_row(each) for each in accounts.jobs(accounts.PATH, limit=None)]


def _job(uid: int, id: str, name: str, profile: str, **fields: Any) -> ReportedJob:
    """A job of a user. Its texts are made fit for display."""
    id, name, profile = (one_line(text, _LONGEST) for text in (id, name, profile))
    return ReportedJob(id=id, name=name, user=_user(uid), profile=profile, **{"key": id, **fields})


@functools.cache
def _user(uid: int) -> str:
    return one_line(user_name(uid), _LONGEST)


def _ending(each: Outcome | AccountRow, how: str) -> str:
    result = result_of(each.exit_code, each.reason, each.ended_by)
    if each.ended_by in _CAUSES:
        return _CAUSES[each.ended_by]
    if result != "failed":
        return result
    return each.ended_by or "failed" if how in (OK, STOPPED, UNKNOWN) else how


def _of_outcome(each: Outcome) -> ReportedJob:
    program = os.path.basename(each.command[0]) if each.command else ""
    return _job(
        each.uid, each.job, each.name or program, each.profile, gpus=each.gpus, began=each.started_at,
        ended=each.started_at + each.wall_s, waited_s=each.waited_s, declared_mib=each.vram_mib,
        peak_mib=each.vram_peak_mib, cpu_slots=each.cpu_slots, ending=_ending(each, how_ended(each)),
    )  # fmt: skip


def _of_row(each: AccountRow) -> ReportedJob:
    gpus = tuple(each.gpus.split())
    slots = dict(word.rpartition("=")[::2] for word in each.slots.split())
    is_whole = each.gpu_rate >= len(gpus)
    return _job(
        each.uid, each.job, each.name, each.profile, key=each.grant_key, gpus=gpus, began=each.granted_at,
        ended=each.granted_at + each.held_s, waited_s=each.waited_s,
        declared_mib=None if is_whole else each.vram_mib // len(gpus),
        peak_mib=() if each.vram_peak_mib is None else (each.vram_peak_mib,) * len(gpus),
        cpu_slots=int(slots.get("cpu", 0)), ending=_ending(each, row_ended(each)),
    )  # fmt: skip


def _of_lease(lease: Lease, now: float, began: float) -> ReportedJob:
    return _job(
        lease.uid, lease.job, lease.name, lease.profile, gpus=lease.gpus, began=began, ended=now,
        waited_s=None, declared_mib=lease.vram_mib, peak_mib=lease.vram_peak_mib,
        cpu_slots=lease.slots.get("cpu", 0), ending=RUNNING,
    )  # fmt: skip
