"""The preloaded library as it was built: any program of the machine has to be able to load it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

import slicer.share

LIBRARY = Path(slicer.share.__file__).with_name("libslicer-share.so")
HOOKED = Path(__file__).parents[3] / "src/slicer/share/preload/names.h"
# Both are parts of the first since glibc 2.34.
C_LIBRARY = {"libc.so.6", "libdl.so.2", "libpthread.so.0"}
# What a program may call, and what slicer sets in its own processes.
OWN = {"dlsym", "slicer_share_shows_card"}


def told(tool: str, *options: str) -> str:
    """What a tool of binutils, which every compiler needs, says of the library."""
    done = subprocess.run([tool, *options, LIBRARY], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture(scope="module")
def dynamic() -> str:
    return told("readelf", "--dynamic", "--wide")


def test_its_source_stays_small() -> None:  # G10
    """At most 4,000 lines of C: each of them runs in programs that are not ours."""
    lines = [line for path in HOOKED.parent.glob("*.[ch]") for line in path.read_text().splitlines()]
    assert len(lines) <= 4000


def test_it_exports_what_it_hooks_and_no_more() -> None:  # D1
    """Any other name could come in the place of one that the program or a library of it defines."""
    symbols = told("nm", "--dynamic", "--defined-only", "--format=posix").splitlines()
    names = {line.split()[0].partition("@")[0] for line in symbols}
    hooked = set(re.findall(r"^ +X\((\w+), on_\w+, \w+\)", HOOKED.read_text(), re.MULTILINE))
    variants = {name: re.sub(r"(_v\d+)?(_pt[sd][zs])?$", "", name) for name in names - hooked - OWN}
    assert {name: base for name, base in variants.items() if base not in hooked} == {}
    assert hooked - names - set(variants.values()) == set()


def test_it_needs_the_c_library_and_no_more(dynamic: str) -> None:  # D1
    assert set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)) <= C_LIBRARY
    assert "PATH" not in dynamic


def test_it_needs_no_newer_c_library_than_what_systemd_252_comes_with() -> None:  # D1
    """Also where it was compiled with a newer one. Else the loader complains in every process of a job."""
    versions = re.findall(r"\bGLIBC_([0-9.]+)", told("readelf", "--version-info", "--wide"))
    assert max(tuple(map(int, version.split("."))) for version in versions) <= (2, 34)


def test_whoever_overwrites_memory_finds_no_place_to_jump_from(dynamic: str) -> None:  # D1
    assert "BIND_NOW" in dynamic
    assert "TEXTREL" not in dynamic
    segments = told("readelf", "--segments", "--wide")
    assert "GNU_RELRO" in segments
    assert re.search(r"GNU_STACK( +0x0+){5} RW ", segments)
    assert " RWE " not in segments


def test_a_process_without_cuda_has_it_and_nothing_else_of_it() -> None:  # D1
    """No library that it brings along, no open file, no thread, no word."""
    script = "cat /proc/self/maps; ls /proc/self/fd; ls /proc/self/task | wc -l"

    def seen(**environ: str) -> tuple[set[str], str]:
        command = ["sh", "-c", script]
        env = {"PATH": os.environ["PATH"], **environ}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        mapped = re.findall(r"^[0-9a-f]+-.* (/.*)$", done.stdout, re.MULTILINE)
        return set(mapped), re.sub(r"^[0-9a-f]+-.*\n", "", done.stdout, flags=re.MULTILINE)

    bare, beside = seen()
    mapped, others = seen(LD_PRELOAD=str(LIBRARY))
    assert (mapped - bare, others) == ({str(LIBRARY)}, beside)


def test_every_user_can_read_it() -> None:  # D1
    assert LIBRARY.stat().st_mode & 0o444 == 0o444
