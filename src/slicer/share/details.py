"""Texts about a job's sharing: for the terminal, the history and the journal. Pure."""

from __future__ import annotations

from slicer.quantity import format_duration, format_size, short_mib
from slicer.text import counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.model import Sharing
    from slicer.share.arena import SharingNow, Turn

_WANTS = {"lock": "lock", "cap": "cap", "both": "lock and cap"}
_TROUBLES = {
    "no-arena": "no lock: the shared arena could not be used",
    "too-many-processes": "there were more processes than the library can count",
    "too-many-functions": "the driver has more functions than the library can hook",
    "mps": "no lock, because MPS is running",
    "other-gpu": "work or memory on a GPU that is not the job's",
    "undrained": "a turn was passed on before its work was done",
    "arena-busy": "the arena's lock was not available in time",
    "not-preloaded": "the library could not be preloaded",
    "no-file": "the counts are lost: the job's file was missing or damaged",
    "other": "something that this slicer does not know",
}


def wants(word: str, limit_mib: int | None) -> str:
    """Text such as "lock and cap of 8G"."""
    size = f" of {short_mib(limit_mib)}" if limit_mib and word != "lock" else ""
    return f"{_WANTS[word]}{size}"


def problem(sharing: Sharing, exit_code: int) -> str:
    """A problem of the job's sharing for its last line; "" if there is none."""
    if sharing.got_past_cap:
        return "got past its cap"
    if sharing.refused and exit_code:
        return f"{counted(sharing.refused, 'allocation')} refused by the cap"
    if sharing.undrained:
        return f"{counted(sharing.undrained, 'turn')} passed on undrained"
    return ""


def standing_words(now: SharingNow) -> list[str]:
    """A job's state in a few facts: "lock, cap 8G", "has the turn", "7 turns, 9.2s", "4 waits, 1.5s"."""
    facts = [f"shares: {_briefly(now.wants, max(now.limit_mib, default=0))}"]
    if not now.has_begun:
        return [*facts, "no CUDA yet", *_troubles(now.troubles)]
    if now.wants != "cap":
        facts += [_turn(now.turn)] if now.turn is not None else []
        facts.append(f"{counted(now.turns, 'turn')}, {format_duration(now.held_s)}")
        if now.waits:
            facts.append(f"{counted(now.waits, 'wait')}, {format_duration(now.waited_s)}")
    if now.wants != "lock":
        facts.append(f"{' and '.join(map(short_mib, now.charged_mib))} charged")
        facts += [f"{now.refused} refused"] if now.refused else []
        facts += ["got past its cap"] if now.got_past_cap else []
    return [*facts, *_troubles(now.troubles)]


def _briefly(word: str, limit_mib: int) -> str:
    """Text such as "lock, cap 8G": a line of the status has little room."""
    cap = f"cap {short_mib(limit_mib)}"
    return {"lock": "lock", "cap": cap}.get(word, f"lock, {cap}")


def _turn(turn: Turn) -> str:
    if turn.doing == "waiting":
        behind = f", {turn.ahead} before it" if turn.ahead else ""
        return f"waits for {format_duration(turn.for_s)}{behind}"
    return {"has": "has the turn", "yields": "passes the turn on"}.get(turn.doing, "wants no turn")


def trouble(word: str) -> str:
    return _TROUBLES.get(word, word)


def _troubles(words: tuple[str, ...]) -> list[str]:
    return list(map(trouble, words))


def details(sharing: Sharing) -> list[tuple[str, str]]:
    mode = f" ({sharing.mode})" if sharing.wants != "cap" else ""
    rows = [("sharing", f"{_WANTS[sharing.wants]}{mode}, {_processes(sharing)}")]
    if sharing.wants != "cap":
        ungated = f", {sharing.passed} of it without a turn" if sharing.passed else ""
        rows += [("turns", _turns(sharing)), ("GPU work", f"{sharing.gated} gated{ungated}")]
    if sharing.wants != "lock":
        rows.append(("allocations", _allocations(sharing)))
    if sharing.troubles:
        rows.append(("trouble", "; ".join(_troubles(sharing.troubles))))
    return rows


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


def _allocations(sharing: Sharing) -> str:
    text = f"{sharing.allocations} charged, peak {_sizes(sharing.peak_mib)}"
    if any(sharing.overhead_mib):
        text += f", contexts {_sizes(sharing.overhead_mib)}"
    text += f"; {sharing.refused} refused" if sharing.refused else ""
    text += f"; {sharing.uncounted} not counted" if sharing.uncounted else ""
    text += "; the driver keeps the cap, too" if sharing.driver_cap else ""
    return text + ("; got past the cap" if sharing.got_past_cap else "")


def _sizes(sizes_mib: tuple[int, ...]) -> str:
    return " and ".join(format_size(mib << 20) for mib in sizes_mib) or "-"
