"""The client in Python: ctypes on libcuda.so.1, as CuPy does it. It knows some commands of client.c."""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p


class Client:
    """Commands are methods; they return the result and what else there is to say."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.cuda.cuLaunchKernel.argtypes = [c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p]
        self.cuda.cuMemAlloc_v2.argtypes = [c_void_p, c_size_t]
        self.cuda.cuMemFree_v2.argtypes = [c_uint64]
        self.cuda.cuMemcpyHtoD_v2.argtypes = [c_uint64, c_char_p, c_size_t]
        self.cuda.cuMemcpyDtoH_v2.argtypes = [c_char_p, c_uint64, c_size_t]
        self.spinning = c_void_p()
        self.memory: list[int] = []

    def init(self) -> tuple[int, str]:
        return self.cuda.cuInit(0), ""

    def context(self, ordinal: str = "0") -> tuple[int, str]:
        return self.cuda.cuCtxCreate_v2(byref(c_void_p()), 0, int(ordinal)), " 0"

    def spin(self, us: str, stream: str = "-", count: str = "1") -> tuple[int, str]:
        if not self.spinning:
            module = c_void_p()
            self.cuda.cuModuleLoadData(byref(module), b"image")
            self.cuda.cuModuleGetFunction(byref(self.spinning), module, b"spin")
        ns = c_uint64(int(us) * 1000)
        arguments = (c_void_p * 1)(ctypes.addressof(ns))
        code = 0
        for _ in range(int(count)):
            code = code or self.cuda.cuLaunchKernel(self.spinning, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
        return code, ""

    def sync(self) -> tuple[int, str]:
        return self.cuda.cuCtxSynchronize(), ""

    def work(self, us: str, count: str, every: str = "0") -> tuple[int, str]:
        code = 0
        for number in range(1, int(count) + 1):
            code = code or self.spin(us)[0]
            if not code and int(every) and number % int(every) == 0:
                code = self.cuda.cuCtxSynchronize()
        return code or self.cuda.cuCtxSynchronize(), ""

    def copy(self, size: str, stream: str = "-") -> tuple[int, str]:
        at, out, back = c_uint64(), os.urandom(int(size)), ctypes.create_string_buffer(int(size))
        code = self.cuda.cuMemAlloc_v2(byref(at), int(size))
        code = code or self.cuda.cuMemcpyHtoD_v2(at, out, int(size))
        code = code or self.cuda.cuMemcpyDtoH_v2(back, at, int(size))
        self.cuda.cuMemFree_v2(at)
        return code, " same 5" if back.raw == out else " differs 0"

    def alloc(self, kind: str, mib: str) -> tuple[int, str]:
        at = c_uint64()
        code = self.cuda.cuMemAlloc_v2(byref(at), int(mib) << 20)
        self.memory.append(at.value)
        return code, f" {len(self.memory) - 1}"

    def free(self, number: str) -> tuple[int, str]:
        return self.cuda.cuMemFree_v2(self.memory[int(number)]), ""

    def info(self) -> tuple[int, str]:
        free, total = c_size_t(), c_size_t()
        code = self.cuda.cuMemGetInfo_v2(byref(free), byref(total))
        return code, f" {free.value >> 20} {total.value >> 20}"

    def total(self, ordinal: str = "0") -> tuple[int, str]:
        total = c_size_t()
        return self.cuda.cuDeviceTotalMem_v2(byref(total), int(ordinal)), f" {total.value >> 20}"

    def nvml(self, index: str) -> tuple[int, str]:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(int(index))
        first, second = (
            pynvml.nvmlDeviceGetMemoryInfo(handle),
            pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2),
        )
        return int(first.total != second.total), f" {first.total >> 20} {first.used >> 20}"

    def devices(self) -> tuple[int, str]:
        count = c_int()
        return self.cuda.cuDeviceGetCount(byref(count)), f" {count.value}"


def main() -> None:
    client = Client()
    for line in sys.stdin:
        name, *words = line.split()
        code, text = getattr(client, name)(*words)
        print(f"{code}{text}", flush=True)


if __name__ == "__main__":
    main()
