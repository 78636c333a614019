"""``slicer reserve``: GPUs for one user's jobs, at a time in the future; or for nobody's, out of service."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from slicer.backend import broker_socket
from slicer.broker.client.calls import ask
from slicer.broker.client.standing import everybody, read
from slicer.broker.protocol.messages import Reserve, SetService, Unreserve
from slicer.cli import output, say
from slicer.cli.common import coming, meant
from slicer.cli.status_text import out_of_service, reservations
from slicer.columns import Line, joined
from slicer.errors import SlicerError, UsageError
from slicer.gpu.xids import BY_LOG, XidLog
from slicer.kernel.users import user_name
from slicer.model import OutOfService, Reservation
from slicer.quantity import parse_duration
from slicer.text import one_line, split_list

_ID = 4  # the least characters of an id
_MOST_WHY = 120
_NO_BROKER = "the broker keeps reservations, and there is none"
_WITHOUT = "sudo slicer install --broker; slicer run --begin starts one job at a time"


@click.command(
    "reserve",
    epilog="""\
\b
Examples:
  sudo slicer reserve --gpus 2 --begin 14:00 --for 2h --for-user ann
      From two to four o'clock two GPUs are for ann's jobs alone.
  slicer reserve --gpu 0 --begin "monday 9:00" --until "monday 18:00"
      GPU 0 for your own jobs, if the administrator's policy allows it.
  slicer reserve
      All reservations, and the GPUs that are out of service.
  slicer reserve --remove 3f2a
      Give one up.
  sudo slicer reserve --out-of-service 3 --why "fell off the bus"
      GPU 3 gets no more jobs, until root says: slicer reserve --remove 3
      Root says that, too, when a GPU was reset after an Xid error.

\b
A reservation ends no job. Until it begins, its GPUs serve jobs that should
end by then (see slicer run --expect). A job that lasts longer delays it. The
broker keeps reservations, also over a reboot, and so it does GPUs out of
service: what runs there goes on. More in docs/placement.md and docs/gpus.md;
docs/json.md describes the output of --json.""",
)
@click.option("-g", "--gpus", type=click.IntRange(1), metavar="N", help="How many GPUs; slicer chooses them.")
@click.option("--gpu", metavar="LIST", help="These GPUs (indices or UUIDs: 0,2).")
@click.option("--begin", "begins", metavar="TIME", help="When it begins (22:00, 90m). Default: now.")
@click.option("--for", "length", metavar="DURATION", help="How long it lasts.")
@click.option("--until", "ends", metavar="TIME", help="When it ends, in place of --for.")
@click.option("--for-user", metavar="USER", help="For root: whose jobs may use the GPUs.")
@click.option("--out-of-service", "out", metavar="LIST", help="For root: these GPUs get no more jobs.")
@click.option("--why", metavar="TEXT", help="Why they are out of service.")
@click.option("--remove", metavar="ID", help="Give up a reservation, or put a GPU back into service.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    gpus: int | None, gpu: str | None, begins: str | None, length: str | None, ends: str | None,
    for_user: str | None, out: str | None, why: str | None, remove: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Reserve GPUs, or take them out of service; remove a reservation, or list all of them."""
    asks = (gpus, gpu, begins, length, ends, for_user)
    is_asked = any(each is not None for each in asks)
    states = read(os.environ, say.line).gpus
    numbers = {state.gpu.uuid: state.gpu.index for state in states}
    path, told = broker_socket(os.environ), ""
    if remove is not None:
        if is_asked or out is not None or why is not None:
            raise UsageError("goes with no option but --json", where="--remove")
        sick = [state.gpu.uuid for state in states if state.out.startswith(BY_LOG)]
        found, told = _removed(remove, path, numbers, sick), "removed"
    elif not path:
        hint = _WITHOUT if out is None else "[gpu] out_of_service in /etc/slicer/config.toml does it"
        raise SlicerError(_NO_BROKER, hint=hint)
    elif out is not None or why is not None:
        before = _known(path)
        ask(path, _taking(out, why, is_asked))
        found, told = [each for each in _known(path) if each not in before], "out of service"
    elif is_asked:
        found, told = [ask(path, _asked(*asks)).reserved], "reserved"
    else:
        found = _known(path)
    _show(found, numbers, as_json, told)


def _known(path: str) -> list[Reservation | OutOfService]:
    found = everybody(path)
    return [*found.reservations, *found.out_of_service]


def _show(
    found: Sequence[Reservation | OutOfService], numbers: Mapping[str, int], as_json: bool, told: str
) -> None:
    kept = [each for each in found if isinstance(each, Reservation)]
    out = [each for each in found if isinstance(each, OutOfService)]
    if as_json:
        rows = [output.picked(each, "gpu why since_at") for each in out]
        output.show_json({"reservations": [row_json(each) for each in kept], "out_of_service": rows})
        return
    tables = (reservations(kept, numbers, time.time()), out_of_service(out, numbers, time.time()))
    shown = [table.lines for table in tables if table.entries]
    output.show(joined(shown) if shown or told else [Line("No reservations.")])
    if told:
        say.line(told)


def _taking(out: str | None, why: str | None, is_asked: bool) -> SetService:
    if out is None or not why or is_asked:
        raise UsageError("goes with --why, and with no other option", where="--out-of-service")
    gpus = tuple(meant(split_list, out, "--out-of-service"))
    if not all(gpus):
        raise UsageError("expected GPUs by index or UUID", where="--out-of-service")
    return SetService(gpus, is_out=True, why=one_line(why, _MOST_WHY))


def _asked(
    gpus: int | None, gpu: str | None, begins: str | None, length: str | None, ends: str | None,
    for_user: str | None,
) -> Reserve:  # fmt: skip
    if (gpus is None) == (gpu is None):
        raise UsageError("say how many GPUs (--gpus), or which (--gpu)")
    if (length is None) == (ends is None):
        raise UsageError("say how long (--for), or until when (--until)")
    now = time.time()
    from_at = now if begins is None else coming(begins, now, "--begin")
    if length is not None:
        until_at = from_at + meant(parse_duration, length, "--for") / 1e6
    else:
        until_at = coming(ends or "", from_at, "--until")
    named = tuple(meant(split_list, gpu, "--gpu")) if gpu is not None else ()
    return Reserve(gpus or len(named), named, from_at, until_at, _uid(for_user))


def _uid(name: str | None) -> int:
    if name is None:
        return os.geteuid()
    if name.isdigit():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError as error:
        raise UsageError(f"there is no user {name!r:.40}", where="--for-user") from error


def _removed(
    word: str, path: str, numbers: Mapping[str, int], sick: Iterable[str]
) -> list[Reservation | OutOfService]:
    """Give up what is called so. ``sick``: the GPUs that are out of service by errors in the kernel's log."""

    def is_meant(id: str) -> bool:
        return (len(word) >= _ID and id.startswith(word)) or str(numbers.get(id, id)) == word

    sick = [uuid for uuid in sick if is_meant(uuid)]
    if not path and not sick:
        raise SlicerError(_NO_BROKER, hint=_WITHOUT)
    found = [each for each in (_known(path) if path else ()) if is_meant(_id(each))]
    count = len({*map(_id, found), *sick})
    if count != 1:
        which = f"could be {count} of them" if count else "is no reservation and no GPU out of service"
        raise UsageError(f"{word!r:.40} {which}", where="--remove", hint="slicer reserve lists them")
    for each in found:
        is_gpu = isinstance(each, OutOfService)
        ask(path, SetService((_id(each),), is_out=False) if is_gpu else Unreserve(_id(each)))
    for uuid in sick:
        XidLog().forgive(uuid)
    return found


def _id(each: Reservation | OutOfService) -> str:
    return each.id if isinstance(each, Reservation) else each.gpu


def row_json(each: Reservation) -> dict[str, Any]:
    return {**output.picked(each, "id uid gpus from_at until_at"), "user": user_name(each.uid)}
