"""Fixtures for tests of the preloaded library: ``pytest_plugins = ["tests.process.share_fixtures"]``.

PYTEST_DONT_REWRITE: other plugins import from here, and it asserts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.built import Built
from tests.fake_cuda import FakeCuda
from tests.fake_cuda import build as build_driver
from tests.fake_cuda.clients import build as build_clients
from tests.fake_nvml import FakeNvml
from tests.process.share_box import (
    FAULTS,
    LIBRARY,
    ShareBox,
    build_library,
    build_pool,
    shipped_library,
)

pytest_plugins = ["tests.fake_nvml"]


Variant = Callable[..., Path]


@pytest.fixture(scope="session")
def build_variant(built: Built) -> Variant:
    """Compiles the library with more flags: ``build_variant(name, *flags)``."""

    def build(name: str, *flags: str) -> Path:
        pool = built("pool", build_pool) / "pool.o"
        return built(name, lambda to: build_library(to, pool, *flags)) / LIBRARY

    return build


@pytest.fixture(scope="session")
def share_library(build_variant: Variant) -> Path:
    """The library as it is shipped."""
    return shipped_library() or build_variant("share")


@pytest.fixture(scope="session")
def faulty_library(build_variant: Variant) -> Path:
    """The library with the points at which tests kill and stop it."""
    return build_variant("faults", FAULTS)


@pytest.fixture(scope="session")
def shared_driver(built: Built) -> Path:
    return built("cuda", build_driver)


@pytest.fixture(scope="session")
def cuda_clients(built: Built, shared_driver: Path) -> Path:
    return built("clients", lambda to: build_clients(to, shared_driver))


@pytest.fixture
def shared_gpus(
    shared_driver: Path, fake_nvml_library: Path, fake_nvml: FakeNvml, tmp_path: Path
) -> FakeCuda:
    """The GPUs of the fake NVML, as the fake CUDA driver shows them."""
    fake = FakeCuda(shared_driver, tmp_path, fake_nvml.state)
    fake.more_libraries.append(fake_nvml_library)
    return fake


@pytest.fixture
def share(
    shared_gpus: FakeCuda, cuda_clients: Path, share_library: Path, tmp_path: Path
) -> Iterator[ShareBox]:
    """The library as it is shipped, over two fake GPUs."""
    with closing(ShareBox(tmp_path, shared_gpus, cuda_clients, share_library)) as box:
        yield box


@pytest.fixture
def faulty(
    shared_gpus: FakeCuda, cuda_clients: Path, faulty_library: Path, tmp_path: Path
) -> Iterator[ShareBox]:
    """The same with the points of faults."""
    with closing(ShareBox(tmp_path, shared_gpus, cuda_clients, faulty_library)) as box:
        yield box
