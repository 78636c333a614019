"""``--gpu`` inside another job: it means the GPUs that it names, whatever the job around holds."""

from __future__ import annotations

import pytest

from tests.patience import LONGEST_S, until
from tests.process.harness import SLICER, Box, Gate
from tests.process.test_api import run
from tests.process.test_run_gpus import GPU_A, GPU_B, SHOW

pytest_plugins = ["tests.fake_nvml"]


# A3
@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("word", ["0", GPU_A])
@pytest.mark.parametrize("outer", [("--gpu", "0"), ("--gpus", "2")])
def test_a_gpu_that_the_job_around_holds_may_be_named(box: Box, outer: tuple[str, ...], word: str) -> None:
    done = box.run("-q", *outer, "--", "inner", "--gpu", word, "--no-wait", "--", *SHOW)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split()[0] == (GPU_A if outer[0] == "--gpu" else f"{GPU_A},{GPU_B}")
    box.assert_clean()


# A3: it would run on a GPU that it did not ask for
@pytest.mark.usefixtures("gpus")
def test_a_gpu_that_the_job_around_does_not_hold_is_refused(box: Box) -> None:
    done = box.run("-q", "--gpu", "0", "--", "inner", "--gpu", "1", "--", *SHOW)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "slicer: --gpu: the outer job holds none of these "
        f"(it has {GPU_A}; ask for the others in the outer job)\n"
    )
    box.assert_clean()


# A3
@pytest.mark.usefixtures("gpus")
def test_more_memory_than_the_job_around_has_is_taken_from_the_gpu_that_is_named(box: Box) -> None:
    outer, inner = ("--gpu", "0", "--vram", "8G"), ("--gpu", "0", "--vram", "16G")
    done = box.run("-q", *outer, "--", "inner", *inner, "--no-wait", "--", *SHOW)
    assert (done.returncode, done.stdout.split()[:1]) == (0, [GPU_A]), done
    done = box.run("-q", *outer, "--", "inner", "--gpu", "0", "--", *SHOW)  # the whole of it: never
    assert done.returncode == 75
    assert "would wait for ever" in done.stderr
    box.assert_clean()


# A3, A4
@pytest.mark.parametrize("variable", ["SLICER_SKIP_GPU_LOCK", "PSRUN_SKIP_GPU_LOCK", "GPU_LOCK_HELD"])
def test_the_escape_hatch_needs_no_driver_though_a_gpu_is_named(box: Box, variable: str) -> None:
    done = box.run("-q", "--gpu", "0", "--", "true", env={variable: "1"})
    assert (done.returncode, done.stderr) == (0, "")
    box.assert_clean()


# A3, K2: the variable is slicer's own
@pytest.mark.usefixtures("gpus")
def test_a_job_detached_from_a_program_with_a_lease_takes_a_gpu_of_its_own(box: Box, gate: Gate) -> None:
    options = ("--backend", "plain", "-q", "-d", "--gpus", "1")
    detached = (*SLICER, "run", *options, "--", "sh", "-c", f"read x <{gate.path}")
    program = f"""
        import subprocess
        with slicer.acquire("outer", gpus=1) as lease:
            os.environ.update(lease.env)
            subprocess.run({detached!r}, check=True, stdout=subprocess.DEVNULL)
            leases = os.path.join(os.environ["SLICER_STATE_DIR"], "leases")
            print([open(os.path.join(leases, job)).read().count("GPUS=GPU-") for job in os.listdir(leases)])
    """
    assert run(box, program) == "[1, 1]\n"
    (lease,) = box.snapshot().leases
    assert lease.gpus == (GPU_B,)
    gate.open()
    until(lambda: not box.snapshot().leases, "it ends")
    box.assert_clean()


# A3, K2
@pytest.mark.usefixtures("gpus")
def test_what_outlives_a_lease_claims_nothing_by_its_variables(box: Box, gate: Gate) -> None:
    holder = box.hold(gate, "--gpus", "2")
    over = {"SLICER_LEASE": "0123456789ab", "GPU_LOCK_HELD": "1"}
    assert box.run("-q", "--gpus", "1", "--no-wait", "--", "true", env=over).returncode == 75
    gate.open()
    assert holder.process.wait(LONGEST_S) == 0
    box.assert_clean()
