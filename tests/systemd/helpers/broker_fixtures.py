"""The fixtures of the broker's tests: ``pytest_plugins = ["tests.systemd.helpers.broker_fixtures"]``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_nvml import FakeNvml, build
from tests.patience import until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.broker import Broker
from tests.systemd.helpers.users import User, user


@pytest.fixture(scope="module")
def broker_units() -> Iterator[None]:
    """Installed for the first test of a module that wants them, and taken away after the last."""
    yield
    Broker.taken_away()


@pytest.fixture
def broker(broker_units: None) -> Iterator[Broker]:
    if "SLICER_TEST_MACHINE" not in os.environ:
        pytest.fail("this test installs a service: only for test machines")
    made = Broker()
    try:
        yield made
        for caller in made.callers:
            caller.close()
        until(lambda: not systemctl.scopes(), "no scope is left")
    finally:
        made.close()


@pytest.fixture
def ann() -> User:
    return user("alice")


@pytest.fixture
def ben() -> User:
    return user("bob")


@pytest.fixture
def nvml() -> Iterator[FakeNvml]:
    """GPUs where the broker's sandbox lets it see them."""
    directory = Path("/run/fake-nvml")
    yield FakeNvml(build(directory), directory / "state")
    shutil.rmtree(directory)
