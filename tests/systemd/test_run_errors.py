"""When something around a job fails: said in one line, with the right exit code, and nothing is left."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicer.backend import pystemd_bus
from slicer.backend.systemd import SystemdBackend
from slicer.errors import BackendError
from slicer.model import Property, ScopeSpec
from slicer.record import replace
from tests.patience import LONGEST_S, until
from tests.systemd.helpers import forged, processes, systemctl
from tests.systemd.helpers.jobs import Done, Slicer
from tests.systemd.helpers.users import user

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd


def failed_cleanly(done: Done, *words: str) -> None:
    """slicer's own failure: 125, one line on stderr which says these words, no output."""
    assert (done.code, done.stdout) == (125, ""), done
    assert done.stderr.startswith("slicer: ")
    assert done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr


# -- D-Bus --------------------------------------------------------------------------------------------


def test_no_d_bus(slicer: Slicer) -> None:
    nowhere = {"DBUS_SYSTEM_BUS_ADDRESS": "unix:path=/nowhere"}
    done = slicer.run("-p", "heavy", "--", "touch", str(slicer.path("ran")), env=nowhere)
    failed_cleanly(done, "no connection to systemd", "--backend plain")
    assert not slicer.path("ran").exists()


@pytest.fixture
def no_d_bus() -> Iterator[None]:
    """Stops the system's D-Bus, and starts it again with all who live on it."""
    systemctl.output("systemctl", "stop", "dbus.socket", "dbus.service")
    yield
    start_d_bus()


def start_d_bus() -> None:
    systemctl.output("systemctl", "start", "dbus.socket", "dbus.service")

    def everybody_is_back() -> bool:
        names = subprocess.run(["busctl", "list", "--no-legend"], capture_output=True, text=True).stdout
        return "org.freedesktop.systemd1" in names and "org.freedesktop.login1" in names

    systemctl.output("systemctl", "restart", "systemd-logind.service")
    until(everybody_is_back, "systemd and logind are on the bus again")


def test_d_bus_stopped(slicer: Slicer, no_d_bus: None) -> None:
    failed_cleanly(slicer.run("-p", "heavy", "--", "true"), "no connection to systemd")


def test_d_bus_gone_while_the_job_runs_does_not_matter(slicer: Slicer) -> None:
    gate = slicer.gate()
    job = slicer.hold(gate, "-p", "heavy", "--journal", code=3)
    job.lease()
    systemctl.output("systemctl", "stop", "dbus.socket", "dbus.service")
    try:
        gate.open()
        done = job.end()
    finally:
        start_d_bus()
    assert (done.code, done.stdout) == (3, "up\nover\n")
    assert slicer.outcome_of(done).exit_code == 3


def test_d_bus_restarted_while_the_job_waits_does_not_matter(slicer: Slicer) -> None:
    gate = slicer.gate()
    holder = slicer.hold(gate, "-p", "heavy")
    waiting = slicer.start("-p", "heavy", "--", "echo", "at last")
    waiting.ticket()
    systemctl.output("systemctl", "stop", "dbus.socket", "dbus.service")
    start_d_bus()
    gate.open()
    assert holder.end().code == 0
    done = waiting.end()
    assert (done.code, done.stdout) == (0, "at last\n"), done


def test_d_bus_away_while_a_job_comes_to_the_front_does_not_matter(slicer: Slicer) -> None:  # A2
    """Its scope cannot be started before its lease then. It is started with the lease."""
    gate = slicer.gate()
    holder = slicer.hold(gate, "-p", "heavy")
    first = slicer.start("-p", "heavy", "--", "true")
    until(lambda: processes.children(first.pid), "its scope's keeper is there")
    second = slicer.start("-p", "heavy", "--", "echo", "at last")
    second.ticket()
    systemctl.output("systemctl", "stop", "dbus.socket", "dbus.service")
    try:
        first.kill(signal.SIGINT)
        first.end()
        watch = "anon_inode:inotify"
        until(lambda: watch in processes.descriptors(second.pid).values(), "it leads, and has tried")
    finally:
        start_d_bus()
    gate.open()
    assert holder.end().code == 0
    done = second.end()
    assert (done.code, done.stdout) == (0, "at last\n"), done


@pytest.fixture(params=["pystemd", "libsystemd"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[SystemdBackend]:
    """The system's manager, asked with pystemd and without it."""
    if request.param == "libsystemd":
        monkeypatch.setattr(pystemd_bus, "load_dbuslib", lambda: None)
    made = SystemdBackend("system")
    yield made
    made.close()


def test_a_connection_that_breaks_before_its_first_use_is_told_as_such(
    sleeper: subprocess.Popen[bytes], backend: SystemdBackend
) -> None:  # A2
    backend.connect()
    assert backend._bus is not None
    with socket.socket(fileno=os.dup(backend._bus.fd)) as shut:
        shut.shutdown(socket.SHUT_RDWR)
    with pytest.raises(BackendError, match="the connection to systemd broke"):
        backend.start(spec("slicer-0123456789ad.scope"), sleeper.pid, lambda: None)


# -- systemd refuses ------------------------------------------------------------------------------------


def spec(unit: str, *properties: Property) -> ScopeSpec:
    return ScopeSpec(unit, "cpu.slice", "a test's scope", properties, "system")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "1000"])
    yield child
    child.kill()
    child.wait()


def test_a_unit_name_that_is_taken_is_refused(
    sleeper: subprocess.Popen[bytes], backend: SystemdBackend
) -> None:
    unit = "slicer-0123456789ab.scope"
    name = backend.start(replace(spec(unit), has_keeper=False), sleeper.pid, lambda: None)
    assert name.endswith(f"/{unit}")
    with subprocess.Popen(["sleep", "1000"]) as other:
        before = Path(f"/proc/{other.pid}/cgroup").read_text()
        with pytest.raises(BackendError, match=f"systemd refused {unit}"):
            backend.start(spec(unit), other.pid, lambda: None)
        assert Path(f"/proc/{other.pid}/cgroup").read_text() == before
        other.kill()
    backend.stop(unit)
    assert sleeper.wait(LONGEST_S) == -15
    assert not systemctl.scopes()


# L1: any user of the system bus may send us a signal
def test_only_systemd_can_say_what_systemd_has_done(backend: SystemdBackend) -> None:
    unit = "slicer-0123456789ac.scope"
    with subprocess.Popen(["sh", "-c", "trap '' TERM; while sleep 0.1; do :; done"]) as child:
        until(lambda: processes.children(child.pid), "it ignores SIGTERM")
        backend.start(spec(unit), child.pid, lambda: None)
        with pytest.raises(BackendError, match="systemd did not answer"):
            backend.stop(unit, 0.0)
        job = systemctl.output("systemctl", "list-jobs", "--no-legend").split()[0]
        listed = systemctl.output("busctl", "list", "--unique", "--no-legend").splitlines()
        ours = [line.split()[0] for line in listed if line.split()[1] == str(os.getpid())]
        assert ours
        for name in ours:
            forged.job_removed(user("alice"), name, f"/org/freedesktop/systemd1/job/{job}", unit)
        with pytest.raises(BackendError, match="systemd did not answer"):
            backend.stop(unit, 0.5)
        subprocess.run(("systemctl", "kill", "--signal=KILL", unit), check=True)
        backend.stop(unit)


# A2: systemd may never see such a scope become empty
@pytest.mark.parametrize("where", ["outside", "inside", "at the end"])
def test_a_process_killed_on_its_way_into_its_scope_leaves_none(where: str, backend: SystemdBackend) -> None:
    for number in range(20):
        unit = f"slicer-{where.encode()[:2].hex()}{number:08x}.scope"
        child = subprocess.Popen(["sleep", "1000"])

        def kill(child: subprocess.Popen[bytes] = child, unit: str = unit) -> None:
            if where == "inside":
                until(lambda: processes.cgroup(child.pid).endswith(f"/{unit}"), "it is in its scope")
            if where != "at the end":
                child.kill()

        try:
            with contextlib.suppress(BackendError):  # unless systemd was quicker
                backend.start(spec(unit), child.pid, kill)
        finally:
            child.kill()
            child.wait()
    until(lambda: not systemctl.scopes(), "no scope is left")


def test_what_systemd_does_not_take_is_an_error_with_its_reason(
    sleeper: subprocess.Popen[bytes], backend: SystemdBackend
) -> None:
    for name, value in (("CPUWeight", 99999), ("NoSuchProperty", 1)):
        bad = Property(name, name, "t", value, str(value))
        with pytest.raises(BackendError, match="systemd refused slicer-") as caught:
            backend.start(spec("slicer-ba9876543210.scope", bad), sleeper.pid, lambda: None)
        assert f"asked for {name}={value}" in str(caught.value)
    assert not systemctl.scopes()


def test_a_refusal_reaches_the_user_and_leaves_nothing(slicer: Slicer) -> None:
    # systemd takes no device path with a slash at its end.
    options = ("-p", "heavy", "--set", "DeviceAllow=/dev/nvidia0/ rw")
    done = slicer.run(*options, "--", "touch", str(slicer.path("ran")))
    failed_cleanly(done, "systemd refused slicer-", "DeviceAllow=/dev/nvidia0/ rw")
    assert not slicer.path("ran").exists()
    assert not slicer.is_busy("-p", "heavy")


# -- the ledger's directory -----------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A full file system of 64 KiB, with directories of the ledger on it."""
    path = tmp_path / "small"
    path.mkdir(mode=0o700)
    systemctl.output("mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "none", str(path))
    yield path
    systemctl.output("umount", str(path))


def fill(directory: Path) -> None:
    """Until no byte fits in any more."""
    systemctl.output("dd", "if=/dev/zero", f"of={directory}/filler", "bs=4096", check=False)
    assert os.statvfs(directory).f_bfree == 0


def test_a_full_ledger_is_said_and_starts_nothing(slicer: Slicer, small_disk: Path) -> None:
    env = {"SLICER_STATE_DIR": str(small_disk)}
    assert slicer.run("-p", "heavy", "--", "true", env=env).code == 0
    fill(small_disk)
    done = slicer.run("-p", "heavy", "--", "touch", str(slicer.path("ran")), env=env)
    failed_cleanly(done, str(small_disk), "No space left")
    assert not slicer.path("ran").exists()
    assert not list((small_disk / "leases").iterdir())
    (small_disk / "filler").unlink()
    assert slicer.run("-p", "heavy", "--", "true", env=env).code == 0


def test_a_ledger_that_fills_up_while_a_job_runs_stops_it_not(slicer: Slicer, small_disk: Path) -> None:
    env = {"SLICER_STATE_DIR": str(small_disk)}
    slicer.ledger = str(small_disk)
    gate = slicer.gate()
    job = slicer.hold(gate, "-p", "heavy", env=env, code=4)
    job.lease()
    fill(small_disk)
    failed_cleanly(slicer.run("-p", "heavy", "--", "true", env=env), "No space left")  # no room for a ticket
    gate.open()
    assert job.end().code == 4
    assert not list((small_disk / "leases").iterdir())


# -- history ----------------------------------------------------------------------------------------------


@pytest.fixture
def over_history() -> Iterator[Path]:
    """An empty small file system in the place of /var/lib/slicer."""
    path = Path("/var/lib/slicer")
    path.mkdir(exist_ok=True)
    systemctl.output("mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "none", str(path))
    yield path
    systemctl.output("umount", str(path))


def ran_with_a_warning(slicer: Slicer) -> None:
    """Under a killed slicer too, where nobody is left to hear the warning."""
    done = slicer.run("-p", "heavy", "--", "sh", "-c", "echo ran; exit 3")
    assert (done.code, done.stdout) == (3, "ran\n")
    warnings = [line for line in done.stderr.splitlines() if "/var/lib/slicer" in line]
    assert len(warnings) == 1, done.stderr
    assert warnings[0].startswith("slicer: ")
    assert "Traceback" not in done.stderr


def test_a_read_only_history_stops_no_job(slicer: Slicer, over_history: Path) -> None:
    systemctl.output("mount", "-o", "remount,ro", str(over_history))
    ran_with_a_warning(slicer)


def test_a_history_on_a_full_disk_stops_no_job(slicer: Slicer, over_history: Path) -> None:
    assert slicer.run("--", "true").code == 0
    fill(over_history)
    ran_with_a_warning(slicer)


def test_a_full_disk_under_a_killed_slicer_frees_the_lease(slicer: Slicer, over_history: Path) -> None:  # K2
    fill(over_history)
    gate = slicer.gate()
    job = slicer.hold(gate, "-p", "heavy")
    job.lease()
    job.kill()
    job.popen.wait()
    waiting = slicer.start("-p", "heavy", "--", "true")
    waiting.ticket()
    gate.open()
    assert waiting.end().code == 0


# -- configuration ----------------------------------------------------------------------------------------
