"""The fixture ``built``: what takes a compiler is made once for all worker processes of a test run.

PYTEST_DONT_REWRITE: other plugins import from here, and it asserts nothing.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

Built = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Makes something in a directory, unless a worker has made it, and returns the directory."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent

    def make_once(name: str, make: Callable[[Path], object]) -> Path:
        need_compiler()
        directory = root / f"built-{name}"
        with (root / f"lock-{name}").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not (directory / "done").exists():
                directory.mkdir(exist_ok=True)
                make(directory)
                (directory / "done").touch()
        return directory

    return make_once


def need_compiler() -> None:
    """Skip a test where there is no compiler; fail under CI."""
    if shutil.which(os.environ.get("CC", "cc")) is None:
        if os.environ.get("CI"):
            pytest.fail("no C compiler")
        pytest.skip("no C compiler")
