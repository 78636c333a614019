"""Reservations: GPUs that are kept for one user's jobs during a time in the future. Pure.

They end no job. Before a reservation begins, others may use its GPUs for jobs that should end by then. If one
of these lasts longer, the reservation begins late.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from slicer.errors import InfeasibleError, NotAllowedError, UsageError
from slicer.model import Lease, Reservation, Ticket
from slicer.moments import words
from slicer.placement.order import expected_end, length_of
from slicer.text import counted

MOST = 100  # on a machine
MOST_EACH = 5  # of a user other than root
MOST_AHEAD_S = 366 * 86400.0


def live(reservations: Iterable[Reservation], now_at: float) -> tuple[Reservation, ...]:
    """Those that are not over, the first to begin first."""
    return tuple(sorted((each for each in reservations if each.until_at > now_at), key=_place))


def _place(each: Reservation) -> tuple[float, str]:
    return each.from_at, each.id


def closing(ticket: Ticket, reservations: Iterable[Reservation], now_at: float) -> list[Reservation]:
    """Those that close their GPUs to this request now: of others, and it should not end before they begin."""
    ends_at = now_at + length_of(ticket)
    return [
        each
        for each in reservations
        if each.uid != ticket.uid and each.until_at > now_at and ends_at > each.from_at
    ]


def opened(
    ticket: Ticket, reservations: Sequence[Reservation], uuids: Sequence[str], now_at: float
) -> tuple[str, ...]:
    """Of the GPUs ``uuids`` those that the request may use now."""
    closed = {uuid for each in closing(ticket, reservations, now_at) for uuid in each.gpus}
    return tuple(uuid for uuid in uuids if uuid not in closed)


def why(
    ticket: Ticket, reservations: Sequence[Reservation], numbers: Mapping[str, int],
    name_of: Callable[[int], str], now_at: float,
) -> str:  # fmt: skip
    """As in "GPU 0 is reserved for ann until 16:00". ``name_of`` gives a user's name."""
    first = min(closing(ticket, reservations, now_at), key=_place, default=None)
    if first is None:
        return ""
    shown = ", ".join(str(numbers.get(uuid, uuid)) for uuid in first.gpus)
    gpus = f"GPU{'s' if len(first.gpus) > 1 else ''} {shown} {'are' if len(first.gpus) > 1 else 'is'}"
    begins = f" {words(first.from_at, now_at)}," if first.from_at > now_at else ""
    until = words(first.until_at, now_at).removeprefix("at ")
    return f"{gpus} reserved for {name_of(first.uid)}{begins} until {until}"


def check_times(from_at: float, until_at: float, now_at: float, most_s: float | None, where: str) -> None:
    """``most_s``: the longest for this user; None: it may make none, by ``where`` in the policy.

    Raises UsageError, NotAllowedError.
    """
    if until_at <= max(from_at, now_at):
        raise UsageError("a reservation has to end after it begins, and after now")
    if until_at > now_at + MOST_AHEAD_S:
        raise UsageError("a reservation has to end within a year")
    if most_s is None:
        hint = "the administrator can allow it: max_reserve in policy.toml"
        raise NotAllowedError("only root may reserve GPUs", where=where, hint=hint)
    if until_at - from_at > most_s:
        raise NotAllowedError(
            f"{(until_at - from_at) / 3600:.1f} hours were asked for, but at most {most_s / 3600:.1f} may be",
            where=where, hint="reserve for a shorter time, or ask the administrator",
        )  # fmt: skip


def chosen(
    count: int, named: Sequence[str], uuids: Sequence[str], reservations: Iterable[Reservation],
    leases: Iterable[Lease], times: tuple[float, float], now_s: float, out: Collection[str] = (),
) -> tuple[str, ...]:  # fmt: skip
    """The GPUs to reserve: those ``named``, else of ``uuids`` the ones whose leases should end first.

    ``times``: from and until, in seconds since 1970; ``now_s``: CLOCK_BOOTTIME; ``out``: the GPUs that are
    out of service, which have to be named. Raises InfeasibleError.
    """
    from_at, until_at = times
    taken = {
        uuid
        for each in reservations
        if each.from_at < until_at and from_at < each.until_at
        for uuid in each.gpus
    }
    taken.update(() if named else out)
    ends_s: dict[str, float] = {}
    for lease in leases:
        for uuid in lease.gpus:
            ends_s[uuid] = max(ends_s.get(uuid, 0.0), expected_end(lease, now_s))
    able = [uuid for uuid in named or uuids if uuid not in taken]
    wanted = len(named) or count
    if len(able) < wanted:
        of = counted(len(named or uuids), "GPU")
        hint = "slicer reserve lists the reservations"
        raise InfeasibleError(f"{wanted} wanted, but {len(able)} of {of} can be reserved then", hint=hint)
    able.sort(key=lambda uuid: ends_s.get(uuid, 0.0))
    kept = set(able[:wanted])
    return tuple(uuid for uuid in uuids if uuid in kept)
