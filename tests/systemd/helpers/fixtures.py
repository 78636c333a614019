"""The fixtures of the systemd and enforced rings."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.systemd.helpers.jobs import Slicer
from tests.systemd.helpers.users import User, lingering


@pytest.fixture
def slicer(tmp_path: Path) -> Iterator[Slicer]:
    """``slicer run`` for one test, which fails when anything of its jobs is left at its end."""
    if "SLICER_TEST_MACHINE" not in os.environ:
        pytest.fail("this test starts jobs over the system's ledger: only for test machines")
    made = Slicer(tmp_path)
    yield made
    made.check_nothing_left()


@pytest.fixture
def public_slicer(slicer: Slicer) -> Iterator[Slicer]:
    """`slicer` in a directory that every user can write to."""
    inner, root = slicer.directory, Path(tempfile.mkdtemp(prefix="slicer-", dir="/var/tmp"))
    root.chmod(0o1777)  # as /tmp is
    slicer.directory = root
    yield slicer
    slicer.directory = inner
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def alice() -> Iterator[User]:
    """With a manager of her own, as bob has."""
    yield from lingering("alice")


@pytest.fixture(scope="module")
def bob() -> Iterator[User]:
    yield from lingering("bob")
