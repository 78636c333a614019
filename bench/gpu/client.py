"""Programs over CUDA's driver API, by ctypes: ``python client.py NAME [ARGUMENT…]``. Each prints a line of
JSON.

They know nothing of slicer's library. What they did is known to them exactly, so its counts can be compared.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from typing import Any

from bench.gpu.cuda import (
    DEVICE,
    HOST,
    HOST_NUMA,
    HOST_NUMA_CURRENT,
    READ_WRITE,
    Access,
    LaunchConfig,
    Location,
    Program,
)
from bench.gpu.ptx import COMPUTE, MEET, MEMORY

MIB = 1 << 20
WORDS = 1 << 20
MOST_CHUNKS = 4096
FAKE_MEETINGS = 900


def say(**data: Any) -> None:
    print(json.dumps(data), flush=True)


# -- facts and counts -------------------------------------------------------------------------------------


def facts() -> None:
    """The GPU and its driver."""
    p = Program()
    c = p.context
    free, total = c.memory()
    say(
        name=c.name(), uuid=c.uuid(), compute_capability=c.compute_capability(), cuda=p.driver.version(),
        sm_count=c.sm_count(), free_mib=free // MIB, total_mib=total // MIB, devices=p.driver.device_count(),
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )  # fmt: skip


def counts(number: str) -> None:
    """Known work of each kind, whose result is known too."""
    p, n = Program(), int(number)
    a, b = p.context.allocate(4 * WORDS), p.context.allocate(4 * WORDS)
    host = (ctypes.c_uint32 * WORDS)(*range(WORDS))
    work = {"copies": 0, "memsets": 0, "launches": 0, "extended": 0}
    p.call("cuMemsetD32Async", a, 7, WORDS, p.stream)
    p.call("cuMemsetD8_v2", b, 1, 4 * WORDS)
    work["memsets"] += 2
    p.call("cuMemcpyHtoDAsync_v2", a, ctypes.addressof(host), 4 * WORDS, p.stream)
    work["copies"] += 1
    step = p.context.launch(MEMORY, 64, 128, p.stream, (1, a, b, WORDS))
    again = p.context.again("cuMemcpyDtoDAsync_v2", a, b, 4 * WORDS, p.stream)
    for _ in range(n):
        step()
        again()
    work["launches"] += n
    work["copies"] += n
    if p.has("cuLaunchKernelEx"):
        extended(p, n, a, b)
        work["extended"] += n
    p.sync()
    p.call("cuMemcpyDtoH_v2", ctypes.addressof(host), a, 4 * WORDS)
    work["copies"] += 1
    # Each round adds one; extended launches write to b only.
    is_right = all(host[i] == i + n for i in range(0, WORDS, 4097))
    say(work=work, gated=sum(work.values()), is_right=True if p.is_fake() else is_right)


def extended(p: Program, n: int, a: int, b: int) -> None:
    """As a newer runtime launches."""
    config = LaunchConfig()
    config.grid[:], config.block[:] = (64, 1, 1), (128, 1, 1)
    config.stream = p.stream
    values = [ctypes.c_uint64(value) for value in (1, a, b, WORDS)]
    pointers = (ctypes.c_void_p * 4)(*(ctypes.addressof(value) for value in values))
    for _ in range(n):
        p.call(
            "cuLaunchKernelEx", ctypes.byref(config), p.context.kernel(MEMORY), ctypes.addressof(pointers), 0
        )


def iterations_for(p: Program, us: float) -> int:
    """Of the kernel that computes, with one block: how many take so long."""
    step = p.context.launch(COMPUTE, 1, 32, p.stream, (200_000, p.context.allocate(4096)))
    step()
    p.sync()
    start = time.monotonic_ns()
    step()
    p.sync()
    return max(1, round(us * 1000 / ((time.monotonic_ns() - start) / 200_000)))


def overhead(us: str, number: str, tries: str) -> None:
    """How long kernels of such a length take back to back, and how long a launch alone."""
    p, n = Program(), int(number)
    out = p.context.allocate(4096)
    step = p.context.launch(COMPUTE, 1, 32, p.stream, (iterations_for(p, float(us)), out))
    empty = p.context.launch(COMPUTE, 1, 32, p.stream, (0, out))
    kernels: list[float] = []
    launches: list[float] = []
    for _ in range(int(tries) + 1):
        for found, once, many in ((kernels, step, n), (launches, empty, min(n, 500))):
            p.sync()
            start = time.monotonic_ns()
            for _ in range(many):
                once()
            if found is launches:
                found.append((time.monotonic_ns() - start) / many)
                p.sync()
            else:
                p.sync()
                found.append((time.monotonic_ns() - start) / many)
    say(kernel_ns=kernels[1:], launch_ns=launches[1:])


# -- memory -----------------------------------------------------------------------------------------------


def allocate(p: Program, how: str, size: int) -> tuple[int, Any]:
    """One allocation: its CUresult, and how to give it back."""
    address = ctypes.c_uint64()
    there = ctypes.byref(address)
    if how == "malloc":
        return p.code("cuMemAlloc_v2", there, size), lambda: p.call("cuMemFree_v2", address.value)
    if how == "managed":
        return p.code("cuMemAllocManaged", there, size, 1), lambda: p.call("cuMemFree_v2", address.value)
    if how == "pitch":
        pitch = ctypes.c_size_t()
        code = p.code("cuMemAllocPitch_v2", there, ctypes.byref(pitch), 1 << 16, size >> 16, 16)
        return code, lambda: p.call("cuMemFree_v2", address.value)
    if how == "async":
        code = p.code("cuMemAllocAsync", there, size, p.stream)
        return code, lambda: p.call("cuMemFreeAsync", address.value, p.stream)
    prop = p.prop()
    code = p.code("cuMemCreate", there, size, ctypes.byref(prop), 0)
    return code, lambda: p.call("cuMemRelease", address.value)


METHODS = ("malloc", "managed", "pitch", "async", "create")


def fill(how: str, chunk_mib: str, wait_s: str = "0") -> None:
    """Take memory until there is none; what the driver says of it; give it back, and take some again."""
    p, size = Program(), int(chunk_mib) * MIB
    free, total = p.context.memory()
    backs: list[Any] = []
    code = 0
    while len(backs) < MOST_CHUNKS:
        code, back = allocate(p, how, size)
        if code:
            break
        backs.append(back)
    full = p.context.memory()[0]
    time.sleep(float(wait_s))
    for back in backs:
        back()
    p.sync()
    again, back = allocate(p, how, size)
    say(
        got_mib=len(backs) * int(chunk_mib), code=code, total_mib=total // MIB, free_mib=free // MIB,
        free_when_full_mib=full // MIB, again=again,
    )  # fmt: skip


def fill_together(number: str, how: str, chunk_mib: str) -> None:
    """So many processes of one job, all at once."""
    command = [sys.executable, "-P", __file__, "fill", how, chunk_mib, "1"]
    made = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(int(number))]
    told = [json.loads(process.communicate()[0]) for process in made]
    say(got_mib=sum(each["got_mib"] for each in told), codes=[each["code"] for each in told])


def vmm() -> None:
    """As llama.cpp's and vLLM's pools: addresses first, memory mapped into them, also memory of the host."""
    p = Program()
    prop, address, size = p.prop(), ctypes.c_uint64(), 64 * MIB
    handles = []
    p.call("cuMemAddressReserve", ctypes.byref(address), 4 * size, 0, 0, 0)
    at = address.value
    for number in range(4):
        handle = ctypes.c_uint64()
        p.call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(prop), 0)
        p.call("cuMemMap", at + number * size, size, 0, handle, 0)
        handles.append(handle)
    access = Access(Location(DEVICE, 0), READ_WRITE)
    p.call("cuMemSetAccess", at, 4 * size, ctypes.byref(access), 1)
    p.call("cuMemsetD32Async", at, 41, size // 2, p.stream)  # 2 of the 4 parts
    p.context.launch(MEMORY, 64, 128, p.stream, (1, at, at + 2 * size, size // 2))()
    p.sync()
    word = ctypes.c_uint32()
    p.call("cuMemcpyDtoH_v2", ctypes.addressof(word), at + 4 * size - 4, 4)
    host = {}
    for name, kind in (("host", HOST), ("numa", HOST_NUMA), ("numa-current", HOST_NUMA_CURRENT)):
        place, handle = p.prop(kind), ctypes.c_uint64()
        host[name] = p.code("cuMemCreate", ctypes.byref(handle), 64 * MIB, ctypes.byref(place), 0)
        if host[name] == 0:
            p.call("cuMemRelease", handle.value)
    p.call("cuMemUnmap", at, 4 * size)
    for handle in handles:
        p.call("cuMemRelease", handle.value)
    p.call("cuMemAddressFree", at, 4 * size)
    say(is_right=p.is_fake() or word.value == 42, host=host, granularity=p.granularity(prop))


# -- graphs -----------------------------------------------------------------------------------------------


def graph(number: str, pause_s: str = "0.3") -> None:
    """Capture, with a pause in it, then launch what was captured."""
    p, n = Program(), int(number)
    a, b = p.context.allocate(4 * WORDS), p.context.allocate(4 * WORDS)
    p.call("cuMemsetD32Async", a, 0, WORDS, p.stream)
    p.sync()
    forth = p.context.launch(MEMORY, 64, 128, p.stream, (1, a, b, WORDS))
    back = p.context.launch(MEMORY, 64, 128, p.stream, (1, b, a, WORDS))
    forth()
    back()
    p.call("cuStreamBeginCapture_v2", p.stream, 0)
    forth()
    time.sleep(float(pause_s))  # others want the turn meanwhile
    back()
    made, whole = ctypes.c_void_p(), ctypes.c_void_p()
    p.call("cuStreamEndCapture", p.stream, ctypes.byref(made))
    p.call("cuGraphInstantiateWithFlags", ctypes.byref(whole), made, 0)
    for _ in range(n):
        p.call("cuGraphLaunch", whole, p.stream)
    p.sync()
    word = ctypes.c_uint32()
    p.call("cuMemcpyDtoH_v2", ctypes.addressof(word), a, 4)
    say(is_right=p.is_fake() or word.value == 2 + 2 * n, gated=1 + 2 + n + 1, captured=2)


# -- turns ------------------------------------------------------------------------------------------------


def ticks(seconds: str, us: str, pause_ms: str = "0") -> None:
    """Kernels one after another, when each was done, how long it took; the first line says that it begins."""
    p = Program()
    values = iterations_for(p, float(us)), p.context.allocate(4096)
    step = p.context.launch(COMPUTE, 1, 32, p.stream, values)
    say(pid=os.getpid())
    found, took = [], []
    end = time.monotonic_ns() + round(float(seconds) * 1e9)
    while (start := time.monotonic_ns()) < end:
        step()
        p.sync()
        found.append(time.monotonic_ns())
        took.append(found[-1] - start)
        time.sleep(float(pause_ms) / 1000)
    say(ticks=found, took=took)


def hold(seconds: str) -> None:
    """Kernels of 1 ms, hundreds of them in flight: a job that never lets go by itself."""
    p = Program()
    step = p.context.launch(COMPUTE, 1, 32, p.stream, (iterations_for(p, 1000), p.context.allocate(4096)))
    say(pid=os.getpid())
    end = time.monotonic_ns() + round(float(seconds) * 1e9)
    while time.monotonic_ns() < end:
        for _ in range(300):
            step()
        p.sync()


def ranks(number: str, parties: str, extra: str = "0") -> None:
    """Processes of one job whose kernels wait for each other. The Nth does N times ``extra`` kernels more."""
    command = [sys.executable, "-P", __file__, "rank"]
    p = Program()
    number = str(min(int(number), FAKE_MEETINGS)) if p.is_fake() else number
    words = p.context.allocate(MIB)
    p.call("cuMemsetD32Async", words, 0, MIB // 4, p.stream)
    p.sync()
    shared = (ctypes.c_ubyte * 64)()
    code = p.code("cuIpcGetMemHandle", shared, words)
    handle = bytes(shared).hex() if code == 0 else "-"
    say(pid=os.getpid())
    made = [
        subprocess.Popen(
            [*command, number, parties, handle, str(rank * int(extra))], stdout=subprocess.PIPE, text=True
        )
        for rank in range(int(parties))
    ]
    ends = [(process.communicate()[0], process.returncode) for process in made]
    host = (ctypes.c_uint32 * int(number))()
    if code == 0:
        p.call("cuMemcpyDtoH_v2", ctypes.addressof(host), words, 4 * int(number))
    is_right = all(count == int(parties) for count in host) if code == 0 else p.is_fake()
    say(codes=[end for _, end in ends], is_right=is_right, ipc=code)


class IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_ubyte * 64),)


def rank(number: str, parties: str, handle: str, extra: str = "0") -> None:
    """One of them."""
    p = Program()
    step = p.context.launch(COMPUTE, 1, 32, p.stream, (100, p.context.allocate(4096)))
    words = ctypes.c_uint64()
    if handle != "-":
        shared = IpcHandle()
        shared.reserved[:] = bytes.fromhex(handle)
        p.call("cuIpcOpenMemHandle_v2", ctypes.byref(words), shared, 1)
    for meeting in range(int(number)):
        for _ in range(int(extra)):
            step()
        p.context.launch(MEET, 1, 1, p.stream, (1000, meeting, int(parties), words.value))()
        if meeting % 8 == 7:
            p.sync()
    p.sync()
    say(meetings=int(number))


# -- what is riskiest -------------------------------------------------------------------------------------


def copying(seconds: str, kind: str) -> None:
    """Copies to the GPU, one after another: large ones of ordinary or of pinned memory, or small ones."""
    p, size = Program(), 64 << 10 if kind == "small" else 256 * MIB
    there, pinned = p.context.allocate(size), ctypes.c_void_p()
    here = ctypes.addressof(ctypes.create_string_buffer(size))
    if kind == "pinned":
        p.call("cuMemAllocHost_v2", ctypes.byref(pinned), size)
        here = pinned.value or 0
    say(pid=os.getpid())
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        p.call("cuMemcpyHtoDAsync_v2", there, here, size, p.stream)
        p.sync()


def unsynced(rounds: str) -> None:
    """Memory that is allocated and freed in stream order, in several sizes, and never a sync."""
    p, pool, reserved = Program(), ctypes.c_void_p(), ctypes.c_uint64()
    p.call("cuDeviceGetDefaultMemPool", ctypes.byref(pool), 0)
    codes, most = set(), 0
    for number in range(int(rounds)):
        address, size = ctypes.c_uint64(), (256, 512, 768)[number % 3] * MIB
        codes.add(p.code("cuMemAllocAsync", ctypes.byref(address), size, p.stream))
        if address.value:
            p.call("cuMemsetD32Async", address.value, number, size // 4, p.stream)
            p.call("cuMemFreeAsync", address.value, p.stream)
        p.call("cuMemPoolGetAttribute", pool, 5, ctypes.byref(reserved))  # RESERVED_MEM_CURRENT
        most = max(most, reserved.value // MIB)
    p.sync()
    say(codes=sorted(codes), most_mib=most)


def jitting(seconds: str) -> None:
    """Processes one after another, whose kernels are compiled at their first launch."""
    say(pid=os.getpid())
    end = time.monotonic() + float(seconds)
    environ = {**os.environ, "CUDA_CACHE_DISABLE": "1", "CUDA_MODULE_LOADING": "LAZY"}
    while time.monotonic() < end:
        command = [sys.executable, "-P", __file__, "counts", "5"]
        subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, check=True)


def leave() -> None:
    """It ends with hundreds of kernels in flight."""
    p = Program()
    step = p.context.launch(COMPUTE, 1, 32, p.stream, (iterations_for(p, 1000), p.context.allocate(4096)))
    for _ in range(300):
        step()
    say(left=300)


PROGRAMS = (
    copying, unsynced, jitting, leave, facts, counts, overhead, fill, fill_together, vmm, graph, ticks, hold,
    ranks, rank,
)  # fmt: skip

if __name__ == "__main__":
    {program.__name__: program for program in PROGRAMS}[sys.argv[1]](*sys.argv[2:])
