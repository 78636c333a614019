"""What arrays cost follows from their format and size: CUDA tells nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.process.share_box import ShareBox

pytest_plugins = ["tests.process.share_fixtures"]

UINT8, HALF, FLOAT, BC1, BC7, NV12, UNKNOWN = 0x01, 0x10, 0x20, 0x91, 0x9D, 0xB0, 0x77
LAYERED, SPARSE, DEFERRED = 0x01, 0x40, 0x80
# width, height, depth, format, channels, flags, levels (0: no mipmap), bytes
CASES = {
    "one dimension": (1000, 0, 0, HALF, 2, 0, 0, 4000),
    "two dimensions": (1024, 1024, 0, UINT8, 4, 0, 0, 4 << 20),
    "three dimensions": (64, 64, 64, FLOAT, 1, 0, 0, 1 << 20),
    "layers": (256, 256, 6, FLOAT, 1, LAYERED, 0, 256 * 256 * 6 * 4),
    "blocks of half a byte a texel": (1022, 1022, 0, BC1, 4, 0, 0, 1024 * 1024 // 2),
    "blocks of a byte a texel": (1024, 1024, 0, BC7, 4, 0, 0, 1 << 20),
    "video": (1920, 1080, 0, NV12, 3, 0, 0, 1920 * 1080 * 3 // 2),
    "mipmap of layers": (4, 4, 6, FLOAT, 1, LAYERED, 3, (16 + 4 + 1) * 6 * 4),
    "mipmap of three dimensions": (4, 4, 4, FLOAT, 1, 0, 3, (64 + 8 + 1) * 4),
    "more levels than there are": (4, 4, 0, FLOAT, 1, 0, 1000, (16 + 4 + 1) * 4),
    "sparse": (1024, 1024, 0, UINT8, 4, SPARSE, 0, 0),
    "mapped later": (1024, 1024, 0, UINT8, 4, DEFERRED, 0, 0),
    "an unknown format": (1024, 1024, 0, UNKNOWN, 4, 0, 0, 0),
    "beyond all numbers": (1 << 40, 1 << 40, 1 << 40, FLOAT, 4, 0, 0, "refused"),
}

PROGRAM = """
import ctypes, json, sys
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p

class Descriptor(ctypes.Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("depth", c_size_t), ("format", c_int),
                ("channels", c_uint), ("flags", c_uint)]

cuda = ctypes.CDLL("libcuda.so.1")
context, array = c_void_p(), c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(byref(context), 0) == cuda.cuCtxSetCurrent(context) == 0

def is_free():
    free, total = c_size_t(), c_size_t()
    assert cuda.cuMemGetInfo_v2(byref(free), byref(total)) == 0
    return free.value

found = {}
for name, (*shape, levels, _) in json.load(sys.stdin).items():
    before, descriptor = is_free(), Descriptor(*shape)
    if levels:
        code = cuda.cuMipmappedArrayCreate(byref(array), byref(descriptor), levels)
    else:
        code = cuda.cuArray3DCreate_v2(byref(array), byref(descriptor))
    destroy = cuda.cuMipmappedArrayDestroy if levels else cuda.cuArrayDestroy
    found[name] = before - is_free() if code == 0 else "refused" if code == 2 else f"failed: {code}"
    assert code or destroy(array) == 0
    assert is_free() == before
print(json.dumps(found))
"""


def test_arrays_are_charged_by_their_format_and_size(share: ShareBox) -> None:  # X7
    job = share.job(wants="cap", limit_mib=1000)
    done = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM],
        input=json.dumps(CASES),
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], **share.env(job)},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {name: case[-1] for name, case in CASES.items()}
    assert job.count("uncounted") == 1
    assert done.stderr.startswith("slicer: ")
    assert done.stderr.count("\n") == 1
