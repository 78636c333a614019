"""Logs that tell of a GPU out of memory, and logs that do not (E9)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slicer.errors import StateError
from slicer.gpu.oom import HEAD_BYTES, TAIL_BYTES
from slicer.queue.judge.log import tells_of_oom

TORCH = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity"

OF_A_GPU = [
    TORCH,
    b"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 23.65 GiB total",
    b"\x1b[31mRuntimeError\x1b[0m: CUDA error: out of memory",
    b"torch.AcceleratorError: CUDA error: out of memory",
    b"RuntimeError: CUDA driver error: out of memory",
    b"RuntimeError: cuda runtime error (2) : out of memory at /aten/src/THC/THCGeneral.cpp",
    b"RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    b"RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    b"XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 47703 bytes.",
    b"jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 4294967296 bytes.",
    b"Resource exhausted: Failed to allocate request for 32.00MiB (33554432B) on device ordinal 0",
    b"Execution of replica 0 failed: Resource exhausted: Out of memory while trying to allocate 552 bytes.",
    b"ResourceExhaustedError (see above for traceback): OOM when allocating tensor with shape[100,4096,32]",
    b"ResourceExhaustedError: 2 root error(s) found.\n  (0) Resource exhausted: OOM when allocating"
    b" tensor with shape[16,112] and type float on /job:localhost/device:GPU:0 by allocator GPU_0_bfc",
    b"ResourceExhaustedError: {{function_node __wrapped__Mul}} failed to allocate memory [Op:Mul]",
    b"could not allocate 17.79G (19104890880 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    b"cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,512 bytes",
    b"cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorMemoryAllocation: out of memory",
    b"numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY",
    b"MemoryError: std::bad_alloc: out_of_memory: CUDA error at: /rmm/mr/device/cuda_memory_resource.hpp",
    b"allocating 35533.34 MiB on device 0: cudaMalloc failed: out of memory",
    b"CUDA error 2 at /src/ggml-cuda.cu:5509: out of memory",
    b"ncclUnhandledCudaError: Call to CUDA function failed. Last error: Cuda failure 2 'out of memory'",
    b"ResourceExhaustedError: \n\nOut of memory error on GPU 0. Cannot allocate 3.2GB memory on GPU 0",
    b"ERROR: Out of GPU memory trying to allocate 29.802 GiB",
    b"onnxruntime::BFCArena::AllocateRawInternal(size_t, bool) Failed to allocate memory for requested",
]

OF_SOMETHING_ELSE = [
    b"",
    b"MemoryError",
    b"numpy._core._exceptions._ArrayMemoryError: Unable to allocate 745. GiB for an array",
    b"OSError: [Errno 12] Cannot allocate memory",
    b"terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
    b"RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory:"
    b" you tried to allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)",
    b"java.lang.OutOfMemoryError: Java heap space",
    b"Out of memory: Killed process 4711 (cuda_train) total-vm:1kB, anon-rss:1kB",
    b"ResourceExhaustedError: OOM when allocating tensor with shape[900000,90000] and type float on "
    b"/job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu [Op:Mul]",
    b'status = StatusCode.RESOURCE_EXHAUSTED\ndetails = "Quota exceeded for quota metric"',
    b"RESOURCE_EXHAUSTED: Received message larger than max (5000000 vs. 4194304)",
    b"RESOURCE_EXHAUSTED: quota\nthe pool says: out of memory",  # two lines, two matters
    b"Allocator (GPU_0_bfc) ran out of memory trying to allocate 3.37GiB with freed_by_count=0. The caller "
    b"indicates that this is not a failure, but this may mean that there could be performance gains",
    b"RuntimeError: CUDA error: device-side assert triggered",
    b"using CUDA\nsqlite3.OperationalError: out of memory",
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "job0001.log"


@pytest.mark.parametrize("text", OF_A_GPU)
def test_what_frameworks_say_of_a_full_gpu_is_known(log: Path, text: bytes) -> None:
    log.write_bytes(b"step 1\xff\x00\r 10%|#   |\rstep 2\n" + text + b"\nmore\n")
    assert tells_of_oom(str(log))


@pytest.mark.parametrize("text", OF_SOMETHING_ELSE)
def test_other_failures_are_not_taken_for_it(log: Path, text: bytes) -> None:
    log.write_bytes(b"step 1\n" + text + b"\n")
    assert not tells_of_oom(str(log))


@pytest.mark.parametrize("at", [0, HEAD_BYTES - len(TORCH), -len(TORCH), -TAIL_BYTES])
def test_beginning_and_end_of_a_log_of_a_gib_are_read_and_no_more(
    log: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with log.open("wb") as file:
        file.truncate(1 << 30)  # all of it a hole: binary, and costs no disk
        file.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        file.write(TORCH)
    sizes = []

    def counted(fd: int, size: int, offset: int) -> bytes:
        sizes.append(size)
        return pread(fd, size, offset)

    pread = os.pread
    monkeypatch.setattr(os, "pread", counted)
    assert tells_of_oom(str(log))
    assert sum(sizes) <= HEAD_BYTES + TAIL_BYTES


def test_what_lies_between_is_not_read(log: Path) -> None:
    with log.open("wb") as file:
        file.truncate(1 << 30)
        file.seek(1 << 29)
        file.write(TORCH)
    assert not tells_of_oom(str(log))


@pytest.mark.parametrize("more", range(len(TORCH) + 1))
def test_text_across_the_edge_of_the_two_parts_is_found(log: Path, more: int) -> None:
    """As long as the two parts meet, nothing lies between them."""
    filling = b"x" * (HEAD_BYTES - more)
    log.write_bytes(filling + TORCH + b"y" * (HEAD_BYTES + TAIL_BYTES - len(filling) - len(TORCH)))
    assert tells_of_oom(str(log))


def test_the_kernel_may_give_less_than_was_asked_for(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write_bytes(b"x" * 50 + TORCH)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: pread(fd, min(length, 7), offset))
    assert tells_of_oom(str(log))


def test_the_log_of_an_earlier_attempt_does_not_count(tmp_path: Path) -> None:
    """Where gpusched matches what the attempt before had left in the same log."""
    (tmp_path / "job0001.log").write_bytes(TORCH)
    (tmp_path / "job0001.2.log").write_bytes(b"Segmentation fault\n")
    assert tells_of_oom(str(tmp_path / "job0001.log"))
    assert not tells_of_oom(str(tmp_path / "job0001.2.log"))


def test_what_is_no_regular_file_tells_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "absent", "."):
        assert not tells_of_oom(str(tmp_path / name))
    assert not tells_of_oom("/dev/zero")


def test_a_log_that_cannot_be_read_is_said(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write_bytes(TORCH)

    def broken(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", broken)
    with pytest.raises(StateError, match=r"job0001\.log: cannot be read: Input/output error"):
        tells_of_oom(str(log))


@pytest.mark.parametrize(
    "text", [b"out of memory ", b"oom when allocating device:cpu", b"cuda", b"\n", b"\r"]
)
def test_no_text_makes_it_slow(log: Path, text: bytes) -> None:
    """A quadratic way takes longer than a test may."""
    log.write_bytes(text * ((HEAD_BYTES + TAIL_BYTES) // len(text)))
    assert not tells_of_oom(str(log))
