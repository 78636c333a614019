"""The keeper that a caller wants in a scope: who it is, and whether it may go there."""

from __future__ import annotations

import os
from contextlib import contextmanager

from slicer.broker.rules import units
from slicer.broker.server.peers import BadKeeper, check_keeper
from slicer.broker.server.refusal import Refusal
from slicer.broker.server.watch import open_process
from slicer.model import ScopeSpec, unit_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from slicer.broker.protocol.messages import Start
    from slicer.broker.server.connections import Call
    from slicer.broker.server.register import Register
    from slicer.model import Property


@contextmanager
def opened(call: Call) -> Iterator[int]:
    """A pidfd of the keeper that a Start names. Raises Refusal unless it is wholly the caller's."""
    asked = call.message
    pidfd = open_process(asked.keeper, asked.keeper_start)
    if pidfd is None:
        message = f"there is no process {asked.keeper} that started at {asked.keeper_start}"
        raise Refusal("BadProcess", message, hint="has it ended, or is it in a PID namespace (a container)?")
    try:
        check_keeper(pidfd, call.connection.peer.uid)
        yield pidfd
    except BadKeeper as bad:
        raise Refusal("BadProcess", str(bad)) from bad
    finally:
        os.close(pidfd)


def check_free(register: Register, job: str, pid: int) -> None:
    """Refuse a keeper that is on its way into the scope of another job. Raises Refusal.

    It could open that job's GPUs in there, and take them along when it is moved. Once it has arrived, the
    register knows that it came out of that scope.
    """
    if any(each.is_starting_with(pid) and each.lease.job != job for each in register.holdings.values()):
        raise Refusal("BadProcess", "the process is on its way into the scope of another job")


def scope_of(asked: Start, uid: int, properties: tuple[Property, ...]) -> ScopeSpec:
    """The scope of a job as systemd gets it."""
    slice_name = units.slice_of("gpu" if asked.slice == "gpu" else "cpu", uid)
    return ScopeSpec(unit_name(asked.job), slice_name, asked.description, properties, "system")
