"""podman in a job: its containers stay in the scope, and see the job's GPUs.

By itself podman puts each container, and the process that watches it, into scopes of their own. Its
configuration can forbid that, and the file that ``CONTAINERS_CONF_OVERRIDE`` names is read last, whoever
calls podman. So each job with a scope has that variable, and no command line is changed.

The file is named after its content and stays until a reboot, for all jobs that want the same. (podman refuses
every command while the file is missing, and a process may have taken the variable along out of the job.)
Imported only where podman is installed.
"""

from __future__ import annotations

import os
import stat
import zlib
from itertools import pairwise

from slicer.config.profiles import THREAD_VARIABLES
from slicer.job.program import PODMAN_VARIABLE as VARIABLE
from slicer.job.program import in_path
from slicer.kernel import on_host
from slicer.kernel.proc import names_in
from slicer.state.directory import failing, open_trusted
from slicer.state.statedir import SYSTEM_DIR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_OURS = "/slicer-podman-"  # in the path of each of our files, and of no other
_VISIBLE = "CUDA_VISIBLE_DEVICES"
# podman's own default, which any other list of variables replaces.
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CDI_KIND = "nvidia.com/gpu"
_CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
_CDI_BYTES = 1 << 20  # of one specification; one of eight GPUs has some 50 KB
_TO_BLANKS = bytes.maketrans(b"\"',:{}[]", b"        ")


def why_not(environ: Mapping[str, str], program: str = "") -> str:
    """Why podman's containers leave a job with these variables; "" if they stay.

    ``program``: the podman to look into, which takes a moment.
    """
    if _OURS not in (environ.get(VARIABLE) or _OURS):
        return f"{VARIABLE} names a file of your own"
    around = {"PATH": f"{environ.get('PATH', '')}:/usr/bin:/usr/local/bin"}  # podman looks there anyway
    if in_path("runc", around) and not in_path("crun", around):
        return "to keep them in takes crun, and only runc is installed"
    return f"{program} is older than 4.5" if program and is_old(program) else ""


def is_old(program: str) -> bool:
    """Whether that podman does not know the variable. (A script in front of it names neither one.)"""
    text = _contents(program, 1 << 28)  # it has some 40 MB
    return b"CONTAINERS_CONF" in text and VARIABLE.encode() not in text


def added(environ: Mapping[str, str], gpus: str, state: str) -> dict[str, str]:
    """The variables of a job, with the one for podman. ``state``: the path of the state directory.

    ``gpus``: the UUIDs of those that the job sees, as in CUDA_VISIBLE_DEVICES. Raises StateError.
    """
    if why_not(environ):
        return dict(environ)
    text = settings(gpus, has_numbers=environ.get(_VISIBLE, "") != gpus)
    return {**environ, VARIABLE: _kept(path_of(state, text), text)}


def without(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a job whose containers may leave it: none of an outer job's for podman."""
    return {name: value for name, value in environ.items() if name != VARIABLE or _OURS not in value}


def settings(gpus: str, *, has_numbers: bool) -> str:
    """What podman is to read, in the form of containers.conf(5).

    ``gpus``: as in :func:`added`; ``has_numbers``: CUDA_VISIBLE_DEVICES has their numbers instead. A
    container may have fewer GPUs, and counts from 0.
    """
    found = gpus.split(",")
    passed = [_VISIBLE, *THREAD_VARIABLES]  # a name alone: with the value that podman itself has
    lines = ["[containers]", 'cgroups = "disabled"']
    if all(map(_is_uuid, found)):
        if has_numbers:
            passed[0] = f"{_VISIBLE}={gpus}"
        passed.append(f"NVIDIA_VISIBLE_DEVICES={gpus}")
        if specified().issuperset(found):
            lines.append(f"devices = {[f'{_CDI_KIND}={each}' for each in found]}")
    lines.append(f"env = {[_PATH, *passed]}")  # Python's quotes are TOML's, too, for words without any
    return "\n".join(lines) + "\n"


def _is_uuid(text: str) -> bool:
    return text.isascii() and not text.isdigit() and text.replace("-", "").replace("/", "").isalnum()


def path_of(state: str, text: str) -> str:
    """The path of the file with that text, for the state directory at ``state``.

    Root's lies beside it: a command that becomes another user, and runs podman, cannot look into root's.
    """
    place = os.path.dirname(state) if state == SYSTEM_DIR else state
    return f"{place}{_OURS}{zlib.crc32(text.encode()):08x}.conf"


def _kept(path: str, text: str) -> str:
    """The path of a file with that text, made if it is missing. Raises StateError."""
    folder, _, name = path.rpartition("/")
    place = open_trusted(folder)
    try:
        with failing(path, "cannot be written"):
            if not place.has(name):  # its mode whatever the umask
                place.replace_shared(name, text.encode(), 0o600, lambda fd: os.fchmod(fd, 0o644))
    finally:
        place.close()
    return path


# -- the GPUs by the names that podman knows ---------------------------------------------------------------


def specified() -> set[str]:
    """The names of the GPUs in the administrator's CDI specifications."""
    paths = [f"{folder}/{name}" for folder in map(on_host, _CDI_FOLDERS) for name in names_in(folder)]
    texts = [_contents(path, _CDI_BYTES) for path in paths if path.endswith((".yaml", ".json"))]
    return {gpu for text in texts for gpu in _gpus_in(text)}


def _contents(path: str, most_bytes: int) -> bytes:
    """The content of a file of root's (or ours) of a sane size; empty for any other."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_uid not in (0, os.geteuid()):
            return b""
        data = os.read(fd, most_bytes + 1)
    finally:
        os.close(fd)
    return data if len(data) <= most_bytes else b""


def _gpus_in(specification: bytes) -> set[str]:
    """The names of the GPUs in a CDI specification, which is YAML with a key a line, or JSON. Pure."""
    words = specification.translate(_TO_BLANKS).split()
    pairs = list(pairwise(words))
    if (b"kind", _CDI_KIND.encode()) not in pairs:
        return set()
    return {os.fsdecode(value) for key, value in pairs if key == b"name"}
