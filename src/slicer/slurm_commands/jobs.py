"""slicer's jobs as Slurm shows them: numbers, states, exit codes, columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from slicer.cli.job_register import KnownJob
from slicer.errors import UsageError
from slicer.kernel.epoch import epoch_s
from slicer.kernel.users import user_name
from slicer.model import Lease
from slicer.text import visible

NAME = "slicer"  # of the cluster, its partition and its account
STEP = ("slurm-commands", "srun")  # how slicer starts the script of a job, whose number is in the next word
_COMPACT = {
    "PENDING": "PD", "RUNNING": "R", "COMPLETING": "CG", "COMPLETED": "CD", "FAILED": "F", "CANCELLED": "CA",
    "TIMEOUT": "TO", "OUT_OF_MEMORY": "OOM", "NODE_FAIL": "NF",
}  # fmt: skip
_ENDS = {  # by the reason of slicer's outcome
    "unknown": ("NODE_FAIL", "1:0"), "oom-kill": ("OUT_OF_MEMORY", "0:125"), "timeout": ("TIMEOUT", "0:0"),
    "stopped": ("CANCELLED", "0:15"),
}  # fmt: skip
_UNBEGUN = (75, 129, 130, 143)  # exit codes of a job that was withdrawn, or follows one that ended otherwise
_WIDTHS = {**dict.fromkeys(("jobid", "jobidraw"), 20), **dict.fromkeys(("submit", "start", "end"), 19)}
# squeue's letters, the heads of their columns, and the names of these, as sacct has them.
_SQUEUE = """
    i:JOBID:jobid A:JOBID:jobidraw F:ARRAY_JOB_ID:array K:ARRAY_TASK_ID:task j:NAME:jobname u:USER:user
    t:ST:compact T:STATE:state M:TIME:used P:PARTITION:partition a:ACCOUNT:account D:NODES:nnodes
    C:CPUS:ncpus N:NODELIST:nodelist R:NODELIST(REASON):where r:REASON:reason V:SUBMIT_TIME:submit
    S:START_TIME:start e:END_TIME:end b:TRES_PER_NODE:alloctres Z:WORK_DIR:workdir o:COMMAND:submitline
"""


def number_of(job: str) -> str:
    """Slurm's number of the job with that id."""
    return str(int(job, 16))


def marked(number: str) -> str:
    """The word in a job's command that says which job of Slurm it is."""
    return f"--jobid={number}"


def number(known: KnownJob) -> str:
    """As in 7, or 7_0 of an array."""
    told = known.outcome or known.file
    words = " ".join(told.command[:6]) if told else ""
    said = re.search(rf"{' '.join(STEP)} {marked('')}(\d{{1,15}}(_\d{{1,7}})?)(\s|$)", words)
    return said[1] if said else number_of(known.job)


def selected(jobs: Sequence[KnownJob], words: str, *, is_strict: bool = True) -> list[KnownJob]:
    """Those that ``7``, ``7_0`` or ``7.batch`` name. Raises UsageError if one names none."""
    called: dict[str, dict[str, KnownJob]] = {}  # made once: programs ask for hundreds, of thousands
    for each in jobs:
        mine = number(each)
        for name in {mine, mine.partition("_")[0], number_of(each.job)}:
            called.setdefault(name, {})[mine] = each
    found: dict[str, KnownJob] = {}
    for word in re.findall(r"[^,\s]+", words):
        named = called.get(word.partition(".")[0], {})
        if is_strict and not named:
            raise UsageError(f"Invalid job id specified: {word}")
        found |= named
    return list(found.values())


def state_of(known: KnownJob) -> tuple[str, str]:
    """Slurm's state, and the exit code with the signal, as in 1:0."""
    file, outcome = known.file, known.outcome
    is_alive = file is not None and file.is_alive()
    if outcome is None and (known.entry is not None or is_alive):
        return ("RUNNING" if isinstance(known.entry, Lease) else "PENDING"), "0:0"
    if outcome is None:  # it never ran, nobody saw its end, or it was long ago
        code = file.exit_code if file else None
        reason = "unknown" if code is None else "stopped" if code in _UNBEGUN else "exited"
    else:
        if is_alive:
            return "COMPLETING", "0:0"  # its process may run it again
        reason = {"slicer stop": "stopped", "shutdown": "unknown"}.get(outcome.ended_by, outcome.reason)
        code = outcome.exit_code
    if reason in _ENDS:
        return _ENDS[reason]
    if outcome is not None and outcome.signal is not None:
        return "FAILED", f"0:{outcome.signal}"
    return ("FAILED" if code else "COMPLETED"), f"{code}:0"


def times(known: KnownJob) -> tuple[float, float]:
    """When it started and ended, in seconds since 1970; 0: not yet."""
    if (outcome := known.outcome) is not None:
        return outcome.started_at, outcome.started_at + outcome.wall_s
    if isinstance(known.entry, Lease):
        return epoch_s(known.entry.since_s), 0.0
    return 0.0, known.began_at if known.state == "ended" else 0.0


def has_ended(known: KnownJob, before: float = float("inf")) -> bool:
    """Whether it has ended, before that time."""
    return state_of(known)[0] not in ("PENDING", "RUNNING", "COMPLETING") and times(known)[1] < before


def state_words(known: KnownJob) -> tuple[str, str]:
    """Its state, and that in letters."""
    state, _ = state_of(known)
    return state, _COMPACT[state]


def _clock(seconds: float) -> str:
    """As in ``1-02:03:04``."""
    days, rest = divmod(int(seconds), 86_400)
    return (f"{days}-" if days else "") + f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%Y-%m-%dT%H:%M:%S") if at else "Unknown"


def _reason(known: KnownJob, state: str) -> str:
    """Why it waits."""
    if state != "PENDING":
        return "None"
    return "Resources" if known.entry or not known.file else "Dependency" if known.file.after else "BeginTime"


def columns(known: KnownJob, now: float, node: str) -> dict[str, str]:
    """The text of each column."""
    (state, code), (started_at, ended_at), outcome = state_of(known), times(known), known.outcome
    told, called = outcome or known.file, number(known)
    array, _, task = called.partition("_")
    gpus = outcome.gpus if outcome else known.entry.gpus if isinstance(known.entry, Lease) else ()
    memory = outcome.usage.memory_peak_bytes if outcome else None
    where, reason = node if started_at else "", _reason(known, state)
    elapsed = _clock(max(0.0, (ended_at or now) - started_at) if started_at else 0.0)
    found = {
        "jobid": called, "jobidraw": number_of(known.job) if task else called, "array": array,
        "task": task or "N/A", "jobname": known.name or NAME, "user": user_name(known.uid),
        "state": f"{state} by {known.uid}" if state == "CANCELLED" else state, "compact": _COMPACT[state],
        "exitcode": code, "elapsed": elapsed, "used": re.sub("^00:0?", "", elapsed), "reason": reason,
        "submit": _moment(known.began_at), "start": _moment(started_at), "end": _moment(ended_at),
        "nodelist": where, "where": where or f"({reason})",
        "alloctres": f"gres/gpu={len(gpus)}" if gpus else "", "workdir": told.directory if told else "",
        "submitline": known.command, "maxrss": f"{memory >> 10}K" if memory else "",
        **dict.fromkeys(("account", "partition", "cluster"), NAME),
        **dict.fromkeys(("nnodes", "ncpus", "alloccpus"), "1"),
    }  # fmt: skip
    return {name: visible(text) for name, text in found.items()}  # another user chose the name


def formed(form: str, texts: Mapping[str, str]) -> str:
    """A line by a format such as ``%.18i %t``; a dot puts the text to the right of its column."""

    def fill(match: re.Match[str]) -> str:
        text, width = texts.get(match[3], ""), int(match[2] or 0)
        return (text.rjust(width) if match[1] else text.ljust(width))[: width or None]

    return re.sub(r"%(\.?)(\d{0,3})([a-zA-Z])", fill, form)


def squeue_rows(jobs: Iterable[KnownJob], form: str, now: float, node: str) -> list[str]:
    """The lines of squeue, the head first."""
    known = [word.split(":") for word in _SQUEUE.split()]
    tables = [columns(each, now, node) for each in jobs]
    lettered = [{letter: table[name] for letter, _, name in known} for table in tables]
    return [formed(form, texts) for texts in ({letter: head for letter, head, _ in known}, *lettered)]


def sacct_rows(jobs: Iterable[KnownJob], form: str, now: float, node: str, *, between: str) -> list[str]:
    """The lines of sacct with its format (``JobID,State%20``), the head first.

    ``between``: what stands between columns of any width; "": they have widths, and a line below the head.
    """
    said = [word.partition("%") for word in form.split(",")]
    tables = [columns(each, now, node) for each in jobs]
    rows = [[head for head, _, _ in said]]
    rows += [[table.get(head.lower(), "") for head, _, _ in said] for table in tables]
    if between:
        return [between.join(row) for row in rows]
    widths = [
        int(width) if re.fullmatch(r"-?[1-9]\d{0,3}", width) else _WIDTHS.get(head.lower(), 10)
        for head, _, width in said
    ]  # fmt: skip
    rows.insert(1, ["-" * abs(width) for width in widths])
    return ["".join(map(_cell, row, widths)) for row in rows]


def _cell(text: str, width: int) -> str:
    """``width``: of the column; less than 0: the text is to its left. A plus: some of it is missing."""
    if len(text) > abs(width):
        text = f"{text[: abs(width) - 1]}+"
    return f"{text:{'<' if width < 0 else '>'}{abs(width)}} "
