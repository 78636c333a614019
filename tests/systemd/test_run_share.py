"""Jobs that share a GPU, in real scopes: who writes down what was counted, and what is left of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slicer.outcome import history
from tests.built import Built
from tests.fake_cuda import FakeCuda
from tests.fake_cuda import clients as cuda_clients
from tests.fake_nvml import USE, FakeNvml
from tests.patience import until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.jobs import SYSTEM_HISTORY, Job, Slicer, configured

pytest_plugins = ["tests.systemd.helpers.fixtures", "tests.fake_nvml", "tests.fake_cuda"]
pytestmark = pytest.mark.systemd

SHARE = ("--vram", "8G", "--share", "both")
FILES = Path("/run/slicer/share")


@pytest.fixture(scope="module")
def client(built: Built, fake_cuda_library: Path) -> str:
    """A program that does with CUDA what its input says."""
    return str(built("clients", lambda to: cuda_clients.build(to, fake_cuda_library)) / "client")


@pytest.fixture
def gpu_env(fake_nvml: FakeNvml, fake_cuda_library: Path, tmp_path: Path) -> dict[str, str]:
    cuda = FakeCuda(fake_cuda_library, tmp_path, fake_nvml.state)
    paths = f"{fake_nvml.library}:{fake_cuda_library}"
    return {**fake_nvml.env, **cuda.env, "LD_LIBRARY_PATH": paths}


def files() -> set[str]:
    return {path.name for path in FILES.glob("????????????")}


def held(slicer: Slicer, client: str, env: dict[str, str], *options: str) -> tuple[Job, str]:
    """A job that has allocated 100 MiB and waits at a gate; and its id."""
    gate = slicer.gate()
    says = "printf 'init\\ncontext 0\\nalloc linear 100\\n'"
    job = slicer.start(*options, "--", "sh", "-c", f"{{ {says}; : <{gate}; }} | {client} dlsym", env=env)
    lease = job.lease()
    until(lambda: job.stdout.count("\n") == 3, f"it has allocated: {job.stdout} {job.stderr}")
    return job, lease.job


@pytest.mark.parametrize("killed", ["slicer", "keeper", "scope"])
def test_what_was_counted_survives_whoever_is_killed(
    slicer: Slicer, client: str, gpu_env: dict[str, str], killed: str
) -> None:  # D1
    job, job_id = held(slicer, client, gpu_env, *SHARE)
    assert files() == {job_id}
    lease = job.lease()
    if killed == "slicer":
        job.kill()
        systemctl.output("systemctl", "stop", lease.unit)
    elif killed == "keeper":
        os.kill(lease.keeper, 9)
    else:
        systemctl.output("systemctl", "kill", "--signal=KILL", lease.unit)
    job.end()
    (found,) = until(lambda: history.read(SYSTEM_HISTORY, job=job_id), "the outcome is written")
    assert found.sharing is not None
    assert (found.sharing.processes, found.sharing.peak_mib) == (1, (100,))
    until(lambda: not files(), "its file is gone")


def test_what_a_command_leaves_that_slicer_became_is_swept(slicer: Slicer, gpu_env: dict[str, str]) -> None:
    gate = slicer.gate()
    script = f'echo "$SLICER_SHARE_FILE"; : <{gate}'
    job = slicer.start(*SHARE, "--exec", "--", "sh", "-c", script, env=gpu_env)
    job_id = job.lease().job
    job.said(f"{FILES}/{job_id}")
    assert slicer.run(*SHARE, "--", "true", env=gpu_env).code == 0
    assert files() == {job_id}  # it lives, though nobody looks after it
    gate.open()
    assert job.end().code == 0
    assert slicer.run(*SHARE, "--", "true", env=gpu_env).code == 0
    assert files() == set()


def test_a_job_that_gets_past_its_cap_is_ended(
    slicer: Slicer, gpu_env: dict[str, str], tmp_path: Path
) -> None:  # X7
    gate = slicer.gate()
    text = '[profiles.x]\ninherits = "gpu"\nvram = "1G"\nshare = "cap"\nover_cap = "end"\n'
    env = {**gpu_env, **configured(tmp_path, text)}
    job = slicer.start("-p", "x", "--", "sh", "-c", f"{USE}use 0 9000; : <{gate}", env=env)
    done = job.end()
    assert "it got past the library, and is ended" in done.stderr
    found = slicer.outcome_of(done)
    assert (found.reason, found.ended_by) == ("stopped", "slicer cap")
