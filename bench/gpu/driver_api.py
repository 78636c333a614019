"""What the programs of client.py are made of: CUDA's structures, and a context with the calls they need."""

from __future__ import annotations

import ctypes

from slicer.experiment.cuda import Context, CudaError, Driver


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


DEVICE, HOST, HOST_NUMA, HOST_NUMA_CURRENT = 1, 2, 3, 4  # CU_MEM_LOCATION_TYPE_…
PINNED = 1
READ_WRITE = 3


class Program:
    """A context, and the functions that only these programs need."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.context = Context(self.driver)
        self.call = self.driver.call
        self.stream = self.context.stream()

    def sync(self) -> None:
        self.call("cuStreamSynchronize", self.stream)

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
