"""``slicer status`` as a command, with jobs that run and wait."""

from __future__ import annotations

import os
import pty
import pwd
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from slicer.gpu.snapshot import GpuSnapshot
from slicer.ledger.status import StatusReader
from slicer.model import Gpu, GpuLoad, GpuMemory, OutOfService, Standing
from slicer.record import replace
from tests.fake_nvml import TWO_GPUS, FakeNvml
from tests.unit.cli.made_up_status import (
    GPUS,
)
from tests.unit.program import Cli

pytest_plugins = ["tests.unit.program", "tests.fake_nvml"]


def test_jobs_that_run_and_wait(cli: Cli, fake_nvml: FakeNvml) -> None:  # B2, B3
    cli.environ |= fake_nvml.env
    gpu = cli.running("--gpus", "1", "--name", "train", "--expect", "1h")
    heavy = cli.running("-p", "heavy")
    light = cli.running("-p", "light", "--name", "small")
    ticket = cli.waiting("-p", "heavy", "--name", "next")
    found = cli.json("status")
    jobs = {job["job"]: job for job in found["jobs"]}
    assert set(jobs) == {gpu.job, heavy.job, light.job}
    assert [held["index"] for held in jobs[gpu.job]["gpus"]] == [0]
    assert 3500 < jobs[gpu.job]["expected_remaining"] < 3600
    assert (jobs[gpu.job]["name"], jobs[gpu.job]["pid"]) == ("train", gpu.pid)
    assert (jobs[heavy.job]["name"], jobs[heavy.job]["cpu_slots"]) == ("sleep 1000", 1)
    assert jobs[light.job]["gpus"] == []
    assert jobs[light.job]["cpu_slots"] == 0
    (waiting,) = found["waiting"]
    assert (waiting["job"], waiting["cpu_slots"], waiting["starts_in"]) == (ticket.job, 1, None)
    assert waiting["why"]["holders"] == [heavy.job]
    assert (found["gpus"]["total"], [free["index"] for free in found["gpus"]["free"]]) == (2, [1])
    assert found["cpu_slots"] == {"total": 1, "free": 0}
    shown = cli.run("status").stdout
    train = rf"^{gpu.job}  train  running  GPU 0       \S+ +\d+s +(59m\d+s|1h)  {gpu.pid}$"
    assert re.search(train, shown, re.M), shown
    assert f"\n  no scope: sleep 1000\n{light.job}" in shown
    assert f"\n  held by {heavy.job} - sleep 1000\n" in shown
    assert "\nGPUs: 1 of 2 free " in shown
    assert f"\n  train ({pwd.getpwuid(os.getuid()).pw_name}) 0\n" in shown


def test_the_memory_of_jobs_and_of_others(cli: Cli, fake_nvml: FakeNvml) -> None:  # B3, X2
    cli.environ |= fake_nvml.env
    job = cli.running("--vram", "8G", "--name", "serve")
    fake_nvml.add(f"process 0 {job.keeper} 5000 compute", f"process 1 {os.getpid()} 3000 compute")
    first, second = cli.json("status")["gpus"]["all"]
    assert (first["used_mib"], first["reserved_mib"], first["free_mib"]) == (5000, 8192, 81559 - 8192)
    assert (first["jobs"], first["foreign"], first["idle"]) == ([job.job], [], False)
    assert [(one["pid"], one["used_mib"]) for one in second["foreign"]] == [(os.getpid(), 3000)]
    assert (second["reserved_mib"], second["idle"]) == (3300, False)
    fake_nvml.write(TWO_GPUS)  # else the job's end waits for its memory to be given back


def test_a_broken_configuration_is_said_and_stops_nothing(cli: Cli) -> None:
    lease = cli.running("--name", "x")
    config = Path(cli.environ["XDG_CONFIG_HOME"], "slicer", "config.toml")
    config.parent.mkdir(parents=True)
    config.write_text("slots = 3\n")
    done = cli.run("status")
    assert str(config) in done.stderr
    assert done.stderr.count("\n") == 1
    assert lease.job in done.stdout
    assert "CPU slots: unknown" in done.stdout


def test_a_driver_that_fails_is_said_and_stops_nothing(cli: Cli, fake_nvml: FakeNvml) -> None:
    cli.environ |= fake_nvml.env
    cli.running("--gpus", "1", "--name", "x")
    fake_nvml.add("error nvmlDeviceGetComputeRunningProcesses 999")
    done = cli.run("status")
    assert done.stderr.startswith("slicer: the use of the GPUs is unknown: ")
    assert done.stderr.count("\n") == 1
    assert re.search(r"^0 .* - of 79.6G +-.*  H100 80GB HBM3\n  x \(\w+\) -$", done.stdout, re.M), done.stdout


def test_whoever_looks_again_sees_a_driver_and_a_ledger_that_came_back(
    cli: Cli, fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {**cli.environ, "SLICER_STATE_DIR": str(cli.state)}
    for name, value in fake_nvml.env.items():
        monkeypatch.setenv(name, value)
    states_of = fake_nvml.state.read_text()
    said: list[str] = []
    monkeypatch.setattr("slicer.gpu.open_gpus", lambda: _Gpus(fake_nvml, states_of))
    reader = StatusReader(environ)
    assert reader.read(said.append).directory == ""
    lease = cli.running("-p", "heavy")
    assert [each.job for each in reader.read(said.append).leases] == [lease.job]
    fake_nvml.write("broken")
    assert reader.read(said.append).gpus[0].device is None
    assert len(said) == 1
    fake_nvml.write(states_of)
    assert reader.read(said.append).gpus[0].device is not None
    assert len(said) == 1
    reader.close()
    reader.close()


class _Gpus:
    """GPUs whose driver fails while the state is not what it was."""

    def __init__(self, fake: FakeNvml, right: str) -> None:
        self._fake, self._right = fake, right

    def list(self) -> tuple[Gpu, ...]:
        return GPUS

    def notes(self) -> tuple[str, ...]:
        return ()

    def memory(self, only: object = ()) -> tuple[GpuMemory, ...]:
        from slicer.errors import GpuError

        if self._fake.state.read_text() != self._right:
            raise GpuError("the driver is away")
        return tuple(GpuMemory(gpu.uuid, gpu.memory_mib, 0) for gpu in GPUS)

    def processes(self, only: object = ()) -> tuple[()]:
        return ()

    def load(self, only: object = ()) -> dict[str, GpuLoad]:
        return {}

    def close(self) -> None:
        pass


# U19: what root has taken out, and what only root may read
def test_what_the_broker_knows_of_gpus_out_of_service_is_shown(
    cli: Cli, fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (gpu.uuid for gpu in GPUS[:2])
    by_hand = OutOfService(second, "fell off the bus", 1.7e9)
    standing = Standing((), (), {}, (), (), {}, out_of_service=(by_hand,))
    memory = tuple(GpuMemory(gpu.uuid, gpu.memory_mib, 0, None) for gpu in GPUS)
    root = (replace(memory[0], fault="Xid 79"), *memory[1:])
    told = SimpleNamespace(snapshot=lambda only: GpuSnapshot(root, ()), close=lambda: None)
    driver = _Gpus(fake_nvml, fake_nvml.state.read_text())
    monkeypatch.setattr(driver, "memory", lambda only=(): memory)
    monkeypatch.setattr("slicer.gpu.open_gpus", lambda: driver)
    reader = StatusReader({**cli.environ, "SLICER_STATE_DIR": str(cli.state)}, lambda: standing, lambda: told)
    out = {state.gpu.uuid: state.out for state in reader.read(lambda _: None).gpus}
    assert (out.pop(first), out.pop(second), {*out.values()}) == ("Xid 79", by_hand.words, {""})
    reader.close()


# -- on a terminal ------------------------------------------------------------------------------------------


def on_terminal(cli: Cli, *arguments: str, columns: int = 80) -> str:
    """What a terminal of that width is sent."""
    outer, inner = pty.openpty()
    env = {"TERM": "xterm-256color", "COLUMNS": str(columns)}
    with cli.popen(*arguments, env=env, stdin=inner, stdout=inner, stderr=subprocess.PIPE) as process:
        os.close(inner)
        sent = b""
        try:
            while data := os.read(outer, 65536):
                sent += data
        except OSError:  # EIO: the other side is closed
            pass
        os.close(outer)
    assert process.returncode == 0
    return sent.decode().replace("\r\n", "\n")


def test_a_terminal_gets_style_and_no_line_too_long(cli: Cli) -> None:
    cli.running("-p", "heavy", "--name", "n" * 60, command=("sh", "-c", f"sleep 1000; echo {'x' * 100}"))
    sent = on_terminal(cli, "status")
    assert "\x1b[1mJOBS 1 " in sent  # bold
    plain = re.sub(r"\x1b\[[0-9;]*m", "", sent)
    assert max(map(len, plain.splitlines())) <= 80, plain
    assert "…\n" in plain  # the command is cut, and it shows
    assert "\x1b" not in cli.run("status").stdout


@pytest.mark.parametrize(("locale", "drawn"), [("C.UTF-8", True), ("C", False)])
def test_what_the_locale_lacks_is_not_drawn(cli: Cli, fake_nvml: FakeNvml, locale: str, drawn: bool) -> None:
    cli.environ |= {**fake_nvml.env, "LC_ALL": locale}
    cli.running("-p", "heavy", "--name", "n" * 60)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(cli, "status"))
    assert plain.isascii() is not drawn
    assert ("[░░░░░░]" if drawn else "[......]") in plain
    assert ("n…" if drawn else "n...") in plain
    assert cli.run("status").stdout.isascii()
