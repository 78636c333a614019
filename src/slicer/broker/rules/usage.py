"""What was used since a time, running jobs among it. Pure."""

from __future__ import annotations

from slicer.broker.protocol.messages import UsageRow
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


@record
class Running:
    """A lease that lasts, as far as the accounts look at it."""

    uid: int
    gid: int  # that it is booked for
    profile: str
    lasts_s: float  # since it was granted
    waited_s: float
    rate: float  # slicer.broker.rules.shares.gpu_rate
    vram_mib: int  # over all its GPUs


def with_running(
    ended: Iterable[UsageRow], running: Iterable[Running], by: str, within_s: float | None
) -> tuple[UsageRow, ...]:
    """The rows with what running jobs have used so far, in the last ``within_s`` seconds (None: ever).

    The most GPU time goes first.
    """
    rows = {row.of: row for row in ended}
    for each in running:
        of = str({"user": each.uid, "group": each.gid, "profile": each.profile}[by])
        row = rows.get(of, UsageRow(of, 0, 0, 0.0, 0.0, 0.0, 0.0))
        used_s = each.lasts_s if within_s is None else min(each.lasts_s, within_s)
        began_within = within_s is None or each.lasts_s <= within_s
        rows[of] = UsageRow(
            of, row.jobs + 1, row.running + 1, row.gpu_s + each.rate * used_s,
            row.vram_mib_s + each.vram_mib * used_s, row.cpu_s,
            row.waited_s + (each.waited_s if began_within else 0.0),
        )  # fmt: skip
    return tuple(sorted(rows.values(), key=lambda row: (-row.gpu_s, -row.cpu_s, row.of)))
