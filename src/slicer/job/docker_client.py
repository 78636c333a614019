"""Asks dockerd, by docker's own client, about itself, and ends a job's containers.

Imported only for a command that is called docker, and with ``--docker``.
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
from slicer.job.program import find_program
from slicer.kernel.cgroup import path_of
from slicer.kernel.proc import names_in
from slicer.model import SLICE_VARIABLE
from slicer.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from slicer.backend import Backend
    from slicer.job.plan import Plan

_DEADLINE_S = 10.0
_OUTSIDE = "--no-container, without --docker, leaves them outside of the job"
_COMPOSE = (
    "--docker, with `cgroup_parent: ${SLICER_SLICE:-}` for each service in the compose file;"
    " or --no-container"
)
_LIVE = ("created", "running", "paused", "restarting")


@record
class Docker:
    """The containers that a job's command starts in it: Containers of :mod:`slicer.job.job`."""

    program: str
    command: tuple[str, ...]
    own: tuple[str, ...]  # options of docker's, for the daemon
    run: DockerRun | None  # the command; None: it has the slice's name, and does the rest itself
    runtime: str  # the daemon's default one
    visible: Callable[[tuple[str, ...]], tuple[str, ...]]  # the GPUs that the job sees, by those of its lease

    def added(self, slice_name: str, job: str, gpus: tuple[str, ...]) -> tuple[str, ...]:
        """As Containers says."""
        if self.run is None:
            return (f"{SLICE_VARIABLE}={slice_name}",)
        return docker.added(self.run, slice_name, job, self.visible(gpus), self.runtime)

    def words(self, slice_name: str, job: str, gpus: tuple[str, ...]) -> tuple[str, ...]:
        """As Containers says."""
        if self.run is None:
            return self.command
        return docker.in_job(self.run, self.added(slice_name, job, gpus))

    def end(self, job: str, place: str, environ: Mapping[str, str]) -> None:
        """As Containers says."""
        def said(*words: str) -> list[str]:
            return _said(self.program, (*self.own, *words), environ).split()

        there = set(filter(None, map(docker.container_in, names_in(path_of(place)))))
        if self.run is not None:  # perhaps it is about to be started
            slice_name = place.rpartition("/")[2]
            live = [f"--filter=status={each}" for each in _LIVE]
            labelled = said("ps", "--quiet", f"--filter=label={docker.LABEL}={job}", *live)
            form = f'--format={{{{if eq .HostConfig.CgroupParent "{slice_name}"}}}}{{{{.Id}}}}{{{{end}}}}'
            there.update(said("inspect", "--type=container", form, *labelled) if labelled else ())
        if there:
            said("rm", "--force", *sorted(there))


def found(plan: Plan, backend: Backend, say: Callable[[str], None]) -> Docker | None:
    """What the plan's command starts through dockerd, if that is to be in the job. Raises RefusedError.

    ``say`` is told what leaves the job instead.
    """
    invocation, gpus = plan.invocation, plan.profile.gpus
    command, is_asked = invocation.command, invocation.docker
    environ = {**plan.environ, **plan.profile.env}
    kind = _kind(plan.program) if plan.program.endswith("/docker") else ""
    run = docker.parse(command) if kind == "docker" and invocation.container else None
    if run is None and not is_asked:
        if gpus and kind == "docker" and invocation.container and docker.is_compose_up(command):
            raise RefusedError("docker compose would start containers outside of the job", hint=_COMPOSE)
        if kind != "podman" and plan.missing.gpus and (lost := what_is_lost(command)):
            say(lost)
        return None
    own = docker.own_options(command) if kind == "docker" else ()
    program = plan.program if kind == "docker" else find_program("docker", environ)
    daemon, why = _daemon(program, own, environ)
    if plan.nested or invocation.exec or backend.name != "systemd":
        why = "this job has no slice of its own (it is in another job, or has --exec, or no systemd)"
    elif daemon is not None:
        machine = os.uname()
        here = machine.nodename, machine.release
        why = docker.why_outside(daemon, here, backend.manager, plan.profile.slice)
    if why and (gpus or is_asked):
        raise RefusedError(f"docker would start containers outside of the job: {why}", hint=_OUTSIDE)
    if why or daemon is None:
        say(f"docker's container leaves this job and its limits: {why}")
        return None
    if run is not None and (refused := docker.why_refused(run, gpus, linger=plan.profile.linger)):
        raise RefusedError(refused, where="docker run", hint=_OUTSIDE)
    return Docker(program, command, own, run, daemon.runtime, plan.visible_gpus)


def _kind(program: str) -> str:
    """What that is: "docker" (its client, or a wrapper of root's), "podman" (its stand-in), or "" (else)."""
    try:
        fd = os.open(program, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # it may be a FIFO
        with open(fd, "rb") as file:
            head, owner = file.read(4096) or b"", os.fstat(file.fileno()).st_uid
    except OSError:
        return ""
    if head.startswith(b"\x7fELF"):
        return "docker"
    if owner or b"podman" in head:
        return "" if owner else "podman"
    return "docker" if b"/docker" in head or b"/.docker" in head else ""


def _daemon(program: str, own: tuple[str, ...], environ: Mapping[str, str]) -> tuple[Daemon | None, str]:
    """The daemon that docker with its ``own`` options would ask; or None, and why it is not known."""
    try:
        told: dict[str, Any] = json.loads(_said(program, (*own, "info", "--format={{json .}}"), environ))
        is_rootless = any("name=rootless" in each for each in told.get("SecurityOptions") or ())
        return Daemon(
            told["CgroupDriver"], told["CgroupVersion"], (told["Name"], told["KernelVersion"]),
            "user" if is_rootless else "system", told.get("DefaultRuntime", ""),
        ), ""  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, "docker info does not say what dockerd is like: does it run, and may you ask it?"


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
