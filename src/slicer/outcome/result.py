"""Whether a job succeeded, failed or was stopped: one meaning, for every command. Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Result = Literal["ok", "stopped", "failed", "unknown"]

# The user, or the machine's shutdown, ended such a job; or it gave way to another one. By systemctl it may
# have been somebody else.
_MEANT = ("slicer stop", "slicer queue", "slicer run", "terminal", "caller", "shutdown", "gave way")


def result_of(exit_code: int | None, reason: str, ended_by: str) -> Result:
    """The result of a job with these values of an outcome. ``exit_code`` None: nobody told.

    A job that slicer ended as idle, or beyond its cap or its time, has failed. So has one that was killed
    together with slicer. SQL knows this function as ``result``.
    """
    if exit_code is None:
        return "unknown"
    if reason in ("oom-kill", "timeout"):
        return "failed"
    if exit_code == 0:
        return "ok"
    return "stopped" if ended_by in _MEANT else "failed"
