"""The directives that are effective here, and the common behaviour of jobs in scopes."""

from __future__ import annotations

import os

from slicer.backend import Backend
from slicer.config.properties import controller, property_with
from slicer.errors import BackendError, GoneError, RefusedError
from slicer.kernel import cgroup, proc
from slicer.kernel.proc import names_in, text_of
from slicer.kernel.signals import SYSTEMD_STOPS
from slicer.state.statefile import is_job_scope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.model import BackendName, Manager, Property, ScopeSpec

_IO_WEIGHTS = frozenset({"IOWeight", "IODeviceWeight"})
_NO_DISKS = ("loop", "ram", "zram")  # a dozen of each in many machines, and never weighted
_OOMD = "/system.slice/systemd-oomd.service"
_OF_A_STOP = ("KillSignal", "KillMode", "SendSIGHUP")  # how the processes are asked
_PODMANS = ("podman-pause-", "rootless-netns-")
_USERS = "/user@"  # in the path of a user manager's units


def is_of_another(there: str, own: str) -> bool:
    """Whether a process in the cgroup ``there``, started in the job in ``own``, is none of that job's. Pure.

    It belongs to another job, or serves all containers of its user: podman moves such a process into a scope
    of its own, to outlive whoever needs it first. A user's manager names scopes as the user wants. So its
    names prove nothing if jobs are the system's.
    """
    is_named = any(is_job_scope(part) or part.startswith(_PODMANS) for part in there.split("/"))
    return is_named and (_USERS in own or _USERS not in there)


def acting(
    names: tuple[str, ...], controllers: frozenset[str], manager: Manager,
    io_is_weighed: Callable[[], bool], oomd_runs: Callable[[], bool],
    filters_devices: Callable[[], bool],
) -> frozenset[str]:  # fmt: skip
    """Those of the directives that are effective in a cgroup with these controllers.

    ``filters_devices``: whether the kernel filters devices for it; called only for the system manager.
    """

    def acts(name: str) -> bool:
        needed = controller(name)
        if needed == "devices":  # a BPF program, and only the system manager may load it
            return manager == "system" and filters_devices()
        if needed and needed not in controllers:
            return False
        if name in _IO_WEIGHTS:
            return io_is_weighed()
        return not name.startswith("ManagedOOM") or oomd_runs()

    return frozenset(name for name in names if acts(name))


def acting_in(names: tuple[str, ...], directory: str, manager: Manager, own: str) -> frozenset[str]:
    """Those that are effective here. ``directory``: a cgroup's; ``own``: as for :func:`filters_devices`."""
    return acting(
        names, cgroup.controllers(directory), manager, io_is_weighed, oomd_runs, lambda: filters_devices(own)
    )


def io_is_weighed(blocks: str = "/sys/block", qos: str = "") -> bool:
    """Whether any disk obeys weights: by its scheduler (bfq) or because io.cost is on for it."""
    if "enable=1" in text_of(qos or cgroup.path_of("/io.cost.qos")):
        return True
    real = (disk for disk in names_in(blocks) if not disk.startswith(_NO_DISKS))
    return any("[bfq]" in text_of(f"{blocks}/{disk}/queue/scheduler") for disk in real)


def oomd_runs() -> bool:
    """Whether systemd-oomd runs. Nothing else reads the ManagedOOM directives."""
    return cgroup.populated(cgroup.path_of(_OOMD))


def filters_devices(directory: str) -> bool:
    """Whether the kernel filters devices for the cgroup of this directory; "": whether it would for one.

    Only root can find out about others' cgroups. So other users trust their systemd.
    """
    from slicer.kernel import bpf

    if os.geteuid() != 0:
        return True
    return bpf.filters_devices(directory) if directory else bpf.can_filter_devices()


def requested(spec: ScopeSpec) -> tuple[Property, ...]:
    """The properties that systemd is asked for: the keeper, if there is one, is told of a stop alone."""
    if not spec.has_keeper:
        return spec.properties
    others = (each for each in spec.properties if each.name not in _OF_A_STOP)
    return (*others, property_with("KillSignal", SYSTEMD_STOPS, str(int(SYSTEMD_STOPS))))


def leaving(process: tuple[int, ...], uid: int, unit: str) -> Callable[[], list[int]]:
    """What lists a process (its pid and start) and all below it that are that user's, and where it is now.

    So the jobs and containers that it has started stay where they are. systemd moves pids: whoever has got
    one since the last look, and is another user's, is moved from the unit back to its parent. Raises
    RefusedError if the process is another user's or in a job, GoneError once it has ended.
    """
    pid, start = process
    place = cgroup.of(pid)
    listed: dict[int, int | None] = {}  # when they started

    def left() -> list[int]:
        for each, began in listed.items():
            is_another = proc.start_time(each) not in (began, None) and proc.uid_of(each) != uid
            if is_another and cgroup.of(each).endswith(f"/{unit}"):
                try:
                    cgroup.move(each, cgroup.of(proc.parent(each)))
                except OSError as error:
                    what = f"process {each} of another user was moved there and stays: {error.strerror}"
                    raise BackendError(what, where=unit) from error
        if proc.uid_of(pid) not in (uid, None):  # before the look: it may be a long one
            raise RefusedError(f"process {pid} is another user's")
        pids = (pid, *proc.descendants(pid))
        listed.update({each: proc.start_time(each) for each in pids})  # before all that is asked about them
        if not proc.is_running(pid, start):  # after the look, which was of this process then
            raise GoneError(f"process {pid} has ended")
        if any(map(is_job_scope, place.split("/"))):
            raise RefusedError(f"process {pid} is in a job", where=place)
        return [each for each in pids if cgroup.of(each) == place and proc.uid_of(each) == uid]

    return left


class ScopeBackend(Backend):
    """The part of a backend that looks at the scope's cgroup."""

    name: BackendName = "systemd"

    def members(self, cgroup_name: str, besides: int) -> Callable[[], list[int]]:
        """The processes in the scope, and those that left it and are still below the keeper.

        A user may let the user manager take a process over (`systemd-run --user --scope`). It can go on using
        the lease's resources, so it is still the job's.
        """
        directory, own = cgroup.path_of(cgroup_name), os.getpid()

        def living() -> list[int]:
            found = dict.fromkeys(cgroup.processes(directory))
            if proc.has_children():
                below = proc.descendants(own)
                found.update((pid, None) for pid in below if not is_of_another(cgroup.of(pid), cgroup_name))
            return [pid for pid in found if pid not in (own, besides)]

        return living

    def living(self, job: str, cgroup_name: str) -> list[int]:
        return list(cgroup.processes(cgroup.path_of(cgroup_name))) if cgroup_name else []

    def enforced(self, spec: ScopeSpec, cgroup_name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """By the controllers of the scope's cgroup, and by requirements beyond controllers."""
        names = tuple(dict.fromkeys((*(item.name for item in spec.properties), *self.added(spec))))
        directory = cgroup.path_of(cgroup_name)
        own = directory if cgroup_name.endswith(spec.whole) else ""  # otherwise there is no scope yet
        found = acting_in(names, directory, self.manager, own)
        return tuple(n for n in names if n in found), tuple(n for n in names if n not in found)

    def added(self, spec: ScopeSpec) -> tuple[str, ...]:
        """The directives that were set in addition to the spec's."""
        return ()
