"""Rootless podman in users' jobs at the broker: containers in scopes of the system manager (U5, L2)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.patience import until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.broker import Broker, leaving_nothing
from tests.systemd.helpers.containers import IMAGE, RUN, make_image, names_in, podman, remove_all
from tests.systemd.helpers.jobs import Slicer
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.broker_fixtures", "tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd


@pytest.fixture(scope="module")
def users(alice: User, bob: User) -> Iterator[tuple[User, User]]:
    for user in (alice, bob):
        make_image(user.via)
    yield alice, bob
    for user in (alice, bob):
        remove_all(user.via)


@pytest.fixture
def slicer(public_slicer: Slicer, broker: Broker) -> Iterator[Slicer]:
    yield from leaving_nothing(public_slicer, broker)


def test_each_users_container_is_in_a_scope_of_the_system_manager(
    slicer: Slicer, users: tuple[User, User]
) -> None:  # U5, L2, K2
    jobs = []
    for user in users:
        slicer.ledger = user.ledger
        command = (*RUN, IMAGE, "sh", "-c", "echo up; echo $CUDA_VISIBLE_DEVICES; exec sleep 1000")
        jobs.append(slicer.start("-g1", "--", *command, via=user.via))
        jobs[-1].said("up")
    for user, job in zip(users, jobs, strict=True):
        lease = job.lease()
        assert lease.cgroup.startswith(f"/gpu.slice/gpu-{user.uid}.slice/")
        cgroup = lease.cgroup
        until(lambda cgroup=cgroup: {"conmon", "sleep"} <= set(names_in(cgroup)), "the container is in it")
        slicer.command("stop", lease.job, via=user.via)
        assert job.end().code in (137, 143)
    seen = [job.stdout.split()[1] for job in jobs]
    assert len(set(seen)) == 2
    for user in users:
        assert podman("ps", "--all", "--quiet", via=user.via) == ""
    assert not systemctl.scopes()
