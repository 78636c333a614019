"""Fixtures for tests of the preloaded library: ``pytest_plugins = ["tests.process.share_fixtures"]``.

PYTEST_DONT_REWRITE: other plugins import from here, and it asserts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_cuda import FakeCuda
from tests.fake_cuda.clients import build
from tests.fake_nvml import FakeNvml
from tests.process.share_box import ShareBox, build_library, needs_compiler

pytest_plugins = ["tests.fake_cuda", "tests.fake_nvml"]


@pytest.fixture(scope="session")
def share_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library as it is shipped."""
    needs_compiler()
    return build_library(tmp_path_factory.mktemp("share"))


@pytest.fixture(scope="session")
def faulty_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library with the points at which tests kill and stop it."""
    needs_compiler()
    return build_library(tmp_path_factory.mktemp("share-faults"), "-DSLICER_SHARE_FAULTS")


@pytest.fixture(scope="session")
def cuda_clients(tmp_path_factory: pytest.TempPathFactory, fake_cuda_library: Path) -> Path:
    return build(tmp_path_factory.mktemp("clients"), fake_cuda_library)


@pytest.fixture
def shared_gpus(fake_cuda_library: Path, fake_nvml_library: Path, fake_nvml: FakeNvml, tmp_path: Path) -> FakeCuda:
    """The GPUs of the fake NVML, as the fake CUDA driver shows them."""
    fake = FakeCuda(fake_cuda_library, tmp_path, fake_nvml.state)
    fake.more_libraries.append(fake_nvml_library)
    return fake


@pytest.fixture
def share(shared_gpus: FakeCuda, cuda_clients: Path, share_library: Path, tmp_path: Path) -> Iterator[ShareBox]:
    """The library as it is shipped, over two fake GPUs."""
    box = ShareBox(tmp_path, shared_gpus, cuda_clients, share_library)
    yield box
    box.close()


@pytest.fixture
def faulty(shared_gpus: FakeCuda, cuda_clients: Path, faulty_library: Path, tmp_path: Path) -> Iterator[ShareBox]:
    """The same with the points of faults."""
    box = ShareBox(tmp_path, shared_gpus, cuda_clients, faulty_library)
    yield box
    box.close()
