"""A job's request for sharing, decided before its lease, and the variables for its processes. Pure.

The library uses other programs' variables (``CUDA_OVERRIDE_…``) if ours are not set.
"""

from __future__ import annotations

from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicer.model import OverCap, Profile, Share


FOLDER = "share"  # in the state directory


@record
class ShareOrder:
    """What the job wants, and how its processes are told. Plain data, which queues pass on."""

    wants: Share  # never "off"
    mode: str  # as in Profile.share_mode
    is_mode_said: bool  # False: the environment may set another mode, which is then ``mode``
    skip_syncs: int
    over_cap: OverCap
    priority: int
    limit_mib: int  # the cap on each GPU; 0: none
    outer_gpus: tuple[str, ...]  # of the jobs around it, besides those of its own lease
    folder: str  # the path of the folder with the jobs' files
    library: str  # the path of the library to preload; "": none
    problem: str  # why nothing is preloaded: only a lock was wanted, or the driver enforces the cap alone

    @property
    def is_active(self) -> bool:
        """Whether the library is preloaded, and the job gets a file."""
        return bool(self.library)

    def path(self, job: str) -> str:
        return f"{self.folder}/{job}"


def wanted(profile: Profile) -> Share:
    """The profile's request. Nobody shares a job's whole GPUs, so with those it is "off"."""
    return profile.share if profile.gpus and profile.vram_mib is not None else "off"


LIBRARY = "libslicer-share.so"
PRELOAD = "LD_PRELOAD"
FILE = "SLICER_SHARE_FILE"
WANTS = "SLICER_SHARE"
_LAUNCHES = ("SLICER_SHARE_LAUNCHES", "CUDA_OVERRIDE_KERNEL_N_SYNC")
_TIME = ("SLICER_SHARE_TIME_MS", "CUDA_OVERRIDE_MAX_SYNC_MS")
_EACH = ("SLICER_SHARE_EACH", "CUDA_OVERRIDE_ALWAYS_LOCK")
_SKIP = ("SLICER_SHARE_SKIP_SYNCS", "CUDA_OVERRIDE_SYNC_LOCK_SKIPS")
_MOST_DIGITS = 9


def variables(environ: Mapping[str, str], order: ShareOrder, job: str) -> dict[str, str]:
    """The job's complete environment, from the one without sharing."""
    if not order.is_active:
        return dict(environ)
    found = dict(environ)
    if order.is_mode_said:
        for name in (*_LAUNCHES, *_TIME, *_EACH):
            found.pop(name, None)
        found |= _of_mode(order.mode)
    if order.skip_syncs:
        for name in _SKIP:
            found.pop(name, None)
        found[_SKIP[0]] = str(order.skip_syncs)
    found[PRELOAD] = _preload(order.library, environ.get(PRELOAD, ""))
    found[FILE] = order.path(job)
    found[WANTS] = order.wants
    return found


def _of_mode(mode: str) -> dict[str, str]:
    name, _, argument = mode.partition("=")
    if name == "launches":
        return {_LAUNCHES[0]: argument}
    if name == "time":
        return {_TIME[0]: argument.removesuffix("ms")}
    return {_EACH[0]: "1"} if name == "each" else {}


def _preload(library: str, before: str) -> str:
    """LD_PRELOAD with our library first: a hook before it would see the driver's own functions."""
    others = [word for word in before.replace(":", " ").split(" ") if word and word != library]
    return ":".join([library, *others])


def mode_of(environ: Mapping[str, str]) -> str:
    """The mode that the variables request, in its canonical spelling."""
    each = _number(environ, _EACH)
    if each:
        return "each"
    time_ms = _number(environ, _TIME)
    if time_ms:
        return f"time={time_ms}ms"
    launches = _number(environ, _LAUNCHES)
    if launches is None:
        return "yield"
    return f"launches={launches}" if launches else "each"


def _number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    """The first of the variables that is set; None if it is not a number."""
    text = next((environ[name] for name in names if environ.get(name)), "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


def without(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables of a sharing job that has ended: its file is gone."""
    found = {name: value for name, value in environ.items() if name not in (FILE, WANTS)}
    words = environ.get(PRELOAD, "").replace(":", " ").split()
    others = [word for word in words if word.rpartition("/")[2] != LIBRARY]
    if len(others) < len(words):
        found[PRELOAD] = ":".join(others)
        if not others:
            del found[PRELOAD]
    return found


def is_within(environ: Mapping[str, str], jobs: tuple[str, ...]) -> bool:
    """Whether these are the variables of one of these jobs, which shares its GPUs."""
    return environ.get(FILE, "").rpartition("/")[2] in jobs


def why_unnameable(path: str) -> str:
    """Why the dynamic linker cannot load the library from that path; "" if it can.

    It splits its list at blanks and colons, and expands words that begin with a dollar sign.
    """
    for mark, called in ((" ", "a blank"), (":", "a colon"), ("$", "a dollar sign")):
        if mark in path:
            return f"{path}: LD_PRELOAD cannot name a path with {called}"
    return "" if path.startswith("/") else f"{path}: LD_PRELOAD needs an absolute path"
