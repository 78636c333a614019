"""The one recipe of both machines: which packages, which files; a hash of it all names the cached image."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from tests.machines.host import HERE

PYSTEMD = "pystemd==0.15.3"
REQUIREMENTS = HERE / "requirements.txt"
WHEELS = "/opt/wheels"
"""In the tree: all of REQUIREMENTS and pystemd's source, for tests that install without a network."""

IMAGE_FILES = HERE / "rootfs"
"""Files that are copied into the tree, at the same paths."""

MARKER = "etc/slicer-machine"
"""Holds the image's key; its presence is what makes a tree a test machine's and no host's."""

USERS = ("alice", "bob")
"""Ordinary users, uid 1000 and 1001, without linger."""

# systemd as PID 1, with logind and user managers.
_BASE = "systemd systemd-sysv udev kmod dbus dbus-user-session libpam-systemd passwd login util-linux procps"
# What jobs under test, and the benchmark's peers, are.
_COMMANDS = "tmux xz-utils parallel task-spooler"
# Python, and what builds pystemd and the tests' own C.
_PYTHON = "python3 python3-venv python3-dev gcc libc6-dev pkg-config libsystemd-dev"
# What users complete words and read manuals with.
_SHELLS = "zsh fish bash-completion man-db"
# What slicer depends on as a Debian package, and what builds one.
_DEBIAN = "python3-pystemd python3-psutil python3-click python3-rich python3-setuptools python3-wheel"
_DEBIAN_BUILD = "build-essential debhelper dh-python pybuild-plugin-pyproject"
# What `slicer route` measures media with, 200 MB of libraries: one suite is enough.
_MEDIA = "ffmpeg"
# Containers, and what is in them. (Debian 12's podman is older than what slicer needs of it.)
_PODMAN = "podman crun uidmap catatonit busybox-static"
# Docker's daemon, which tests start (tests/systemd/helpers/dockers.py), and its client.
_DOCKER = "docker.io docker-cli"
# A cluster of one machine, for `slicer queue --engine slurm`: tests start it (tests/slurm_box.py).
_SLURM = "slurm-wlm munge"
_QEMU = "linux-image-cloud-amd64 initramfs-tools zstd"
PACKAGES = f"{_BASE} {_COMMANDS} {_PYTHON} {_SHELLS} {_DEBIAN} {_DEBIAN_BUILD} {_SLURM} {_QEMU}".split()

# Documentation and translations are half of the tree; a test machine has no reader. (Only while the image is
# built: what a test installs comes whole.)
EXCLUDED_PATHS = (
    "/usr/share/doc/*",
    "/usr/share/man/*",
    "/usr/share/info/*",
    "/usr/share/locale/*",
    "/usr/share/i18n/*",
    "/usr/share/gcc/*",
    # Drivers of graphics cards, 200 MB, which ffmpeg depends on for its player alone.
    "/usr/lib/*/libLLVM*",
    "/usr/lib/*/libgallium*",
    "/usr/lib/*/libz3.so*",
)


@dataclass(frozen=True)
class Suite:
    """A Debian release as a test machine."""

    name: str
    systemd: int
    python: str
    packages: tuple[str, ...] = ()
    """Beside PACKAGES."""

    @property
    def python_tag(self) -> str:
        """As in wheel names and pip's --python-version: 313."""
        return self.python.replace(".", "")


SUITES = {
    suite.name: suite
    for suite in (
        Suite("trixie", systemd=257, python="3.13", packages=(_MEDIA, *_PODMAN.split(), *_DOCKER.split())),
        Suite("bookworm", systemd=252, python="3.11"),
    )
}


def apt_sources(suite: Suite) -> list[str]:
    """sources.list lines; SLICER_DEBIAN_MIRROR (default deb.debian.org) is the archive's base URL."""
    base = os.environ.get("SLICER_DEBIAN_MIRROR", "http://deb.debian.org").rstrip("/")
    return [
        f"deb {base}/debian {suite.name} main",
        f"deb {base}/debian {suite.name}-updates main",
        f"deb {base}/debian-security {suite.name}-security main",
    ]


def key(suite: Suite) -> str:
    """The image's name in the cache: equal for equal recipes, 16 hex digits."""
    digest = hashlib.sha256()
    inputs = [HERE / "recipe.py", HERE / "build.py", REQUIREMENTS, *_image_files()]
    for path in inputs:
        digest.update(f"{path.relative_to(HERE)}\0{path.stat().st_mode & 0o111}\0".encode())
        digest.update(path.read_bytes())
    return f"{suite.name}-{digest.hexdigest()[:16]}"


def _image_files() -> list[Path]:
    return sorted(path for path in IMAGE_FILES.rglob("*") if path.is_file())
