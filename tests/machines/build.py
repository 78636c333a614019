"""The steps that make an image from the recipe. A change in this file builds new images."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.machines import recipe
from tests.machines.host import as_root, check
from tests.machines.recipe import Suite

DISK_SIZE = "3G"

Words = list[str | Path]


def build(suite: Suite, image_key: str, draft: Path, log: Path) -> None:
    """Make `tree/`, `vmlinuz` and `initrd` in the directory `draft`; MachineError when a step fails."""
    tree = draft / "tree"
    wheels = draft / "wheels"
    _download(suite, wheels, log)
    _bootstrap(suite, tree, log)
    _install_files(tree, image_key, log)
    _install_python(tree, wheels, log)
    _extract_kernel(tree, draft, log)
    shutil.rmtree(wheels)


def _download(suite: Suite, wheels: Path, log: Path) -> None:
    """Fetch the wheels for the machine's Python with the host's pip, so that its index and proxies apply."""
    pip: Words = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    pip = [*pip, "--dest", wheels]
    target = ["--only-binary=:all:", "--implementation=cp", f"--python-version={suite.python_tag}"]
    target += [f"--abi={abi}" for abi in (f"cp{suite.python_tag}", "abi3", "none")]
    target += [f"--platform=manylinux_2_{minor}_{os.uname().machine}" for minor in (5, 12, 17, 26, 28, 34)]
    target += [f"--platform=manylinux2014_{os.uname().machine}"]
    check([*pip, *target, "-r", recipe.REQUIREMENTS], log=log)
    check([*pip, "--no-deps", "--no-binary=pystemd", recipe.PYSTEMD], log=log)


def _bootstrap(suite: Suite, tree: Path, log: Path) -> None:
    excludes = [f"--dpkgopt=path-exclude={path}" for path in recipe.EXCLUDED_PATHS]
    keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    command: Words = ["mmdebstrap", "--mode=root", "--variant=essential", "--format=directory", *excludes]
    packages = ",".join((*recipe.PACKAGES, *suite.packages))
    command += ['--aptopt=APT::Install-Recommends "false"', f"--include={packages}"]
    command += [f"--keyring={keyring}"] if keyring.exists() else []
    check(_confined([*command, suite.name, tree, *recipe.apt_sources(suite)]), log=log)


def _install_files(tree: Path, image_key: str, log: Path) -> None:
    copy = ["cp", "-R", "--no-preserve=ownership", f"{recipe.IMAGE_FILES}/.", f"{tree}/"]
    check(as_root(copy), log=log)
    script = f"""
        set -eu
        echo {image_key} > /{recipe.MARKER}
        echo machine > /etc/hostname
        : > /etc/machine-id
        mkdir -p /src /wheel
        for user in {" ".join(recipe.USERS)}; do useradd --create-home --shell /bin/bash "$user"; done
        ln -s /opt/slicer/bin/slicer /usr/local/bin/slicer
        systemctl enable slicer-agent.service
        systemctl set-default multi-user.target
        systemctl mask man-db.timer munge.service slurmctld.service slurmd.service
        systemctl disable --quiet docker.service docker.socket containerd.service || true
        # What mmdebstrap was told would be dpkg's configuration for ever.
        rm /etc/dpkg/dpkg.cfg.d/99mmdebstrap
    """
    _in_tree(tree, script, log)


def _install_python(tree: Path, wheels: Path, log: Path) -> None:
    inside = tree / "wheel"
    check(as_root(["cp", "-R", f"{wheels}/.", inside]), log=log)
    script = f"""
        set -eu
        python3 -m venv /opt/slicer
        pip="/opt/slicer/bin/pip --disable-pip-version-check --no-cache-dir install --quiet --no-index"
        $pip --find-links /wheel --no-deps /wheel/*.whl
        $pip --no-build-isolation --no-deps /wheel/{recipe.PYSTEMD.replace("==", "-")}.tar.gz
        /opt/slicer/bin/pip --disable-pip-version-check uninstall --quiet --yes cython
        mkdir {recipe.WHEELS}
        mv /wheel/* {recipe.WHEELS}/
        # Else every boot would rebuild ld.so's cache and the like.
        touch /etc/.updated /var/.updated
    """
    _in_tree(tree, script, log)


def _extract_kernel(tree: Path, draft: Path, log: Path) -> None:
    """Kernel and initrd are for QEMU's command line: the machines boot from no disk of their own."""
    for name, pattern in (("vmlinuz", "vmlinuz-*"), ("initrd", "initrd.img-*")):
        (source,) = (tree / "boot").glob(pattern)
        check(as_root(["install", "-m", "644", source, draft / name]), log=log)
        check(as_root(["rm", source]), log=log)


def build_disk(tree: Path, disk: Path) -> None:
    """Make the ext4 file `disk` from a tree, readable by every user."""
    # No journal: every boot starts from this file and throws its changes away.
    mke2fs: Words = ["mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-L", "root", "-d", tree]
    check(as_root([*mke2fs, disk, DISK_SIZE]))
    check(as_root(["chmod", "644", disk]))


def _in_tree(tree: Path, script: str, log: Path) -> None:
    """Run a shell script as root in the tree."""
    env = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"]
    check(_confined(["chroot", tree, "env", "-i", *env, "sh", "-c", script]), log=log)


def _confined(argv: Sequence[str | Path]) -> list[str]:
    """The command as root, with mounts of its own; its processes end with it or with this process."""
    die = ["setpriv", "--pdeathsig", "KILL"]
    spaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation=private"]
    return as_root([*die, *spaces, "--mount-proc", "--", *argv])
