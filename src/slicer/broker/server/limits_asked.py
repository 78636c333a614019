"""The properties of a job's scope: those that its owner requests, and those that the administrator adds."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from slicer.broker.protocol.messages import Set, Start
from slicer.broker.rules import limits
from slicer.broker.server.deciding import Decider
from slicer.broker.server.leases import Holding, Leases
from slicer.broker.server.policy_state import PolicyState
from slicer.config.properties import FENCE_DIRECTIVES
from slicer.errors import RefusedError
from slicer.gpu import device_nodes, driver_cap, fence, has_nvidia
from slicer.kernel import proc
from slicer.model import Host, Property
from slicer.record import record

_CONTAINER = "/run/systemd/container"  # names the container; systemd writes it
# Nodes that root may open, to no effect, and that the broker's own device rules do not allow.
_CLOSED = ("/dev/fuse", "/dev/net/tun", "/dev/loop-control", "/dev/uinput", "/dev/vhost-net")
_LEAST_S = 1.0  # of a time limit: 0 would mean none


@record
class ScopeLimits:
    """The properties of a scope, and their description for the client."""

    properties: tuple[Property, ...]
    words: tuple[str, ...]  # their directives
    is_fenced: bool
    has_cap: bool  # whether the driver should cap the scope's GPU memory


class LimitsAsked:
    """Checks the limits that callers request against the administrator's policy."""

    def __init__(self, leases: Leases, policy_state: PolicyState, decider: Decider, host: Host) -> None:
        self._leases = leases
        self._policy_state = policy_state
        self._decider = decider
        self._host = host

    def of(self, asked: Start, holding: Holding) -> ScopeLimits:
        """The limits of a lease's scope. Raises RefusedError."""
        lease = holding.lease
        wanted = limits.checked(asked.limits, self._host, is_roots=lease.uid == 0)
        wanted = limits.held_at_most(wanted, self._left_s(holding))
        has_own_rules = any(each.name in FENCE_DIRECTIVES for each in wanted)  # only root's can
        fenced = () if has_own_rules else self._fence(asked, holding)
        found = (*wanted, *fenced)
        is_fenced = bool(fenced) and filters_devices()
        return ScopeLimits(found, tuple(each.name for each in found), is_fenced, asked.share_cap)

    def of_no_lease(self) -> tuple[Property, ...]:
        """The fence of a scope without a lease: no GPU may be opened there."""
        policy = self._policy_state.policy
        if policy.fence == "off" or (policy.fence == "auto" and not has_nvidia()):
            return ()
        return fence.properties((), (), policy.devices)

    def has_time_limit(self, asked: Start, uid: int, gids: tuple[int, ...]) -> bool:
        """Whether a job may go on only for some time, by its own limits or the policy's."""
        is_asked = any(name == "RuntimeMaxSec" for name, _ in asked.limits)
        return is_asked or self._policy_state.max_hold_s(uid, gids) is not None

    def _left_s(self, holding: Holding) -> float | None:
        """How long the job may go on, also by the limits of its outer jobs. None: there is no limit."""
        end_s = self._policy_state.first_end_s(self._leases.with_outer(holding))
        return None if end_s is None else max(_LEAST_S, end_s - proc.now_s())

    def changes(self, asked: Set, uid: int) -> tuple[Property, ...]:
        """A user's changes to a running scope. Raises RefusedError."""
        return limits.changes(asked.limits, self._host, is_roots=uid == 0)

    def _fence(self, asked: Start, holding: Holding) -> tuple[Property, ...]:
        """The device fence of a job; () for none. Raises RefusedError if a required fence is impossible."""
        word, extra = self._fence_word(asked, holding)
        if word == "off" or (word == "auto" and not has_nvidia()):
            return ()
        if word == "on" and not filters_devices():
            message = "the job requires the device fence, but systemd cannot filter devices (a container?)"
            raise RefusedError(message, where="fence")
        if uuids := self._gpus(holding):
            self._decider.observer.open()
        minors = fence.minors_of(uuids, self._decider.observer.gpus)
        if minors is None:
            if word == "on":
                raise RefusedError("the driver does not report the device nodes of GPUs", where="fence")
            return ()
        return fence.properties(minors, device_nodes.caps_of(minors), extra)

    def _fence_word(self, asked: Start, holding: Holding) -> tuple[str, tuple[str, ...]]:
        """Whether the administrator wants a fence, and which further devices the job may open.

        Root is the administrator: for its own jobs the profile's settings apply directly.
        """
        policy = self._policy_state.policy
        if holding.lease.uid == 0 and asked.fence:
            return asked.fence, (*policy.devices, *asked.devices)
        profile = self._policy_state.configuration.profile(holding.lease.profile)
        says = profile is not None and profile.sources.get("fence", "default") != "default"
        said = profile.fence if profile is not None and says else None
        word = fence.brokered(policy.fence, said, asks=asked.fence == "on")
        return word, (*policy.devices, *(profile.devices if profile else ()))

    def _gpus(self, holding: Holding) -> set[str]:
        """Its GPUs, and those of its outer jobs."""
        return {uuid for each in self._leases.with_outer(holding) for uuid in each.lease.gpus}

    def driver_cap(self, holding: Holding, is_asked: bool) -> str:
        """Ask the driver to cap the scope's GPU memory. Returns why it does not; "": it does."""
        lease = holding.lease
        if not is_asked:
            return "it was not asked to"
        if lease.vram_mib is None:
            return "the job has no share of a GPU"
        gpus = sorted(self._gpus(holding))
        return driver_cap.keep(lease.cgroup, lease.unit, gpus, lease.vram_mib << 20)


def device_rules(properties: Iterable[Property]) -> tuple[Property, ...]:
    """The device rules among a scope's properties, for a scope that may have others already."""
    return tuple(each for each in properties if each.name in FENCE_DIRECTIVES) or fence.OPEN


def filters_devices(closed: Iterable[str] = _CLOSED, container: str = _CONTAINER) -> bool:
    """Whether systemd can filter devices. If it cannot, it continues without.

    The broker itself may not ask the kernel: its sandbox has no bpf(2). But its own unit has device rules. If
    these are enforced, those of jobs are, too. If no node can show that (``closed``: nodes that its rules do
    not allow), it is assumed outside of containers.
    """
    for path in closed:
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError as error:
            if error.errno == errno.EPERM:
                return True
        else:
            return False
    return not os.path.exists(container)
