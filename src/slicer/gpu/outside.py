"""The GPUs as they are seen from outside the fence around this process.

Inside of a fenced job NVML shows the job's own GPUs, or none at all. Root's slicer in there decides about all
of them. So it has a helper, which systemd-run puts into a scope of its own, ask NVML in its place. It ends
with whoever started it, or when nobody has the pipe to it any more. Others than root have no use for this:
they ask the broker, which nobody fences.
"""

from __future__ import annotations

import os
import pickle
import sys

from slicer.errors import GpuError, NoGpu

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from slicer.model import Gpu, GpuMemory, GpuProcess

_SYSTEMD_RUN = (
    "systemd-run", "--scope", "--quiet", "--collect", "--slice=system.slice",
    "--description=slicer: what is on the GPUs, for a job behind the fence", "--",
)  # fmt: skip
_SERVE = "import sys; sys.path[:] = sys.argv[1:]; from slicer.gpu import outside; outside.serve()"


class OutsideGpus:
    """The GPUs that NVML shows to a helper; implements :class:`slicer.gpu.Gpus`.

    A fork of this process must not ask it.
    """

    def __init__(self, start: tuple[str, ...] = _SYSTEMD_RUN) -> None:
        """Start the helper by ``start``. Raises NoGpu or GpuError, as NVML in it does."""
        theirs_read, ours_write = os.pipe2(os.O_CLOEXEC)
        ours_read, theirs_write = os.pipe2(os.O_CLOEXEC)
        argv = [*start, sys.executable, "-c", _SERVE, *sys.path]
        files = [(os.POSIX_SPAWN_DUP2, theirs_read, 0), (os.POSIX_SPAWN_DUP2, theirs_write, 1)]
        self._pid, self._owner = 0, os.getpid()
        self._source, self._sink = os.fdopen(ours_read, "rb"), os.fdopen(ours_write, "wb")
        try:
            # Neither our terminal's signals nor our signal mask are its business.
            self._pid = os.posix_spawnp(
                argv[0], argv, os.environ, file_actions=files, setsid=True, setsigmask=()
            )
        except OSError as error:
            self.close()
            message = f"nobody outside the job's fence can be asked: {argv[0]}: {error.strerror}"
            raise GpuError(message) from error
        finally:
            os.close(theirs_read)
            os.close(theirs_write)
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def list(self) -> tuple[Gpu, ...]:
        """As :meth:`slicer.gpu.nvml.Nvml.list`."""
        return self._ask("list")  # type: ignore[no-any-return]

    def memory(self, only: Collection[str] = ()) -> tuple[GpuMemory, ...]:
        """As there."""
        return self._ask("memory", tuple(only))  # type: ignore[no-any-return]

    def processes(self, only: Collection[str] = ()) -> tuple[GpuProcess, ...]:
        """As there."""
        return self._ask("processes", tuple(only))  # type: ignore[no-any-return]

    def utilisation(self, only: Collection[str] = ()) -> dict[str, int | None]:
        """As there."""
        return self._ask("utilisation", tuple(only))  # type: ignore[no-any-return]

    def notes(self) -> tuple[str, ...]:
        """As there."""
        return self._ask("notes")  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the helper. Safe to repeat, and in a fork of the process that started it."""
        if self._pid and self._owner == os.getpid():
            os.kill(self._pid, 9)  # it has nothing to lose, and may be stuck in the driver
            os.waitpid(self._pid, 0)
        self._pid = 0
        for file in (self._sink, self._source):
            try:
                file.close()
            except BrokenPipeError:
                continue  # with what was left unsaid

    def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            pickle.dump((method, arguments), self._sink)
            self._sink.flush()
        except BrokenPipeError:
            raise _gone() from None
        return self._answer()

    def _answer(self) -> Any:
        try:
            error, value = pickle.load(self._source)
        except (EOFError, pickle.UnpicklingError):
            raise _gone() from None
        if error is None:
            return value
        reason, message, hint = error
        raise NoGpu(reason, message, hint=hint) if reason else GpuError(message, hint=hint)


def _gone() -> GpuError:
    return GpuError("who looks at the GPUs from outside the job's fence has ended", hint="see journalctl -b")


def serve() -> None:
    """Be the helper: answer questions from stdin on stdout until there are no more."""
    from slicer.gpu.nvml import Nvml

    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    driver: Nvml | None = None
    asked: tuple[str, tuple[Any, ...]] | None = None
    try:
        while True:
            error, value = None, None
            try:
                if driver is None:
                    driver = Nvml()
                elif asked is not None:
                    value = getattr(driver, asked[0])(*asked[1])
            except GpuError as failed:
                error = getattr(failed, "reason", ""), failed.message, failed.hint
            pickle.dump((error, value), sink)
            sink.flush()
            if driver is None:
                return
            asked = pickle.load(source)
    except (EOFError, BrokenPipeError):
        return
    finally:
        if driver is not None:
            driver.close()
