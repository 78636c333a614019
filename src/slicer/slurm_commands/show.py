"""``squeue``, ``sacct``, ``sinfo``, ``sacctmgr``, ``scontrol``, ``scancel``: jobs in Slurm's forms."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from slicer.broker.client import standing
from slicer.cli import common, say
from slicer.cli.job_register import KnownJob, SeenLedger
from slicer.config.properties import parse_signal
from slicer.detach.starting import program
from slicer.errors import EX_OK, UsageError
from slicer.job.find import keeper_lives
from slicer.job.stop import tell_to_end
from slicer.kernel import proc
from slicer.kernel.users import user_name
from slicer.ledger.ledger import Ledger
from slicer.model import Lease
from slicer.outcome import history, job_files
from slicer.slurm_commands import jobs, options
from slicer.slurm_commands.jobs import NAME
from slicer.slurm_commands.options import Values
from slicer.text import command_text

_MOST, _LAST = 10_000, 1000  # ended jobs that are looked at: by all of them, by squeue, which others poll
_RECENT_S = 300  # Slurm's MinJobAge: how long squeue knows a job that has ended
_SQUEUE = "%.20i %.9P %.8j %.8u %.2t %.10M %.6D %R"
_SACCT = "JobID%-20,JobName,Partition,Account,AllocCPUS,State,ExitCode"


def perform(name: str, words: Sequence[str]) -> int:
    """Perform the command; its exit code. Raises SlicerError, OSError."""
    commands = {
        "squeue": _squeue, "sacct": _sacct, "scancel": _scancel, "scontrol": _scontrol, "sinfo": _sinfo,
        "sacctmgr": _sacctmgr,
    }  # fmt: skip
    options.listed(name)  # refuses a name that is none
    return commands[name](*options.read(name, words))


def known(most: int = _MOST) -> list[KnownJob]:
    """All jobs, the oldest first. Raises StateError."""
    seen = SeenLedger(say.line).look()
    files = {file.job: file for file in job_files.known(os.environ, say.line)}
    entries = {each.job: each for each in standing.jobs(os.environ, seen.jobs, say.line).entries}
    ended = [*history.read(history.default_path(), limit=most), *seen.unwritten]
    outcomes = {each.job: each for each in ended}
    found = []
    for job in {**outcomes, **files, **entries}:
        entry, file, outcome = entries.get(job), files.get(job), outcomes.get(job)
        told = outcome or file
        command = command_text(told.command) if told else entry.command if entry else ""
        name = next((each.name for each in (outcome, file, entry) if each and each.name), "")
        found.append(KnownJob(job, name, 0, command, entry, file, outcome))
    found.sort(key=lambda each: each.began_at)
    return list({jobs.number(each): each for each in found}.values())  # the last run of each


def _asked(there: list[KnownJob], values: Values, said: str, *, is_strict: bool = False) -> list[KnownJob]:
    """Those of the jobs with the numbers ("": all), names, users and states asked for. Raises UsageError."""
    found = jobs.selected(there, said, is_strict=is_strict) if said else there
    user = user_name(os.geteuid()) if "me" in values else values.get("user", "")
    states = set((values.get("states") or values.get("state") or "all").upper().split(","))
    names, users = values.get("name", "").split(","), user.split(",")
    return [
        each for each in found
        if (names == [""] or each.name in names) and (users == [""] or user_name(each.uid) in users)
        and states & {"ALL", *jobs.state_words(each)}
    ]  # fmt: skip


def _squeue(values: Values, _: Sequence[str]) -> int:
    """Print the jobs that wait and run; with ``-t``, also those that ended in the last minutes."""
    since = time.time() - _RECENT_S if "states" in values else float("inf")
    found = _asked(known(_LAST), values, values.get("jobs", ""), is_strict=True)
    found = [each for each in found if not jobs.has_ended(each, since)]
    form = values.get("format", _SQUEUE)
    return _print(jobs.squeue_rows(found, form, time.time(), os.uname().nodename), values)


def _sacct(values: Values, rest: Sequence[str]) -> int:
    """Print the jobs of today, or those that were asked for, ended ones too."""
    if rest:
        raise UsageError(f"unexpected: {' '.join(rest)}")
    begin, end = values.get("starttime") or "today", values.get("endtime") or "now"
    since = 0.0 if "jobs" in values and "starttime" not in values else _moment(begin, "--starttime")
    until = _moment(end, "--endtime")
    found = [
        each for each in _asked(known(), values, values.get("jobs", ""))
        if each.began_at <= until and not jobs.has_ended(each, since)
    ]  # fmt: skip
    between = values.get("delimiter") or "|" if {"parsable", "parsable2"} & set(values) else ""
    form = values.get("format", _SACCT)
    rows = jobs.sacct_rows(found, form, time.time(), os.uname().nodename, between=between)
    return _print([row + between * ("parsable" in values) for row in rows], values, 1 if between else 2)


def _moment(text: str, option: str) -> float:
    word = "today" if text == "midnight" else text.removeprefix("now-")
    return time.time() if word == "now" else common.since(word, option) or 0.0


def _print(rows: Sequence[str], values: Values, head: int = 1) -> int:
    print("".join(f"{row}\n" for row in rows[head if "noheader" in values else 0 :]), end="")
    return EX_OK


def _sinfo(values: Values, _: Sequence[str]) -> int:
    node = os.uname().nodename
    heads = {"P": "PARTITION", "a": "AVAIL", "l": "TIMELIMIT", "D": "NODES", "t": "STATE", "N": "NODELIST"}
    texts = {"P": f"{NAME}*", "a": "up", "l": "infinite", "D": "1", "t": "mix", "N": node}
    form = values.get("format", "%9P %.5a %.10l %.6D %.6t %N")
    return _print([jobs.formed(form, each) for each in (heads, texts)], values)


def _sacctmgr(values: Values, said: Sequence[str]) -> int:
    if said[:1] not in (["list"], ["show"]):
        raise UsageError("there is one account, which cannot be changed")
    return _print(["Account", "-" * 10, NAME], values, 2)


def _scontrol(_: Values, said: Sequence[str]) -> int:
    match said:
        case ["requeue", *numbers] if numbers:
            _requeue(",".join(numbers))
        case ["show", "config"]:
            print(f"ClusterName             = {NAME}\nMinJobAge               = {_RECENT_S} sec")
        case ["show", "hostnames" | "hostname", *names]:
            print("\n".join(",".join(names or [os.uname().nodename]).split(",")))
        case _:
            there = "there are show config, show hostnames and requeue; slicer show JOB tells all of a job"
            raise UsageError(f"{' '.join(said) or 'nothing'!r:.60}: {there}")
    return EX_OK


def _leases(found: Sequence[KnownJob]) -> list[tuple[Lease, Ledger]]:
    """The leases of those of the jobs that run. Raises StateError."""
    ledger = SeenLedger(say.line).look().ledger
    return [(each.entry, ledger) for each in found if ledger and isinstance(each.entry, Lease)]


def _requeue(numbers: str) -> None:
    """End jobs that run, and run each again as the same job, from its beginning."""
    files = job_files.opened(os.environ)
    try:
        found = jobs.selected(known(), numbers)
        for each in found:
            if not isinstance(each.entry, Lease) or each.file is None or not each.file.is_alive():
                why = "does not run, or nobody is left who would run it again"
                raise UsageError(why, where=f"job {jobs.number(each)}")
        for lease, ledger in _leases(found):
            files.ask_again(lease.job)
            tell_to_end(lease, ledger)
    finally:
        files.close()


def _scancel(values: Values, numbers: Sequence[str]) -> int:
    """End jobs as ``slicer stop`` does, or send a signal to their processes. Raises SlicerError, OSError."""
    if not numbers and not {"name", "user", "me", "state"} & set(values):
        raise UsageError("No job identification provided")
    there, said, code = known(), ",".join(numbers), EX_OK
    found = [each for each in _asked(there, values, said) if not jobs.has_ended(each)]
    if not numbers:
        found = [each for each in found if os.geteuid() in (0, each.uid)]
    if "signal" in values:
        _signal(found, values)
    elif found:
        code = stop([each.job for each in found])
    jobs.selected(there, said)  # says which are none, once the others have ended
    return code


def stop(ids: Sequence[str]) -> int:
    """End the jobs as ``slicer stop`` does; its exit code. Raises OSError."""
    words = [*program(), "stop", "--quiet", *ids]
    return os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn(words[0], words, os.environ), 0)[1])


def _signal(found: Sequence[KnownJob], values: Values) -> None:
    """Signal the processes that a job's script has started; with ``--batch`` the script alone."""
    signo = parse_signal(values["signal"])
    for lease, ledger in _leases(found):
        if keeper_lives(lease, ledger):
            script = proc.children(lease.keeper)[:1]
            steps = [pid for pid in proc.descendants(lease.keeper) if pid not in script]
            for pid in script if "batch" in values else script + steps if "full" in values else steps:
                proc.send(pid, signo)
