"""docker's command line in a job: what starts a container, what is added, and what is refused."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

import pytest

from slicer.job import docker
from slicer.job.docker import Daemon
from slicer.record import replace

JOB = "0123456789ab"
SLICE = f"gpu-{JOB}.slice"
UUIDS = ("GPU-a", "GPU-b")
HERE = ("box", "6.12")
DAEMON = Daemon("systemd", "2", HERE, "system", "runc")


def made(line: str, gpus: tuple[str, ...] = UUIDS, runtime: str = "runc") -> str:
    """The command line in the job, without what is the same in all."""
    run = docker.parse(shlex.split(line))
    assert run is not None
    words = docker.in_job(run, docker.added(run, SLICE, JOB, gpus, runtime))
    always = (f"--cgroup-parent={SLICE}", f"--label=slicer.job={JOB}")
    assert set(always) <= set(words)
    threads = ("--env=OMP_NUM_THREADS", "--env=MKL_NUM_THREADS")
    assert set(threads) <= set(words)
    shown = (word for word in words if word not in always and not word.endswith(("_THREADS", "GOMAXPROCS")))
    return shlex.join(shown)


@pytest.mark.parametrize(
    "line",
    [
        "docker", "docker ps", "docker build .", "docker create box", "docker compose run box",
        "docker start run", "docker exec box run", "docker -v", "docker container ls", "docker container",
        "docker --context run ps", "docker -H run ps", "docker image run",
    ],
)  # fmt: skip
def test_only_what_starts_a_container_is_touched(line: str) -> None:  # U5
    assert docker.parse(shlex.split(line)) is None


@dataclass
class Line:
    said: str
    image: str
    names: tuple[str, ...]


@pytest.mark.parametrize(
    "line",
    [
        Line("docker run box", "box", ()),
        Line("docker run --rm -it box sh -d --gpus 3", "box", ("rm", "i", "t")),
        Line("docker container run -- box", "--", ()),
        Line("docker -D -H unix:///s --context=c run -v /a:/b box", "box", ("v",)),
        Line("docker run -itv /a:/b box -d", "box", ("i", "t", "v")),
        Line("docker run -eA=B -e=C=D -e E box", "box", ("e", "e", "e")),
        Line("docker run -d=false --name x box", "box", ("d", "name")),
        Line("docker run --gpus all --env NAME=box image", "image", ("gpus", "env")),
    ],
)
def test_the_image_ends_dockers_options(line: Line) -> None:  # U5
    run = docker.parse(shlex.split(line.said))
    assert run is not None
    assert run.rest[0] == line.image
    assert tuple(name for option in run.options for name, _ in option.named) == line.names


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("docker run box a b", """docker run '--gpus="device=GPU-a,GPU-b"' box a b"""),
        ("docker run --gpus all --rm box", """docker run --rm '--gpus="device=GPU-a,GPU-b"' box"""),
        (
            "docker run --device nvidia.com/gpu=all --device /dev/fuse box",
            "docker run --device /dev/fuse --device=nvidia.com/gpu=GPU-a --device=nvidia.com/gpu=GPU-b box",
        ),
        ("docker run --gpus=2 box", """docker run '--gpus="device=GPU-a,GPU-b"' box"""),
        (
            "docker run --gpus all,capabilities=utility box",
            """docker run '--gpus="device=GPU-a,GPU-b",capabilities=utility' box""",
        ),
        (
            "docker run --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=all box",
            "docker run --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=all"
            """ '--gpus="device=GPU-a,GPU-b"' --env=NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-b box""",
        ),
    ],
)
def test_the_container_sees_the_gpus_of_the_lease_and_no_others(line: str, becomes: str) -> None:  # U5
    assert made(line) == becomes


def test_without_gpus_nvidias_runtime_shows_none() -> None:  # U5
    assert made("docker run box", ()) == "docker run box"
    assert made("docker run box", (), "nvidia") == "docker run --env=NVIDIA_VISIBLE_DEVICES=void box"


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ("--rm --gpus all --gpus 2", ""),
        ("--restart no -d=false", ""),
        ("--restart=always", "--restart:"),
        ("--restart unless-stopped", "--restart:"),
        ("-d", "--detach:"),
        ("-itd", "--detach:"),
        ("--detach=true", "--detach:"),
        ("--cgroup-parent x.slice", "--cgroup-parent:"),
        ("--gpus 3", "--gpus 3: the lease has 2"),
        ("--gpus device=0", "--gpus device=:"),
        ("""--gpus '"device=0,1"'""", "--gpus device=:"),
        ("--device /dev/nvidia0", "--device:"),
        ("--device nvidia.com/gpu=all", ""),
        ("--device nvidia.com/gpu=0", "--device:"),
        ("--device /dev/fuse", ""),
    ],
)
def test_what_would_take_the_container_out_of_the_job_is_refused(options: str, refused: str) -> None:  # U5
    run = docker.parse(shlex.split(f"docker run {options} box"))
    assert run is not None
    assert docker.why_refused(run, 2, linger=False)[: len(refused) or None] == refused


def test_a_detached_container_is_waited_for_if_that_is_asked() -> None:  # U5
    run = docker.parse(shlex.split("docker run -d box"))
    assert run is not None
    assert docker.why_refused(run, 2, linger=True) == ""


@pytest.mark.parametrize(
    ("daemon", "why"),
    [
        (DAEMON, ""),
        (replace(DAEMON, machine=("far", "6.12")), "another machine (far)"),
        (replace(DAEMON, machine=("box", "5.15-linuxkit")), "another machine"),
        (replace(DAEMON, driver="cgroupfs"), "cgroup driver is cgroupfs"),
        (replace(DAEMON, version="1"), "cgroup v1"),
        (replace(DAEMON, manager="user"), "it is rootless"),
    ],
)
def test_a_daemon_that_cannot_start_it_in_the_job_is_told_by_its_own_words(daemon: Daemon, why: str) -> None:
    found = docker.why_outside(daemon, HERE, "system", "gpu")  # U5
    assert why in found
    assert bool(why) == bool(found)


def test_a_users_own_systemd_and_cpu_slice_have_no_place_for_it() -> None:  # U5
    assert "the broker" in docker.why_outside(DAEMON, HERE, "user", "gpu")
    assert "cpu.slice" in docker.why_outside(DAEMON, HERE, "system", "cpu")
