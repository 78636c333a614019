"""A server that slicer starts: a job of ``slicer run``, which holds the lease for as long as it lives."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import suppress

from slicer.errors import EX_TEMPFAIL, EX_USAGE
from slicer.kernel import listeners, proc
from slicer.kernel.users import user_name
from slicer.quantity import format_duration
from slicer.serve.kinds import KINDS
from slicer.serve.looking import SLICER, run_slicer
from slicer.serve.model import Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    from slicer.config.serve import Server
    from slicer.serve.asking import Upstream

    class Form(Protocol):
        """A server in one of its forms: started by slicer, or running already."""

        @property
        def is_running(self) -> bool: ...
        def failure(self) -> Unavailable: ...
        def check_listener(self) -> None: ...


# The job says who it is once it has its lease, and becomes the server. Its standard input is a pipe to the
# proxy: if that was killed meanwhile, the job ends here, by SIGPIPE.
_BEGIN = 'echo "$SLICER_LEASE" >&0 && exec "$@" </dev/null'
_LOG_LINES = 5
_LONGEST_LOG = 8 << 20
_KEPT_LOG = 64 << 10
_APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_PORT = "${PORT}"
_READY_LOOKS_S = (0.01, 0.25)  # between two looks, first and at most
_HIDDEN_GPUS = {
    "CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1", "ROCR_VISIBLE_DEVICES": "-1",
    "GGML_VK_VISIBLE_DEVICES": "-1",
}  # fmt: skip


class StartedServer:
    """One run of the server. ``without_gpu``: it needs no lease, and answers what needs no GPU."""

    def __init__(self, settings: Server, log: str, environ: Mapping[str, str], *, without_gpu: bool) -> None:
        self._settings = settings
        self._log = log
        self._environ = environ
        self._without_gpu = without_gpu
        self.name = job_names(settings)[without_gpu]
        self.base = ""
        self.job = ""  # its id, once it has its lease
        self._process: asyncio.subprocess.Process | None = None
        self._log_from = 0  # where what this run has written begins

    async def start(self) -> None:
        """Wait for the lease, and start the command. Cancelled, it leaves the line. Raises Unavailable."""
        fixed = "" if self._without_gpu else self._settings.upstream
        port = int(fixed.rpartition(":")[2]) if fixed else _free_port()
        self.base = fixed or f"http://127.0.0.1:{port}"
        trim_log(self._log)
        self._log_from = os.path.getsize(self._log) if os.path.exists(self._log) else 0
        heard, told = os.pipe2(os.O_CLOEXEC)
        try:
            log = os.open(self._log, _APPENDING, 0o600)
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *SLICER, *self._arguments(port), env=self._variables(port), start_new_session=True,
                    stdin=told, stdout=log, stderr=log,
                )  # fmt: skip
            finally:
                os.close(log)
                os.close(told)
            self.job = await _line_of(heard)
        except OSError as error:
            raise Unavailable("failed", f"{self.name} cannot be started: {error}") from error
        except asyncio.CancelledError:
            if self._process is not None:
                with suppress(ProcessLookupError):
                    self._process.terminate()  # it leaves the line, unless its turn has just come
                self.job = await _line_of(heard)
                await self.stop()
            raise
        finally:
            os.close(heard)
        if not self.job:
            await self._process.wait()
            raise self.failure()

    def _arguments(self, port: int) -> list[str]:
        settings = self._settings
        stop = f"TimeoutStopSec={settings.release_timeout_s:g}s"
        words = ["run", "--quiet", "--name", self.name, "--set", stop]
        if self._without_gpu:
            words += ["--profile", "light"]
        else:
            words += ["--profile", settings.profile]
            # How long a request waits is its own matter: others join it later.
            words += ["--wait"] if settings.max_wait_s else ["--no-wait"]
            words += ["--gpus", str(settings.gpus)] if settings.gpus is not None else []
            words += ["--vram", f"{settings.vram_mib}M"] if settings.vram_mib is not None else []
        command = [word.replace(_PORT, str(port)) for word in settings.command]
        return [*words, "--", "sh", "-c", _BEGIN, "sh", *command]

    def _variables(self, port: int) -> dict[str, str]:
        told = dict(KINDS[self._settings.kind].port_variables)
        own = {**told, **self._settings.env}
        if self._without_gpu:
            own |= {**told, **_HIDDEN_GPUS}  # not the port that is fixed for the other one
        own = {name: value.replace(_PORT, str(port)) for name, value in own.items()}
        return {**self._environ, **own}

    @property
    def is_running(self) -> bool:
        """Whether slicer run has not ended."""
        return self._process is not None and self._process.returncode is None

    def check_listener(self) -> None:
        """Raise Unavailable where another user listens at its port, who would be told what is asked.

        He has read the port in the command line, and was quicker than the server, or came when it had died.
        """
        port = int(self.base.rpartition(":")[2])
        strangers = listeners.uids(port) - {0, os.geteuid()}
        if strangers and self._process is not None:  # or the command has changed its user
            strangers -= {proc.uid_of(pid) for pid in proc.descendants(self._process.pid)}
        if strangers:
            whose = ", ".join(map(user_name, sorted(strangers)))
            raise Unavailable("failed", f"{self._settings.name}: {whose} listens at its port {port}")

    async def ended(self) -> None:
        """Return when slicer run has ended, which waits for the memory to come back."""
        if self._process is not None:
            await self._process.wait()

    def failure(self) -> Unavailable:
        """Why it does not run, with its own last words."""
        code = self._process.returncode if self._process is not None else None
        if code == EX_TEMPFAIL and not self.job:
            return Unavailable("busy", "the GPU is busy")
        how = "does not run" if code is None else f"ended with {code}" if code >= 0 else "was killed"
        lines = _last_lines(self._log, self._log_from)
        return Unavailable("failed", "; ".join([f"{self._settings.name} {how}", *lines]))

    async def stop(self) -> None:
        """End the job (SIGTERM, and SIGKILL after release_timeout), and return when its lease is given back.

        Raises Unavailable where it cannot be ended. To be called again then.
        """
        if self._process is None:
            return
        has_ended_well = self._process.returncode is not None and self._process.returncode >= 0
        if self.job and not has_ended_well:  # also where slicer run was killed: the job may live on
            await end_jobs(self._environ, self.job)
        await self._process.wait()


async def until_ready(settings: Server, form: Form, upstream: Upstream) -> None:
    """Return when it answers. Raises Unavailable where it ends before, or takes too long."""
    path = settings.ready_path or KINDS[settings.kind].ready_path
    end_s = time.monotonic() + settings.ready_timeout_s
    pause_s, most_s = _READY_LOOKS_S
    while True:
        form.check_listener()
        if await upstream.is_ready(path):
            return
        if not form.is_running:
            raise form.failure()
        if time.monotonic() > end_s:
            text = f"{settings.name} was not ready after {format_duration(settings.ready_timeout_s)}"
            raise Unavailable("failed", text)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, most_s)


def job_names(settings: Server) -> tuple[str, str]:
    """The names of its jobs: that with the GPU, that without one."""
    return f"serve:{settings.name}", f"serve:{settings.name}-free"


async def end_jobs(environ: Mapping[str, str], *jobs: str) -> None:
    """End jobs, and return when their leases are given back; those that have ended are no error.

    Raises Unavailable.
    """
    code, _, err = await run_slicer(environ, "stop", "--quiet", *jobs)
    if code not in (0, EX_USAGE):
        raise Unavailable("failed", err or f"slicer stop failed with {code}")


def trim_log(path: str) -> None:
    """Keep only the end of a log that has become long. What writes to it appends, and goes on."""
    with suppress(FileNotFoundError), open(path, "r+b", opener=_no_link) as file:
        size = os.fstat(file.fileno()).st_size
        if size > _LONGEST_LOG:
            file.seek(size - _KEPT_LOG)
            kept = file.read()
            file.seek(0)
            file.truncate()
            file.write(kept)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


async def _line_of(fd: int) -> str:
    """The first line that comes through a pipe; "" where it ends without one."""
    os.set_blocking(fd, False)
    loop = asyncio.get_running_loop()
    found, readable = b"", asyncio.Event()
    loop.add_reader(fd, readable.set)
    try:
        while not found.endswith(b"\n"):
            await readable.wait()
            readable.clear()
            with suppress(BlockingIOError):
                read = os.read(fd, 4096)
                if not read:
                    return ""
                found += read
    finally:
        loop.remove_reader(fd)
    return found.decode(errors="replace").strip().rpartition(",")[2]  # inside others its own id is the last


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _last_lines(path: str, begin: int) -> list[str]:
    with suppress(OSError), open(path, "rb", opener=_no_link) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0 if size < begin else begin, size - 4096))
        lines = file.read().decode(errors="replace").splitlines()
        return [line[:500] for line in lines if line.strip()][-_LOG_LINES:]
    return []
