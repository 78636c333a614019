"""A GPU that the driver gives up, or the administrator: over NVML (a fake library with the real pynvml)."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slicer.kernel import SYSROOT
from slicer.outcome.outcome_file import outcome_from
from tests.fake_nvml import FakeNvml
from tests.patience import until
from tests.process.harness import SLICER, Box

pytest_plugins = ["tests.fake_nvml"]

GPU_A = "GPU-00000000-0000-0000-0000-000000000000"
GPU_B = "GPU-11111111-1111-1111-1111-111111111111"
SHOW = ("sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES"')
RESET = "the driver asks for a reset"
GIVES_UP = 'echo "recovery {} 1" >>"$FAKE_NVML_STATE"'


def status(box: Box, *options: str) -> str:
    command = [*box.prefix, *SLICER, "status", *options]
    done = subprocess.run(command, env=box.env, cwd=box.root, capture_output=True, text=True, check=True)
    return done.stdout


# U19: it gets no job; who waits for it says why, and has it once the driver takes its word back
def test_a_gpu_that_the_driver_gives_up_gets_no_job(box: Box, gpus: FakeNvml) -> None:
    gpus.add("recovery 0 1")
    assert box.run("-q", "-p", "gpu", "--", *SHOW).stdout == f"{GPU_B}\n"
    busy = json.loads(box.run("-q", "--gpu", "0", "--no-wait", "--", *SHOW).stderr)
    assert (busy["error"], busy["policy"]) == ("gpu-busy", f"GPU 0 is out of service ({RESET})")
    process = box.start("--gpus", "2", "--", *SHOW)
    until(lambda: box.snapshot().tickets or process.poll() is not None, "it waits")
    assert f"out of service: {RESET}" in status(box)
    assert f"GPU 0 is out of service ({RESET})" in status(box)
    shown = json.loads(status(box, "--json"))
    assert [each["out_of_service"] for each in shown["gpus"]["all"]] == [RESET, None]
    assert [each["index"] for each in shown["gpus"]["free"]] == [1]
    gpus.remove("recovery 0 1")
    until(lambda: process.poll() is not None, "it has both")
    assert process.communicate()[0].decode() == f"{GPU_A},{GPU_B}\n"
    box.assert_clean()


# U19: without the driver's word
@pytest.mark.usefixtures("gpus")
def test_the_configuration_takes_a_gpu_out_of_service(box: Box) -> None:
    config = box.root / "config.toml"
    config.write_text('[gpu]\nout_of_service = ["GPU-0000"]\n')
    assert box.run("-q", "-p", "gpu", "--", *SHOW, env={"SLICER_CONFIG": str(config)}).stdout == f"{GPU_B}\n"
    box.assert_clean()


# U19: only a failure that nobody meant, on a GPU that the driver has given up
@pytest.mark.parametrize(
    ("script", "code", "by"), [("exit 3", 3, "gpu"), ("exit 0", 0, ""), ("kill -SEGV $$", 139, "gpu")]
)
def test_an_outcome_says_that_the_gpu_failed(
    box: Box, gpus: FakeNvml, script: str, code: int, by: str
) -> None:
    file = box.root / "outcome"
    done = box.run("-p", "gpu", "--outcome", str(file), "--", "sh", "-c", f"{GIVES_UP.format(0)}; {script}")
    assert done.returncode == code
    assert (f"GPU 0 failed: {RESET}" in done.stderr) == bool(by)
    assert [each.ended_by for each in box.outcomes()] == [by]
    assert outcome_from(json.loads(file.read_text())).ended_by == by
    done = box.run("-p", "gpu", "--", "false")  # on the other GPU
    assert (done.returncode, "failed:" in done.stderr) == (1, False)
    box.assert_clean()


# U19: it runs again elsewhere for nothing, as often as its line lets it, and counts for no hold
def test_a_line_whose_gpu_failed_runs_again(box: Box, gpus: FakeNvml) -> None:
    one, other = (f"sh -c '{GIVES_UP.format(gpu)}; exit {gpu + 3}'" for gpu in (0, 1))
    (box.root / "jobs.txt").write_text(f"[gpus=1 retry=gpu:0] {one}\n[gpus=1] {other}\n[gpus=1] sh c\n")
    command = [*box.prefix, *SLICER, "queue", "jobs.txt", "--backend", "plain", "--json", "-j", "1"]
    queue = subprocess.Popen(
        [*command, "--hold-back", "1/1m"], env=box.env, cwd=box.root, stdout=subprocess.PIPE
    )
    box.adopt(queue)
    assert queue.stdout is not None
    said: list[dict[str, Any]] = []
    while not said or said[-1]["event"] != "retry":
        said.append(json.loads(queue.stdout.readline()))
    ends = [(each["event"], each["job"]["reason"]) for each in said if each["event"] in ("finished", "retry")]
    assert ends == [("finished", "gpu"), ("retry", "gpu")]
    assert (said[-1]["again_in_s"], said[-1]["attempt"], said[-1]["attempts"]) == (30, 1, 4)
    queue.send_signal(signal.SIGINT)
    rest = [json.loads(line) for line in queue.stdout]
    assert {"held-back", "started"}.isdisjoint(each["event"] for each in rest)  # no GPU is left for the third
    assert queue.wait() == 130
    box.assert_clean()


FELL = "4,1,1,-;NVRM: Xid (PCI:0000:0{}:00): 79, pid=4711, name=python, GPU has fallen off the bus."


# U19: where the driver has no word for it; it is back by root's. What the driver says wins
def test_a_fatal_error_in_the_kernels_log_counts_like_the_drivers_word(box: Box, gpus: FakeNvml) -> None:
    assert box.run("-q", "-p", "gpu", "--", *SHOW).stdout == f"{GPU_A}\n"
    log = Path(box.env[SYSROOT], "dev/kmsg")
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(FELL.format(1) + "\n")
    assert box.run("-q", "-p", "gpu", "--", *SHOW).stdout == f"{GPU_A}\n"
    gpus.add("no-recovery")
    assert box.run("-q", "-p", "gpu", "--", *SHOW).stdout == f"{GPU_B}\n"
    assert "Xid 79 in the kernel's log; after a reset, slicer reserve --remove GPU-00000000" in status(box)
    done = box.run("-p", "gpu", "--", "sh", "-c", f'echo "{FELL.format(2)}" >>{log}; exit 3')
    assert [each.ended_by for each in box.outcomes() if each.exit_code == 3] == ["gpu"]
    assert "GPU 1 failed: Xid 79 in the kernel's log\n" in done.stderr
    remove = [*box.prefix, *SLICER, "reserve", "--remove"]
    for word, code in (("GPU-", 2), ("1", 0), ("1", 125), ("GPU-0000", 0)):
        assert subprocess.run([*remove, word], env=box.env, check=False).returncode == code, word
    assert "Xid" not in status(box)
    assert box.run("-q", "-p", "gpu", "--", *SHOW).stdout == f"{GPU_A}\n"
    box.assert_clean()
