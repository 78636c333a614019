"""Build the machines' image, once per recipe, and keep it in a cache.

The cache holds, per key, a directory `<suite>-<hash>/` with `tree/` (the root file system), `vmlinuz`,
`initrd` and, once QEMU wants it, `disk.img`. A directory of that name is complete: builds happen under
another name and are renamed. A shared flock on `<key>.lock` marks it as in use; builders hold it exclusively.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.machines import build, recipe
from tests.machines.host import BUILD_TOOLS, QEMU_TOOLS, MachineError, Unavailable, as_root, check, need_tools
from tests.machines.recipe import Suite

MIN_FREE_BYTES = 4 << 30
KEPT_PER_SUITE = 2
"""The current image and the one used before it, so that switching between two branches does not rebuild."""


def cache_root() -> Path:
    """$SLICER_MACHINE_CACHE, else slicer/machines in the user's cache directory; created when missing.

    Raises Unavailable when it cannot be.
    """
    override = os.environ.get("SLICER_MACHINE_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    root = Path(override) if override else base / "slicer" / "machines"
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"no place for images: {error} ($SLICER_MACHINE_CACHE)") from error
    return root.resolve()


@dataclass(frozen=True)
class Image:
    """A complete image in the cache."""

    suite: Suite
    path: Path

    @property
    def key(self) -> str:
        return self.path.name

    @property
    def tree(self) -> Path:
        return self.path / "tree"

    @property
    def kernel(self) -> Path:
        return self.path / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.path / "initrd"

    @property
    def no_wheel(self) -> Path:
        """An empty directory, for a machine without slicer."""
        return self.tree / "wheel"

    @property
    def disk(self) -> Path:
        return self.path / "disk.img"


def mount_point() -> Path:
    """An empty directory. Machines mount on it in mount namespaces of their own, so one serves all."""
    path = cache_root() / "mnt"
    path.mkdir(exist_ok=True)
    return path


@contextmanager
def use(suite: Suite, *, disk: bool = False) -> Iterator[Image]:
    """The suite's image, built first if the cache lacks it; it is not pruned while the context is open.

    `disk` asks for the QEMU disk too. Raises Unavailable when it cannot be built here.
    """
    root = cache_root()
    image = Image(suite, root / recipe.key(suite))
    with (root / f"{image.key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        if not _complete(image, disk):
            fcntl.flock(lock, fcntl.LOCK_EX)
            _build_missing(image, disk)
            fcntl.flock(lock, fcntl.LOCK_SH)
        os.utime(lock.name)
        prune(suite, keep=image.key)
        yield image


def prune(suite: Suite, keep: str) -> None:
    """Remove the suite's older images and whatever a killed build left; those in use stay."""
    locks = [path for path in cache_root().glob(f"{suite.name}-*.lock") if path.stem != keep]
    others = sorted(locks, key=lambda path: path.stat().st_mtime, reverse=True)
    for lock in others[KEPT_PER_SUITE - 1 :]:
        with lock.open("w") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            _remove(lock.with_suffix(""))
            _remove(_unfinished(lock.with_suffix("")))
            lock.unlink(missing_ok=True)


def _complete(image: Image, disk: bool) -> bool:
    return image.path.is_dir() and (image.disk.exists() or not disk)


def _unfinished(path: Path) -> Path:
    """Where a build of this image works; the builder's lock makes it ours alone."""
    return path.with_name(f"unfinished-{path.name}")


def _build_missing(image: Image, disk: bool) -> None:
    """Called with the exclusive lock; another builder may have done the work while this one waited for it."""
    if not image.path.is_dir():
        _build(image)
    if disk and not image.disk.exists():
        _build_disk(image)


def _build(image: Image) -> None:
    need_tools(BUILD_TOOLS)
    root = cache_root()
    if shutil.disk_usage(root).free < MIN_FREE_BYTES:
        raise Unavailable(f"less than {MIN_FREE_BYTES >> 30} GiB free in {root} ($SLICER_MACHINE_CACHE)")
    log = root / f"{image.suite.name}-build.log"
    log.unlink(missing_ok=True)
    say(f"building test machine {image.key} (once, a minute or two); log: {log}")
    started = time.monotonic()
    draft = _unfinished(image.path)
    _remove(draft)
    draft.mkdir()
    try:
        build.build(image.suite, image.key, draft, log)
        draft.rename(image.path)
    except Unavailable:
        raise
    except MachineError as error:
        raise Unavailable(f"its image could not be built: {error}") from error
    finally:
        _remove(draft)
    say(f"built test machine {image.key} in {time.monotonic() - started:.0f} s")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _build_disk(image: Image) -> None:
    need_tools(QEMU_TOOLS)
    draft = image.disk.with_suffix(".unfinished")
    try:
        build.build_disk(image.tree, draft)
        draft.rename(image.disk)
    finally:
        draft.unlink(missing_ok=True)


def _remove(path: Path) -> None:
    """Remove a directory of the cache, root-owned files included, without leaving its file system."""
    if path.parent != cache_root():
        raise ValueError(f"{path} is not in the cache")
    if path.exists():
        check(as_root(["rm", "-rf", "--one-file-system", path]))
