"""The job's scope: its place, its name, the limits it was given, and what systemctl can do with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slicer.backend import empty_scopes
from slicer.backend.systemd import SystemdBackend
from slicer.kernel import cgroup
from tests.patience import until
from tests.systemd.helpers import processes, systemctl
from tests.systemd.helpers.jobs import Slicer, configured
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd

PROFILE = """\
[profiles.limited]
slice = "cpu"
cpu_quota = "150%"
cpu_weight = 33
memory_high = "300M"
memory_max = "400M"
memory_swap_max = "0"
io_weight = 44
tasks_max = 123
allowed_cpus = "0"
timeout = "1h"
timeout_stop = "7s"
"""


@pytest.fixture
def config(tmp_path: Path) -> dict[str, str]:
    return configured(tmp_path, PROFILE)


@pytest.mark.core
@pytest.mark.parametrize("which", ["cpu", "gpu"])
def test_the_command_runs_in_a_transient_scope_of_its_slice(slicer: Slicer, which: str) -> None:  # K1
    gate = slicer.gate()
    (slicer.path("config.toml")).write_text(f'[profiles.plain]\nslice = "{which}"\n')
    job = slicer.hold(gate, "-p", "plain", env={"SLICER_CONFIG": str(slicer.path("config.toml"))})
    unit = job.lease().unit
    shown = systemctl.show(unit, "Slice", "Transient", "ActiveState", "ControlGroup")
    assert shown.pop("ControlGroup") == job.lease().cgroup
    assert shown == {"Slice": f"{which}.slice", "Transient": "yes", "ActiveState": "active"}
    assert processes.in_cgroup(job.lease().cgroup) >= {job.lease().keeper, job.command_pid()}
    assert job.pid not in processes.in_cgroup(job.lease().cgroup)
    gate.open()
    assert job.end().code == 0


@pytest.mark.core
def test_the_scope_has_every_limit_of_the_profile(slicer: Slicer, config: dict[str, str]) -> None:  # K1, K3
    gate = slicer.gate()
    job = slicer.hold(gate, "-p", "limited", "--set", "OOMPolicy=kill", env=config)
    wanted = {
        "CPUQuotaPerSecUSec": "1.500000s",
        "CPUWeight": "33",
        "MemoryHigh": str(300 << 20),
        "MemoryMax": str(400 << 20),
        "MemorySwapMax": "0",
        "IOWeight": "44",
        "TasksMax": "123",
        "AllowedCPUs": "0",
        "RuntimeMaxUSec": "1h",
        "TimeoutStopUSec": "7s",
        "OOMPolicy": "kill",
        "CollectMode": "inactive-or-failed",
    }
    assert systemctl.show(job.lease().unit, *wanted) == wanted
    gate.open()
    assert job.end().code == 0


def test_set_wins_over_the_profile(slicer: Slicer, config: dict[str, str]) -> None:  # K3
    gate = slicer.gate()
    options = ("-p", "limited", "--set", "MemoryMax=512M", "--set=CPUQuota=20%", "--timeout", "90s")
    job = slicer.hold(gate, *options, env=config)
    shown = systemctl.show(job.lease().unit, "MemoryMax", "CPUQuotaPerSecUSec", "RuntimeMaxUSec", "IOWeight")
    assert shown == {
        "MemoryMax": str(512 << 20),
        "CPUQuotaPerSecUSec": "200ms",
        "RuntimeMaxUSec": "1min 30s",
        "IOWeight": "44",
    }
    gate.open()
    assert job.end().code == 0


def test_the_name_and_the_command_are_where_systemd_shows_them(slicer: Slicer) -> None:  # K6
    gate = slicer.gate()
    job = slicer.hold(gate, "-p", "heavy", "--name", "nightly train")
    unit, path = job.lease().unit, str(gate)
    description = systemctl.show(unit, "Description")["Description"]
    assert description == "'nightly train' (1 CPU slot, profile heavy)"
    assert description in systemctl.output("systemctl", "list-units", "--full", "slicer-*.scope")
    assert unit in systemctl.output("systemctl", "status", "cpu.slice")
    tree = systemctl.output("systemd-cgls", "--full", "--unit", "cpu.slice")
    assert unit in tree
    assert path in tree  # the command line itself
    gate.open()
    assert job.end().code == 0


@pytest.mark.core
def test_a_job_that_does_nothing_and_holds_what_it_has_is_shown_as_such(slicer: Slicer) -> None:  # W16
    gate = slicer.gate()
    job = slicer.hold(gate, "-p", "heavy")
    unit, command = job.lease().unit, job.command_pid()

    def shown() -> str:
        return systemctl.output("slicer", "status")

    assert "stopped" not in shown()
    for halt, go_on, how in (
        (("kill", "-STOP", str(command)), ("kill", "-CONT", str(command)), "  stopped  1 CPU slot  "),
        (("systemctl", "freeze", unit), ("systemctl", "thaw", unit), "  frozen  1 CPU slot  "),
    ):
        systemctl.output(*halt)
        until(lambda how=how: how in shown(), how)
        systemctl.output(*go_on)
        until(lambda how=how: how not in shown(), "it goes on")
    gate.open()
    assert job.end().code == 0


SECRET = "--token=hunter2"


@pytest.mark.core
def test_a_command_line_is_for_its_owner(public_slicer: Slicer, alice: User) -> None:  # S10
    slicer = public_slicer
    tool = slicer.path("tool")
    tool.write_text("#!/bin/sh\necho up\n: < $1\n")
    tool.chmod(0o755)
    gate = slicer.gate()
    job = slicer.start("-p", "heavy", "--", str(tool), str(gate), SECRET)
    job.said("up")
    lease = job.lease()
    waiting = slicer.start("-p", "heavy", "--", str(tool), str(gate), SECRET)
    waiting.ticket()
    units = systemctl.output(*alice.via, "systemctl", "list-units", "--full", "slicer-*.scope")
    assert "tool (1 CPU slot, profile heavy)" in units
    assert SECRET not in units
    assert SECRET not in systemctl.output(*alice.via, "systemctl", "show", lease.unit)
    gate.open()
    assert job.end().code == 0
    gate.open()
    assert waiting.end().code == 0
    # What is handed on to syslog and consoles: the messages, systemd's own among them.
    systemctl.output("journalctl", "--sync")
    for args in ((f"SLICER_JOB={lease.job}",), ("-u", lease.unit), ("-t", "slicer")):
        told = systemctl.output("journalctl", "--output=cat", *args)
        assert told
        assert SECRET not in told
    started = systemctl.output("journalctl", "--output=cat", "-u", lease.unit)
    assert "tool (1 CPU slot, profile heavy)" in started


@pytest.mark.core
def test_systemctl_stop_ends_the_job(slicer: Slicer) -> None:  # K6
    job = slicer.hold(slicer.gate())
    systemctl.output("systemctl", "stop", job.lease().unit)
    done = job.end()
    assert done.code == 143
    assert "stopped" in done.stderr
    assert slicer.outcome_of(done).reason == "stopped"


def test_systemctl_stop_takes_with_it_what_ignores_sigterm(slicer: Slicer) -> None:  # K6
    gate = slicer.gate()
    script = f"trap '' TERM; echo up; : < {gate}"
    job = slicer.start("--set", "TimeoutStopSec=1s", "--", "sh", "-c", script)
    job.said("up")
    systemctl.output("systemctl", "stop", job.lease().unit)
    done = job.end()
    assert done.code == 137
    assert slicer.outcome_of(done).reason == "stopped"


@pytest.mark.core
@pytest.mark.enforced
def test_a_frozen_job_stands_still_and_goes_on_when_thawed(slicer: Slicer) -> None:  # K6, X6
    job = slicer.start("--", "sh", "-c", "while :; do echo tick; done >> ticks")
    unit, ticks = job.lease().unit, slicer.path("ticks")

    def grew_since(size: int) -> bool:
        return ticks.stat().st_size > size

    until(lambda: ticks.exists() and grew_since(0), "ticks")
    systemctl.output("systemctl", "freeze", unit)  # returns when the kernel reports it as frozen
    frozen_at = ticks.stat().st_size
    assert systemctl.show(unit, "FreezerState") == {"FreezerState": "frozen"}
    assert not slicer.is_busy()  # others go on (and time passes)
    assert ticks.stat().st_size == frozen_at
    systemctl.output("systemctl", "thaw", unit)
    until(lambda: grew_since(frozen_at), "ticks again")
    systemctl.output("systemctl", "stop", unit)
    assert job.end().code == 143


def test_limits_of_a_running_job_can_be_changed(slicer: Slicer) -> None:  # K6, X6
    gate = slicer.gate()
    job = slicer.hold(gate, "--set", "MemoryMax=400M")
    unit = job.lease().unit
    systemctl.output("systemctl", "set-property", unit, "MemoryMax=500M", "CPUQuota=50%", "TasksMax=99")
    shown = systemctl.show(unit, "MemoryMax", "CPUQuotaPerSecUSec", "TasksMax")
    assert shown == {"MemoryMax": str(500 << 20), "CPUQuotaPerSecUSec": "500ms", "TasksMax": "99"}
    gate.open()
    assert job.end().code == 0


def test_systemctl_kill_reaches_every_process_of_the_job(slicer: Slicer) -> None:  # K6
    gate = slicer.gate()
    for _ in range(8):  # slicer races with systemd, which forgets an empty scope at once
        job = slicer.start("--", "sh", "-c", f"sh -c ': < {gate}' & echo up; wait")
        job.said("up")
        systemctl.output("systemctl", "kill", "--signal=KILL", job.lease().unit)
        done = job.end()
        assert done.code == 137
        assert done.told.startswith("slicer: ended: exit 137 (killed by SIGKILL)"), done.stderr
        assert done.told.count("\n") == 1, done.stderr
        assert slicer.outcome_of(done).signal == 9


def test_every_job_has_a_unit_of_its_own_and_leaves_none(slicer: Slicer) -> None:  # K1, K6
    gate = slicer.gate()
    jobs = [slicer.hold(gate) for _ in range(3)]
    units = {job.lease().unit for job in jobs}
    assert len(units) == 3
    assert set(systemctl.scopes()) == units
    for job in jobs:
        os.kill(job.command_pid(), 15)
    assert {job.end().code for job in jobs} == {143}
    until(lambda: not systemctl.scopes(), "no scope is left")


def test_an_old_scope_that_nobody_is_in_is_stopped(  # D22
    slicer: Slicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = slicer.gate()
    left, beside = slicer.hold(gate), slicer.hold(gate)
    lease = left.lease()
    directory = cgroup.path_of(lease.cgroup)
    populated = cgroup.populated
    # systemd forgets an empty scope at once, but for once in thousands of kills
    monkeypatch.setattr(cgroup, "populated", lambda path: path != directory and populated(path))
    empty_scopes.stop_beside(beside.lease().cgroup, "system")  # it is not old
    monkeypatch.setattr(empty_scopes, "_OLD_S", 0.0)
    assert systemctl.show(lease.unit, "ActiveState") == {"ActiveState": "active"}
    empty_scopes.stop_beside(beside.lease().cgroup, "system")
    left.end()
    assert systemctl.scopes() == [beside.lease().unit]
    gate.open()
    assert beside.end().code == 0


def test_a_connection_that_rests_is_kept() -> None:  # X1: the fence is set when the job's turn comes
    """The bus drops whoever has not authenticated within seconds, and lists nobody before."""
    control = SystemdBackend("system")
    control.connect()
    try:
        listed = systemctl.output("busctl", "list", "--unique", "--no-legend")
        assert str(os.getpid()) in [line.split()[1] for line in listed.splitlines()]
    finally:
        control.close()
