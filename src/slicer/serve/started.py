"""A server that slicer starts: a job of ``slicer run`` that holds the lease as long as it lives."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from slicer.config.serve import Server
from slicer.errors import EX_TEMPFAIL, EX_USAGE
from slicer.job.following import GO
from slicer.kernel import listeners, proc
from slicer.kernel.users import user_name
from slicer.quantity import format_duration
from slicer.serve.kinds import KINDS
from slicer.serve.listening import split
from slicer.serve.looking import SLICER, run_slicer
from slicer.serve.terms import Unavailable
from slicer.serve.upstream import Upstream


class Form(Protocol):
    """A server in one of its forms: started by slicer, or running on its own."""

    @property
    def is_running(self) -> bool: ...
    def failure(self) -> Unavailable: ...
    def check_listener(self) -> None: ...


_LOG_LINES = 5
_LONGEST_LOG = 8 << 20
_KEPT_LOG = 64 << 10
_APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_PORT = "${PORT}"
_READY_LOOKS_S = (0.01, 0.25)  # the first and the longest pause between two checks
_HIDDEN_GPUS = {
    "CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1", "ROCR_VISIBLE_DEVICES": "-1",
    "GGML_VK_VISIBLE_DEVICES": "-1",
}  # fmt: skip


class StartedServer:
    """One run of the server. ``without_gpu``: it needs no lease, and answers requests that need no GPU."""

    def __init__(self, settings: Server, log: str, environ: Mapping[str, str], *, without_gpu: bool) -> None:
        self._settings = settings
        self._log = log
        self._environ = environ
        self._without_gpu = without_gpu
        self.name = job_names(settings)[without_gpu]
        self.base = ""
        self.job = ""  # its id, once it has its lease
        self._process: asyncio.subprocess.Process | None = None
        self._log_from = 0  # where this run's output begins

    async def start(self) -> None:
        """Wait for the lease, and start the command. If cancelled, leave the line. Raises Unavailable."""
        fixed = "" if self._without_gpu else self._settings.upstream
        port = int(fixed.rpartition(":")[2]) if fixed else _free_port()
        # localhost is one address, as in `listen`: the one that check_listener examines.
        self.base = fixed.replace("//localhost:", "//127.0.0.1:") or f"http://127.0.0.1:{port}"
        trim_log(self._log)
        self._log_from = os.path.getsize(self._log) if os.path.exists(self._log) else 0
        job = os.urandom(6).hex()
        ours, theirs = socket.socketpair()
        said, answer = await asyncio.open_connection(sock=ours)
        try:
            with theirs, open(os.open(self._log, _APPENDING, 0o600), "ab", 0) as log:
                self._process = await asyncio.create_subprocess_exec(
                    *SLICER, *self._arguments(port, job, theirs.fileno()), env=self._variables(port),
                    start_new_session=True, pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL,
                    stdout=log, stderr=log,
                )  # fmt: skip
            async for line in said:
                if json.loads(line)["event"] == "ready":
                    self.job = job
                    answer.write(GO)
                    break
        except OSError as error:
            raise Unavailable("failed", f"{self.name} cannot be started: {error}") from error
        finally:
            answer.close()  # without the word, it leaves the line, or gives back the lease that it just got
        if not self.job:
            await self._process.wait()
            raise self.failure()

    def _arguments(self, port: int, job: str, follower: int) -> list[str]:
        settings = self._settings
        stop = f"TimeoutStopSec={settings.release_timeout_s:g}s"
        words = ["run", "--quiet", "--job", job, "--follower", str(follower), "--name", self.name]
        words += ["--set", stop]
        if self._without_gpu:
            words += ["--profile", "light"]
        else:
            words += ["--profile", settings.profile]
            # Each request has its own limit for waiting, and others may join the wait.
            words += ["--wait"] if settings.max_wait_s else ["--no-wait"]
            words += ["--gpus", str(settings.gpus)] if settings.gpus is not None else []
            words += ["--vram", f"{settings.vram_mib}M"] if settings.vram_mib is not None else []
        command = [word.replace(_PORT, str(port)) for word in settings.command]
        return [*words, "--", *command]

    def _variables(self, port: int) -> dict[str, str]:
        told = dict(KINDS[self._settings.kind].port_variables)
        own = {**told, **self._settings.env}
        if self._without_gpu:
            own |= {**told, **_HIDDEN_GPUS}  # not the other instance's fixed port
        own = {name: value.replace(_PORT, str(port)) for name, value in own.items()}
        return {**self._environ, **own}

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def check_listener(self) -> None:
        """Raise Unavailable if another user listens at its address, who could read the requests.

        That user may have read the port in the command line and been faster than the server, or come after
        its death.
        """
        host, port = split(self.base.removeprefix("http://"))
        strangers = listeners.uids(host, port) - {0, os.geteuid()}
        if strangers and self._process is not None:  # or the command has changed its user
            strangers -= {proc.uid_of(pid) for pid in proc.descendants(self._process.pid)}
        if strangers:
            whose = ", ".join(map(user_name, sorted(strangers)))
            raise Unavailable("failed", f"{self._settings.name}: {whose} listens at its port {port}")

    async def ended(self) -> None:
        """Return when slicer run has ended, which waits until the memory is free."""
        if self._process is not None:
            await self._process.wait()

    def failure(self) -> Unavailable:
        """Why it is not running, with the last lines of its output."""
        code = self._process.returncode if self._process is not None else None
        if code == EX_TEMPFAIL and not self.job:
            return Unavailable("busy", "the GPU is busy")
        how = "is not running" if code is None else f"ended with {code}" if code >= 0 else "was killed"
        lines = _last_lines(self._log, self._log_from)
        return Unavailable("failed", "; ".join([f"{self._settings.name} {how}", *lines]))

    async def stop(self) -> None:
        """End the job (SIGTERM, then SIGKILL after release_timeout), and return when its lease is given back.

        Raises Unavailable if it cannot be ended. Then call it again.
        """
        if self._process is None:
            return
        has_ended_well = self._process.returncode is not None and self._process.returncode >= 0
        if self.job and not has_ended_well:  # even if slicer run was killed: the job may live on
            await end_jobs(self._environ, self.job)
        await self._process.wait()


async def until_ready(settings: Server, form: Form, upstream: Upstream) -> None:
    """Return when the server answers. Raises Unavailable if it ends before, or takes too long."""
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
    return f"serve:{settings.name}", f"serve:{settings.name}-free"


async def end_jobs(environ: Mapping[str, str], *jobs: str) -> None:
    """End jobs, and return when their leases are given back. Jobs that have already ended are no error.

    Raises Unavailable.
    """
    code, _, err = await run_slicer(environ, "stop", "--quiet", *jobs)
    if code not in (0, EX_USAGE):
        raise Unavailable("failed", err or f"slicer stop failed with {code}")


def trim_log(path: str) -> None:
    """Keep only the end of a log that has become long. Its writer appends, and continues."""
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
