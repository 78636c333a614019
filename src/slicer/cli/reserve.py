"""``slicer reserve``: GPUs for one user's jobs, at a time in the future."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Sequence
from typing import Any

import click

from slicer.backend import broker_socket
from slicer.broker.client.calls import ask
from slicer.broker.client.standing import everybody, read
from slicer.broker.protocol.messages import Reserve, Unreserve
from slicer.cli import output, say
from slicer.cli.common import coming, meant
from slicer.cli.status_text import reservations
from slicer.columns import Line
from slicer.errors import SlicerError, UsageError
from slicer.kernel.users import user_name
from slicer.model import Reservation
from slicer.quantity import parse_duration
from slicer.text import split_list

_ID = 4  # the least characters of an id


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
      All reservations.
  slicer reserve --remove 3f2a
      Give one up.

\b
A reservation ends no job. Until it begins, its GPUs serve jobs that should
end by then (see slicer run --expect). A job that lasts longer delays it. The
broker keeps reservations, also over a reboot. More in docs/placement.md;
docs/json.md describes the output of --json.""",
)
@click.option("-g", "--gpus", type=click.IntRange(1), metavar="N", help="How many GPUs; slicer chooses them.")
@click.option("--gpu", metavar="LIST", help="These GPUs (indices or UUIDs: 0,2).")
@click.option("--begin", "begins", metavar="TIME", help="When it begins (22:00, 90m). Default: now.")
@click.option("--for", "length", metavar="DURATION", help="How long it lasts.")
@click.option("--until", "ends", metavar="TIME", help="When it ends, in place of --for.")
@click.option("--for-user", metavar="USER", help="For root: whose jobs may use the GPUs.")
@click.option("--remove", metavar="ID", help="Give up a reservation.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    gpus: int | None, gpu: str | None, begins: str | None, length: str | None, ends: str | None,
    for_user: str | None, remove: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Reserve GPUs, remove a reservation, or list all of them."""
    path = broker_socket(os.environ)
    if not path:
        hint = "sudo slicer install --broker; slicer run --begin starts one job at a time"
        raise SlicerError("the broker keeps reservations, and there is none", hint=hint)
    asks = (gpus, gpu, begins, length, ends, for_user)
    if remove is not None:
        if any(each is not None for each in asks):
            raise UsageError("goes with no option but --json", where="--remove")
        found = [_named(remove, everybody(path).reservations)]
        ask(path, Unreserve(found[0].id))
        told = "removed"
    elif any(each is not None for each in asks):
        found = [ask(path, _asked(*asks)).reserved]
        told = "reserved"
    else:
        found, told = list(everybody(path).reservations), ""
    if as_json:
        output.show_json({"reservations": [row_json(each) for each in found]})
    elif found:
        numbers = {state.gpu.uuid: state.gpu.index for state in read(os.environ, say.line).gpus}
        output.show(reservations(found, numbers, time.time()).lines)
    else:
        output.show([Line("No reservations.")])
    if told and not as_json:
        say.line(told)


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


def _named(word: str, known: Sequence[Reservation]) -> Reservation:
    found = [each for each in known if each.id.startswith(word)] if len(word) >= _ID else []
    if len(found) != 1:
        which = f"could be {len(found)} reservations" if found else "is no reservation"
        raise UsageError(f"{word!r:.40} {which}", where="--remove", hint="slicer reserve lists them")
    return found[0]


def row_json(each: Reservation) -> dict[str, Any]:
    return {**output.picked(each, "id uid gpus from_at until_at"), "user": user_name(each.uid)}
