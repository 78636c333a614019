"""Describes a job's needs, waits, leases and ends in words, for the terminal and the journal. Pure.

Users other than the job's owner may read the journal. So its texts identify a job by its name or id, not by
its command.
"""

from __future__ import annotations

from slicer.kernel.signals import signal_name
from slicer.quantity import format_duration, format_estimate, format_size
from slicer.text import a_slot, counted, slots_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from slicer.model import Busy, Lease, Outcome, Ticket

ENDED_BY = {
    "slicer stop": "by slicer stop",
    "slicer cap": "by slicer, because it got past its cap (over_cap)",
    "slicer idle": "by slicer, because it did not use its GPU (idle_timeout)",
    "slicer queue": "by its queue",
    "slicer run": "sent to slicer run",
    "terminal": "from the terminal",
    "systemd": "from outside (systemctl stop or kill)",
    "shutdown": "at the machine's shutdown, or the user's last logout",
    "outside": "from outside, together with its keeper",
    "caller": "because the call of the wrapped program was killed",
    "gpu": "its GPU failed, not the job",
    "gave way": "to give way to another job",
}
_REASONS = {
    "oom-kill": "out of memory",
    "timeout": "over its time limit",
    "stopped": "stopped",
    "unknown": "nobody saw how",
}


_SHORTEST = 6  # letters of a name


def _unsaid(_: int) -> str:
    return ""


def describe_resources(gpus: int, slots: dict[str, int], vram_mib: int | None = None) -> str:
    """As in "2 GPUs and 1 CPU slot", or "8G on 1 GPU"."""
    parts = []
    if gpus:
        size = "" if vram_mib is None else f"{format_size(vram_mib << 20)} on "
        parts.append(f"{size}{counted(gpus, 'GPU')}")
    return _listed([*parts, *slots_words(slots)]) or "nothing"


def _listed(parts: list[str]) -> str:
    """As in "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def describe_busy(
    busy: Busy, now_s: float, *, in_public: bool = False, is_brief: bool = False,
    other_user: Callable[[int], str] = _unsaid, most: int = 0,
) -> str:  # fmt: skip
    """As in "a GPU, held by train (bob's, pid 42, …), 2 ahead of you"; ``in_public``: for others to read.

    ``is_brief``: without what changes each second, as in "a GPU, held by train, 2 ahead of you".

    The policy's part in it comes first: as in "a GPU: ann may hold 1 GPU at a time and holds 1, held by …".
    ``other_user``: the name of a uid, "" if it is obvious.
    ``most``: the number of columns within which the estimate must end; the holder's name is shortened for
    that. 0: no limit.
    """
    text = a_slot(busy.slot) if busy.slot else "a GPU"
    text += f": {busy.why}" if busy.why else ""
    room = most and max(_SHORTEST, most - len(text) - len(", held by  (about 3h30m left by its time limit"))

    def facts(lease: Lease) -> Iterable[str]:
        if is_brief:
            return ()
        owner = "" if in_public else other_user(lease.uid)
        since = format_duration(now_s - lease.since_s)
        # A terminal cuts the line, so the estimate comes first.
        return left(lease, now_s), owner and f"{owner}'s", f"pid {lease.pid}", lease.unit, f"for {since}"

    holders = describe_holders(busy.holders, now_s, facts, in_public=in_public, most=room)
    text += f", held by {holders}" if holders else ""
    if busy.foreign:
        text += ", in use by processes outside slicer"
    if busy.outsider:
        text += f", locked by pid {busy.outsider} (compat_gpu_lock)"
    if busy.reserved_for:
        text += f", kept for job {busy.reserved_for}"
    whom = "it" if in_public else "you"
    return f"{text}, {busy.ahead} ahead of {whom}" if busy.ahead else text


def describe_holders(
    holders: tuple[Lease, ...], now_s: float, facts: Callable[[Lease], Iterable[str]], *,
    in_public: bool = True, most: int = 0,
) -> str:  # fmt: skip
    """As in "train (about 3m left) and 2 others", with the ``facts`` about the first to end; "" for none."""
    from slicer.placement.decision import first_to_finish

    lease = first_to_finish(holders, now_s)
    if lease is None:
        return ""
    others = len(holders) - 1
    more = f" and {counted(others, 'other')}" if others else ""
    name = lease.name or (lease.job if in_public else lease.command or lease.job)
    if most and len(name) > most:
        name = f"{name[: most - 1]}…"
    told = ", ".join(filter(None, facts(lease)))
    return f"{name} ({told}){more}" if told else f"{name}{more}"


# Where an estimate comes from; and its mark before a figure that has no room for words.
ESTIMATES = {"expect": "as it was said", "runs": "by earlier runs", "limit": "by its time limit"}
MARKS = {"runs": "~", "limit": "<"}


def length_words(entry: Ticket | Lease) -> str:
    """How long the job should run, as in "about 40m, by earlier runs"; "" unknown."""
    from slicer.placement.lengths import likely_s

    length_s = likely_s(entry)
    if length_s is None:
        return ""
    return ", ".join(filter(None, (f"about {format_estimate(length_s)}", ESTIMATES.get(entry.est_from))))


def left(lease: Lease, now_s: float) -> str:
    """How long the job should run on: as its user said, else by slicer's own estimate, with its source."""
    if lease.gives_way_by_s is not None:
        return gives_way(lease, now_s)
    left_s, is_said = remaining(lease, now_s)
    if left_s is None:
        return ""
    if is_said:
        return f"about {format_estimate(left_s)} left" if left_s else "overdue"
    return f"about {format_estimate(left_s)} left {ESTIMATES.get(lease.est_from, '')}".rstrip()


def gives_way(lease: Lease, now_s: float) -> str:
    """As in "gives way to eval in 58s"; "" if it does not."""
    if lease.gives_way_by_s is None:
        return ""
    left_s = max(0.0, round(lease.gives_way_by_s - now_s))
    return f"gives way to {lease.gives_way_to} in {format_duration(left_s)}"


def remaining(lease: Lease, now_s: float) -> tuple[float | None, bool]:
    """The seconds that the job should run on, and whether its user said so. None: not known, or no more."""
    from slicer.placement.decision import expected_remaining
    from slicer.placement.lengths import likely_s

    said_s = expected_remaining(lease, now_s)
    if said_s is not None:
        return said_s, True
    length_s = likely_s(lease)
    left_s = 0.0 if length_s is None else lease.since_s + length_s - now_s
    return left_s if left_s > 0 else None, False


def why_ended(outcome: Outcome) -> str:
    """As in "out of memory" or "killed by SIGTERM"; "" for a job that ended by itself."""
    if outcome.reason == "signal" and outcome.signal:
        return f"killed by {signal_name(outcome.signal)}"
    return "" if outcome.reason == "exited" else _REASONS.get(outcome.reason, outcome.reason)


# -- for the journal ---------------------------------------------------------------------------------------


def on_gpus(gpus: tuple[str, ...], indices: tuple[int, ...]) -> str:
    """As in "GPU 0" and "GPUs 0, 2"; "" for none. UUIDs if the indices are unknown."""
    names = ", ".join(map(str, indices) if indices else gpus)
    return f"GPU{'s' if len(gpus) > 1 else ''} {names}" if gpus else ""


def held(lease: Lease) -> str:
    """As in "GPU 0", "8G of GPUs 1, 2 and 1 CPU slot"; "" for nothing."""
    size = "" if lease.vram_mib is None else f"{format_size(lease.vram_mib << 20)} of "
    gpus = on_gpus(lease.gpus, lease.gpu_indices)
    return _listed([*([size + gpus] if gpus else []), *slots_words(lease.slots)])


def acquired(lease: Lease, waited_s: float) -> str:
    """As in "acquired GPU 0 after 12m"."""
    after = f"after {format_duration(waited_s)}"
    if lease.forced:
        return f"{held(lease)} not free {after}: running anyway"
    return f"acquired {held(lease)} {after}"


def started(lease: Lease) -> str:
    """As in "started on GPU 0 under profile gpu, by uid 1000"."""
    gpus = on_gpus(lease.gpus, lease.gpu_indices)
    place = f" on {gpus}" if gpus else ""
    return f"started{place} under profile {lease.profile}, by uid {lease.uid}"


def finished(outcome: Outcome, indices: tuple[int, ...]) -> str:
    """As in "finished with exit 137 (out of memory) after 12m on GPU 0: CPU 1h, memory 23.8G".

    ``indices`` are those of the outcome's GPUs; () unknown.
    """
    why = " ".join(filter(None, (why_ended(outcome), ENDED_BY.get(outcome.ended_by))))
    text = f"finished with exit {outcome.exit_code}{f' ({why})' if why else ''}"
    text += f" after {format_duration(outcome.wall_s)}"
    if outcome.gpus:
        text += f" on {on_gpus(outcome.gpus, indices)}"
    facts = describe_usage(outcome)
    return f"{text}: {', '.join(facts)}" if facts else text


def describe_usage(outcome: Outcome) -> list[str]:
    """As in "CPU 1h", "memory 23.8G": the known figures."""
    used, facts = outcome.usage, []
    if used.cpu_s is not None:
        facts.append(f"CPU {format_duration(used.cpu_s)}")
    if used.memory_peak_bytes:
        facts.append(f"memory {format_size(used.memory_peak_bytes)}")
    if any(outcome.vram_peak_mib):
        facts.append(describe_vram(outcome))
    return facts


def describe_vram(outcome: Outcome) -> str:
    """As in "GPU memory 11G of 18G declared"."""
    peaks = " and ".join(format_size(mib << 20) for mib in outcome.vram_peak_mib)
    declared = "" if outcome.vram_mib is None else f" of {format_size(outcome.vram_mib << 20)} declared"
    return f"GPU memory {peaks}{declared}"


def released(lease: Lease, now_s: float) -> str:
    """As in "gave back GPU 0 after 12m"."""
    return f"gave back {held(lease)} after {format_duration(now_s - lease.since_s)}"
