"""The administrator's policy: what a user may have, and the share that is due. Pure.

It comes only from /etc/slicer/policy.toml (:mod:`slicer.broker.server.policy_file`).
"""

from __future__ import annotations

from collections.abc import Sequence

from slicer.record import as_dict, record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.model import Fence, OnIdle

NO_CAP = 1 << 60  # "infinity" in a policy: no limit, even if a wider rule sets one


@record
class Caps:
    """The most that one user may have at a time. None: not set; in resolved caps, no limit."""

    max_gpus: int | None = None
    max_vram_mib: int | None = None  # over all GPUs; a whole GPU counts with all its memory
    max_cpu_slots: int | None = None
    # Of a request; higher ones are refused. If it is not set, the priorities of users other than root count
    # only up to the administrator's profile, or 0, and otherwise order the user's own requests.
    max_priority: int | None = None
    max_hold_s: float | None = None  # a job that holds a GPU or a slot is ended after that time
    max_waiting: int | None = None  # requests in the queue
    max_reserve_s: float | None = None  # the longest reservation; not set: only root makes any
    idle_timeout_s: float | None = None  # a job that does not use its GPUs is warned, or ended: on_idle


@record
class Together:
    """The most that all members of a group may have together. None: no limit."""

    name: str  # of the group, as in the file
    max_gpus: int | None = None
    max_vram_mib: int | None = None  # as in Caps
    max_cpu_slots: int | None = None


@record
class SitePolicy:
    """``users`` and ``groups`` by uid and gid. A user's own rule wins, then the most generous of its groups.

    ``weights`` by gid: a user has the largest weight of its groups, else 1. Shares are due in proportion.
    Rules for everybody (``default``) and for groups do not apply to root. ``together``, by gid, applies in
    addition, in each group of a user.
    """

    default: Caps
    users: dict[int, Caps]
    groups: dict[int, Caps]
    weights: dict[int, float]
    user_weights: dict[int, float]
    half_life_s: float = 7 * 86400.0  # after that time a use counts half
    patience_s: float = 86400.0  # a user that waited so long without a GPU is served out of turn, once
    fence: Fence = "auto"  # "auto": if systemd and the kernel support it; "on": no job without it; "off"
    on_idle: OnIdle = "warn"
    max_min_run_s: float = 3600.0  # after that time a preemptible job gives way, whatever its own min_run
    preemptible_free: bool = False  # whether preemptible jobs' GPUs do not count against caps
    allow_services: bool = False  # whether users' system services may have jobs, outside their confinement
    # Those in the ranges of /etc/subuid that are users, from first to last. None: whom a name service knows.
    user_uids: tuple[tuple[int, int], ...] | None = None
    devices: tuple[str, ...] = ()  # NVIDIA's nodes that every job may open in addition to its own GPUs
    where: dict[tuple[str, int, str], str] | None = None  # "policy.toml:7" by ("user", 1001, "max_gpus")
    together: dict[int, Together] | None = None


NO_POLICY = SitePolicy(Caps(), {}, {}, {}, {})


CAPS = tuple(as_dict(Caps()))


@record
class Rule:
    """One cap, and its place: "policy.toml:7"."""

    value: float
    where: str


def rule_of(policy: SitePolicy, uid: int, gids: Sequence[int], cap: str) -> Rule | None:
    """The rule that decides one cap of a user; None: no limit.

    A user's own rule wins, then the most generous of its groups, then the default. Root is bound only by
    rules for the user root.
    """
    word = word_of(policy, uid, gids, cap)
    return None if word is None or word.value >= NO_CAP else word


def word_of(policy: SitePolicy, uid: int, gids: Sequence[int], cap: str) -> Rule | None:
    """As :func:`rule_of`, but None only if nothing is set; "infinity" is :data:`NO_CAP`."""
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


def together_of(policy: SitePolicy, gid: int, cap: str) -> Rule | None:
    """A cap of all members of a group together; None: no limit."""
    found = (policy.together or {}).get(gid)
    value = None if found is None else getattr(found, cap)
    return None if value is None or value >= NO_CAP else _rule(policy, value, "together", gid, cap)


def _rule(policy: SitePolicy, value: float, kind: str, number: int, cap: str) -> Rule:
    return Rule(value, (policy.where or {}).get((kind, number, cap), "policy.toml"))


def caps_of(policy: SitePolicy, uid: int, gids: Sequence[int]) -> Caps:
    """A user's caps. None in them: no limit."""
    rules = {cap: rule_of(policy, uid, gids, cap) for cap in CAPS}
    return Caps(**{cap: None if rule is None else rule.value for cap, rule in rules.items()})  # type: ignore[arg-type]


def weight_of(policy: SitePolicy, uid: int, gids: Sequence[int]) -> float:
    """A user's weight for the fair share: its own, else the largest of its groups', else 1."""
    if uid in policy.user_weights:
        return policy.user_weights[uid]
    return max((policy.weights[gid] for gid in gids if gid in policy.weights), default=1.0)


def account_of(policy: SitePolicy, gids: Sequence[int]) -> int:
    """The group to which a user's use is booked: the one with the most weight of those in the policy.

    If the policy names none of them, it is the user's first group. A user has at least one.
    """
    named = [gid for gid in gids if gid in policy.groups or gid in policy.weights]
    return max(named, key=lambda gid: policy.weights.get(gid, 1.0), default=gids[0])


def is_user(policy: SitePolicy, uid: int) -> bool | None:
    """Whether a subordinate uid (subuid(5)) is a user's; None: the policy does not say."""
    if policy.user_uids is None:
        return None
    return any(first <= uid <= last for first, last in policy.user_uids)


_SILENT = Caps()
