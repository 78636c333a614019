"""What takes long to make is made once for all processes of a test run; ``built`` is the fixture for it.

PYTEST_DONT_REWRITE: other plugins import from here, and it asserts nothing.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.shield import SHARED

Built = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def built() -> Built:
    """As :func:`make_once`, for what takes a C compiler."""

    def make(name: str, do_make: Callable[[Path], object]) -> Path:
        need_compiler()
        return make_once(name, do_make)

    return make


def make_once(name: str, make: Callable[[Path], object]) -> Path:
    """A directory in which ``make`` has made something, unless another process has."""
    root = Path(os.environ[SHARED])
    directory = root / f"built-{name}"
    with (root / f"lock-{name}").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not (directory / "done").exists():
            directory.mkdir(exist_ok=True)
            make(directory)
            (directory / "done").touch()
    return directory


def need_compiler() -> None:
    """Skip a test where there is no compiler; fail under CI."""
    if shutil.which(os.environ.get("CC", "cc")) is None:
        if os.environ.get("CI"):
            pytest.fail("no C compiler")
        pytest.skip("no C compiler")
