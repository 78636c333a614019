"""Compiles what slicer has in C. All else about the package is in pyproject.toml.

That is the library that `slicer run --share` preloads, and what starts Python with the flags slicer wants.
Neither is an extension module: they know nothing of Python, and one build serves every version. So neither
Python's headers nor its compiler flags are used, and the wheel's tag names a platform and no Python.

The environment may say CC, CPPFLAGS, CFLAGS and LDFLAGS. With SLICER_BUILD_SHARE=no no compiler is needed:
there is no library, --share will not work, and slicer is a script, which starts a little later. So it is on
processors for which there is no CUDA. With SLICER_BUILD_LAUNCHER=no slicer is a script, too: that is for
distributions, which write its first line themselves.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Command, Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.dist import Distribution
from setuptools.errors import CompileError

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1; an sdist is made without it, then
    try:
        from wheel.bdist_wheel import bdist_wheel
    except ImportError:
        bdist_wheel = None

SOURCES = Path("src/slicer/share/preload")
LAUNCHER = "src/launcher/launcher.c"
LAUNCHED_BY = "slicer-python"  # the script that the launcher executes

# Before what the environment says, which so wins.
WANTED = [
    "-O2", "-Wall", "-Wextra",
    "-fstack-protector-strong", "-fstack-clash-protection", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2",
]  # fmt: skip
# Without them a program whose processor guards its jumps would lose that guard to a library of its own.
WANTED_ON = {"x86_64": ["-fcf-protection"], "aarch64": ["-mbranch-protection=standard"]}
# After it: without these, it is another library or program.
NEEDED = [
    "-std=c11", "-D_GNU_SOURCE",
    f"-ffile-prefix-map={Path.cwd()}=.",  # a build elsewhere is the same, byte for byte
]  # fmt: skip
NEEDED_IN_LIBRARY = [
    "-fPIC", "-pthread", "-fvisibility=hidden",
    # It is in a process from its start. So a thread-local variable costs no call that might allocate memory.
    "-ftls-model=initial-exec",
]  # fmt: skip
LINKED = ["-Wl,-z,relro,-z,now,-z,noexecstack,-z,text,-z,defs", "-Wl,--build-id=sha1"]
LINKED_WITH_LIBRARY = [
    "-shared",
    # A part of the C library since glibc 2.34.
    "-Wl,--as-needed", "-ldl", "-lpthread",
]  # fmt: skip

NO_COMPILER = """\
no C compiler was found (CC of the environment, or else cc, gcc, clang).
slicer's launcher and its library for sharing a GPU are written in C.
What helps: `apt install gcc libc6-dev` or its like, or CC=… in the environment;
or do without `slicer run --share`: SLICER_BUILD_SHARE=no in the environment."""
FAILED = """\
slicer's launcher or its library for sharing a GPU could not be compiled; the compiler says above why.
Missing headers are in libc6-dev (Debian) or glibc-devel (Fedora).
To do without `slicer run --share`: SLICER_BUILD_SHARE=no in the environment."""


def _words(variable: str) -> list[str]:
    return shlex.split(os.environ.get(variable, ""))


def _compiler() -> list[str]:
    for words in (_words("CC"),) if os.environ.get("CC") else (["cc"], ["gcc"], ["clang"]):
        if words and shutil.which(words[0]):
            return words
    raise CompileError(NO_COMPILER)


def _wanted(compiler: list[str]) -> list[str]:
    """For the machine that is compiled for, which need not be this one."""
    told = subprocess.run([*compiler, "-dumpmachine"], capture_output=True, text=True, check=False)
    return [*WANTED, *WANTED_ON.get(told.stdout.partition("-")[0], [])]


def _compile(
    command: Command, sources: list[str], target: Path, mode: int, needed: list[str], linked: list[str]
) -> None:
    """Compile with one call. Renamed when it is whole: a job may use the old one, a build may be killed."""
    compiler = _compiler()
    flags = [*_wanted(compiler), *_words("CPPFLAGS"), *_words("CFLAGS"), *NEEDED, *needed]
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_suffix(".draft")
    try:
        command.spawn([*compiler, *flags, *sources, "-o", str(draft), *_words("LDFLAGS"), *LINKED, *linked])
    except Exception as error:  # which one depends on the version of setuptools
        raise CompileError(f"{error}\n{FAILED}") from error
    draft.chmod(mode)  # for every user, whatever the umask was
    draft.replace(target)


class BuildLibrary(build_ext):
    """Compiles the "extension", if its sources are newer."""

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extension(self, ext: Extension) -> None:
        library = Path(self.get_ext_fullpath(ext.name))
        if not self.force and library.exists():
            built = library.stat().st_mtime_ns
            if all(os.stat(source).st_mtime_ns < built for source in (__file__, *ext.sources, *ext.depends)):
                return
        _compile(self, ext.sources, library, 0o644, NEEDED_IN_LIBRARY, LINKED_WITH_LIBRARY)


class BuildPrograms(Distribution().get_command_class("build_scripts")):
    """Puts the launcher in the place of each script but the one that it executes."""

    def run(self) -> None:
        self.force = True  # what is there may be the launcher, and newer than any script
        super().run()
        script = Path(self.build_dir, LAUNCHED_BY)
        if not HAS_LAUNCHER:
            script.unlink()
            return
        for name in self.distribution.scripts:
            if name != f"bin/{LAUNCHED_BY}":
                _compile(self, [LAUNCHER], script.with_name(Path(name).name), 0o755, ["-fPIE"], ["-pie"])


COMMANDS = {"build_ext": BuildLibrary, "build_scripts": BuildPrograms}

if bdist_wheel is not None:

    class PlatformWheel(bdist_wheel):
        """A wheel for any Python on this platform."""

        def get_tag(self) -> tuple[str, str, str]:
            tag = super().get_tag()
            return tag if self.root_is_pure else ("py3", "none", tag[2])

    COMMANDS["bdist_wheel"] = PlatformWheel

LIBRARY = Extension(
    "slicer.share.libslicer-share",
    sources=sorted(map(str, SOURCES.glob("*.c"))),
    depends=sorted(map(str, SOURCES.glob("*.h"))),
)
HAS_CUDA = platform.machine() in WANTED_ON and sys.maxsize > 1 << 32
IS_WANTED = HAS_CUDA and os.environ.get("SLICER_BUILD_SHARE") != "no"
HAS_LAUNCHER = IS_WANTED and os.environ.get("SLICER_BUILD_LAUNCHER") != "no"

setup(ext_modules=[LIBRARY] if IS_WANTED else [], cmdclass=COMMANDS)
