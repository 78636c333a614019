"""Which of the policy's words hold for a user. Pure.

A user's own word wins, then the most generous of its groups', then the default. Each cap is looked for by
itself. Root is bound by nothing but what is said of the user root.
"""

from __future__ import annotations

from slicer.broker.rules.policy import NO_CAP, Caps
from slicer.record import as_dict, record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicer.broker.rules.policy import Policy

CAPS = tuple(as_dict(Caps()))


@record
class Rule:
    """One cap, and where it is said: "policy.toml:7"."""

    value: float
    where: str


def rule_of(policy: Policy, uid: int, gids: Sequence[int], cap: str) -> Rule | None:
    """The word of the policy that decides one cap of a user; None: as much as there is."""
    word = word_of(policy, uid, gids, cap)
    return None if word is None or word.value >= NO_CAP else word


def word_of(policy: Policy, uid: int, gids: Sequence[int], cap: str) -> Rule | None:
    """As :func:`rule_of`, but None only where nothing is said; "infinity" is :data:`NO_CAP`."""
    own = getattr(policy.users.get(uid, _SILENT), cap)
    if own is not None:
        return _rule(policy, own, "user", uid, cap)
    if uid == 0:
        return None
    said = [
        (value, gid)
        for gid in dict.fromkeys(gids)
        if gid in policy.groups and (value := getattr(policy.groups[gid], cap)) is not None
    ]
    if said:
        value, gid = max(said, key=lambda each: each[0])
        return _rule(policy, value, "group", gid, cap)
    value = getattr(policy.default, cap)
    return None if value is None else _rule(policy, value, "default", 0, cap)


def together_of(policy: Policy, gid: int, cap: str) -> Rule | None:
    """A cap of all members of a group together; None: as much as there is."""
    found = (policy.together or {}).get(gid)
    value = None if found is None else getattr(found, cap)
    return None if value is None or value >= NO_CAP else _rule(policy, value, "together", gid, cap)


def _rule(policy: Policy, value: float, kind: str, number: int, cap: str) -> Rule:
    return Rule(value, (policy.where or {}).get((kind, number, cap), "policy.toml"))


def caps_of(policy: Policy, uid: int, gids: Sequence[int]) -> Caps:
    """What a user may have. None in it: as much as there is."""
    rules = {cap: rule_of(policy, uid, gids, cap) for cap in CAPS}
    return Caps(**{cap: None if rule is None else rule.value for cap, rule in rules.items()})  # type: ignore[arg-type]


def weight_of(policy: Policy, uid: int, gids: Sequence[int]) -> float:
    """A user's weight for the fair share: its own, else the largest of its groups', else 1."""
    if uid in policy.user_weights:
        return policy.user_weights[uid]
    return max((policy.weights[gid] for gid in gids if gid in policy.weights), default=1.0)


def account_of(policy: Policy, gids: Sequence[int]) -> int:
    """The group that a user's use is booked for: of those that the policy names the one that weighs most.

    If it names none of them, the user's first one. It has at least one.
    """
    named = [gid for gid in gids if gid in policy.groups or gid in policy.weights]
    return max(named, key=lambda gid: policy.weights.get(gid, 1.0), default=gids[0])


_SILENT = Caps()
