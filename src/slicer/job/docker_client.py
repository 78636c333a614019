"""Asks dockerd, by docker's own client, about itself, and ends a job's containers.

Imported only for a command that is called docker.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from slicer.errors import RefusedError
from slicer.job import docker
from slicer.job.docker import Daemon, DockerRun
from slicer.job.outside import what_is_lost
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from slicer.backend import Backend
    from slicer.job.plan import Plan

_DEADLINE_S = 10.0
_OUTSIDE = "--no-container leaves it outside of the job"
_LIVE = ("created", "running", "paused", "restarting")


@record
class Docker:
    """A ``docker run`` whose container is in its job: a Container (:mod:`slicer.job.job`)."""

    program: str
    run: DockerRun
    runtime: str  # the daemon's default one
    visible: Callable[[tuple[str, ...]], tuple[str, ...]]  # the GPUs that the job sees, by those of its lease

    def added(self, slice_name: str, job: str, gpus: tuple[str, ...]) -> tuple[str, ...]:
        """The options that the job adds. ``gpus``: those of its lease."""
        return docker.added(self.run, slice_name, job, self.visible(gpus), self.runtime)

    def words(self, slice_name: str, job: str, gpus: tuple[str, ...]) -> tuple[str, ...]:
        """As Container says."""
        return docker.in_job(self.run, self.added(slice_name, job, gpus))

    def end(self, job: str, environ: Mapping[str, str]) -> None:
        """As Container says."""
        live = [f"--filter=status={each}" for each in _LIVE]
        words = ("ps", "--quiet", f"--filter=label={docker.LABEL}={job}", *live)
        found = _said(self.program, (*self.run.head[1:], *words), environ).split()
        if found:
            _said(self.program, (*self.run.head[1:], "rm", "--force", *found), environ)


def found(plan: Plan, backend: Backend, say: Callable[[str], None]) -> Docker | None:
    """The plan's ``docker run``, if its container is to be in the job. Raises RefusedError.

    ``say`` is told what leaves the job instead.
    """
    command, gpus = plan.invocation.command, plan.profile.gpus
    kind = _kind(plan.program)
    run = docker.parse(command) if kind == "docker" else None
    if run is None or not plan.invocation.container:
        if kind != "podman" and plan.missing.gpus and (lost := what_is_lost(command)):
            say(lost)
        return None
    environ = {**plan.environ, **plan.profile.env}
    daemon, why = _daemon(plan.program, run, environ)
    if plan.nested or plan.invocation.exec or backend.name != "systemd":
        why = "this job has no slice of its own (it is in another job, or has --exec, or no systemd)"
    elif daemon is not None:
        machine = os.uname()
        here = machine.nodename, machine.release
        why = docker.why_outside(daemon, here, backend.manager, plan.profile.slice)
    if why and gpus:
        raise RefusedError(f"docker would start the container outside of the job: {why}", hint=_OUTSIDE)
    if why or daemon is None:
        say(f"docker's container leaves this job and its limits: {why}")
        return None
    if refused := docker.why_refused(run, gpus, linger=plan.profile.linger):
        raise RefusedError(refused, where="docker run", hint=_OUTSIDE)
    return Docker(plan.program, run, daemon.runtime, plan.visible_gpus)


def _kind(program: str) -> str:
    """What that is: "docker" (its client, or a wrapper of root's), "podman" (its stand-in), or "" (else)."""
    try:
        with open(program, "rb") as file:
            head, owner = file.read(4096), os.fstat(file.fileno()).st_uid
    except OSError:
        return ""
    if head.startswith(b"\x7fELF"):
        return "docker"
    if owner or b"podman" in head:
        return "" if owner else "podman"
    return "docker" if b"/docker" in head or b"/.docker" in head else ""


def _daemon(program: str, run: DockerRun, environ: Mapping[str, str]) -> tuple[Daemon | None, str]:
    """The daemon that the command would ask; or None, and why it is not known."""
    try:
        told: dict[str, Any] = json.loads(
            _said(program, (*run.head[1:], "info", "--format={{json .}}"), environ)
        )
        is_rootless = any("name=rootless" in each for each in told.get("SecurityOptions") or ())
        return Daemon(
            told["CgroupDriver"], told["CgroupVersion"], (told["Name"], told["KernelVersion"]),
            "user" if is_rootless else "system", told.get("DefaultRuntime", ""),
        ), ""  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, "docker info does not say what dockerd is like: does it run?"


def _said(program: str, words: tuple[str, ...], environ: Mapping[str, str]) -> str:
    """What docker prints; "" if it fails, or does not answer in time."""
    argv = ("docker", *words)
    try:
        done = subprocess.run(
            argv, executable=program, env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, errors="replace", timeout=_DEADLINE_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
