"""``python -m bench.sharing`` and ``python -m bench.gpu`` over a fake driver: all of it but figures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slicer.share.program import library_path
from tests.fake_cuda import FakeCuda
from tests.fake_nvml import FakeNvml
from tests.patience import LONGEST_S, until
from tests.process.harness import SRC, Box

pytest_plugins = ["tests.fake_nvml", "tests.fake_cuda"]

ROOT = Path(__file__).parents[2]
SHORT = ("--backend", "plain", "--duration", "100ms", "--warmup", "20ms")


@pytest.fixture
def bench(box: Box, gpus: FakeNvml, fake_cuda_library: Path, tmp_path: Path) -> Iterator[Box]:
    """A box whose GPUs compute, as far as one can see."""
    if not Path(library_path()).exists() and not os.environ.get("CI"):
        pytest.skip("the library was not built; see CONTRIBUTING.md")
    cuda = FakeCuda(fake_cuda_library, tmp_path, gpus.state)
    path = f"{fake_cuda_library}:{gpus.env['LD_LIBRARY_PATH']}"
    box.env |= {**cuda.env, "LD_LIBRARY_PATH": path, "FAKE_CUDA_SERIAL": "1", "FAKE_CUDA_LOG": ""}
    yield box
    box.assert_clean()


def start(box: Box, *options: str) -> subprocess.Popen[bytes]:
    command = [*box.prefix, sys.executable, "-m", "bench.sharing", *SHORT, *options]
    environ = {**box.env, "PYTHONPATH": f"{SRC}:{ROOT}"}
    process = subprocess.Popen(
        command, env=environ, cwd=box.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    box.adopt(process)
    return process


def test_all_jobs_are_run_and_measured_and_what_they_shared_is_told(bench: Box) -> None:  # D4
    process = start(bench, "--repeats", "1", "--modes", "skip=2", "--json", "--output", "out")
    out, err = process.communicate(timeout=LONGEST_S)  # six scenarios
    assert process.returncode == 0, err
    assert b"a fake driver, so these figures are of no GPU" in err
    found = json.loads(out)
    assert found["is_fake"] is True
    assert found["is_complete"] is True
    rows = {row["name"]: row for row in found["scenarios"]}
    assert list(rows) == ["alone", "alone, with lock", "unmanaged", "skip=2"]
    for row in rows.values():
        assert row["latency"]["samples"] > 0
        assert row["batch"]["per_s"] > 0
        assert (row["errors"], row["troubles"]) == ([], [])
    assert rows["unmanaged"]["turns"] is None
    assert rows["skip=2"]["turns"] > 1
    runs = [json.loads(line) for line in (bench.root / "out" / "runs.jsonl").read_text().splitlines()]
    told = runs[-1]["latency"]["sharing"]
    assert told["processes"] == 1
    assert told["gated"] >= 22 * runs[-1]["latency"]["due"] / 2  # a copy each way, and 20 kernels a request


def test_ctrl_c_ends_the_jobs_and_shows_what_was_measured(bench: Box) -> None:  # D4
    process = start(bench, "--repeats", "50", "--modes", "")
    until(lambda: any(lease.name == "bench-batch" for lease in bench.leases()), "the second job runs")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 130, err
    assert b"interrupted: this is what was measured" in err
    row = next(line for line in out.decode().splitlines() if line.startswith("| alone")).split()
    assert float(row[3]) > 0
    assert "No verdict" in out.decode()


def test_where_there_is_no_driver_that_is_said(bench: Box, gpus: FakeNvml) -> None:  # D4, D5
    bench.env.update(gpus.env)
    process = start(bench)
    out, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 125, err
    assert out == b""
    assert b"the calibrate job: there is no CUDA driver here" in err


def checked(bench: Box, *options: str) -> dict[str, Any]:
    """What ``python -m bench.gpu`` found."""
    command = [*bench.prefix, sys.executable, "-m", "bench.gpu", "--brief", "--backend", "plain"]
    done = subprocess.run(
        [*command, "--out", str(bench.root / "gpu"), *options], cwd=ROOT, timeout=LONGEST_S, text=True,
        env={**bench.env, "PYTHONPATH": f"{SRC}:{ROOT}"}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((bench.root / "gpu" / "results.json").read_text())
    assert "FAKE DRIVER: nothing here was measured on a GPU." in done.stdout
    return found["checks"]


def test_the_checks_for_a_gpu_work_up_to_the_hardware(bench: Box) -> None:  # D1, D5, X7
    found = checked(bench, "--only", "counts,cap-malloc,graph,native,triton")
    states = {name: each["state"] for name, each in found.items()}
    assert states.pop("triton") == "skip"
    assert states == dict.fromkeys(("counts", "cap-malloc", "graph", "native"), "pass")
