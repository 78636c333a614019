"""The figures of a job's sharing, for its outcome. Pure."""

from __future__ import annotations

from slicer.model import Sharing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.share.environment import ShareOrder
    from slicer.share.layout import JobFileText

NOT_PRELOADED = "not-preloaded"  # impossible for this program, and no cap depends on it
NO_FILE = "no-file"  # the job's file was removed or damaged, so the counts are unknown


def sharing_of(order: ShareOrder, said: JobFileText | None) -> Sharing:
    """The summary of the job's file; None: it cannot be read."""
    if said is None:
        word = NO_FILE if order.is_active else NOT_PRELOADED
        # Without the library, only the driver can enforce a cap; otherwise the job would not have started.
        is_driver_cap = not order.is_active and order.wants != "lock"
        return Sharing(order.wants, order.mode, 0, driver_cap=int(is_driver_cap), troubles=(word,))
    counted = said.counters
    return Sharing(
        wants=order.wants, mode=order.mode, processes=said.rows, gated=counted.gated, passed=counted.passed,
        turns=counted.turns, held_s=counted.held_ns / 1e9, waits=counted.waits,
        waited_s=counted.waited_ns / 1e9, longest_wait_s=counted.longest_ns / 1e9,
        undrained=counted.undrained, allocations=counted.allocations, refused=counted.refused,
        uncounted=counted.uncounted, peak_mib=_mib(said.peak), overhead_mib=_mib(said.overhead),
        got_past_cap=said.got_past_cap, driver_cap=said.driver_cap, troubles=said.troubles,
    )  # fmt: skip


def _mib(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size >> 20 for size in sizes)
