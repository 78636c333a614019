"""The script of the test in a NixOS machine holds on Debian, so what fails there is up to NixOS."""

from __future__ import annotations

import contextlib
import os
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicer.backend.install_units import apply, configured, remove
from tests.patience import until
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd

TEST = Path(__file__).parents[2] / "nix/vm-test.nix"
ONLY_THERE = "# The rest is for"
CONFIGURATION = """\
[slots]
cpu = 1
[slices.cpu]
tasks_max = 4000
[profiles.limited]
memory_max = "64M"
tasks_max = 50
"""


class Machine:
    """As the NixOS test driver has it, for the machine around us."""

    def execute(self, command: str) -> tuple[int, str]:
        done = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, text=True, check=False)
        return done.returncode, done.stdout

    def succeed(self, command: str) -> str:
        code, output = self.execute(command)
        assert code == 0, (command, code, output)
        return output

    def fail(self, command: str) -> None:
        assert self.execute(command)[0] != 0, command

    def wait_until_succeeds(self, command: str) -> None:
        until(lambda: self.execute(command)[0] == 0, command)

    def wait_for_unit(self, unit: str) -> None:
        self.wait_until_succeeds(f"systemctl is-active {unit}")


@contextlib.contextmanager
def subtest(name: str) -> Iterator[None]:
    print(name)
    yield


@pytest.fixture
def installed() -> Iterator[None]:
    """The configuration and the units, as the module has them."""
    if "SLICER_TEST_MACHINE" not in os.environ:
        pytest.fail("this test changes the machine's root: only for test machines")
    file = Path("/etc/slicer/config.toml")
    file.parent.mkdir(exist_ok=True)
    file.write_text(CONFIGURATION)
    try:
        whole, _ = configured(environ={}, user_delegation=True)
        apply(whole)
        yield
        remove(whole)
    finally:
        file.unlink()
        file.parent.rmdir()


def test_the_script_holds_on_debian(installed: None, alice: User) -> None:  # K5
    _, _, script = TEST.read_text().partition("testScript = ''\n")
    everywhere, found, _ = script.partition(ONLY_THERE)
    assert found
    exec(textwrap.dedent(everywhere), {"machine": Machine(), "subtest": subtest})
