"""CUDA's driver API by ctypes, as far as the programs of the checks and the jobs of the experiment need it.

It needs no toolkit and no other library. Programs under ``slicer run --share`` reach the driver in the same
way as this one: through dlsym.
"""

from __future__ import annotations

import ctypes

from bench.gpu import ptx
from slicer.errors import SlicerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LIBRARY = "libcuda.so.1"
NOT_COMPILED = (209, 218, 222)  # NO_BINARY_FOR_GPU, INVALID_PTX, UNSUPPORTED_PTX_VERSION
DEVICE, HOST, HOST_NUMA, HOST_NUMA_CURRENT = 1, 2, 3, 4  # CU_MEM_LOCATION_TYPE_…
PINNED = 1
READ_WRITE = 3

_NON_BLOCKING = 1  # a stream that does not wait for the default one
_NO_TIMING = 2  # an event that only orders
_SM_COUNT, _MAJOR, _MINOR = 16, 75, 76  # CU_DEVICE_ATTRIBUTE_…
_NO_LIBRARY = "install the NVIDIA driver; in a container, start it with the NVIDIA runtime"


class CudaError(SlicerError):
    """The driver is not there, or it refused something. ``code`` is its CUresult; 0: it is not there."""

    kind = "cuda"
    code = 0


class Driver:
    """The driver, initialised. One a process."""

    def __init__(self) -> None:
        """Raises CudaError."""
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise CudaError(f"there is no CUDA driver here ({error})", hint=_NO_LIBRARY) from error
        self._functions: dict[str, Callable[..., int]] = {}
        self.call("cuInit", 0)

    def function(self, name: str) -> Callable[..., int]:
        """The driver's function of that name. Raises CudaError where it has none."""
        if name not in self._functions:
            try:
                self._functions[name] = getattr(self._library, name)
            except AttributeError as error:
                raise CudaError(f"the CUDA driver has no {name}", hint="it is older than CUDA 11") from error
        return self._functions[name]

    def call(self, name: str, *arguments: object) -> None:
        """Call it; numbers are passed with 64 bits. Raises CudaError."""
        code = self.function(name)(*map(_passed, arguments))
        if code:
            raise self.error(name, code)

    def error(self, name: str, code: int) -> CudaError:
        """The CUresult of a function as an error."""
        word = ctypes.c_char_p()
        known = self.function("cuGetErrorName")(code, ctypes.byref(word)) == 0 and word.value
        error = CudaError(f"{name} failed: {known.decode() if known else 'error'} ({code})", where="CUDA")
        error.code = code
        return error

    def version(self) -> str:
        """The newest CUDA that the driver knows: "13.0"."""
        found = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(found))
        return f"{found.value // 1000}.{found.value % 1000 // 10}"

    def device_count(self) -> int:
        found = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(found))
        return found.value


class Context:
    """The primary context of a device, current in the thread that made it; its kernels are loaded."""

    def __init__(self, driver: Driver, ordinal: int = 0) -> None:
        """Raises CudaError."""
        self.driver = driver
        if driver.device_count() <= ordinal:
            raise CudaError(f"CUDA shows no device {ordinal}", hint="see CUDA_VISIBLE_DEVICES and nvidia-smi")
        device = ctypes.c_int()
        driver.call("cuDeviceGet", ctypes.byref(device), ordinal)
        self.device = device.value
        self.handle = ctypes.c_void_p()
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.handle), self.device)
        driver.call("cuCtxSetCurrent", self.handle)
        self._module = self._load()

    def close(self) -> None:
        """Give the context back. Raises CudaError."""
        self.driver.call("cuDevicePrimaryCtxRelease_v2", self.device)

    # -- the device -------------------------------------------------------------------------------------

    def name(self) -> str:
        text = ctypes.create_string_buffer(256)
        self.driver.call("cuDeviceGetName", text, 256, self.device)
        return text.value.decode(errors="replace")

    def uuid(self) -> str:
        """As NVML writes it: GPU-01234567-89ab-…"""
        raw = (ctypes.c_ubyte * 16)()
        self.driver.call("cuDeviceGetUuid", raw, self.device)
        digits = bytes(raw).hex()
        return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    def attribute(self, number: int) -> int:
        found = ctypes.c_int()
        self.driver.call("cuDeviceGetAttribute", ctypes.byref(found), number, self.device)
        return found.value

    def sm_count(self) -> int:
        return max(1, self.attribute(_SM_COUNT))

    def compute_capability(self) -> str:
        return f"{self.attribute(_MAJOR)}.{self.attribute(_MINOR)}"

    def memory(self) -> tuple[int, int]:
        """Free and all bytes of the device, as this process is told."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    # -- memory -----------------------------------------------------------------------------------------

    def allocate(self, size: int) -> int:
        """The address of so many bytes on the device."""
        address = ctypes.c_uint64()
        self.driver.call("cuMemAlloc_v2", ctypes.byref(address), size)
        return address.value

    def free(self, address: int) -> None:
        self.driver.call("cuMemFree_v2", address)

    def host(self, size: int) -> int:
        """The address of so many bytes of the host that the device can copy from by itself."""
        address = ctypes.c_void_p()
        self.driver.call("cuMemAllocHost_v2", ctypes.byref(address), size)
        return address.value or 0

    # -- work -------------------------------------------------------------------------------------------

    def stream(self) -> int:
        made = ctypes.c_void_p()
        self.driver.call("cuStreamCreate", ctypes.byref(made), _NON_BLOCKING)
        return made.value or 0

    def event(self) -> int:
        made = ctypes.c_void_p()
        self.driver.call("cuEventCreate", ctypes.byref(made), _NO_TIMING)
        return made.value or 0

    def kernel(self, name: str) -> int:
        """A kernel of ``ptx`` by its name."""
        found = ctypes.c_void_p()
        self.driver.call("cuModuleGetFunction", ctypes.byref(found), self._module, name.encode())
        return found.value or 0

    def launch(
        self, name: str, blocks: int, threads: int, stream: int, values: Sequence[int]
    ) -> Callable[[], None]:
        """A kernel's launch, ready to be done again and again: its arguments are made only once."""
        held = [ctypes.c_uint64(value) for value in values]
        pointers = (ctypes.c_void_p * len(held))(*(ctypes.addressof(value) for value in held))
        grid = (blocks, 1, 1, threads, 1, 1, 0)  # of blocks, of threads in one, bytes of shared memory
        arguments = (self.kernel(name), *grid, stream, ctypes.addressof(pointers), 0)
        once = self.again("cuLaunchKernel", *arguments)
        once.kept = (held, pointers)  # type: ignore[attr-defined]
        return once

    def again(self, name: str, *arguments: object) -> Callable[[], None]:
        """A call of the driver, ready to be done again and again. It raises CudaError."""
        function, passed = self.driver.function(name), tuple(map(_passed, arguments))

        def once() -> None:
            code = function(*passed)
            if code:
                raise self.driver.error(name, code)

        return once

    def _load(self) -> int:
        module = ctypes.c_void_p()
        last: CudaError | None = None
        for text in ptx.modules():
            try:
                self.driver.call("cuModuleLoadData", ctypes.byref(module), text)
                return module.value or 0
            except CudaError as error:
                if error.code not in NOT_COMPILED:
                    raise
                last = error
        raise last or CudaError("no kernels")


def _passed(value: object) -> object:
    """A number as a register takes it. ctypes would pass the 32 bits of a C int."""
    return ctypes.c_uint64(value) if isinstance(value, int) else value


# -- programs ---------------------------------------------------------------------------------------------


class Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class AllocationFlags(ctypes.Structure):
    _fields_ = (
        ("compression", ctypes.c_ubyte), ("rdma", ctypes.c_ubyte), ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )  # fmt: skip


class AllocationProp(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location), ("win32", ctypes.c_void_p),
        ("flags", AllocationFlags),
    )  # fmt: skip


class Access(ctypes.Structure):
    _fields_ = (("location", Location), ("flags", ctypes.c_int))


class LaunchConfig(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint),
    )  # fmt: skip


class Program:
    """A context with a stream, and calls that the checks try."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.context = Context(self.driver)
        self.call = self.driver.call
        self.stream = self.context.stream()
        self.sync = self.context.again("cuStreamSynchronize", self.stream)

    def code(self, name: str, *arguments: object) -> int:
        """The CUresult of a call; -1 where the driver has no such function."""
        try:
            self.call(name, *arguments)
        except CudaError as error:
            return error.code or -1
        return 0

    def has(self, name: str) -> bool:
        try:
            self.driver.function(name)
        except CudaError:
            return False
        return True

    def is_fake(self) -> bool:
        return self.context.name().startswith("Fake GPU")

    def prop(self, kind: int = DEVICE, number: int = 0) -> AllocationProp:
        made = AllocationProp()
        made.type = PINNED
        made.location.type, made.location.id = kind, number
        return made

    def granularity(self, prop: AllocationProp) -> int:
        found = ctypes.c_size_t()
        self.call("cuMemGetAllocationGranularity", ctypes.byref(found), ctypes.byref(prop), 0)
        return found.value
