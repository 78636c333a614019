"""The units of users' jobs: their names, and their future cgroups. Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.model import SliceName

# It pulls in the broker's service. An instance for each job: systemd keeps ended scopes that share one.
JOB_ENDED = "slicer-job-ended@.target"
# systemd prefixes "_" to the directory of a unit whose name looks like a file of the kernel's ("cpu.").
_ESCAPED = ("cpu.slice",)


def slice_of(kind: SliceName, uid: int) -> str:
    """The slice of a user's jobs. systemd makes it below ``gpu.slice`` or ``cpu.slice``."""
    return f"{kind}-{uid}.slice"


def login_slice_of(uid: int) -> str:
    """The slice of a user's sessions and user manager (logind's)."""
    return f"user-{uid}.slice"


def scope_places(above: str = "") -> tuple[str, ...]:
    """The cgroups that contain the slices of all users' jobs. ``above``: as for :func:`cgroup_of`."""
    return _place("gpu.slice", above), _place("cpu.slice", above)


def cgroup_of(slice_name: str, unit: str, above: str = "") -> str:
    """The cgroup of a unit in a slice, in the form of /proc/PID/cgroup.

    ``above`` is systemd's own cgroup; it is "" except in a container.
    """
    return f"{_place(slice_name, above)}/{unit}"


def _place(slice_name: str, above: str) -> str:
    words = slice_name.removesuffix(".slice").split("-")
    slices = ["-".join(words[: count + 1]) + ".slice" for count in range(len(words))]
    return "/".join([above, *(f"_{name}" if name in _ESCAPED else name for name in slices)])
