"""CUDA's numbers of GPUs: their places in PCI order among the GPUs that a process can open.

CUDA does not count GPUs that a device fence or a container hides. So the process that starts a command,
behind the same fence, finds the numbers. The kernel has a list, so the driver's slow library is not needed.
"""

from __future__ import annotations

import os

from slicer.gpu.device_nodes import is_split
from slicer.kernel import on_host
from slicer.kernel.proc import read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicer.model import GpuIds

VISIBLE = "CUDA_VISIBLE_DEVICES"
INDICES = "SLICER_GPU_INDICES"
_GPUS = "/proc/driver/nvidia/gpus"


def numbered(variables: Mapping[str, str], ids: GpuIds, known: Mapping[str, int]) -> dict[str, str]:
    """The variables, with the numbers of the GPUs whose UUIDs are in CUDA_VISIBLE_DEVICES, in its order.

    ``ids``: which of both that itself gets. ``known``: slicer's own numbers, where the kernel has no list
    (WSL). If a GPU has no number here, the UUIDs stay, and numbers of an earlier job go.
    """
    shown = variables.get(VISIBLE, "")
    if shown == variables.get(INDICES):
        return dict(variables)  # an outer job's numbers
    made = {name: value for name, value in variables.items() if name != INDICES}
    numbers = _listed(known)
    if not numbers.keys() >= set(shown.split(",")):
        return made
    found = ",".join(str(numbers[uuid]) for uuid in shown.split(","))
    made[INDICES] = found
    return made if ids == "uuid" else {**made, VISIBLE: found, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _listed(known: Mapping[str, int]) -> Mapping[str, int]:
    """The number of each GPU that this process can open; none if MIG has split one of them.

    Of those CUDA numbers the instances, and NVIDIA does not say how beside whole GPUs.
    """
    if os.environ.get("SLICER_SIM"):
        from slicer.gpu.sim.driver import simulated_gpus
        from slicer.state.simulated import parse_spec

        return {gpu.uuid: gpu.index for gpu in simulated_gpus(parse_spec(os.environ["SLICER_SIM"]))}
    top = on_host(_GPUS)
    if not os.path.isdir(top):
        return known
    uuids: list[str] = []
    try:
        for name in sorted(os.listdir(top), key=lambda name: (len(name), name)):  # 0000:3b:00.0
            lines = read_text(f"{top}/{name}/information").splitlines()
            facts = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
            minor = int(facts["Device Minor"])
            can_open = os.access(on_host(f"/dev/nvidia{minor}"), os.R_OK | os.W_OK)  # the fence decides, too
            if not can_open or facts.get("GPU Excluded") == "Yes":
                continue
            if is_split(minor):
                return {}
            uuids.append(facts["GPU UUID"])
    except (OSError, KeyError, ValueError):
        return {}
    return {uuid: number for number, uuid in enumerate(uuids)}
