"""GPUs through NVIDIA's management library. Only this module imports pynvml (20 ms), and only on demand."""

from __future__ import annotations

import os

from slicer.errors import GpuError
from slicer.gpu import driver_errors
from slicer.kernel.signals import AllBlocked
from slicer.model import Gpu, GpuLoad, GpuMemory, GpuProcess
from slicer.record import as_dict, record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from typing import Any, TypeVar

    from slicer.gpu.xids import XidLog

    _T = TypeVar("_T")

    Notes = list[str]  # inside the class, `list` is the method
    Found = list

_MIB = 1 << 20
_UNKNOWN_MINOR = -1  # WSL has no /dev/nvidiaN
_PROCESS_LISTS = ("Compute", "Graphics", "MPSCompute")
_LIST_VERSIONS = ("_v3", "_v2")  # driver 510 added _v3; pynvml's unversioned names require the newest
_COMPUTE_MODES = ("default", "exclusive-thread", "prohibited", "exclusive-process")  # by NVML's numbers
_TRIES = 5  # to read a process list that grows meanwhile
# NVML's recovery actions. The others leave a GPU fit for jobs: none, and those about links between GPUs.
_RECOVERY_ACTION = 230  # the field, from driver 560 on; older nvidia-ml-py do not name it
_ACTIONS = {1: "a reset", 2: "a reboot", 4: "a reset", 6: "a reset of its bus", 7: "a reboot"}
_LIMITS_SINCE = 615  # the first driver (with CUDA 13.4) that can limit a cgroup's GPU memory


@record
class GpuDetails(Gpu):
    """A GPU and its settings. None: this GPU or driver does not report it."""

    compute_mode: str | None  # "default", "exclusive-thread", "prohibited" or "exclusive-process"
    has_display: bool | None
    is_mig: bool | None
    fault: str | None = ""  # as in GpuMemory


def _see_the_card() -> None:
    """Inside a job with a cap, NVML reports the cap as the card. slicer's decisions need the real card."""
    if "SLICER_SHARE_FILE" not in os.environ:
        return
    import ctypes

    try:
        ctypes.c_int.in_dll(ctypes.CDLL(None), "slicer_share_shows_card").value = 1
    except ValueError:
        return  # the library is not in this process


def _has_library() -> bool:
    import _ctypes  # ctypes itself takes ten times as long

    try:
        _ctypes.dlopen(driver_errors.LIBRARY, os.RTLD_NOW)  # stays open, for pynvml
    except OSError:
        return False
    return True


class Nvml:
    """The physical GPUs that NVML shows to this process; implements :class:`slicer.gpu.Gpus`.

    A GPU in MIG mode is listed as one physical GPU, with a note: slicer leases whole GPUs, so a lease covers
    all of its instances. A GPU that is lost, or that this user may not use, is left out with a note. The
    others stay usable.
    """

    def __init__(self) -> None:
        """Initialise NVML. Raises NoGpu or GpuError (see :func:`slicer.gpu.open_gpus`)."""
        if not _has_library():  # checked first: importing pynvml takes a third of `slicer status`'s time
            raise driver_errors.no_library()
        try:
            import pynvml
        except ImportError as error:
            raise driver_errors.no_pynvml(error) from error
        self._nvml: Any = pynvml
        self._notes: tuple[str, ...] = ()
        self._handles: dict[int, tuple[Any, tuple[int, int, int]]] = {}
        self._uuids: dict[int, str] = {}
        self._last: dict[int, GpuMemory] = {}
        self._log: XidLog | None = None  # opened if the driver names no recovery action
        self._sampled: dict[str, int] = {}  # the time of the last sample of processes, by UUID
        _see_the_card()
        with AllBlocked():  # the driver's library starts threads, now or with the first question
            self._start()

    def _start(self) -> None:
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise driver_errors.not_started(self._nvml, error) from error
        self._open = True
        try:
            if self._count() == 0:
                hint = "in a container, pass the GPUs in (--gpus all); otherwise see `lspci` and `dmesg`"
                raise driver_errors.no_devices(hint)
        except BaseException:
            self.close()
            raise

    def list(self) -> tuple[Gpu, ...]:
        """The GPUs in CUDA's PCI_BUS_ID order. ``memory_mib`` is 0 if the GPU shares its memory with the CPU.

        ``minor`` is -1 if there is no ``/dev/nvidiaN``. Raises GpuError, or NoGpu if none is left.
        """
        notes: Notes = []
        gpus = self._each(lambda index, handle: self._gpu(index, handle, notes), notes)
        self._notes = tuple(notes)
        return tuple(replace(gpu, index=index) for index, gpu in enumerate(gpus))

    def details(self) -> tuple[GpuDetails, ...]:
        """The GPUs of :meth:`list`, with their settings. Raises GpuError."""
        found = self._each(lambda index, handle: (self._gpu(index, handle, []), handle), [])
        return tuple(
            self._details(replace(gpu, index=index), handle) for index, (gpu, handle) in enumerate(found)
        )

    def _details(self, gpu: Gpu, handle: Any) -> GpuDetails:
        nvml = self._nvml
        mode = self._supported(nvml.nvmlDeviceGetComputeMode, handle)
        display = self._supported(nvml.nvmlDeviceGetDisplayActive, handle)
        mig = self._supported(nvml.nvmlDeviceGetMigMode, handle)
        return GpuDetails(
            **as_dict(gpu),
            compute_mode=None if mode is None else _COMPUTE_MODES[mode],
            has_display=None if display is None else bool(display),
            is_mig=None if mig is None else bool(mig[0]),
            fault=self._fault(gpu.uuid, handle),
        )  # fmt: skip

    def why_no_limits(self) -> str:
        """Why the driver cannot limit a cgroup's GPU memory; "" if it can. Raises GpuError."""
        version = self.version()
        major = version.partition(".")[0]
        if not major.isdigit() or int(major) < _LIMITS_SINCE:
            return f"it requires driver {_LIMITS_SINCE}, this is {version}"
        if not hasattr(self._nvml, "nvmlDeviceSetMemoryLimits_v1"):
            return f"it requires nvidia-ml-py 13.{_LIMITS_SINCE}, this is {driver_errors.library_version()}"
        return ""

    def limit(self, limits: Mapping[str, int], directory: str) -> dict[str, str]:
        """Make the driver limit the cgroup in ``directory`` to this many bytes on each GPU, by UUID.

        It requires root, and lasts as long as the cgroup. No memory is guaranteed (the soft limit is 0),
        because the driver would reserve as much in all cgroups above. Returns why it was not done, by UUID
        ("" if it was). Raises GpuError.
        """
        why = self.why_no_limits()
        done: dict[str, str] = {}
        if limits and not why:
            done.update(self._each(lambda i, gpu: self._limit(i, gpu, limits, directory), [], limits))
        return {uuid: done.get(uuid, why or "it is not among the driver's GPUs") for uuid in limits}

    def _limit(self, index: int, handle: Any, limits: Mapping[str, int], directory: str) -> tuple[str, str]:
        nvml = self._nvml
        uuid = self._uuid(index, handle)
        wanted = nvml.c_nvmlSetMemoryLimits_v1_t(os.fsencode(directory), 0, limits[uuid])
        try:
            nvml.nvmlDeviceSetMemoryLimits_v1(handle, wanted)
        except nvml.NVMLError as error:
            if self._is_lost(error):
                raise
            known = {
                nvml.NVML_ERROR_FUNCTION_NOT_FOUND: "this driver cannot do it",
                nvml.NVML_ERROR_NO_PERMISSION: "only root may",
                nvml.NVML_ERROR_NOT_FOUND: "the job's cgroup has no dmem controller",
                nvml.NVML_ERROR_NOT_SUPPORTED: "this GPU or kernel does not support it",
            }
            return uuid, known.get(error.value, _text(str(error)))
        return uuid, ""

    def version(self) -> str:
        """The version of the driver. Raises GpuError."""
        try:
            return _text(self._nvml.nvmlSystemGetDriverVersion())
        except self._nvml.NVMLError as error:
            raise driver_errors.failed(error, "NVML") from error

    def memory(self, only: Collection[str] = ()) -> tuple[GpuMemory, ...]:
        """The memory of the GPUs of :meth:`list`, in the same order. Raises GpuError.

        One that is lost later stays, with that as its ``fault``.
        ``total_mib`` is what programs can use: neither it nor ``used_mib`` includes the driver's own share.
        Drivers before 510 do not report that separately.
        """
        return tuple(self._each(self._memory, [], only))

    def processes(self, only: Collection[str] = ()) -> tuple[GpuProcess, ...]:
        """Compute, graphics and MPS processes on all GPUs. Raises GpuError.

        NVML lists a process that both computes and draws twice, each time with all of its memory.
        """
        return tuple(process for found in self._each(self._processes, [], only) for process in found)

    def utilisation(self, only: Collection[str] = ()) -> dict[str, int | None]:
        """The percentage of the last sampling period in which a kernel ran, by UUID. Raises GpuError.

        None if unknown: in MIG mode, under WSL.
        """
        return dict(self._each(self._utilisation, [], only))

    def load(self, only: Collection[str] = ()) -> dict[str, GpuLoad]:
        """The utilisation, temperature and power of each GPU, by UUID. Raises GpuError."""
        return dict(self._each(self._load, [], only))

    def busy(self, only: Collection[str] = ()) -> dict[str, frozenset[int] | None]:
        """The pids that used each GPU since the last call, by UUID. Raises GpuError.

        The driver keeps a few seconds of samples. None if it keeps none: in MIG mode, under WSL.
        """
        return dict(self._each(self._busy, [], only))

    def notes(self) -> tuple[str, ...]:
        """What the last :meth:`list` found that a user should know."""
        return self._notes

    def close(self) -> None:
        """Shut NVML down. Safe to repeat; errors are ignored, because nobody could act on them."""
        if self._log is not None:
            self._log.close()
        if self._open:
            self._open = False
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                return

    def _count(self) -> int:
        if not self._open:
            raise GpuError("NVML has been closed")
        try:
            return int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_NO_PERMISSION:
                raise driver_errors.no_permission() from error
            raise driver_errors.failed(error, "NVML") from error

    def _each(self, ask: Callable[[int, Any], _T], notes: Notes, only: Collection[str] = ()) -> Found[_T]:
        """The results of ``ask`` for each GPU, called with its NVML index and handle, in PCI order.

        If only one GPU fails, it is left out with a note. Raises GpuError.
        """
        with AllBlocked():
            return self._answers(ask, notes, only)

    def _answers(self, ask: Callable[[int, Any], _T], notes: Notes, only: Collection[str]) -> Found[_T]:
        found: list[tuple[tuple[int, int, int], _T]] = []
        denied = 0
        for index in range(self._count()):
            try:
                handle, order = self._handle(index)
                if not only or self._uuid(index, handle) in only:
                    found.append((order, ask(index, handle)))
            except self._nvml.NVMLError as error:
                is_denied = error.value == self._nvml.NVML_ERROR_NO_PERMISSION
                if not (is_denied or self._is_lost(error)):
                    raise driver_errors.failed(error, f"GPU {index}") from error
                denied += is_denied
                notes.append(f"GPU {index} is left out: {_text(str(error))}")
        if denied and not found:
            raise driver_errors.no_permission()
        found.sort(key=lambda entry: entry[0])
        return [entry for _, entry in found]

    def _handle(self, index: int) -> tuple[Any, tuple[int, int, int]]:
        """NVML's handle of a GPU, and its PCI address. They stay the same until NVML is shut down."""
        known = self._handles.get(index)
        if known is None:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            pci = self._nvml.nvmlDeviceGetPciInfo(handle)
            known = self._handles[index] = handle, (pci.domain, pci.bus, pci.device)
        return known

    def _uuid(self, index: int, handle: Any) -> str:
        if index not in self._uuids:
            self._uuids[index] = _text(self._nvml.nvmlDeviceGetUUID(handle))
        return self._uuids[index]

    def _gpu(self, index: int, handle: Any, notes: Notes) -> Gpu:
        nvml = self._nvml
        memory = self._supported(nvml.nvmlDeviceGetMemoryInfo, handle)
        minor = self._supported(nvml.nvmlDeviceGetMinorNumber, handle)
        gpu = Gpu(
            index=index,
            uuid=self._uuid(index, handle),
            name=_text(nvml.nvmlDeviceGetName(handle)),
            memory_mib=0 if memory is None else int(memory.total) // _MIB,
            minor=_UNKNOWN_MINOR if minor is None else int(minor),
        )
        if memory is None:
            notes.append(f"GPU {index} ({gpu.uuid}) shares its memory with the CPU: its size is unknown")
        mig = self._supported(nvml.nvmlDeviceGetMigMode, handle)
        if mig is not None and mig[0]:
            notes.append(f"GPU {index} ({gpu.uuid}) is in MIG mode: slicer leases it as a whole, by its UUID")
        return gpu

    def _memory(self, index: int, handle: Any) -> GpuMemory:
        try:
            found = self._last[index] = self._memory_now(index, handle)
        except self._nvml.NVMLError as error:
            if index not in self._last or not self._is_lost(error):
                raise
            return replace(self._last[index], used_mib=0, fault=f"the driver says: {_text(str(error))}")
        return found

    def _memory_now(self, index: int, handle: Any) -> GpuMemory:
        nvml = self._nvml
        uuid = self._uuid(index, handle)
        version = getattr(nvml, "nvmlMemory_v2", None)  # pynvml has it from 11.510 on, like the driver
        memory = None
        if version is not None:
            memory = self._supported(lambda gpu: nvml.nvmlDeviceGetMemoryInfo(gpu, version=version), handle)
        if memory is not None:
            reserved = int(memory.reserved)
        else:
            memory, reserved = self._supported(nvml.nvmlDeviceGetMemoryInfo, handle), 0
        total_mib, used_mib = 0, 0
        if memory is not None:
            total_mib, used_mib = (int(memory.total) - reserved) // _MIB, -(-int(memory.used) // _MIB)
        return GpuMemory(uuid, total_mib, used_mib, self._fault(uuid, handle))

    def _fault(self, uuid: str, handle: Any) -> str | None:
        """As in GpuMemory. If the driver names a recovery action, the kernel's log says nothing more."""
        nvml, fault = self._nvml, None
        fields = self._asked(nvml.nvmlDeviceGetFieldValues, handle, [_RECOVERY_ACTION])
        if fields is not None and fields[0].nvmlReturn == nvml.NVML_SUCCESS:
            action = _ACTIONS.get(fields[0].value.uiVal)
            fault = f"the driver asks for {action}" if action is not None else ""
        rows = self._asked(nvml.nvmlDeviceGetRemappedRows, handle) if not fault else None
        if rows is not None and rows[3]:
            return "the driver could not replace bad memory"
        return self._logged(uuid, handle) if fault is None else fault

    def _logged(self, uuid: str, handle: Any) -> str | None:
        from slicer.gpu.xids import XidLog

        self._log = self._log or XidLog()
        pci = self._nvml.nvmlDeviceGetPciInfo(handle)
        return self._log.fault((pci.domain, pci.bus, pci.device), uuid)

    def _processes(self, index: int, handle: Any) -> tuple[GpuProcess, ...]:
        uuid = self._uuid(index, handle)
        used: dict[int, int | None] = {}
        for process in self._running(handle):
            mib = None if process.usedGpuMemory is None else int(process.usedGpuMemory) // _MIB
            pid = int(process.pid)
            known = used.get(pid)
            used[pid] = mib if known is None else max(known, mib or 0)
        return tuple(GpuProcess(uuid, pid, mib) for pid, mib in used.items())

    def _utilisation(self, index: int, handle: Any) -> tuple[str, int | None]:
        rates = self._supported(self._nvml.nvmlDeviceGetUtilizationRates, handle)
        return self._uuid(index, handle), None if rates is None else int(rates.gpu)

    def _load(self, index: int, handle: Any) -> tuple[str, GpuLoad]:
        nvml = self._nvml
        degrees = None
        for name in ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"):  # CUDA 14 drops the older one
            if degrees is None and hasattr(nvml, name):
                degrees = self._sensor(getattr(nvml, name), handle, nvml.NVML_TEMPERATURE_GPU)
        milliwatts = self._sensor(nvml.nvmlDeviceGetPowerUsage, handle)
        limit = self._sensor(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        uuid, utilisation = self._utilisation(index, handle)
        return uuid, GpuLoad(utilisation, degrees, _watts(milliwatts), _watts(limit))

    def _sensor(self, function: Any, handle: Any, *more: Any) -> int | None:
        found = self._asked(function, handle, *more)
        return None if found is None else int(found)

    def _asked(self, function: Any, handle: Any, *more: Any) -> Any:
        """The function's answer, or None if it has none: a sensor that is broken hides no other figure."""
        try:
            return function(handle, *more)
        except self._nvml.NVMLError as error:
            if self._is_lost(error):
                raise
            return None

    def _busy(self, index: int, handle: Any) -> tuple[str, frozenset[int] | None]:
        nvml, uuid = self._nvml, self._uuid(index, handle)
        since = self._sampled.get(uuid, 0)
        newest = self._grown(lambda gpu: nvml.nvmlDeviceGetProcessUtilization(gpu, since))
        try:
            samples = self._supported(newest, handle)
        except nvml.NVMLError as error:
            if error.value not in (nvml.NVML_SUCCESS, nvml.NVML_ERROR_NOT_FOUND):  # there are no new ones
                raise
            samples = ()
        if samples is None:
            return uuid, None
        self._sampled[uuid] = max((int(each.timeStamp) for each in samples), default=since)
        uses = (each for each in samples if each.smUtil or each.memUtil or each.encUtil or each.decUtil)
        return uuid, frozenset(int(each.pid) for each in uses)

    def _supported(self, function: Any, handle: Any) -> Any:
        """The function's answer, or None if this GPU or driver does not support it."""
        absent = (self._nvml.NVML_ERROR_NOT_SUPPORTED, self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        try:
            return function(handle)
        except self._nvml.NVMLError as error:
            if error.value in absent:
                return None
            raise

    def _running(self, handle: Any) -> Iterator[Any]:
        for kind in _PROCESS_LISTS:
            for version in _LIST_VERSIONS:
                function = getattr(self._nvml, f"nvmlDeviceGet{kind}RunningProcesses{version}", None)
                listed = None if function is None else self._supported(self._grown(function), handle)
                if listed is not None:
                    yield from listed
                    break

    def _grown(self, function: Any) -> Any:
        """``function``, called again if the list has outgrown pynvml's buffer."""

        def call(handle: Any) -> Any:
            for _ in range(_TRIES - 1):
                try:
                    return function(handle)
                except self._nvml.NVMLError as error:
                    if error.value != self._nvml.NVML_ERROR_INSUFFICIENT_SIZE:
                        raise
            return function(handle)

        return call

    def _is_lost(self, error: Any) -> bool:
        return error.value in (self._nvml.NVML_ERROR_GPU_IS_LOST, self._nvml.NVML_ERROR_RESET_REQUIRED)


def _watts(milliwatts: int | None) -> int | None:
    return None if milliwatts is None else round(milliwatts / 1000)


def _text(value: str | bytes) -> str:
    """Text from pynvml, which returned bytes before 11.5, and still does for some structures."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
