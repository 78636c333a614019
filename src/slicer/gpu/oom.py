"""Whether a program's output says that a GPU ran out of memory (C8, E9). Pure.

If main memory ran out, a larger GPU does not help. So messages about that (MemoryError, "Cannot allocate
memory", std::bad_alloc, DefaultCPUAllocator, TensorFlow's on device:CPU) do not count.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# Only the beginning and the end of a long text are checked.
HEAD_BYTES = 64 << 10
TAIL_BYTES = 256 << 10
_NEAR_BYTES = 400  # of the line, before and after a phrase, which give its context

# Phrases that are sufficient by themselves; in lower case, like all below.
_CERTAIN = (
    b"cuda out of memory",  # PyTorch
    b"torch.outofmemoryerror",
    b"torch.cuda.outofmemoryerror",
    b"cuda error: out of memory",
    b"cuda driver error: out of memory",
    b"cuda_error_out_of_memory",  # the driver's name for it: Numba, TensorFlow, XLA, TensorRT
    b"cudaerrormemoryallocation",  # the runtime's: CuPy, Thrust, XGBoost
    b"cublas_status_alloc_failed",
    b"cudnn_status_alloc_failed",
    b"cusparse_status_alloc_failed",
    b"cusolver_status_alloc_failed",
    b"cufft_alloc_failed",
    b"cupy.cuda.memory.outofmemoryerror",
    b"rmm_error_out_of_memory",  # RAPIDS
    b"out of memory error on gpu",  # Paddle
    b"out of gpu memory",  # CUDA.jl, Blender
    b"outofgpumemoryerror",
    b"bfcarena::allocaterawinternal",  # ONNX Runtime, which does not say where: usually on the GPU
)
# Phrases that are sufficient together with one of the words on the same line.
_WITH: tuple[tuple[bytes, tuple[bytes, ...]], ...] = (
    (b"oom when allocating", (b"",)),  # TensorFlow; older ones do not name the device
    (b"out of memory", (b"cuda", b"resource_exhausted", b"resource exhausted", b"resourceexhaustederror")),
    (b"out_of_memory", (b"cuda",)),  # RMM: "std::bad_alloc: out_of_memory: CUDA error at …"
    (b"failed to allocate", (b"resource_exhausted", b"resource exhausted", b"resourceexhaustederror")),
)
# A phrase of _WITH never counts with one of these on the same line.
_MAIN_MEMORY = (b"device:cpu", b"by allocator cpu", b"allocator mklcpu", b"killed process")


class Excerpt:
    """The beginning and the end of a text that arrives in pieces, as far as they are checked."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._is_cut = False

    def add(self, data: bytes) -> None:
        room = HEAD_BYTES - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * TAIL_BYTES:  # not each time: that would move all of it for every line
            self._cut()

    def _cut(self) -> None:
        self._is_cut = self._is_cut or len(self._tail) > TAIL_BYTES
        del self._tail[:-TAIL_BYTES]

    def tells_of_oom(self) -> bool:
        """Whether the text so far says that a GPU is out of memory."""
        self._cut()
        if self._is_cut:
            return tells_of_oom(bytes(self._tail)) or tells_of_oom(bytes(self._head))
        return tells_of_oom(bytes(self._head + self._tail))


def tells_of_oom(data: bytes) -> bool:
    """Whether the text has a common library's message that a GPU is out of memory."""
    text = data.lower().replace(b"\r", b"\n")
    if any(words in text for words in _CERTAIN):
        return True
    return any(_is_about_gpu(line, words) for phrase, words in _WITH for line in _lines_around(text, phrase))


def _is_about_gpu(line: bytes, words: tuple[bytes, ...]) -> bool:
    return any(word in line for word in words) and not any(word in line for word in _MAIN_MEMORY)


def _lines_around(text: bytes, phrase: bytes) -> Iterator[bytes]:
    """The part of the line around each ``phrase``."""
    at = text.find(phrase)
    while at >= 0:
        end = at + len(phrase)
        begin = max(text.rfind(b"\n", max(0, at - _NEAR_BYTES), at) + 1, at - _NEAR_BYTES, 0)
        stop = text.find(b"\n", end, end + _NEAR_BYTES)
        yield text[begin : stop if stop >= 0 else end + _NEAR_BYTES]
        at = text.find(phrase, end)
