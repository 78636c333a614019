"""How this slicer is found and called: PATH, sudo, variables, and the Python package's name."""

from __future__ import annotations

import os
import sys

from slicer.doctor.facts.files import lstat, names_in, trusted_text
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Variables that change what slicer does, and that somebody may have left in a shell's start-up file.
WATCHED = (
    "SLICER_SIM", "SLICER_SKIP_GPU_LOCK", "PSRUN_SKIP_GPU_LOCK", "GPU_LOCK_HELD", "SLICER_LEASE",
    "SLICER_CONFIG", "SLICER_STATE_DIR", "SLICER_FAULTS", "CPU_RUN_SLOTS", "CPU_RUN_THREADS", "GPU_LOCK_PATH",
    "CUDA_VISIBLE_DEVICES",
)  # fmt: skip
_OURS = "slicer_systemd"
_OTHERS = "slicer"
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@record
class Namesake:
    """A Python on PATH, in which `import slicer` is another package than this one."""

    python: str
    package: str  # where it is
    distribution: str  # "slicer 0.0.8"; "" unknown


@record
class EnvironmentFacts:
    """``sudo``: its path, "" where there is none."""

    program: str  # this slicer's own executable; "" unknown (python -m slicer)
    on_path: tuple[str, ...]  # all executables called slicer on PATH, each file once, the first wins
    is_roots: bool  # nobody but root can exchange this slicer, its Python or its modules
    prefix: str  # of the Python that runs this slicer
    clashing: str  # another distribution called slicer in this very environment; "" for none
    namesakes: tuple[Namesake, ...]
    variables: tuple[tuple[str, str], ...]  # those of WATCHED that are set
    sudo: str
    secure_path: tuple[str, ...] | None  # None: sudoers is not ours to read, or says nothing
    is_under_sudo: bool


def gather(environ: Mapping[str, str], argv0: str, *, searches: bool = True) -> EnvironmentFacts:
    """Starts nothing. ``searches``: looks through PATH."""
    path = environ.get("PATH", "") if searches else ""
    directories = tuple(each for each in path.split(":") if each.startswith("/"))
    program = os.path.abspath(argv0) if os.path.basename(argv0) == "slicer" else ""
    on_path = tuple(_executables("slicer", directories))
    named = program or next(iter(on_path), "")
    is_no_link = bool(named) and os.path.realpath(named) == named  # a link may lie where others write
    parts = (named, sys.executable, sys.prefix, sys.base_prefix, _PACKAGE)
    return EnvironmentFacts(
        program=program, on_path=on_path, prefix=sys.prefix,
        is_roots=is_no_link and all(map(is_roots, parts)),
        clashing=_clashing(_PACKAGE), namesakes=tuple(_namesakes(directories)),
        variables=tuple((name, environ[name]) for name in WATCHED if environ.get(name)),
        sudo=next(iter(_executables("sudo", directories)), ""),
        secure_path=secure_path(sudo_defaults()),
        is_under_sudo="SUDO_UID" in environ and os.geteuid() == 0,
    )  # fmt: skip


def _executables(name: str, directories: tuple[str, ...]) -> Iterator[str]:
    """The programs of that name, but not the same file by a second path."""
    seen = set()
    for directory in directories:
        path = f"{directory}/{name}"
        real = os.path.realpath(path)
        if real not in seen and os.path.isfile(real) and os.access(real, os.X_OK):
            seen.add(real)
            yield path


def is_roots(path: str) -> bool:
    """Whether only root can write there, or put another thing in its place."""
    real = os.path.realpath(path)
    while (info := lstat(real)) is not None and info.st_uid == 0 and not info.st_mode & 0o022:
        if real == "/":
            return True
        real = os.path.dirname(real)
    return False


def _clashing(package: str) -> str:
    """Both distributions write site-packages/slicer: the one installed last has overwritten the other."""
    return _distribution(names_in(os.path.dirname(package)))


def _namesakes(directories: tuple[str, ...]) -> Iterator[Namesake]:
    own = os.path.realpath(_PACKAGE)
    seen = set()
    for name in ("python3", "python"):
        for python in _executables(name, directories):
            for site in _site_directories(python):
                package = next(iter(_packages(site)), "")
                if not package or package in seen or os.path.realpath(package) == own:
                    continue
                seen.add(package)
                names = names_in(site)
                if not any(each.startswith(f"{_OURS}-") for each in names):
                    yield Namesake(python, package, _distribution(names))


def _packages(site: str) -> Iterator[str]:
    for path in (f"{site}/slicer", f"{site}/slicer.py"):
        if os.path.lexists(path):
            yield path


def _site_directories(python: str) -> Iterator[str]:
    """Where a Python has its packages, by its path: in its own environment, or in the system's places."""
    real = os.path.realpath(python)
    own, base = (os.path.dirname(os.path.dirname(path)) for path in (python, real))
    name = os.path.basename(real)  # "python3.11"; a script that looks for one has another
    if os.path.exists(f"{own}/pyvenv.cfg"):
        yield from _versions(f"{own}/lib", name, "site-packages")
        return
    yield from _versions(os.path.expanduser("~/.local/lib"), name, "site-packages")
    for prefix in dict.fromkeys((own, base)):
        yield from _versions(f"{prefix}/lib", name, "site-packages")
    if base == "/usr":
        yield from _versions("/usr/local/lib", name, "dist-packages")
        yield "/usr/lib/python3/dist-packages"


def _versions(lib: str, python: str, packages: str) -> Iterator[str]:
    """The directories of packages of that Python's version; of all where its name does not say."""
    for name in names_in(lib):
        if name.startswith("python3") and (name == python or "." not in python):
            yield f"{lib}/{name}/{packages}"


def _distribution(names: list[str]) -> str:
    ends = (".dist-info", ".egg-info")
    found = (name for name in names if name.startswith(f"{_OTHERS}-") and name.endswith(ends))
    return next((name.rpartition(".")[0].replace("-", " ", 1) for name in found), "")


# -- sudo ---------------------------------------------------------------------------------------------------


def sudo_defaults(etc: str = "/etc") -> tuple[str, ...]:
    """The Defaults lines of sudoers; none for a user, who may not read it."""
    paths = [f"{etc}/sudoers"]
    paths += [f"{etc}/sudoers.d/{name}" for name in names_in(f"{etc}/sudoers.d") if "." not in name]
    texts = (trusted_text(path) or "" for path in paths)
    lines = (line for text in texts for line in text.replace("\\\n", " ").splitlines())
    return tuple(line.strip() for line in lines if line.lstrip().startswith("Defaults"))


def secure_path(rules: tuple[str, ...]) -> tuple[str, ...] | None:
    """Where sudo looks for programs, by such lines; None where they do not say."""
    for rule in reversed(rules):
        _, found, value = rule.partition("secure_path")
        if found:
            path = value.partition("=")[2].strip().partition('"')
            text = path[2].partition('"')[0] if path[1] else path[0].split(",")[0]
            return tuple(text.strip().split(":"))
    return None
