"""The device fence: a scope may open its own GPUs, and no others. Pure.

systemd only knows lists of what is allowed. So the fence allows every other device by the name of its driver
in /proc/devices, and of NVIDIA's nodes those of the lease. systemd evaluates the patterns whenever it sets up
the scope's cgroup. So they also cover drivers that are loaded later.

GPUs are identified by device number, and need no node yet when the scope starts. The unified memory driver
can only be identified by the name of its group, so it has to be loaded before
(:func:`slicer.gpu.device_nodes.load_uvm`).
"""

from __future__ import annotations

from slicer.config.properties import FENCE_DIRECTIVES
from slicer.model import Property

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from slicer.model import Fence, Gpu

MAJOR = 195  # of /dev/nvidiaN, nvidiactl and nvidia-modeset; the same in all of NVIDIA's drivers
CONTROL = 255  # the minor of /dev/nvidiactl
_GROUPS = "nvidia"  # their groups' names begin so: nvidia, nvidia-frontend, nvidia-uvm, nvidia-caps, …
_UVM = "nvidia-uvm"  # /dev/nvidia-uvm and nvidia-uvm-tools


OPEN = (
    Property("DevicePolicy", "DevicePolicy", "s", "auto", "auto"),
    Property("DeviceAllow", "DeviceAllow", "a(ss)", (), ""),
)


def properties(
    minors: Collection[int], caps: Collection[str] = (), extra: Collection[str] = ()
) -> tuple[Property, ...]:
    """The fence for a scope, in the order in which systemd must get it.

    ``minors``: the N of /dev/nvidiaN of the lease's GPUs; empty: no GPU at all. ``caps``: the nodes of their
    MIG instances (:func:`slicer.gpu.device_nodes.caps_of`). ``extra``: more of NVIDIA's nodes, or groups
    ("/dev/nvidia-modeset", "char-nvidia-caps-imex-channels"); systemd ignores nodes that do not exist. They
    come from the administrator, because a GPU's node is as good as a lease on it. Each node may be made, too
    ("m"): a container's runtime makes its own.
    """
    nodes = list(_all_but(_GROUPS))
    if minors:
        nodes += [f"/dev/char/{MAJOR}:{minor}" for minor in sorted({*minors, CONTROL})]
        nodes += [f"char-{_UVM}", *sorted(set(caps))]
    allowed = tuple((node, "rwm") for node in (*nodes, *sorted(set(extra))))
    text = "\n".join(f"{node} {access}" for node, access in allowed)
    # DeviceAllow must come before DevicePolicy. Otherwise all devices are denied for a moment.
    return (
        Property("DeviceAllow", "DeviceAllow", "a(ss)", allowed, text),
        Property("DevicePolicy", "DevicePolicy", "s", "strict", "strict"),
    )


def minors_of(uuids: Collection[str], gpus: Collection[Gpu]) -> tuple[int, ...] | None:
    """The minor numbers of these GPUs' nodes; None if one has no node of its own (WSL)."""
    found = {gpu.uuid: gpu.minor for gpu in gpus if gpu.uuid in uuids}
    known = len(found) == len(uuids) and min(found.values(), default=0) >= 0
    return tuple(sorted(found.values())) if known else None


def _all_but(beginning: str) -> tuple[str, ...]:
    """Patterns for all block devices, and for all character devices except groups with this beginning.

    There is one for each letter: the beginning up to it, then any other letter. A group whose whole name is a
    part of the beginning ("n") would be left out; Linux has none.
    """
    letters = range(len(beginning))
    return ("block-*", *(f"char-{beginning[:place]}[!{beginning[place]}]*" for place in letters))


def brokered(policy: Fence, profile: Fence | None, *, asks: bool) -> Fence:
    """The fence for an ordinary user's job. The administrator decides; the user may only ask for more.

    ``policy``: the policy's setting. ``profile``: the setting in the administrator's profile of the same name
    as the job's; None if there is none. ``asks``: the user wants the job fenced, or not at all.
    """
    if asks or policy == "on":
        return "on"
    return profile or policy


def is_left_out(fence: Fence, given: Collection[str]) -> bool:
    """Whether the job gets no fence, because its profile says so or because it has its own device rules.

    ``given``: the directives that are set for the job.
    """
    return fence == "off" or any(name in FENCE_DIRECTIVES for name in given)
