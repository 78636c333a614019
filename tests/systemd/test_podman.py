"""The real podman in a job: its containers are in the scope, see the job's GPUs, and end with it (U5)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_nvml import FakeNvml
from tests.patience import until
from tests.systemd.helpers import processes, systemctl
from tests.systemd.helpers.containers import IMAGE, RUN, make_image, names_in, podman, remove_all
from tests.systemd.helpers.jobs import SYSTEM_LEDGER, Job, Slicer
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.fixtures", "tests.fake_nvml"]
pytestmark = pytest.mark.systemd

GPU_0 = "GPU-00000000-0000-0000-0000-000000000000"
VARIABLE = "CONTAINERS_CONF_OVERRIDE"
QUICK = "--set=TimeoutStopSec=4s"  # the first process of a container ignores SIGTERM
SPEC = f"""\
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: {GPU_0}
  containerEdits:
    env: [HANDED_IN=0]
"""


class Who:
    """Root, or an ordinary user with a manager of her own."""

    def __init__(self, slicer: Slicer, user: User | None) -> None:
        self._slicer, self._user = slicer, user
        self.via = user.via if user else ()
        self.systemctl = user.systemctl if user else ("systemctl",)
        slicer.ledger = user.ledger if user else SYSTEM_LEDGER

    def run(self, *words: str) -> Job:
        return self._slicer.start(*words, via=self.via)

    def containers(self) -> str:
        """What podman knows of its containers: name and state of each."""
        return podman("ps", "--all", "--format={{.Names}} {{.State}}", via=self.via)


@pytest.fixture
def slicer(public_slicer: Slicer) -> Slicer:
    return public_slicer


@pytest.fixture(scope="module")
def images(alice: User) -> Iterator[None]:
    for via in ((), alice.via):
        make_image(via)
    yield
    for via in ((), alice.via):
        remove_all(via)


@pytest.fixture(params=["root", "alice"])
def who(request: pytest.FixtureRequest, slicer: Slicer, images: None, alice: User) -> Iterator[Who]:
    made = Who(slicer, alice if request.param == "alice" else None)
    yield made
    until(lambda: not systemctl.scopes(made.systemctl), "no scope is left")
    assert made.containers() == ""


def test_client_monitor_and_container_are_in_the_scope_and_end_with_it(slicer: Slicer, who: Who) -> None:
    job = who.run(QUICK, "--", *RUN, IMAGE, "sh", "-c", "echo up; exec sleep 1000")
    job.said("up")
    lease = job.lease()
    until(lambda: {"podman", "conmon", "sleep"} <= set(names_in(lease.cgroup)), "all are there")
    slicer.command("stop", lease.job, via=who.via)
    done = job.end()
    assert done.code in (137, 143)
    others = done.told.replace("1 leftover process ended", "")  # the container, if the client ended before it
    assert "leftover" not in others


@pytest.mark.parametrize(
    ("image", "command", "code"),
    [(IMAGE, "exit 5", 5), ("localhost/none", "", 125), (IMAGE, "", 127)],
)
def test_the_exit_code_is_podmans_and_nothing_is_left(who: Who, image: str, command: str, code: int) -> None:
    done = who.run("--", *RUN, image, *(("sh", "-c", command) if command else ("no-such",))).end()
    assert done.code == code, done
    assert "leftover" not in done.told


def test_a_lost_client_leaves_no_container(who: Who) -> None:  # K2
    job = who.run(QUICK, "--", *RUN, IMAGE, "sh", "-c", "echo up; exec sleep 1000")
    job.said("up")
    os.kill(job.command_pid(), signal.SIGKILL)
    assert job.end().code == 137
    until(lambda: who.containers() == "", "podman has learned of it")


def test_a_detached_container_ends_with_the_command(who: Who) -> None:
    script = f"{' '.join(RUN)} --detach --name=left {IMAGE} sleep 1000"
    job = who.run(QUICK, "--", "sh", "-c", script)
    done = job.end()
    assert done.code == 0
    assert "1 leftover process ended" in done.told
    until(lambda: who.containers() == "", "podman has learned of it")


def test_an_end_by_systemd_is_told_to_podman_as_well(who: Who) -> None:
    # One that ignored SIGTERM would leave podman the stop's last second only.
    waits = "trap 'exit 143' TERM; echo up; while :; do sleep 0.2; done"
    job = who.run("--set=TimeoutStopSec=20s", "--", *RUN, IMAGE, "sh", "-c", waits)
    job.said("up")
    systemctl.output(*who.systemctl, "stop", job.lease().unit)
    assert job.end().code in (137, 143)
    until(lambda: who.containers() == "", "podman has learned of it")


def test_a_container_has_the_jobs_gpus_and_thread_caps(
    slicer: Slicer, images: None, fake_nvml: FakeNvml
) -> None:  # K4, U18
    def environment(*options: str) -> dict[str, str]:
        done = slicer.run(*options, "--", *RUN, IMAGE, "env", env=fake_nvml.env)
        assert done.code == 0, done
        return dict(line.split("=", 1) for line in done.stdout.splitlines())

    path = Path("/etc/cdi/slicer-test.yaml")
    found = environment("-g1", "--set", "AllowedCPUs=0")
    assert (found["CUDA_VISIBLE_DEVICES"], found["OMP_NUM_THREADS"]) == (GPU_0, "1")
    assert "HANDED_IN" not in found
    assert environment("--profile", "light")["CUDA_VISIBLE_DEVICES"] == ""
    path.parent.mkdir(exist_ok=True)
    path.write_text(SPEC)
    try:
        assert environment("-g1")["HANDED_IN"] == "0"
        assert environment("-g1", "--gpu-ids", "index", "--exec")["CUDA_VISIBLE_DEVICES"] == GPU_0
        assert "HANDED_IN" not in environment("-g2")
    finally:
        path.unlink()


def test_a_command_of_roots_that_becomes_another_user_runs_podman_too(
    slicer: Slicer, images: None, alice: User
) -> None:
    done = slicer.run("-q", "--", *alice.via, *RUN, IMAGE, "sh", "-c", "exit 5")
    assert done.code == 5, done


def test_with_no_container_podman_does_what_it_always_does(slicer: Slicer, images: None) -> None:
    options = ("--name=outside", "--pids-limit=0")
    command = (*RUN, *options, IMAGE, "sh", "-c", "echo up; exec sleep 1000")
    job = slicer.start("--no-container", "--", *command)
    job.said("up")
    payload = int(podman("inspect", "--format={{.State.Pid}}", "outside"))
    assert "slicer-" not in processes.cgroup(payload)
    podman("kill", "outside")
    assert job.end().code == 137


def test_why_containers_leave_is_said_and_what_podman_is_told_is_shown(slicer: Slicer) -> None:
    own = {VARIABLE: "/dev/null"}
    for _ in range(2):  # each time for podman itself
        assert "podman's containers leave this job" in slicer.run("--", "podman", "--version", env=own).stderr
    said = [slicer.run("--", "env", env=own) for _ in range(2)]
    assert f"{VARIABLE}=/dev/null\n" in said[0].stdout
    assert "leave this job" not in said[1].stderr  # once per boot
    assert VARIABLE not in slicer.run("--no-container", "--", "env").stdout
    shown = slicer.command("run", "--dry-run", "--", "true").stdout
    path = slicer.run("--", "sh", "-c", f'echo "${VARIABLE}"').stdout.strip()
    assert f"\npodman     {VARIABLE}={path}\n" in shown
    assert all(f"\npodman     {line}\n" in shown for line in Path(path).read_text().splitlines()[1:])


def test_what_podman_keeps_for_all_containers_of_a_user_is_no_leftover(
    slicer: Slicer, images: None, alice: User
) -> None:  # K2: it left the scope, by podman's wish
    def pauses() -> str:
        return systemctl.output(*alice.systemctl, "list-units", "--no-legend", "podman-pause-*.scope")

    podman("system", "migrate", via=alice.via)
    until(lambda: not pauses(), "no process keeps her namespaces")
    who = Who(slicer, alice)
    done = who.run("--", *RUN, IMAGE, "env").end()
    assert (done.code, "leftover" in done.told) == (0, False), done
    assert pauses()
    podman("system", "migrate", via=alice.via)
