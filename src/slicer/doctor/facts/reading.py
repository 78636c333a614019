"""Reading files that others may own: bounded, and without following links that another user may have made."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from slicer.kernel.proc import names_in

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_MOST_BYTES = 1 << 20


def trusted_text(path: str) -> str | None:
    """A regular file's text, if root or we own it and nobody else may write to it; otherwise None.

    The path may be a link, as in /etc on some distributions.
    """
    try:
        fd = os.open(path, _READ)
    except OSError:
        return None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_uid not in (0, os.geteuid()):
            return None
        if info.st_mode & stat.S_IWOTH:
            return None
        return os.read(fd, _MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        os.close(fd)


def lstat(path: str) -> os.stat_result | None:
    """None if there is nothing, or nothing that we may see."""
    try:
        return os.lstat(path)
    except OSError:
        return None


def masks_in(paths: Iterable[str]) -> tuple[str, ...]:
    """The unit files among these that systemctl has masked."""
    return tuple(path for path in paths if os.path.realpath(path) == os.devnull)


def setting(
    file: str, key: str, roots: tuple[str, ...] = ("/etc", "/run", "/usr/local/lib", "/usr/lib")
) -> str:
    """A setting of one of systemd's daemons ("logind.conf"), including its drop-ins; "" if it is not set.

    It follows systemd's order: the first main file found, then the drop-ins by name. Of drop-ins with the
    same name, the one in the earlier directory wins.
    """
    main = (trusted_text(f"{root}/systemd/{file}") for root in roots)
    texts = [next((text for text in main if text is not None), "")]
    drop_ins: dict[str, str] = {}
    for root in reversed(roots):
        directory = f"{root}/systemd/{file}.d"
        drop_ins |= {name: f"{directory}/{name}" for name in names_in(directory) if name.endswith(".conf")}
    texts += [trusted_text(path) or "" for _, path in sorted(drop_ins.items())]
    value = ""
    for text in texts:
        for line in text.splitlines():
            name, equals, said = line.partition("=")
            if equals and name.strip() == key:
                value = said.strip()
    return value
