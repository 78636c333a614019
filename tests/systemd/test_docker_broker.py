"""docker in users' jobs at the broker: each container is in a slice of its job's own (U5, L2)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.systemd.helpers import systemctl
from tests.systemd.helpers.broker import Broker, leaving_nothing
from tests.systemd.helpers.dockers import IMAGE, RUN, both_in, docker, dockerd, stopped_slices
from tests.systemd.helpers.jobs import Slicer
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.broker_fixtures", "tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd


@pytest.fixture(scope="module")
def users(alice: User, bob: User) -> Iterator[tuple[User, User]]:
    with dockerd():
        for user in (alice, bob):
            systemctl.output("gpasswd", "--add", user.name, "docker")
        yield alice, bob
        for user in (alice, bob):
            systemctl.output("gpasswd", "--delete", user.name, "docker")


@pytest.fixture
def slicer(public_slicer: Slicer, broker: Broker) -> Iterator[Slicer]:
    yield from leaving_nothing(public_slicer, broker)


def test_each_users_container_is_in_a_slice_of_its_job(
    slicer: Slicer, users: tuple[User, User]
) -> None:  # U5, L2, K2
    jobs = []
    for user in users:
        slicer.ledger = user.ledger
        command = (*RUN, IMAGE, "sh", "-c", "echo up; echo $NVIDIA_VISIBLE_DEVICES; exec sleep 1000")
        options = ("-g1", "--set=TimeoutStopSec=4s", "--set=TasksMax=200")
        jobs.append(slicer.start(*options, "--", *command, via=user.via))
        jobs[-1].said("up")
    for user, job in zip(users, jobs, strict=True):
        lease = job.lease()
        assert lease.unit == f"gpu-{user.uid}-{lease.job}.slice"
        assert lease.cgroup == f"/gpu.slice/gpu-{user.uid}.slice/{lease.unit}"
        both_in(lease.cgroup)
        assert systemctl.show(lease.unit, "TasksMax") == {"TasksMax": "200"}
        slicer.command("stop", lease.job, via=user.via)
        assert job.end().code in (137, 143)
    seen = [job.stdout.split()[1] for job in jobs]
    assert len(set(seen)) == 2
    assert docker("ps", "--all", "--quiet") == ""
    assert not systemctl.scopes()
    stopped_slices()
