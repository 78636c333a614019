"""A state directory without this slicer's version: it is new, or another slicer created it.

It may also be the second one of its boot. Somebody (its user; logind, in /dev/shm) deleted the first one
under its jobs, which hold leases that nobody finds any more. So the new one grants nothing until they ended.

This happens once for each boot, so it is separate from :mod:`slicer.state.statedir`.
"""

from __future__ import annotations

import os

from slicer.errors import LedgerLost, StateError
from slicer.kernel import open_files, proc
from slicer.state.directory import HINT, Directory, failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_VERSION_BYTES = 64
_ATTEMPTS = 100


def claim(base: Directory, ours: int, lost: str, same_ledger: Callable[[str], str]) -> None:
    """Write the version into a new directory. Raises StateError for one of another version.

    If somebody holds a lease of an earlier one, it gets a file named ``lost``. ``same_ledger`` makes the same
    text of all paths that this ledger can have had.
    """
    name = f"{base.path}/version"
    for attempt in range(_ATTEMPTS):
        text = base.read("version", _VERSION_BYTES).strip()
        if text:  # otherwise it is new, or its creator was killed before it wrote the first byte
            break
        if _holders_of_deleted(base, same_ledger):
            os.close(base.open(lost, os.O_WRONLY | os.O_CREAT))
        try:
            os.close(base.replace("version", b"%d\n" % ours, mode=0o600))
            return
        except OSError as error:
            is_contended = isinstance(error, FileExistsError | FileNotFoundError)  # another slicer creates it
            if not is_contended or attempt == _ATTEMPTS - 1:
                raise failed(name, error, what="cannot be written") from error
    if not text.isdigit():
        raise StateError(f"is not a version number: {text[:20]!r}", where=name, hint="remove it, or " + HINT)
    if int(text) != ours:
        made_by, advice = _NEWER if int(text) > ours else _OLDER
        message = f"made by {made_by} slicer: version {int(text)}, this one supports {ours}"
        raise StateError(message, where=name, hint=f"{advice}, or {HINT}")


_NEWER = ("a newer", "update this slicer")
_OLDER = ("an older", "let its jobs end, then remove the directory")


def check_lost(base: Directory, lost: str, same_ledger: Callable[[str], str]) -> None:
    """Raise LedgerLost while somebody holds a lease of an earlier ledger; after that, remove ``lost``."""
    if holders := _holders_of_deleted(base, same_ledger):
        raise LedgerLost(base.path, holders)
    base.remove(lost)


def _holders_of_deleted(base: Directory, same_ledger: Callable[[str], str]) -> list[int]:
    """Our processes with a lease of this ledger that was deleted. The job, or slicer itself, has it open."""
    ours = same_ledger(os.readlink(base.handle))

    def is_lease(path: str) -> bool:
        folder, _, _ = path.rpartition("/")
        return folder.endswith("/leases") and same_ledger(folder.removesuffix("/leases")) == ours

    return [pid for pid in proc.pids() if any(map(is_lease, open_files.deleted(pid)))]
