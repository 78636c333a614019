"""The administrator's policy: what a user may have, and what share is due. Pure.

Read from /etc/slicer/policy.toml alone (:mod:`slicer.broker.server.policy_file`).
"""

from __future__ import annotations

from collections.abc import Sequence

from slicer.record import as_dict, record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.model import Fence

NO_CAP = 1 << 60  # "infinity" in a policy: as much as there is, whatever a wider rule says


@record
class Caps:
    """The most that one user may have at a time. None: nothing is said; if resolved, as much as there is."""

    max_gpus: int | None = None
    max_vram_mib: int | None = None  # over all GPUs; a whole GPU counts with all its memory
    max_cpu_slots: int | None = None
    # Of a request; higher ones are refused. Where nothing is said, those of others than root count as what
    # the administrator's profile says, or 0, and order the user's own requests.
    max_priority: int | None = None
    max_hold_s: float | None = None  # a job that holds a GPU or a slot is ended after that
    max_waiting: int | None = None  # requests in the queue


@record
class Together:
    """The most that all members of a group may have together. None: as much as there is."""

    name: str  # of the group, as the file has it
    max_gpus: int | None = None
    max_vram_mib: int | None = None  # as in Caps
    max_cpu_slots: int | None = None


@record
class Policy:
    """``users`` and ``groups`` by uid and gid. A user's own word wins, then the most generous of its groups.

    ``weights`` by gid: a user has the largest of its groups', else 1. A share is due in proportion.
    What is said of everybody (``default``) and of groups does not hold for root. ``together``, by gid, holds
    beside all that, in each group of a user.
    """

    default: Caps
    users: dict[int, Caps]
    groups: dict[int, Caps]
    weights: dict[int, float]
    user_weights: dict[int, float]
    half_life_s: float = 7 * 86400.0  # of what was used: in that time it counts half
    patience_s: float = 86400.0  # who got no GPU for so long while waiting is served out of turn, once
    fence: Fence = "auto"  # "auto": where systemd and the kernel can; "on": no job without it; "off"
    allow_services: bool = False  # system services of users may have jobs, outside of what confines them
    devices: tuple[str, ...] = ()  # NVIDIA's nodes that every job may open, beside its own GPUs
    where: dict[tuple[str, int, str], str] | None = None  # "policy.toml:7" by ("user", 1001, "max_gpus")
    together: dict[int, Together] | None = None


NO_POLICY = Policy(Caps(), {}, {}, {}, {})


CAPS = tuple(as_dict(Caps()))


@record
class Rule:
    """One cap, and where it is said: "policy.toml:7"."""

    value: float
    where: str


def rule_of(policy: Policy, uid: int, gids: Sequence[int], cap: str) -> Rule | None:
    """The word of the policy that decides one cap of a user; None: as much as there is.

    A user's own word wins, then the most generous of its groups', then the default. Root is bound by nothing
    but what is said of the user root.
    """
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
    """A user's caps. None in them: as much as there is."""
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
