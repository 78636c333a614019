"""The broker: whether it exists, whether it answers, and the state of the administrator's policy."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from slicer.backend import BROKER_VARIABLE
from slicer.backend.broker_left import why_absent
from slicer.backend.closed_shop import UNIT_FOLDERS
from slicer.broker.client.connection import Connection, NoBroker
from slicer.broker.protocol.messages import Status
from slicer.broker.server import policy_file
from slicer.broker.server.names import Subordinates
from slicer.doctor.facts.reading import lstat, masks_in
from slicer.errors import ConfigError, SlicerError
from slicer.kernel.proc import names_in
from slicer.kernel.users import hidden_root, user_name
from slicer.model import OutOfService
from slicer.record import record
from slicer.state import BROKER, BROKER_DIRECTORY, BROKER_ENABLED

_UNIT, _SERVICE = "slicer-broker.socket", "slicer-broker.service"
_MASKS = UNIT_FOLDERS[:2]  # systemctl puts masks there


@record
class BrokerFacts:
    """``answer_error``: why the broker cannot be used; "" if it answers, or if there is no socket.

    ``absence``: what is wrong if there should be a broker but it has no socket.
    ``policy``: "none", "read", "hidden" (from this user) or "broken"; then ``policy_error`` says why.
    """

    is_enabled: bool
    has_socket: bool
    absence: str
    masked: tuple[str, ...]  # its units that are masked
    place_problem: str  # why the socket cannot be trusted
    answer_error: str
    policy: str
    policy_error: str
    policy_warnings: tuple[str, ...]
    variable: str  # $SLICER_BROKER
    out_of_service: tuple[OutOfService, ...] = ()  # by hand
    overlaps: tuple[str, ...] = ()  # users whose uids lie in others' ranges of subordinate uids


def gather(environ: Mapping[str, str]) -> BrokerFacts:
    """Asks the broker, which starts if it sleeps. Takes at most 5 s and changes nothing."""
    has_socket = lstat(BROKER) is not None
    place_problem = _place_problem() if has_socket else ""
    policy, policy_error, warnings = _policy(policy_file.PATH)
    answer_error, out_of_service = _asked() if has_socket and not place_problem else ("", ())
    return BrokerFacts(
        is_enabled=os.path.lexists(BROKER_ENABLED), has_socket=has_socket,
        absence="" if has_socket else (why_absent() or ("", ""))[0],
        masked=masks_in(f"{folder}/{unit}" for folder in _MASKS for unit in (_UNIT, _SERVICE)),
        place_problem=place_problem, answer_error=answer_error, out_of_service=out_of_service,
        policy=policy, policy_error=policy_error, policy_warnings=warnings,
        variable=environ.get(BROKER_VARIABLE, ""),
        overlaps=_overlaps() if has_socket else (),
    )  # fmt: skip


def _overlaps() -> tuple[str, ...]:
    """Of this user, and of those who are logged in or linger."""
    uids = {os.geteuid(), *(int(name) for name in names_in("/run/user") if name.isdigit())}
    subordinates = Subordinates(lambda uid: False)
    owners = {uid: subordinates.owner_of(uid) for uid in uids if user_name(uid) != str(uid)}
    return tuple(f"{user_name(uid)} ({uid}) in {owner}'s" for uid, owner in sorted(owners.items()) if owner)


def _place_problem() -> str:
    """Why the socket cannot be trusted: another user's would be asked for leases, and learn about jobs."""
    for path, is_right in ((BROKER_DIRECTORY, stat.S_ISDIR), (BROKER, stat.S_ISSOCK)):
        info = lstat(path)
        if info is None:
            return ""
        if info.st_uid not in (0, hidden_root()):
            return f"{path} belongs to uid {info.st_uid}"
        if not is_right(info.st_mode):
            return f"{path} has the wrong file type"
        if path == BROKER_DIRECTORY and info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"{path} is writable by others"
        if path == BROKER and info.st_mode & 0o666 != 0o666:
            return f"{path} is not open to all (mode {stat.S_IMODE(info.st_mode):04o})"
    return ""


def _asked() -> tuple[str, tuple[OutOfService, ...]]:
    """Why there is no answer ("" if there is one), and the GPUs that are out of service by hand."""
    connection = Connection()
    try:
        return "", connection.ask(Status()).out_of_service
    except NoBroker:
        return "", ()  # it was stopped just now
    except SlicerError as error:
        return error.message, ()
    finally:
        connection.close()


def _policy(path: str) -> tuple[str, str, tuple[str, ...]]:
    info = lstat(path)
    if info is None:
        return "none", "", ()
    if not os.access(path, os.R_OK):
        return "hidden", "", ()
    try:
        _, warnings = policy_file.load(path)
    except ConfigError as error:
        return "broken", str(error), ()
    return "read", "", warnings
