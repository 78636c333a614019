"""What ``slicer run`` says to who gets no GPU without having said so."""

from __future__ import annotations

from pathlib import Path

import pytest

from slicer import gpu
from slicer.kernel import SYSROOT
from tests.unit.program import Cli

pytest_plugins = ["tests.unit.program"]


SIMULATED = {"SLICER_SIM": "2x24G"}
NO_GPU = "slicer: no GPU for this job; --gpus 1 takes one (said once a boot)\n"


def run(cli: Cli, *options: str, **env: str) -> str:
    return cli.run("run", "--backend", "plain", *options, "--", "true", env=env).stderr


def test_a_job_that_got_no_gpu_by_default_is_told_once(cli: Cli) -> None:  # W2
    """Never to who asked for quiet, and nobody's silence takes it from who did not."""
    assert NO_GPU not in run(cli, "-q", **SIMULATED)
    assert NO_GPU in run(cli, **SIMULATED)
    assert NO_GPU not in run(cli, **SIMULATED)


@pytest.mark.parametrize(
    ("options", "env"),
    [
        ((), {}),  # there are no GPUs
        (("-p", "light"), SIMULATED),
        (("--gpus", "0"), SIMULATED),
        (("--gpus", "1"), SIMULATED),
        ((), {**SIMULATED, "SLICER_SKIP_GPU_LOCK": "1"}),  # it sees all of them
    ],
)
def test_who_chose_or_has_gpus_is_not_told(cli: Cli, options: tuple[str, ...], env: dict[str, str]) -> None:
    assert NO_GPU not in run(cli, *options, **env)  # W2


def test_a_file_that_gives_gpus_by_default_needs_no_hint(cli: Cli) -> None:  # W2
    file = cli.root / "config.toml"
    file.write_text('default_profile = "gpu"\n')
    assert NO_GPU not in run(cli, **SIMULATED, SLICER_CONFIG=str(file))


def test_a_machine_with_a_driver_has_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # W2
    monkeypatch.setenv(SYSROOT, str(tmp_path))
    assert not gpu.has_nvidia()
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").touch()
    assert gpu.has_nvidia()
