"""A job that does not use its GPU is told, and ended if its profile says so (U4); over a fake NVML."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fake_nvml import USE, FakeNvml
from tests.patience import until
from tests.process.harness import SLICER, Box, Gate
from tests.process.queue_box import QueueBox

pytest_plugins = ["tests.fake_nvml"]

CONFIG = """\
[profiles.warned]
inherits = "gpu"
idle_timeout = "1s"
vram = "1G"
[profiles.ended]
inherits = "warned"
on_idle = "stop"
"""
ENDED = 128 + signal.SIGTERM
NOT_SUPPORTED = 3


class Job:
    """A job on a GPU, that waits for its gate; what slicer says is in a file."""

    def __init__(self, box: Box, name: str, profile: str, *options: str, uses: str = ":") -> None:
        self._box = box
        self._err = box.root / f"{name}.err"
        self.gate = Gate(box.root / f"{name}.gate")
        script = f"{USE} use 0 512; {uses}; read x <{self.gate.path}"
        with self._err.open("wb") as err:
            self.process = box.start(
                "--name", name, "-p", profile, "--gpu", "0", *options, "--", "sh", "-c", script, stderr=err
            )
        self.name = name
        until(lambda: self._peak() >= (512,) or self.process.poll() is not None, f"{name} uses its GPU")
        assert self.process.poll() is None, self.said()

    def _peak(self) -> tuple[int, ...]:
        return next((each.vram_peak_mib for each in self._box.leases() if each.name == self.name), ())

    @property
    def is_idle(self) -> bool:
        return any(each.idle_since_s is not None for each in self._box.leases() if each.name == self.name)

    def said(self) -> str:
        return self._err.read_text()

    def until_said(self, words: str) -> None:
        until(lambda: words in self.said(), f"{words!r} in {self.said()!r}")

    def end(self) -> int:
        self.gate.open()
        return self.process.wait()


# The job's shell uses the GPU in each sample of the driver.
BUSY = 'read own rest </proc/self/stat; echo "busy 0 $own 40" >>"$FAKE_NVML_STATE"'


@pytest.fixture
def idle(box: Box, gpus: FakeNvml) -> Box:
    path = box.root / "config.toml"
    path.write_text(CONFIG)
    box.env["SLICER_CONFIG"] = str(path)
    return box


def slicer(box: Box, *words: str) -> str:
    done = subprocess.run([*SLICER, *words], env=box.env, capture_output=True, text=True, check=True)
    return done.stdout


def test_only_the_job_that_does_not_use_its_gpu_is_told_and_ended(idle: Box, gpus: FakeNvml) -> None:  # U4
    works = Job(idle, "works", "ended", uses=BUSY)
    waits = Job(idle, "waits", "ended")
    waits.until_said("; it is ended in 1s, unless it does\n")
    assert waits.process.wait() == ENDED
    assert ", and is ended\n" in waits.said()
    assert "not used" not in works.said()
    (outcome,) = idle.outcomes()
    assert (outcome.reason, outcome.ended_by) == ("stopped", "slicer idle")
    assert "by slicer, because it did not use its GPU (idle_timeout)" in slicer(idle, "history", outcome.job)
    gpus.remove(*(line for line in gpus.state.read_text().splitlines() if line.startswith("busy")))
    assert works.process.wait() == ENDED


def test_a_warning_is_in_the_status_until_the_job_uses_its_gpu_again(idle: Box, gpus: FakeNvml) -> None:  # U4
    job = Job(idle, "train", "warned")
    job.until_said("slicer: train has not used its GPU for ")
    until(lambda: job.is_idle, "its lease says so")
    assert re.search(r" idle \d+s +1G of GPU 0 ", shown := slicer(idle, "status"))
    assert "has not used its GPU for" in shown
    (told,) = json.loads(slicer(idle, "status", "--json"))["jobs"]
    assert told["idle_for"] >= 1.0
    assert (told["idle_timeout"], told["idle_end"]) == (1.0, None)
    (line,) = (line for line in gpus.state.read_text().splitlines() if line.startswith("live"))
    gpus.add(f"busy 0 {line.split()[2]} 40")
    job.until_said("slicer: train uses its GPU again\n")
    assert not job.is_idle
    assert "idle" not in slicer(idle, "status")
    assert job.end() == 0


def test_more_memory_is_use(idle: Box) -> None:  # U4
    grows = "(i=0; while sleep 0.1; do i=$((i + 1)); use 0 $i; done) & own=$!"
    job = Job(idle, "grows", "warned", uses=grows)
    other = Job(idle, "waits", "ended")
    assert other.process.wait() == ENDED  # two periods have passed
    assert not job.is_idle
    assert job.end() == 0


def test_a_paused_job_is_neither_told_nor_ended(idle: Box) -> None:  # U4
    paused, clock = Job(idle, "paused", "ended", uses=BUSY), Job(idle, "clock", "ended")
    slicer(idle, "pause", "paused")
    state = Path(idle.env["FAKE_NVML_STATE"])
    kept = [line for line in state.read_text().splitlines() if not line.startswith("busy")]
    state.write_text("".join(f"{line}\n" for line in kept))
    assert clock.process.wait() == ENDED
    again = Job(idle, "again", "ended")
    assert again.process.wait() == ENDED
    assert "not used" not in paused.said()
    slicer(idle, "resume", "paused")
    assert paused.process.wait() == ENDED
    assert "not used its GPU" in paused.said()


def test_a_held_gpu_is_told_and_ended_too(idle: Box) -> None:  # U4
    command = [*SLICER, "hold", "-p", "ended", "--", "sleep", "1000"]
    done = subprocess.run(command, env=idle.env, capture_output=True, text=True, check=False)
    assert done.returncode == ENDED
    assert "s; it is ended in 1s, unless it does" in done.stderr


def test_where_the_driver_tells_only_of_the_gpu_that_counts(idle: Box, gpus: FakeNvml) -> None:  # U4
    gpus.add(f"error nvmlDeviceGetProcessUtilization {NOT_SUPPORTED}")
    waits = Job(idle, "waits", "ended")
    assert waits.process.wait() == ENDED  # nobody uses the GPU


def test_nobody_is_idle_where_the_driver_does_not_tell(idle: Box, gpus: FakeNvml) -> None:  # U4
    gpus.add(f"error nvmlDeviceGetProcessUtilization {NOT_SUPPORTED} 0")
    gpus.add(f"error nvmlDeviceGetUtilizationRates {NOT_SUPPORTED} 0")
    blind = Job(idle, "blind", "ended")
    blind.until_said("blind has an idle_timeout that has no effect: the driver does not report whether it")
    clock = subprocess.run(
        [*SLICER, "hold", "--gpu", "1", "-p", "whole", "--", "sleep", "1000"],
        env={**idle.env, "SLICER_CONFIG": str(whole(idle))}, capture_output=True, check=False,
    )  # fmt: skip
    assert clock.returncode == ENDED
    assert blind.said().count("no effect") == 1
    assert not blind.is_idle
    assert blind.end() == 0


def whole(box: Box) -> Path:
    path = box.root / "whole.toml"
    path.write_text('[profiles.whole]\ninherits = "gpu"\nidle_timeout = "1s"\non_idle = "stop"\n')
    return path


def test_the_user_is_notified(idle: Box) -> None:  # U3, U4
    told = idle.root / "told"
    told.mkdir()
    config = Path(idle.env["SLICER_CONFIG"])
    command = json.dumps(["sh", "-c", f"cat >{idle.root}/part.$$ && mv {idle.root}/part.$$ {told}/$$"])
    config.write_text(f'[notify]\non = ["idle"]\ncommand = {command}\n{CONFIG}')
    assert Job(idle, "waits", "ended").process.wait() == ENDED
    until(lambda: len(list(told.iterdir())) == 2, "the warning and the end were told")
    events = sorted((json.loads(each.read_text()) for each in told.iterdir()), key=lambda each: len(each))
    assert [each["event"] for each in events] == ["idle", "idle"]
    assert "it is ended in 1s, unless it does" in events[0]["text"]
    assert events[1]["exit_code"] == ENDED



def test_a_queue_tells_and_ends_its_idle_jobs(make_box: Callable[[int], Box]) -> None:  # U3, U4
    queues = QueueBox(make_box(4))
    config = queues.root / "config.toml"
    config.write_text(CONFIG)
    queues.box.env["SLICER_CONFIG"] = str(config)
    busy = "simjob --vram 512M --ramp 0 --utilisation 40 --hold 1000 & read x <go; kill $!"
    os.mkfifo(queues.root / "go")
    queues.write(f"[profile=ended] {busy}", "[profile=ended] hold waits")
    queue = queues.start()
    warned = queue.event("idle")
    assert warned["job"]["command"] == "hold waits"
    assert warned["text"].endswith("; it is ended in 1s, unless it does")
    assert (warned["idle_s"] >= 1, warned["left_s"]) == (True, 1)
    queue.event("finished")
    (queues.root / "go").write_text("go\n")
    assert queue.wait() == ENDED
    assert queues.statuses() == {busy: ("ok", 0), "hold waits": ("failed", ENDED)}
    told = [(each["job"]["command"], each["what"]) for each in queue.events("idle")]
    assert told == [("hold waits", "warned"), ("hold waits", "ends")]
