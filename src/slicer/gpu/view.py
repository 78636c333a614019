"""What a decision may know beyond the ledger: the settings, and the GPUs as they are at this moment.

Looking (slow: the driver is asked) and judging (under the ledger's lock) are apart.
"""

from __future__ import annotations

from slicer.errors import InfeasibleError
from slicer.placement.capacity import reserved_mib
from slicer.quantity import format_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from slicer.gpu.vram import ForeignPeaks, GpuWatch, Sighting
    from slicer.model import Gpu, Lease, Request
    from slicer.placement.capacity import Device, Policy
    from slicer.placement.decision import Infeasible
    from slicer.state.statedir import StateDir


class View:
    """Sees GPUs only where somebody wants them: loading the driver's library is not for everybody."""

    def __init__(self, directory: StateDir | None, policy: Policy) -> None:
        """``directory``: None while there is no ledger."""
        self.policy = policy
        self.gpus: tuple[Gpu, ...] = ()  # what the driver lists, once opened
        self.notes: tuple[str, ...] = ()
        self.warn: Callable[[str], None] | None = None  # told what goes wrong on the way, but stops nothing
        self.is_restless = False  # GPUs are used in ways that change without an event
        self._directory = directory
        self._watch: GpuWatch | None = None
        self._peaks: ForeignPeaks | None = None
        self._sighting: Sighting | None = None
        self._is_blind = False
        self._is_needed = True

    def open_gpus(self) -> None:
        """See the GPUs from now on. Raises NoGpu or GpuError."""
        from slicer.gpu.vram import ForeignPeaks, GpuWatch

        self._watch, self.gpus = GpuWatch.open()
        self.notes = self._watch.notes()
        self._peaks = ForeignPeaks(self._directory.base if self._directory is not None else None)

    def open(self) -> bool:
        """As :meth:`open_gpus`, for who wants none but has to know; whether it sees more than before."""
        from slicer.errors import GpuError

        if self._watch is not None or self._is_blind:
            return False
        try:
            self.open_gpus()
        except GpuError:
            self._is_blind = True
            return False
        self._is_needed = False
        return True

    def look(self) -> None:
        """Look at the GPUs. Raises GpuError where they are wanted; else goes on without."""
        if self._watch is None:
            return
        from slicer.errors import GpuError

        try:
            self._sighting = self._watch.look()
        except GpuError:
            if self._is_needed:
                raise
            self._sighting = None

    def devices(self, leases: tuple[Lease, ...]) -> tuple[Device, ...] | None:
        """The GPUs as last looked at, their processes assigned to the leases; None when nobody looked."""
        if self._sighting is None or self._peaks is None:
            return None
        from slicer.gpu import vram

        problem = self._peaks.update(self._sighting, leases)
        if problem and self.warn is not None:
            self.warn(problem)
            self.warn = None  # once is enough
        found = vram.devices(self._sighting, leases, self._peaks.peaks)
        self.is_restless = any(
            device.foreign_pids or device.used_mib > reserved_mib(device, leases, self.policy)
            for device in found
        )
        return found

    def sighting(self) -> Sighting:
        """What was last seen of the GPUs; nothing where nobody has looked."""
        from slicer.gpu.vram import Sighting

        return self._sighting or Sighting((), ())

    def utilisation(self) -> dict[str, int | None]:
        """How busy each GPU is now, in percent; None where the driver does not say. Raises GpuError."""
        return self._watch.utilisation() if self._watch is not None else {}

    def close(self) -> None:
        """Give the driver's library back."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def index(self, uuid: str) -> str:
        """How people call the GPU: its index, or the UUID of one that is not listed."""
        return next((str(gpu.index) for gpu in self.gpus if gpu.uuid == uuid), uuid)

    def refusal(self, never: Infeasible, request: Request) -> InfeasibleError:
        """The error for a request that could never be served."""
        if never.kind == "gpu-choice":
            return InfeasibleError(f"there is no GPU {never.uuid}", hint="see slicer status")
        if never.kind == "vram":
            return InfeasibleError(_too_large(never, request), hint="see slicer status for the GPUs' sizes")
        what = "GPU" if never.kind == "gpu" else "CPU slot"
        were = "was" if never.wanted == 1 else "were"
        return InfeasibleError(
            f"{_counted(never.wanted, what)} {were} asked for, "
            f"but this machine has {_counted(never.total, what)}",
            hint="ask for fewer" if never.total else f"this machine has no {what}",
        )


def _too_large(never: Infeasible, request: Request) -> str:
    """As in "30G + 512M margin fits on no GPU; the largest has 24G"."""
    wanted = _size(request.vram_mib or 0)
    if request.margin_mib:
        wanted += f" + {_size(request.margin_mib)} margin"
    pool = "these" if request.gpu_choice else "the GPUs"
    if request.gpus > 1:
        return f"{wanted} does not fit on {request.gpus} of {pool}; the smallest has {_size(never.total)}"
    fits = f"fits on none of {pool}" if request.gpu_choice else "fits on no GPU"
    return f"{wanted} {fits}; the largest has {_size(never.total)}"


def _size(mib: int) -> str:
    return format_size(mib << 20).replace(".0", "")


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
