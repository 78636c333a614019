"""The real podman in a test machine: an image without a registry, and where its containers' processes are."""

from __future__ import annotations

import os
import subprocess

from tests.systemd.helpers import processes

IMAGE = "localhost/box"
RUN = ("podman", "run", "--rm", "--network=none", "--pull=never")

# busybox and a few of its names.
_IMPORT = """\
set -e
box=$(mktemp -d)
trap 'rm -r "$box"' EXIT
mkdir "$box/bin"
cp "$(command -v busybox)" "$box/bin/busybox"
for name in cat env rm sh sleep tail; do ln -s busybox "$box/bin/$name"; done
tar -C "$box" -c . | "$@" - box
"""


def podman(*words: str, via: tuple[str, ...] = ()) -> str:
    """What podman prints, outside of any job."""
    return output(*via, "podman", *words)


def make_image(via: tuple[str, ...] = ()) -> None:
    """Make the image for a user, who has no container yet."""
    import_image("podman", "import", "-q", via=via)


def import_image(*command: str, via: tuple[str, ...] = ()) -> None:
    """Give the image to the command."""
    output(*via, "sh", "-c", _IMPORT, "sh", *command)


def remove_all(via: tuple[str, ...] = ()) -> None:
    podman("rm", "--all", "--force", "--time=0", via=via)
    podman("rmi", "--all", "--force", via=via)


def output(*command: str) -> str:
    """What a command prints that has to succeed."""
    environ = {"PATH": os.environ["PATH"], "HOME": "/root"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd="/", timeout=300)
    assert done.returncode == 0, (command, done)
    return done.stdout.strip()


def names_in(cgroup: str) -> list[str]:
    """The names of the processes in one cgroup, sorted."""
    found = (processes.read(pid, "comm").decode().strip() for pid in processes.in_cgroup(cgroup))
    return sorted(name for name in found if name)
