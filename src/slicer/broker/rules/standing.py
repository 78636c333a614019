"""Each user's standing: what it holds, may hold and has used; and why another goes first. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from slicer.broker.protocol.messages import GroupStanding, UserStanding
from slicer.broker.rules.allowance import Holdings, taken_together
from slicer.broker.rules.policy import SitePolicy, caps_of, together_of
from slicer.broker.rules.shares import Shares
from slicer.model import Ticket


def standings(
    policy: SitePolicy, gids: Mapping[int, Sequence[int]], shares: Shares, held: Mapping[int, Holdings],
    tickets: Sequence[Ticket],
) -> tuple[UserStanding, ...]:  # fmt: skip
    """One for each user that holds or waits for something, the largest share first. ``held``: by uid."""
    waiting = Counter(ticket.uid for ticket in tickets)
    found = []
    for uid in sorted({*held, *waiting}):
        caps = caps_of(policy, uid, gids.get(uid, ()))
        has = held.get(uid, Holdings())
        standing = UserStanding(
            uid=uid, gpus=has.gpus, max_gpus=caps.max_gpus, vram_mib=has.vram_mib,
            max_vram_mib=caps.max_vram_mib, slots=has.slots, max_slots=caps.max_cpu_slots,
            waiting=waiting[uid], share=shares.share(uid), due=shares.due(uid),
        )  # fmt: skip
        found.append(standing)
    return tuple(sorted(found, key=lambda each: (-each.share, each.uid)))


def groups(
    policy: SitePolicy, gids: Mapping[int, Sequence[int]], held: Mapping[int, Holdings]
) -> tuple[GroupStanding, ...]:
    """One for each group with a common limit, by name. ``held``: by uid."""
    found = []
    for gid, said in (policy.together or {}).items():
        has = taken_together(held, gids, gid)
        most = {
            cap: None if (rule := together_of(policy, gid, cap)) is None else int(rule.value)
            for cap in ("max_gpus", "max_vram_mib", "max_cpu_slots")
        }
        if any(each is not None for each in most.values()):
            standing = GroupStanding(
                gid=gid, name=said.name, gpus=has.gpus, max_gpus=most["max_gpus"], vram_mib=has.vram_mib,
                max_vram_mib=most["max_vram_mib"], slots=has.slots, max_slots=most["max_cpu_slots"],
            )  # fmt: skip
            found.append(standing)
    return tuple(sorted(found, key=lambda each: each.name))


def passing(queue: Sequence[Ticket], shares: Shares) -> dict[str, int]:
    """For each request for GPUs, the number of other users that go first by their shares, though they
    arrived later, by job.

    ``queue`` is in its order. Requests that nobody passes are not in the result.
    """
    found: dict[str, int] = {}
    newest_s: dict[int, dict[int, float]] = {}  # of the requests ahead, by priority and uid
    for ticket in queue:
        if not ticket.gpus:
            continue
        ahead = newest_s.setdefault(ticket.priority, {})
        own = shares.rank(ticket.uid)
        count = sum(each > ticket.arrived_s for uid, each in ahead.items() if shares.rank(uid) < own)
        if count:
            found[ticket.job] = count
        ahead[ticket.uid] = max(ticket.arrived_s, ahead.get(ticket.uid, ticket.arrived_s))
    return found


def why_behind(uid: int, users: int, shares: Shares, name: str) -> str:
    """Why requests of ``users`` users that arrived later go before one of this user, in words.

    As in "alice has used 0.60 of the GPU time lately, 0.25 is due: another user goes first". Only the number
    of the other users is revealed. "" if there are none.
    """
    if not users:
        return ""
    others = "another user goes" if users == 1 else f"{users} other users go"
    share, due = shares.share(uid), shares.due(uid)
    return f"{name} has used {share:.2f} of the GPU time lately, {due:.2f} is due: {others} first"
