"""Parts of the lines about a job. Pure.

No text contains control characters, whatever commands and names it shows.
"""

from __future__ import annotations

from collections.abc import Sequence

from slicer.kernel.signals import signal_name
from slicer.quantity import format_duration, short_mib
from slicer.queue.file.suggestion import enough_mib, vram_attribute
from slicer.queue.model import ENOUGH_LOOKS, GPU_FAILED, LEFT, JobRow, Status
from slicer.text import counted, one_line, without_middle

_COMMAND = 120  # characters of a command in a line

# The order and the words of counts.
_STATUSES: dict[Status, str] = {
    "running": "running",
    "pending": "pending",
    "ok": "ok",
    "failed": "failed",
    "timeout": "timed out",
    "oom": "out of GPU memory",
    "infeasible": "infeasible",
    "skipped": "skipped",
    "lost": "lost",
    "cancelled": "cancelled",
}


def gpus(indices: Sequence[int]) -> str:
    """As in "GPU 0" and "GPUs 0,1"."""
    return f"GPU{'s' if len(indices) > 1 else ''} {','.join(map(str, indices))}"


def who(row: JobRow) -> str:
    """As in "job 3" and "job 3 (train-a)"."""
    return f"job {row.no}" + (f" ({one_line(row.name, 40)})" if row.name else "")


def counts(numbers: dict[Status, int]) -> str:
    """As in "3 running, 12 pending, 4 ok". Zeros are left out."""
    return ", ".join(f"{numbers[status]} {word}" for status, word in _STATUSES.items() if numbers.get(status))


def deviation(row: JobRow) -> int | None:
    """The excess of its largest peak over the declaration, in percent. Negative: below. None: unknown."""
    if not row.declared_mib or not row.peak_mib:
        return None
    return round((max(row.peak_mib) / row.declared_mib - 1) * 100)


def used(row: JobRow) -> str:
    """As in "GPU 0 peak 17.2G of 18G declared, 96% busy"; "" without GPUs."""
    if not row.gpu_indices:
        return ""
    peak = ", ".join(map(short_mib, row.peak_mib)) or "n/a"
    if row.peak_mib:
        peak += f" of {short_mib(row.declared_mib)} declared" if row.declared_mib else ""
        peak += f" in {counted(row.looks, 'look')}" if row.looks and is_seldom_seen(row) else ""
    busy = "busy n/a" if row.utilisation is None else f"{round(row.utilisation)}% busy"
    return f"{gpus(row.gpu_indices)} peak {peak}, {busy}"


def is_seldom_seen(row: JobRow) -> bool:
    """Whether there were too few looks at its GPUs to know its peak."""
    return row.looks < ENOUGH_LOOKS


def enough_vram(row: JobRow) -> str:
    """The declaration for its peak, as in "[vram=18G]"; "" if the peak is unknown."""
    return f"[{vram_attribute(enough_mib(max(row.peak_mib)))}]" if row.peak_mib else ""


def advice(row: JobRow) -> str:
    """How its declaration should be corrected; "" if it was right."""
    percent = deviation(row)
    if percent is None or row.verdict not in ("under-declared", "over-declared"):
        return ""
    vram = enough_vram(row)
    if row.verdict == "under-declared":
        least = "at least " if is_seldom_seen(row) else ""
        return f"{percent}% more than declared: {least}{vram} is needed"
    less = enough_mib(max(row.peak_mib)) < (row.declared_mib or 0)
    return f"{-percent}% less than declared" + (f": {vram} would do" if less else "")


def ended(row: JobRow) -> str:
    """How the job ended, as in "ok", "failed with exit code 3", "killed by SIGSEGV"."""
    if row.status == "failed":
        if row.reason == "signal" and row.exit_code > 128:
            return f"killed by {signal_name(row.exit_code - 128)}"
        if row.reason == "oom-kill":
            return "failed: the kernel ended it, out of host memory"
        if row.reason == "stopped":
            return f"stopped (exit code {row.exit_code})"
        if row.reason == GPU_FAILED:
            return f"failed with exit code {row.exit_code}: its GPU failed, not the job"
        if row.reason == LEFT:
            return f"failed: its command ended, and {left(row)}"
        return f"failed with exit code {row.exit_code}"
    words: dict[Status, str] = {"timeout": "timed out", "oom": "ran out of GPU memory"}
    return words.get(row.status, row.status)


def left(row: JobRow) -> str:
    """As in "left 1 process, which was ended with it"."""
    what = "1 process, which was" if row.leftovers == 1 else f"{row.leftovers} processes, which were"
    return f"left {what} ended with it"


def held_back(group: str, count: int, failures: int, within_s: float, last_line: str) -> str:
    """As in "9 jobs of python a.py are held back: 5 attempts in a row failed within 1m of their start"."""
    which = f"{counted(count, 'job')} of {one_line(group)} {'is' if count == 1 else 'are'} held back"
    why = f"{failures} attempts in a row failed within {format_duration(within_s)} of their start"
    return f"{which}: {why}" + (f", last line: {one_line(last_line)}" if last_line else "")


def command_of(row: JobRow) -> str:
    return without_middle(row.command, _COMMAND)
