"""Looks on the way at what an attempt on the GPU writes, for routes that may try the CPU afterwards (C8)."""

from __future__ import annotations

import os
import stat

from slicer.errors import BackendError
from slicer.record import record
from slicer.route.relay import Relay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.route.relay import Seen

_STDOUT, _STDERR = 1, 2


@record
class Written:
    """What an attempt wrote, as far as it matters. ``lost`` says why some of it could not be passed on."""

    tells_of_oom: bool
    on_stdout: bool
    lost: str


class OutputWatch:
    """Sees what the command writes. ``output`` is what it gets as its stdout and stderr.

    Stderr is passed on by a relay. Stdout takes the same way if it goes to the same place, so that their
    order stays. If ``must_know_stdout``, it has to be told apart. Then a file is compared with what it was,
    what goes to /dev/null does not count, and for all else there is a second relay.
    """

    def __init__(self, *, must_know_stdout: bool) -> None:
        """Raises BackendError."""
        self._stdout: Relay | None = None
        self._before: tuple[int, ...] | None = None
        out, err = os.fstat(_STDOUT), os.fstat(_STDERR)
        is_same = os.path.samestat(out, err)
        try:
            if must_know_stdout and not _is_null(out):
                if stat.S_ISREG(out.st_mode) and not is_same:
                    self._before = _marks()
                else:
                    self._stdout = Relay(_STDOUT, is_droppable=False)
            merges = is_same and self._stdout is None
            self._stderr = Relay(_STDERR, is_droppable=not merges)
        except OSError as error:
            raise BackendError(
                f"stderr cannot be watched: {error.strerror}", hint="see ulimit -n and ulimit -u"
            ) from error
        stdout = self._stdout.fd if self._stdout else self._stderr.fd if merges else _STDOUT
        self.output = (stdout, self._stderr.fd)

    def written(self) -> Written | None:
        """What the attempt wrote, all of which is passed on by now. None: that cannot be known.

        The signals that end slicer must be blocked.
        """
        err = self._stderr.seen()
        out = self._stdout.seen() if self._stdout else None
        if err is None or (self._stdout and out is None):
            return None
        streams: list[Seen] = [seen for seen in (err, out) if seen is not None]
        lost = next((seen.lost for seen in streams if seen.lost), 0)
        return Written(
            tells_of_oom=any(seen.tells_of_oom for seen in streams),
            on_stdout=not out.is_empty if out else self._before is not None and _marks() != self._before,
            lost=os.strerror(lost) if lost else "",
        )

    def close(self, *, waits: bool = True) -> None:
        """There is nothing more to see; what still comes is passed on. See :meth:`Relay.close`."""
        for relay in (self._stdout, self._stderr):
            if relay is not None:
                relay.close(waits=waits)


def _is_null(found: os.stat_result) -> bool:
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == os.makedev(1, 3)


def _marks() -> tuple[int, ...]:
    """What changes when somebody writes to the file behind stdout."""
    seen = os.fstat(_STDOUT)
    return (os.lseek(_STDOUT, 0, os.SEEK_CUR), seen.st_size, seen.st_mtime_ns)
