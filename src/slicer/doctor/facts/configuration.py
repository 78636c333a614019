"""The configuration and its profiles; how slicer is called; Docker and the lock of scripts."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Mapping

from slicer.config import profiles, serve
from slicer.config.build import builtin_profiles
from slicer.config.profiles import Config
from slicer.doctor.facts.reading import lstat
from slicer.errors import SlicerError
from slicer.job.podman import is_old
from slicer.job.program import in_path
from slicer.kernel.proc import text_of
from slicer.ledger.plain_lock import PlainLock
from slicer.model import CPU
from slicer.record import record


@record
class ProfileFacts:
    """A profile's directives; ``error`` says why it cannot be used on this machine."""

    name: str
    directives: tuple[str, ...]
    error: str
    share: str = ""  # "lock", "cap" or "both"; "" without --share


@record
class ConfigurationFacts:
    """``error`` is the first mistake in the files, with its place; if set, there are no profiles."""

    error: str
    hint: str
    warnings: tuple[str, ...]
    profiles: tuple[ProfileFacts, ...]
    default_profile: str
    files: tuple[str, ...]
    place: str = ""  # the path that cannot be read as a file at all
    served: tuple[str, ...] = ()  # the kinds of `slicer serve`'s servers that run on their own


def gather_configuration(environ: Mapping[str, str]) -> ConfigurationFacts:
    """Reads the files without writing the cache."""
    try:
        config = profiles.load(environ, profiles.host(), remembers=False)
        servers = serve.load(config)
    except SlicerError as error:
        where = f"{error.where}: " if error.where else ""
        is_file = os.path.isfile(error.where) and os.access(error.where, os.R_OK)
        is_no_file = os.path.exists(error.where) and not is_file
        place = error.where if is_no_file else ""
        return ConfigurationFacts(f"{where}{error.message}", error.hint, (), (), "", (), place)
    served = tuple(each.kind for each in servers.values() if not each.command)
    built_in = len(builtin_profiles(config.host, config.slots[CPU]))
    return ConfigurationFacts(
        error="", hint="", warnings=config.warnings,
        profiles=tuple(_profile(config, name) for name in config.names()),
        default_profile=config.default_profile,
        files=tuple(os.path.abspath(layer.path) for layer in config.layers[built_in:]), served=served,
    )  # fmt: skip


def _profile(config: Config, name: str) -> ProfileFacts:
    try:
        made = config.profile(name)
    except SlicerError as error:
        return ProfileFacts(name, (), str(error))
    share = "" if made.share == "off" else made.share
    return ProfileFacts(name, tuple(made.properties), "", share)


# Variables that change slicer's behaviour, and that may be left over in a shell's start-up file.
WATCHED = (
    "SLICER_SIM", "SLICER_SKIP_GPU_LOCK", "PSRUN_SKIP_GPU_LOCK", "GPU_LOCK_HELD", "SLICER_LEASE",
    "SLICER_CONFIG", "SLICER_STATE_DIR", "SLICER_FAULTS", "CPU_RUN_SLOTS", "CPU_RUN_THREADS", "GPU_LOCK_PATH",
    "CUDA_VISIBLE_DEVICES",
)  # fmt: skip


@record
class EnvironmentFacts:
    program: str  # this slicer's own executable; "" if unknown (python -m slicer)
    on_path: tuple[str, ...]  # executables named slicer on PATH, each file once, in PATH's order
    prefix: str  # of the Python that runs this slicer
    variables: tuple[tuple[str, str], ...]  # those of WATCHED that are set
    is_under_sudo: bool


def gather_environment(environ: Mapping[str, str], *, searches: bool = True) -> EnvironmentFacts:
    """Starts nothing. ``searches``: search PATH."""
    path = environ.get("PATH", "") if searches else ""
    return EnvironmentFacts(
        program=os.path.abspath(sys.argv[0]) if os.path.basename(sys.argv[0]) == "slicer" else "",
        on_path=tuple(_slicers(each for each in path.split(":") if each.startswith("/"))),
        prefix=sys.prefix,
        variables=tuple((name, environ[name]) for name in WATCHED if environ.get(name)),
        is_under_sudo="SUDO_UID" in environ and os.geteuid() == 0,
    )


def _slicers(directories: Iterator[str]) -> Iterator[str]:
    """The programs named slicer, without a second path to the same file."""
    seen = set()
    for directory in directories:
        path = f"{directory}/slicer"
        real = os.path.realpath(path)
        if real not in seen and os.path.isfile(real) and os.access(real, os.X_OK):
            seen.add(real)
            yield path


@record
class OthersFacts:
    """Programs that start jobs outside slicer, or keep slicer's jobs from starting."""

    has_docker: bool
    old_podman: str  # the path of one whose containers leave their job; ""
    lock: str  # the lock file of scripts; "" for none
    lock_problem: str  # why that file cannot be used; "" if it can, or if none is set
    lock_holder: int  # the process whose lock keeps out slicer's GPU jobs; 0: none
    lock_holder_name: str


def gather_others(environ: Mapping[str, str]) -> OthersFacts:
    """Checks for Docker's files, podman, and the lock file that the configuration names."""
    lock, podman = _lock(environ), in_path("podman", environ)
    holder = PlainLock(lock).holder() if lock else 0
    return OthersFacts(
        has_docker=os.path.exists("/run/docker.sock") or os.path.exists("/etc/docker/daemon.json"),
        old_podman=podman if podman and is_old(podman) else "",
        lock=lock,
        lock_problem=_lock_problem(lock) if lock else "",
        lock_holder=holder,
        lock_holder_name=text_of(f"/proc/{holder}/comm") if holder else "",
    )


def _lock(environ: Mapping[str, str]) -> str:
    try:
        return profiles.load(environ, profiles.host(), remembers=False).compat_gpu_lock
    except SlicerError:
        return ""  # the look at the configuration reports it


def _lock_problem(path: str) -> str:
    """Why the file cannot be the lock. Nothing opens it here: it may be a FIFO."""
    parent = lstat(os.path.dirname(path))
    info = lstat(path)
    if parent is None:
        return "its directory does not exist"
    if info is None:
        return "" if os.access(os.path.dirname(path), os.W_OK | os.X_OK) else "cannot be created there"
    if stat.S_ISLNK(info.st_mode) and parent.st_mode & stat.S_IWOTH:
        return "is a symbolic link in a directory that is writable by all"
    if not os.path.isfile(path):
        return "is not a plain file"
    return "" if os.access(path, os.R_OK) else "cannot be read"
