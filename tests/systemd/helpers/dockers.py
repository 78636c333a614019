"""The real dockerd in a test machine, an image without a registry, and what NVIDIA's toolkit would add."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slicer.kernel import cgroup as kernel
from tests.patience import until
from tests.systemd.helpers import processes, systemctl
from tests.systemd.helpers.containers import import_image, output

IMAGE = "box"
RUN = ("docker", "run", "--rm", "--network=none", "--pull=never")
_HOOK = Path("/usr/bin/nvidia-container-runtime-hook")  # where it is, dockerd knows --gpus
_CONFIGURATION = Path("/etc/docker/daemon.json")
# A machine may not take its rules, nor have it switch on forwarding.
_NO_NETWORK = '{"bridge": "none", "iptables": false, "ip6tables": false, "ip-forward": false}\n'
_UNITS = ("docker.service", "docker.socket", "containerd.service")


@contextmanager
def dockerd() -> Iterator[None]:
    """The daemon with the image, for as long as it is needed."""
    _HOOK.write_text("#!/bin/sh\nexit 0\n")
    _HOOK.chmod(0o755)
    _CONFIGURATION.parent.mkdir(exist_ok=True)
    _CONFIGURATION.write_text(_NO_NETWORK)
    try:
        systemctl.output("systemctl", "start", "docker.service")
        import_image("docker", "import")
        yield
        remove_all()
    finally:
        systemctl.output("systemctl", "stop", *_UNITS)
        _HOOK.unlink()
        _CONFIGURATION.unlink()


def docker(*words: str) -> str:
    """What docker prints, outside of any job."""
    return output("docker", *words)


def remove_all() -> None:
    """Remove the containers; none of them may be left."""
    until(lambda: not docker("ps", "--all", "--quiet"), "docker has no container")


def slices() -> list[str]:
    """The jobs' own slices that systemd has loaded."""
    listed = systemctl.output("systemctl", "list-units", "--all", "--plain", "--no-legend", "gpu-*.slice")
    names = (line.split()[0] for line in listed.splitlines())
    return [name for name in names if len(name.removesuffix(".slice").rpartition("-")[2]) == 12]


def names_below(cgroup: str) -> set[str]:
    """The names of the processes in a cgroup and below it."""
    return {processes.read(pid, "comm").decode().strip() for pid in kernel.processes(kernel.path_of(cgroup))}


def both_in(cgroup: str) -> None:
    """Wait until docker's client and a container's ``sleep`` are in the cgroup, or below it."""
    until(lambda: {"docker", "sleep"} <= names_below(cgroup), "client and container are there")


def stopped_slices() -> None:
    """Wait until no job has a slice of its own any more; else fail, and stop it."""
    try:
        until(lambda: not slices(), "no slice of a job's own is left")
    except AssertionError:
        for unit in slices():
            systemctl.output("systemctl", "kill", "--signal=KILL", unit, check=False)
            systemctl.output("systemctl", "stop", unit, check=False)
        raise
