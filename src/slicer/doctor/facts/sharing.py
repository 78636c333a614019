"""What ``--share`` needs: its library, no MPS daemon, and for the driver's own limit a cgroup controller."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Mapping

from slicer.doctor.facts.files import lstat, trusted_bytes
from slicer.errors import SlicerError
from slicer.kernel import cgroup
from slicer.outcome import history
from slicer.record import record
from slicer.share.program import library_path

_MPS = "CUDA_MPS_PIPE_DIRECTORY"
_MPS_PIPES = "/tmp/nvidia-mps"  # where CUDA looks for the daemon without that variable
_SLICE = "/gpu.slice"
_LATEST = 100  # jobs of the history


@record
class SharingFacts:
    """What the look at sharing saw."""

    library: str  # its path
    library_error: str  # why it cannot be loaded; "": it can
    mps: str  # where the pipes of an MPS daemon are; "": none is to be seen
    has_dmem: bool  # the kernel has the controller dmem
    is_dmem_on: bool | None  # scopes in gpu.slice have it; None: there is no gpu.slice now
    was_used: bool = False  # one of the latest jobs in the history shared its GPU


def gather(environ: Mapping[str, str]) -> SharingFacts:
    """Loads the library into this process, which is the look's own."""
    path = library_path()
    return SharingFacts(
        library=path, library_error=_load_error(path), mps=mps(environ, _MPS_PIPES),
        has_dmem="dmem" in cgroup.controllers(cgroup.path_of("")),
        is_dmem_on=_passes_on(cgroup.path_of(_SLICE)), was_used=_was_used(environ),
    )  # fmt: skip


def mps(environ: Mapping[str, str], usual: str) -> str:
    """The directory of an MPS daemon's pipes, as the library looks for it (arena.c). No pipe is opened."""
    chosen = environ.get(_MPS, "")
    if chosen and os.path.isdir(chosen):
        return chosen
    pipe = lstat(f"{usual}/control")
    is_there = pipe is not None and not stat.S_ISREG(pipe.st_mode) and pipe.st_uid in (0, os.geteuid())
    return usual if is_there else ""


def _was_used(environ: Mapping[str, str]) -> bool:
    path = history.default_path(environ)
    if trusted_bytes(path, 1, follows=False) is None:
        return False
    try:
        latest = history.read(path, limit=_LATEST)
    except SlicerError:
        return False  # the look at the state says so
    return any(outcome.sharing is not None for outcome in latest)


def _load_error(path: str) -> str:
    if not os.path.exists(path):
        return "there is no such file"
    try:
        ctypes.CDLL(path)
    except OSError as error:
        return str(error).removeprefix(f"{path}: ")
    return ""


def _passes_on(directory: str) -> bool | None:
    """Whether the cgroups right below this one get the controller dmem; None: it is not there."""
    try:
        with open(f"{directory}/cgroup.subtree_control", encoding="ascii") as file:
            return "dmem" in file.read().split()
    except FileNotFoundError:
        return None
