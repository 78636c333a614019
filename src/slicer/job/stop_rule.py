"""The rule by which a job is ended: who is asked, in which order, by which signal, with how much time. Pure.

Whoever ends a job (``slicer stop``, a limit, the queue, the policy, ``systemctl stop``, a logout or a
shutdown), its keeper asks the processes:

==================  ======================================  ==========================  ==================
KillMode=           at once                                 after the grace             after all the time
==================  ======================================  ==========================  ==================
not set             the command alone; when it has ended,   SIGTERM to all that were    SIGKILL to all
                    whoever it leaves at the top            not asked yet
mixed               the command alone; when it has ended,   (the grace is all the time) SIGKILL to all
                    SIGKILL to whoever it leaves
control-group       all                                     (there is no grace)         SIGKILL to all
==================  ======================================  ==========================  ==================

"At the top" is whose parent is not of the job. A shell that ends at SIGTERM leaves its program there, which
is then asked like a command: its own workers still live.
"""

from __future__ import annotations

from slicer.config.properties import LONGEST_STOP_S
from slicer.job.scope import OTHERS_S, stop_timeout_s
from slicer.kernel.signals import signal
from slicer.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from slicer.model import Profile


@record
class StopRule:
    """How a job's processes are asked to end. Times are in seconds since the first was asked."""

    mode: str  # as KillMode=; "" by default
    signo: int
    grace_s: float  # the command alone
    total_s: float  # until SIGKILL
    sends_hup: bool = False  # SIGHUP follows the signal


def rule_of(profile: Profile) -> StopRule:
    said: dict[str, Any] = {name: each.value for name, each in profile.properties.items()}
    mode, signo = said.get("KillMode", ""), said.get("KillSignal", signal.SIGTERM)
    total_s = stop_timeout_s(profile)
    own_s = total_s - _others_s(total_s) if profile.grace_s is None else profile.grace_s
    grace_s = min(own_s, total_s)
    if said.get("SendSIGKILL") is False:
        total_s = LONGEST_STOP_S
    grace_s = {"mixed": total_s, "control-group": 0.0}.get(mode, grace_s)
    return StopRule(mode, signo, grace_s, total_s, said.get("SendSIGHUP") is True)


def asked_for(rule: StopRule, signo: int, grace_s: float | None) -> StopRule:
    """The rule with another signal (0: its own) and grace (None: its own), as ``slicer stop`` wants."""
    if signo:
        rule = replace(rule, signo=signo)
    if grace_s is None:
        return rule
    mode = "" if rule.mode == "control-group" else rule.mode
    others_s = 0.0 if mode else _others_s(rule.total_s)
    return replace(rule, mode=mode, grace_s=grace_s, total_s=grace_s + others_s)


def _others_s(total_s: float) -> float:
    return min(OTHERS_S, total_s / 2)


def due(
    rule: StopRule, since_s: float, command: int, parents: Mapping[int, int]
) -> tuple[int, frozenset[int]]:
    """The signal that is due now, and to whom, unless they got it before.

    ``since_s``: seconds since the first was asked; ``command``: its pid, 0 once it has ended; ``parents``:
    of each of the job's processes the parent.
    """
    if since_s >= rule.total_s:
        return signal.SIGKILL, frozenset(parents)
    if since_s >= rule.grace_s:
        return signal.SIGTERM if rule.grace_s else rule.signo, frozenset(parents)
    if command:
        return rule.signo, frozenset((command,))
    if rule.mode == "mixed":
        return signal.SIGKILL, frozenset(parents)
    return rule.signo, frozenset(pid for pid, parent in parents.items() if parent not in parents)
