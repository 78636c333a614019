"""The administrator's policy: what a user may have, and what share is due. Pure.

Read from /etc/slicer/policy.toml alone (:mod:`slicer.broker.server.policy_file`).
"""

from __future__ import annotations

from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.model import Fence

NO_CAP = 1 << 60  # "infinity" in a policy: as much as there is, whatever a wider rule says


@record
class Caps:
    """What one user may have at a time. None: nothing is said; of resolved caps, as much as there is."""

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
    """What all members of a group may have at a time, taken together. None: as much as there is."""

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
