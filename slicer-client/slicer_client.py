"""Hold a lease of slicer in any Python program: one file, no dependency, Python 3.9 or later.

    import slicer_client

    with slicer_client.acquire("train", gpus=1, vram="8G") as lease:
        import torch  # CUDA_VISIBLE_DEVICES is set: it sees the GPU of the lease

The program needs `slicer` in PATH, not in its own environment. A child process, `slicer hold`, has the lease.
It ends with the `with`, with the program, and with `kill -9`. A forked child, such as a data loader's worker,
neither keeps nor ends it. slicer's docs/client.md has more, and the protocol. MIT licence.
"""

from __future__ import annotations

import atexit
import contextvars
import json
import os
import select
import shutil
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

__version__ = "0.1.0"

_PROTOCOL = 1
_LONGEST_LINE = 1 << 20
_ENDS_S = 10.0  # how long `slicer hold` may take to give the lease back before it is left to do so alone
_BESIDE = ("~/.local/bin", "/usr/local/bin", "/usr/bin", "/run/current-system/sw/bin")  # cron's PATH is short
_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED
_INSTALL = "install slicer-systemd, or say where it is: acquire(..., program='/path/to/slicer')"


class SlicerError(Exception):
    """slicer could not do what was asked: ``message``, ``where``, and a ``hint`` what to do about it.

    ``kind`` is slicer's own word for it, such as "usage", "infeasible", "config" or "no-gpu".
    """

    def __init__(self, message: str, where: str = "", hint: str = "", kind: str = "error") -> None:
        super().__init__((f"{where}: " if where else "") + message + (f" ({hint})" if hint else ""))
        self.message, self.where, self.hint, self.kind = message, where, hint, kind


class NotInstalled(SlicerError):
    """There is no program `slicer`, or it cannot be executed."""


class TooOld(SlicerError):
    """The program does not know this protocol."""


class ProtocolError(SlicerError):
    """The program said what is no line of the protocol, or ended too early."""


class RequestCancelled(SlicerError):
    """Somebody took the request out of the queue, with `slicer stop`."""


class Holder(NamedTuple):
    """The job that holds what was asked for. Times in seconds; ``expected_remaining`` None: not known."""

    name: str
    pid: int
    user: str | None
    unit: str | None
    command: str
    held_for: float | None
    expected_remaining: float | None


class ResourceBusy(Exception):
    """Others hold what was asked for. ``holder`` is the one that is expected to finish first.

    It is None when only processes outside slicer, or requests that came earlier, are in the way.
    """

    def __init__(self, said: Mapping[str, Any]) -> None:
        found = said.get("holder")
        self.slot: str = said.get("slot") or ""
        self.holder = Holder._make(map(found.get, Holder._fields)) if isinstance(found, dict) else None
        text = f"{self.slot or str(said.get('error')).replace('-busy', '')} is busy"
        text += f": held by {self.holder.name} (pid {self.holder.pid})" if self.holder else ""
        super().__init__(f"{text}: {said['policy']}" if said.get("policy") else text)

    def expected_remaining(self) -> float | None:
        """Seconds that the holder is still expected to need; None when that is not known."""
        return self.holder.expected_remaining if self.holder is not None else None


class GpuBusy(ResourceBusy):
    """No GPU, or not enough memory on any, is free."""


class CpuBusy(ResourceBusy):
    """No CPU slot is free."""


class SlotBusy(ResourceBusy):
    """No slot of another name is free; ``slot`` is that name."""


_BUSY = {"gpu-busy": GpuBusy, "cpu-busy": CpuBusy, "slot-busy": SlotBusy}

_lock = threading.RLock()  # around what is below, and around forks: no child inherits a half-made pipe
_holds: weakref.WeakSet[_Hold] = weakref.WeakSet()
_live: list[Lease] = []  # of this process, oldest first
_inside: contextvars.ContextVar[tuple[Lease, ...]] = contextvars.ContextVar("slicer_leases", default=())


def _forget_in_child() -> None:
    """Close the pipes that a forked child has inherited: the leases are its parent's, and around its own."""
    global _shown
    _shown = _Shown()
    for hold in list(_holds):
        hold.stdin.close()
        hold.stdout.close()
        hold.process.returncode = 0  # else subprocess would warn of a child that nobody waited for
    _holds.clear()
    _live.clear()
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forget_in_child)


class _Hold:
    """The child process `slicer hold`, which has the lease for as long as its stdin is open."""

    def __init__(self, program: str, options: list[str], environ: dict[str, str]) -> None:
        self.program = program
        command = [program, "hold", f"--protocol={_PROTOCOL}", *options]
        with _lock:
            try:
                self.process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, bufsize=0
                )
            except OSError as error:
                text = f"cannot be executed: {error.strerror}"
                if error.filename:
                    raise NotInstalled(text, program, _INSTALL, "not-installed") from error
                raise SlicerError(text, program, "see ulimit -a") from error  # out of descriptors
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            self.stdin, self.stdout = self.process.stdin, self.process.stdout
            _holds.add(self)

    def acquired(self) -> Any:
        """What it says of the lease, once there is one. Raises ResourceBusy and SlicerError."""
        said, is_known = b"", False
        while True:
            while b"\n" not in said and len(said) <= _LONGEST_LINE:
                got = self.stdout.read(65536)
                if not got:
                    raise self._ended(is_known)
                said += got
            line, _, said = said.partition(b"\n")
            try:
                event = json.loads(line)
                kind = event["event"]
            except (ValueError, TypeError, KeyError):
                self.process.kill()  # whatever it is
                text = f"said {line[:80]!r}, which is no line of its protocol"
                raise ProtocolError(text, self.program, f"is it slicer's? {_INSTALL}") from None
            if kind == "hello" and event.get("protocol") != _PROTOCOL:
                raise TooOld(f"does not speak protocol {_PROTOCOL}", self.program, "renew it or this file")
            is_known = is_known or kind == "hello"
            if kind == "acquired":
                return event
            if kind == "busy":
                raise _BUSY.get(event.get("error"), ResourceBusy)(event)
            if kind == "error":
                made = RequestCancelled if event.get("error") == "cancelled" else SlicerError
                raise made(*(event.get(field) or "" for field in ("message", "where", "hint", "error")))

    def _ended(self, is_known: bool) -> SlicerError:
        code = self.end()
        if code == 2 and not is_known:
            return TooOld("is too old: it knows no `hold --protocol`", self.program, "install a newer slicer")
        hint = "its stderr says why, else slicer doctor"
        return ProtocolError(f"ended with {code} before there was a lease", self.program, hint)

    def has_ended(self) -> bool:
        """Whether it has gone, and the lease with it."""
        poll = select.poll()
        poll.register(self.stdout, select.POLLIN)
        while poll.poll(0):
            if not self.stdout.read(65536):
                return True
        return self.process.poll() is not None

    def end(self) -> int | None:
        """Let it give the lease back, or leave the queue; its exit code, if that is soon. Safe to repeat."""
        self.stdin.close()
        try:
            return self.process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.stdout.close()


class Lease:
    """What was acquired; a context manager that gives it back, as :meth:`release` does (safe to repeat).

    ``gpus`` are UUIDs, ``gpu_indices`` what nvidia-smi calls them, ``env`` the variables for its users.
    """

    def __init__(self, hold: _Hold, said: Mapping[str, Any]) -> None:
        self._hold = hold
        self._pid = os.getpid()
        self.job: str = said["job"]
        self.gpus: tuple[str, ...] = tuple(said["gpus"])
        self.gpu_indices: tuple[int, ...] = tuple(said["gpu_indices"])
        self.slots: dict[str, int] = dict(said["slots"])
        self.waited_s: float = said["waited"]
        self.forced: bool = said["forced"]  # it was not free, and max_wait was over
        self.env: dict[str, str] = dict(said["environment"])

    @property
    def is_held(self) -> bool:
        """Whether this process still has it. A forked child never does: the lease is its parent's."""
        with _lock:
            return self in _live and not self._hold.has_ended()

    def release(self) -> None:
        """Give everything back."""
        with _lock:
            if self not in _live:  # it is over, or the parent's
                return
            is_lost = not self.is_held
            _live.remove(self)
            _shown.hide(self)
        self._hold.end()
        if is_lost:
            warnings.warn(f"lease {self.job} was lost: `slicer hold` had ended", RuntimeWarning, stacklevel=2)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@atexit.register
def _release_all() -> None:
    for lease in list(_live):
        lease.release()


class _Shown:
    """The leases that os.environ shows, and what it had before. To be called under the lock."""

    def __init__(self) -> None:
        self._leases: list[Lease] = []
        self._before: dict[str, str | None] = {}
        self._made: dict[str, str] = {}

    def show(self, lease: Lease, around: tuple[Lease, ...]) -> str:
        """Set the variables; or the reason why not."""
        if any(os.environ.get(name) != value for name, value in lease.env.items() if name != "SLICER_LEASE"):
            if any(other not in around for other in self._leases):
                return "it shows another lease of this program, to all threads and tasks alike"
            if _cuda_has_started():
                return "CUDA has started in this process, and sees what it saw then: acquire before that"
        self._leases.append(lease)
        self._update()
        return ""

    def hide(self, lease: Lease) -> None:
        """Put back what was there before, unless somebody has changed it since."""
        if lease in self._leases:
            self._leases.remove(lease)
            self._update()

    def _update(self) -> None:
        wanted = {name: value for lease in self._leases for name, value in lease.env.items()}
        for name in self._made.keys() - wanted.keys():
            _put_back(os.environ, name, self._made[name], self._before[name])
        for name in wanted.keys() - self._made.keys():
            self._before[name] = os.environ.get(name)
        os.environ.update({name: value for name, value in wanted.items() if self._made.get(name) != value})
        self._made = wanted

    def without(self) -> dict[str, str]:
        """os.environ as it was before any lease of ours, and without what is meant for this Python."""
        found = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        for name, value in self._made.items():
            _put_back(found, name, value, self._before[name])
        return found


_shown = _Shown()


def _put_back(environ: Any, name: str, made: str, before: str | None) -> None:
    if environ.get(name) == made:
        del environ[name]
        environ.update({} if before is None else {name: before})


def _cuda_has_started() -> bool:
    """Whether the driver has read CUDA_VISIBLE_DEVICES. It is asked only where it is loaded already."""
    import ctypes

    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            paths = {line.split(None, 5)[5].strip() for line in maps if "/libcuda.so" in line}
    except OSError:
        return False
    for path in paths:
        try:
            driver = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            if driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _NOT_INITIALIZED:
                return True
        except (OSError, AttributeError):
            return True  # it is there, and cannot be asked
    return False


def _find(program: str | None) -> str:
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *map(os.path.expanduser, _BESIDE)))
    found = program or shutil.which("slicer", path=path)
    if not found:
        raise NotInstalled(f"there is no program slicer in {path}", "", _INSTALL, "not-installed")
    return found


def _options(
    name: str = "",
    *,
    gpus: int = 1,
    vram: str | None = None,
    gpu: Iterable[int | str] | int | str | None = None,
    margin: str | None = None,
    cpu_slots: int = 0,
    slots: Mapping[str, int] | None = None,
    priority: int = 0,
    expected_seconds: float | None = None,
    wait: bool = True,
    max_wait: float | None = None,
    then: str | None = None,
    quiet: bool = False,
) -> list[str]:
    """The arguments of :func:`acquire` as options of `slicer hold`."""
    if then not in (None, "run", "fail"):
        raise ValueError(f"then={then!r}: is neither 'run' nor 'fail'")
    script = os.path.basename((sys.argv or [""])[0])
    said: dict[str, object] = {
        "name": name or ("python" if script[:1] in ("", "-") else script), "gpus": gpus,
        "vram": _size(vram, "vram"),
        "gpu": gpu if gpu is None or isinstance(gpu, (int, str)) else ",".join(map(str, gpu)),
        "margin": _size(margin, "margin"), "cpu-slots": cpu_slots or None, "priority": priority,
        "expect": None if expected_seconds is None else f"{expected_seconds:.6f}s",
        "max-wait": None if max_wait is None else f"{max_wait:.6f}s", "then": then,
    }  # fmt: skip
    found = [f"--{key}={value}" for key, value in said.items() if value is not None]
    found += [f"--slot={key}={count}" for key, count in (slots or {}).items()]
    return found + ["--no-wait"] * (not wait) + ["--quiet"] * quiet


def _size(value: object, argument: str) -> str | None:
    if value and not isinstance(value, str):
        raise ValueError(f"{argument}={value!r}: the unit is missing, as in {argument}=\"{value}G\"")
    return None if value is None else str(value)


class _Request:
    """The arguments of :func:`acquire`, and one `slicer hold` that is asked for what they say."""

    def __init__(self, name: str, program: str | None, arguments: Mapping[str, Any]) -> None:
        self._around = tuple(lease for lease in _inside.get() if lease in _live)
        with _lock:
            environ = _shown.without()
        for lease in self._around:
            environ.update(lease.env)
        self.hold = _Hold(_find(program), _options(name, **arguments), environ)

    def entered(self, said: Mapping[str, Any]) -> Lease:
        """The lease, known to this context and shown in os.environ."""
        try:
            lease = Lease(self.hold, said)
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"said {said!r}, and that lacks {error}", self.hold.program) from error
        with _lock:
            _live.append(lease)
            why_not = _shown.show(lease, self._around)
        _inside.set((*self._around, lease))
        if why_not:
            text = f"os.environ is left as it is: {why_not} (lease.env is for child processes)"
            warnings.warn(text, RuntimeWarning, stacklevel=3)
        return lease

    def drop(self) -> None:
        """It failed, or nobody wants it any more."""
        for lease in list(_live):
            if lease._hold is self.hold:
                lease.release()
        self.hold.end()


def acquire(name: str = "", *, program: str | None = None, **arguments: Any) -> Lease:
    """Take GPUs and slots, all at once, for this process, and show them to CUDA. Waits until they are free.

    ``gpus=1`` whole GPUs; with ``vram`` ("8G") so much of each, shared with others, and
    ``margin`` of each kept free beyond that. ``gpu`` names those that will do, by index or UUID.
    ``cpu_slots`` and ``slots`` (how many of which name) are taken along, or alone with ``gpus=0``.
    ``priority``: from -100 to 100, highest first. ``expected_seconds``: what others are told. With
    ``wait=False``, or after ``max_wait`` seconds, raises :class:`GpuBusy`, :class:`CpuBusy` or
    :class:`SlotBusy`; with ``then="run"`` the lease is ``forced`` instead. Ctrl-C leaves the queue.
    stderr has why it waits, unless ``quiet``.

    ``program`` is slicer's path. Raises :class:`SlicerError` for all that cannot be done.
    """
    request = _Request(name, program, arguments)
    try:
        return request.entered(request.hold.acquired())
    except BaseException:
        request.drop()
        raise


class acquire_async:
    """:func:`acquire` for asyncio: ``async with acquire_async(...) as lease:``, or ``await`` it.

    While it waits, the loop runs on. A cancelled task leaves the queue.
    """

    def __init__(self, name: str = "", *, program: str | None = None, **arguments: Any) -> None:
        self._arguments = name, program, arguments
        self._lease: Lease | None = None

    def __await__(self) -> Any:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Lease:
        request = _Request(*self._arguments)
        try:
            self._lease = request.entered(await _in_thread(request.hold.acquired))
        except BaseException:
            request.hold.stdin.close()
            await _in_thread(request.drop)
            raise
        return self._lease

    async def __aexit__(self, *_: object) -> None:
        if self._lease is not None:
            await _in_thread(self._lease.release)


async def _in_thread(act: Callable[[], Any]) -> Any:
    """Its result, from a thread of its own: waiting must not fill a shared pool. Goes on if cancelled."""
    import asyncio
    from concurrent.futures import Future

    work: Future[Any] = Future()

    def run() -> None:
        try:
            work.set_result(act())
        except BaseException as error:
            work.set_exception(error)

    threading.Thread(target=run, name="slicer-client", daemon=True).start()
    done = asyncio.wrap_future(work)
    done.add_done_callback(lambda done: done.cancelled() or done.exception())  # the task may have gone
    return await asyncio.shield(done)
