"""The observer of GPUs: it opens the driver, takes snapshots, and attributes memory to the leases.

Taking a snapshot is slow, because it asks the driver. Attribution is quick, so it can happen under the
ledger's lock. This module is on the hot path: it imports nothing more until GPUs are needed.
"""

from __future__ import annotations

from slicer.errors import GpuError
from slicer.placement.settings import Policy
from slicer.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from slicer.gpu import Gpus
    from slicer.gpu.snapshot import AttributedGpus, GpuSnapshot, ProcessKey
    from slicer.model import Gpu, GpuLoad, GpuMemory, Lease
    from slicer.placement.devices import Device


_BEHIND_FENCE = "slicer itself runs behind a device fence, and sees only the GPUs that this allows"
_FIRST_OF_ALL = 3  # a job's first snapshots are too early for what it does on GPUs


class GpuObserver:
    """The GPUs: which ones there are (``gpus``, ``notes``, once opened), and the last snapshot of them."""

    def __init__(
        self, policy: Policy | None = None, *, only: Collection[str] = (), trusts_environment: bool = True,
        otherwise: Callable[[], AttributedGpus] | None = None, all_each: int = 0,
    ) -> None:
        """``policy``: the ledger's, for decisions on what is seen.

        ``only``: the GPUs to observe (UUIDs); empty: all. ``trusts_environment``: a process may name its job
        in its environment; not if users do not trust each other. ``otherwise`` opens the GPUs for a process
        that is fenced off from the driver. ``all_each``: one of so many snapshots is of all GPUs, whatever
        ``only`` has; 0: none.
        """
        self.policy = policy or Policy()
        self.gpus: tuple[Gpu, ...] = ()
        self.notes: tuple[str, ...] = ()
        self.snapshot: GpuSnapshot | None = None
        self.foreign_peaks: Mapping[ProcessKey, int] = {}  # the highest use seen of foreign processes
        self.adopting: Lease | None = None  # of that process, and those below it: in nobody's way
        self._only = only
        self._trusts_environment = trusts_environment
        self._otherwise = otherwise
        self._all_each = all_each
        self._taken = 0
        self._driver: Gpus | None = None
        self._attributed: AttributedGpus | None = None  # the driver, if it is of this kind
        self._is_wanted = True
        self._is_out_of_reach = False

    def open(self) -> None:
        """Open the driver, unless it is already open. Raises NoGpu, GpuError."""
        self._is_wanted = True
        if self._driver is not None:
            return
        from slicer.gpu import is_fenced, ours

        self.gpus = self.notes = ()
        self._attributed = None
        driver = self._opened()
        try:
            there = driver.list()
            self.gpus, self.notes = ours(there), driver.notes()
            if len(self.gpus) < len(there) and not self._only:
                self._only = tuple(gpu.uuid for gpu in self.gpus)
            if self._attributed is None and is_fenced():
                self.notes += (_BEHIND_FENCE,)
        except BaseException:
            driver.close()
            raise
        self._driver = driver

    def _opened(self) -> Gpus:
        from slicer.errors import NoGpu
        from slicer.gpu import is_fenced, open_gpus

        if self._otherwise is not None and is_fenced():
            try:
                self._attributed = self._otherwise()
                return self._attributed
            except GpuError:
                pass  # then only the GPUs that the fence allows can be seen
        try:
            return open_gpus()
        except NoGpu as error:
            if self._otherwise is None or error.reason != "fenced":
                raise
            try:
                self._attributed = self._otherwise()
            except GpuError as failed:
                raise error from failed
            return self._attributed

    def try_open(self) -> bool:
        """Like :meth:`open`, for a request that can do without GPUs. Returns whether more can be seen now."""
        if self._driver is not None or self._is_out_of_reach:
            return False
        try:
            self.open()
        except GpuError:
            self._is_out_of_reach = True
            return False
        self._is_wanted = False
        return True

    def observe(self) -> GpuSnapshot:
        """A new snapshot. Opens the driver if necessary. Raises NoGpu, GpuError."""
        self.open()
        return self._take()

    def look(self) -> None:
        """Take a new snapshot if the driver is open. Raises GpuError unless GPUs are optional."""
        if self._driver is None:
            return
        try:
            self._take()
        except GpuError:
            if self._is_wanted:
                raise
            self.snapshot = None

    def _take(self) -> GpuSnapshot:
        from slicer.gpu.snapshot import take

        assert self._driver is not None
        self._taken += 1
        only = () if self._all_each and self._taken % self._all_each == _FIRST_OF_ALL else self._only
        if self._attributed is not None:
            self.snapshot = self._attributed.snapshot(only)
        else:
            self.snapshot = take(self._driver, self.snapshot, only, self._trusts_environment)
        return self.snapshot

    def devices(self, leases: tuple[Lease, ...]) -> tuple[Device, ...] | None:
        """The GPUs of the last snapshot, with their processes attributed to the leases; None without one."""
        if self.snapshot is None:
            return None
        from slicer.gpu.attribution import devices, foreign_peaks

        leases += () if self.adopting is None else (self.adopting,)
        self.foreign_peaks = foreign_peaks(self.snapshot, leases, self.foreign_peaks)
        found = devices(self.snapshot, leases, self.foreign_peaks)
        if self.adopting is not None:
            from slicer.placement.devices import without

            found = tuple(without(each, {self.adopting.job}) for each in found)
        return found if not self.policy.out_of_service else tuple(map(self._as_configured, found))

    def _as_configured(self, device: Device) -> Device:
        index, out = self.index(device.uuid), self.policy.out_of_service
        whys = (why for word, why in out if word == index or device.uuid.startswith(word))
        return replace(device, out=device.out or next(whys, ""))

    def faults(self) -> dict[str, str]:
        """Why GPUs of the last snapshot should get no more jobs, by UUID.

        What only the kernel's log knows, and this process may not read, comes from ``otherwise``.
        """
        memory = self.memory
        if self._otherwise is not None and any(each.fault is None for each in memory):
            from contextlib import closing

            try:
                with closing(self._otherwise()) as root:
                    memory = root.snapshot([each.gpu_uuid for each in memory]).memory
            except GpuError:
                pass  # there is no broker, and the driver has said nothing against them
        return {each.gpu_uuid: each.fault for each in memory if each.fault}

    @property
    def memory(self) -> tuple[GpuMemory, ...]:
        """The GPUs' memory in the last snapshot; () without one."""
        return self.snapshot.memory if self.snapshot else ()

    def utilisation(self) -> dict[str, int | None]:
        """The GPUs' utilisation now, in percent; None if the driver does not report it. Raises GpuError."""
        return self._driver.utilisation(self._only) if self._driver is not None else {}

    def load(self) -> dict[str, GpuLoad]:
        """The GPUs' utilisation, temperature and power now, by UUID. Raises GpuError."""
        return self._driver.load(self._only) if self._driver is not None else {}

    def in_use(self, leases: tuple[Lease, ...]) -> dict[str, bool | None]:
        """Whether jobs with an idle limit have used their GPUs since the last call (None: nobody can tell).

        Processes are those of the last snapshot. Raises GpuError.
        """
        from slicer.gpu.attribution import attribute
        from slicer.gpu.idle import is_in_use

        assert self._driver is not None
        owned = attribute(self.snapshot, leases) if self.snapshot is not None else []
        busy, percent = self._driver.busy(self._only), self._driver.utilisation(self._only)
        watched = [each for each in leases if each.idle_warn_s is not None]
        return {each.job: is_in_use(each, owned, leases, busy, percent) for each in watched}

    def index(self, uuid: str) -> str:
        """The GPU's index, or its UUID if it is not listed."""
        return next((str(gpu.index) for gpu in self.gpus if gpu.uuid == uuid), uuid)

    def indices(self, uuids: tuple[str, ...]) -> tuple[int, ...]:
        """The indices of these GPUs; () unless all are listed."""
        known = {gpu.uuid: gpu.index for gpu in self.gpus}
        found = tuple(known[uuid] for uuid in uuids if uuid in known)
        return found if len(found) == len(uuids) else ()

    def close(self) -> None:
        """Close the driver's library. Safe to repeat; :meth:`open` may follow."""
        if self._driver is not None:
            self._driver.close()
        self._driver = self._attributed = self.snapshot = None
