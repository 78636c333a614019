"""The real docker in a job: its container is in the job's slice, sees the job's GPUs, ends with it (U5)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicer.kernel import proc
from tests.fake_nvml import FakeNvml
from tests.patience import until
from tests.systemd.helpers import processes, systemctl
from tests.systemd.helpers.dockers import IMAGE, RUN, both_in, docker, dockerd, names_below, stopped_slices
from tests.systemd.helpers.jobs import Job, Slicer
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.fixtures", "tests.fake_nvml"]
pytestmark = pytest.mark.systemd

GPU_0 = "GPU-00000000-0000-0000-0000-000000000000"
QUICK = "--set=TimeoutStopSec=4s"  # the first process of a container ignores SIGTERM
STAYS = ("sh", "-c", "echo up; exec sleep 1000")


@pytest.fixture(scope="module")
def daemon() -> Iterator[None]:
    with dockerd():
        yield


@pytest.fixture
def slicer(public_slicer: Slicer, daemon: None) -> Iterator[Slicer]:
    yield public_slicer
    stopped_slices()
    until(lambda: not docker("ps", "--all", "--quiet"), "docker has no container")


@pytest.fixture
def gpus(fake_nvml: FakeNvml) -> dict[str, str]:
    return fake_nvml.env


def started(slicer: Slicer, gpus: dict[str, str], *options: str) -> Job:
    """A job with a container that stays."""
    job = slicer.start("-g1", QUICK, *options, "--", *RUN, IMAGE, *STAYS, env=gpus)
    job.said("up")
    return job


def client_of(job: Job) -> int:
    """docker's client: the keeper's child, in the scope that the job's slice contains."""
    keeper = job.lease().keeper
    return until(lambda: next(iter(proc.children(keeper)), 0), "a client below the keeper")


def test_client_and_container_are_in_the_jobs_slice_and_end_with_it(
    slicer: Slicer, gpus: dict[str, str]
) -> None:  # K2, K3
    job = started(slicer, gpus, "--set", "TasksMax=200")
    lease = job.lease()
    assert lease.cgroup == f"/gpu.slice/gpu-{lease.job}.slice"
    assert lease.unit == f"gpu-{lease.job}.slice"
    both_in(lease.cgroup)
    assert systemctl.show(lease.unit, "TasksMax") == {"TasksMax": "200"}
    (container,) = docker("ps", "--quiet", f"--filter=label=slicer.job={lease.job}").split()
    shown = docker("inspect", "--format={{.HostConfig.CgroupParent}}", container)
    assert shown == lease.unit
    slicer.command("stop", lease.job)
    done = job.end()
    assert done.code in (137, 143), done
    assert "leftover" not in done.told


def test_a_jobs_limits_go_before_those_of_all_slices_of_users(
    slicer: Slicer, gpus: dict[str, str]
) -> None:  # K3
    drop_in = Path("/run/systemd/system/gpu-.slice.d/10-limits.conf")
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text("[Slice]\nTasksMax=5000\n")
    try:
        systemctl.output("systemctl", "daemon-reload")
        job = started(slicer, gpus, "--set", "TasksMax=200")
        assert systemctl.show(job.lease().unit, "TasksMax") == {"TasksMax": "200"}
        systemctl.output("systemctl", "daemon-reload")
        assert systemctl.show(job.lease().unit, "TasksMax") == {"TasksMax": "200"}
        slicer.command("stop", job.lease().job)
        job.end()
    finally:
        drop_in.unlink()
        drop_in.parent.rmdir()
        systemctl.output("systemctl", "daemon-reload")


def test_a_pause_and_the_figures_are_the_containers(slicer: Slicer, gpus: dict[str, str]) -> None:  # W3
    job = started(slicer, gpus)
    lease = job.lease()
    slicer.command("pause", lease.job)
    payload = int(docker("inspect", "--format={{.State.Pid}}", docker("ps", "--quiet")))
    frozen = Path("/sys/fs/cgroup" + processes.cgroup(payload), "cgroup.events").read_text()
    assert "frozen 1" in frozen
    slicer.command("resume", lease.job)
    slicer.command("stop", lease.job)
    assert job.end().code in (137, 143)


@pytest.mark.parametrize(
    ("image", "command", "code"),
    [(IMAGE, ("sh", "-c", "exit 5"), 5), ("none-such", (), 125), (IMAGE, ("no-such",), 127)],
)
def test_the_exit_code_is_dockers_and_nothing_is_left(
    slicer: Slicer, gpus: dict[str, str], image: str, command: tuple[str, ...], code: int
) -> None:
    done = slicer.run("-g1", "--", *RUN, image, *command, env=gpus)
    assert done.code == code, done
    assert "leftover" not in done.told


def test_the_container_has_the_jobs_gpus_and_thread_caps(
    slicer: Slicer, gpus: dict[str, str]
) -> None:  # K4, U18
    done = slicer.run(
        "-g1", "--set", "AllowedCPUs=0", "--", *RUN, "--gpus=all", IMAGE, "env", env=gpus
    )  # fmt: skip
    assert done.code == 0, done
    found = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert (found["NVIDIA_VISIBLE_DEVICES"], found["OMP_NUM_THREADS"]) == (GPU_0, "1")


def test_a_lost_client_leaves_no_container(slicer: Slicer, gpus: dict[str, str]) -> None:  # K2
    job = started(slicer, gpus)
    os.kill(client_of(job), signal.SIGKILL)
    assert job.end().code == 137


def test_a_lost_keeper_leaves_no_container(slicer: Slicer, gpus: dict[str, str]) -> None:  # K2
    job = started(slicer, gpus)
    os.kill(job.lease().keeper, signal.SIGKILL)
    assert job.end().code == 137


def test_without_slicer_systemd_ends_the_container(slicer: Slicer, gpus: dict[str, str]) -> None:  # K1, K2
    heeds = 'trap "rm /on/it; exit" TERM; echo up; while :; do sleep 1; done'
    on = slicer.path("on")
    on.mkdir()
    (on / "it").touch()
    job = slicer.start("-g1", "--", *RUN, f"--volume={on}:/on", IMAGE, "sh", "-c", heeds, env=gpus)
    job.said("up")
    lease, client = job.lease(), client_of(job)
    slicer.dirty = True
    job.kill()
    os.kill(client, signal.SIGKILL)
    os.kill(lease.keeper, signal.SIGKILL)
    until(lambda: not (on / "it").exists(), "the container was asked to end")
    until(lambda: not slicer.is_busy("-g2", env=gpus), "the lease is over")


def test_a_detached_container_is_waited_for_where_that_is_asked(
    slicer: Slicer, gpus: dict[str, str]
) -> None:  # K1
    done = slicer.run("-g1", "--", *RUN, "--detach", IMAGE, "sleep", "1000", env=gpus)
    assert (done.code, "--linger" in done.stderr) == (125, True), done
    job = slicer.start("-g1", QUICK, "--linger", "--", *RUN, "--detach", IMAGE, "sleep", "1000", env=gpus)
    lease = job.lease()
    until(lambda: (left := names_below(lease.cgroup)) >= {"sleep"} and "docker" not in left, "it is alone")
    assert slicer.is_busy("-g2", env=gpus)
    slicer.command("stop", lease.job)
    job.end()
    assert not slicer.is_busy("-g2", env=gpus)


def test_a_script_puts_its_containers_into_the_slice_that_it_is_told(
    slicer: Slicer, gpus: dict[str, str]
) -> None:  # U5, K2
    run = " ".join((*RUN, '--cgroup-parent="$SLICER_SLICE"', "--detach", "--restart=always"))
    script = f"{run.replace('--rm', '')} {IMAGE} sleep 1000; echo up; exec sleep 1000"
    job = slicer.start("-g1", QUICK, "--docker", "--", "sh", "-c", script, env=gpus)
    job.said("up")
    lease = job.lease()
    until(lambda: [*names_below(lease.cgroup)].count("sleep") and docker("ps", "--quiet"), "it runs there")
    slicer.command("stop", lease.job)
    job.end()
    assert docker("ps", "--all", "--quiet") == ""
    refused = slicer.run("--profile", "light", "--docker", "--", "true", env=gpus)
    assert (refused.code, "cpu.slice" in refused.stderr) == (125, True), refused


def test_dockerd_may_be_started_anew(slicer: Slicer, gpus: dict[str, str]) -> None:  # K2
    job = started(slicer, gpus)
    systemctl.output("systemctl", "restart", "docker.service")
    assert job.end().code != 0


def test_a_job_whose_container_would_be_outside_is_refused_or_says_so(
    slicer: Slicer, gpus: dict[str, str], alice: User
) -> None:  # K2
    command = ("--", *RUN, IMAGE, "cat", "/proc/self/cgroup")
    systemctl.output("gpasswd", "--add", alice.name, "docker")
    try:
        refused = slicer.run("-g1", *command, env=gpus, via=alice.via)
        assert (refused.code, refused.stdout) == (125, ""), refused
        assert "the broker puts jobs there" in refused.stderr
        said = slicer.run("--profile", "light", *command, env=gpus, via=alice.via)
        assert said.code == 0, said
        assert "leaves this job" in said.stderr
    finally:
        systemctl.output("gpasswd", "--delete", alice.name, "docker")
    assert "cpu.slice" in slicer.run("--profile", "light", *command, env=gpus).stderr
    outside = slicer.run("-g1", "--no-container", *command, env=gpus)
    assert (outside.code, "gpu-" in outside.stdout) == (0, False), outside


def test_what_is_only_called_docker_is_left_alone(slicer: Slicer, gpus: dict[str, str]) -> None:  # K2
    own = slicer.path("docker")
    own.write_text("#!/bin/sh\n# podman\necho mine \"$@\"\n")
    own.chmod(0o755)
    assert slicer.run("-g1", "--", str(own), "run", "box", env=gpus).stdout == "mine run box\n"
    done = slicer.run("-g1", "--", "docker", "ps", "--quiet", env=gpus)
    assert (done.code, done.stdout) == (0, "")


def test_a_dry_run_shows_what_would_be_added(slicer: Slicer, gpus: dict[str, str]) -> None:  # U5
    shown = slicer.command("run", "--dry-run", "-g1", "--", *RUN, IMAGE, "env", **gpus).stdout
    assert "--cgroup-parent=gpu-<id>.slice" in shown
    assert f'--gpus="device={GPU_0}"' in shown
