"""What is said of a job's sharing: for the terminal, the history and the journal. Pure."""

from __future__ import annotations

from slicer.quantity import format_duration, format_size, short_mib
from slicer.text import counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.model import Sharing

_WANTS = {"lock": "lock", "cap": "cap", "both": "lock and cap"}
_TROUBLES = {
    "no-arena": "no lock: the shared arena could not be used",
    "too-many-processes": "more processes than can be counted",
    "too-many-functions": "more functions of the driver than can be hooked",
    "mps": "no lock beside MPS",
    "other-gpu": "work or memory on a GPU that is not the job's",
    "undrained": "a turn went on before its work was done",
    "arena-busy": "the arena's lock could not be had in time",
    "not-preloaded": "no lock: the library could not be preloaded",
    "no-file": "what was counted is lost: the job's file was gone or damaged",
    "other": "something that this slicer does not know",
}


def wants(word: str, limit_mib: int | None) -> str:
    """As in "lock and cap of 8G"."""
    size = f" of {short_mib(limit_mib)}" if limit_mib and word != "lock" else ""
    return f"{_WANTS[word]}{size}"


def problem(sharing: Sharing, exit_code: int) -> str:
    """What of a job's sharing is worth a word in its last line; "" for nothing."""
    if sharing.got_past_cap:
        return "got past its cap"
    if sharing.refused and exit_code:
        return f"{counted(sharing.refused, 'allocation')} refused by the cap"
    if sharing.undrained:
        return f"{counted(sharing.undrained, 'turn')} passed on undrained"
    return ""


def details(sharing: Sharing) -> list[tuple[str, str]]:
    """All that is known of it, in rows."""
    rows = [("sharing", f"{_WANTS[sharing.wants]}{_mode(sharing)}, {_processes(sharing)}")]
    if sharing.wants != "cap":
        rows += [("turns", _turns(sharing)), ("GPU work", _work(sharing))]
    if sharing.wants != "lock":
        rows.append(("allocations", _allocations(sharing)))
    if sharing.troubles:
        rows.append(("trouble", "; ".join(_TROUBLES.get(word, word) for word in sharing.troubles)))
    return rows


def _mode(sharing: Sharing) -> str:
    return f" ({sharing.mode})" if sharing.wants != "cap" else ""


def _processes(sharing: Sharing) -> str:
    if not sharing.processes:
        return "no process used CUDA with it"
    return "1 process" if sharing.processes == 1 else f"{sharing.processes} processes"


def _turns(sharing: Sharing) -> str:
    text = f"{sharing.turns}, held for {format_duration(sharing.held_s)}"
    if sharing.waits:
        text += (
            f"; waited {counted(sharing.waits, 'time')}, {format_duration(sharing.waited_s)} in all,"
            f" {format_duration(sharing.longest_wait_s)} at most"
        )
    return text + (f"; {sharing.undrained} passed on undrained" if sharing.undrained else "")


def _work(sharing: Sharing) -> str:
    return f"{sharing.gated} gated" + (f", {sharing.passed} of it without a turn" if sharing.passed else "")


def _allocations(sharing: Sharing) -> str:
    text = f"{sharing.allocations} charged, peak {_sizes(sharing.peak_mib)}"
    if any(sharing.overhead_mib):
        text += f", contexts {_sizes(sharing.overhead_mib)}"
    text += f"; {sharing.refused} refused" if sharing.refused else ""
    text += f"; {sharing.uncounted} not counted" if sharing.uncounted else ""
    return text + ("; got past the cap" if sharing.got_past_cap else "")


def _sizes(sizes_mib: tuple[int, ...]) -> str:
    return " and ".join(format_size(mib << 20) for mib in sizes_mib) or "-"
