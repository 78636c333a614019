"""What the broker has enforced for ordinary users: the fence, their limits, a closed shop (L2, L4)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slicer.backend import scopes
from slicer.broker.client.calls import ask
from slicer.broker.protocol.messages import Status
from tests.fake_nvml import USE, FakeNvml
from tests.machines.settings import ci
from tests.patience import DEADLINE_S, until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.broker import SOCKET, Broker
from tests.systemd.helpers.jobs import Done, Slicer
from tests.systemd.helpers.nodes import EVERYTHING
from tests.systemd.helpers.users import User, user
from tests.systemd.test_broker_units import looks

pytest_plugins = ["tests.systemd.helpers.fixtures", "tests.systemd.helpers.nodes"]
pytestmark = pytest.mark.enforced

MIB = 1 << 20


@pytest.fixture(scope="module")
def installed(eight: FakeNvml) -> Iterator[Broker]:
    """The broker, which sees the eight GPUs. To install it takes half a minute here."""
    made = Broker(**eight.env)
    yield made
    made.close()
    made.taken_away()


@pytest.fixture
def broker(installed: Broker) -> Broker:
    """The same, and it runs: here its start may take longer than a caller waits for."""
    installed.configure("[slots]\ncpu = 1\n")
    ask(SOCKET, Status(), DEADLINE_S)
    return installed


@pytest.fixture
def someone(broker: Broker) -> User:
    """An ordinary user with neither session nor manager, as under cron."""
    return user("alice")


def run(slicer: Slicer, who: User, *arguments: str, config: str = "", **env: str) -> Done:
    path = slicer.directory / "users.toml"
    path.write_text(config)
    path.chmod(0o644)
    ask(SOCKET, Status(), DEADLINE_S)  # as the fixture: it may have left meanwhile
    return slicer.run(*arguments, via=who.bare, env={"SLICER_CONFIG": str(path), **env})


@pytest.mark.core
@pytest.mark.usefixtures("nodes")
def test_an_ordinary_users_job_opens_its_own_gpus_and_no_others(
    public_slicer: Slicer, someone: User, broker: Broker, eight: FakeNvml, look: str
) -> None:  # L2, X1
    slicer = public_slicer
    loose = '[profiles.loose]\nfence = "off"\ndevices = ["/dev/nvidia2"]\n[profiles.strict]\nfence = "on"\n'
    for options, expected in (
        ((), ["open:"]),
        (("-p", "loose"), ["open:"]),  # a user's own word
        (("-p", "strict"), ["open:"]),
        (("--gpus", "1", "--gpu", "1"), ["open: 6 ctl"]),
        (("--gpu", "0,7", "--vram", "1G", "--exec"), ["open: 0 7 ctl"]),
    ):
        done = run(slicer, someone, "-q", *options, "--", "sh", "-c", look, config=loose, **eight.env)
        assert (done.code, done.stdout.splitlines()) == (0, expected), (options, done)
    inside = (
        ((), "--gpu 3", ["open:", "open: 4 ctl", "open:"]),
        (("--gpu", "2"), "--gpus 2 --gpu 2,3", ["open: 5 ctl", "open: 4 5 ctl", "open: 5 ctl"]),
        # With CI=true alone, as each takes half a minute here. NVML in there calls it GPU 0.
        (("--gpu", "2"), "--gpu 2", ["open: 5 ctl"] * 3),
        (("--gpu", "2"), "--gpu 0", ["open: 5 ctl"] * 2),
    )
    for options, more, expected in inside if ci() else inside[:2]:
        script = f"{look}; slicer run -q {more} -- {look}; {look}"
        env = {**eight.env, "FAKE_NVML_NODES": "1"}
        done = run(slicer, someone, "-q", *options, "--", "sh", "-c", script, **env)
        assert done.stdout.splitlines() == expected, (options, done)
    done = slicer.run("-q", "--gpu", "2", "--", *look.split(), program="hold",
                      via=someone.bare, env=eight.env)  # fmt: skip
    assert done.stdout == "open: 5 ctl\n", done
    broker.configure('[profiles.loose]\nfence = "off"\n', 'devices = ["/dev/nvidia-modeset"]\n')
    done = run(slicer, someone, "-q", "-p", "loose", "--", "sh", "-c", look, config=loose, **eight.env)
    assert done.stdout.strip() == EVERYTHING, done  # the administrator's word
    done = run(slicer, someone, "-q", "--", "sh", "-c", look, **eight.env)
    assert done.stdout == "open: -modeset\n", done


@pytest.mark.core
def test_an_ordinary_users_limits_act(public_slicer: Slicer, someone: User) -> None:  # L2, K3
    slicer = public_slicer
    script = 'cd "/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)"; for f; do head -n1 "$f"; done'
    files = ("cpu.weight", "io.weight", "memory.high", "cpuset.cpus.effective")
    options = ("--set=CPUWeight=33", "--set=IOWeight=44", "--set=MemoryHigh=300M", "--set=AllowedCPUs=1")
    path = slicer.path("outcome")
    command = ("sh", "-c", script, "sh", *files)
    done = run(slicer, someone, "--outcome", str(path), *options, "--", *command)
    assert done.stdout.splitlines() == ["33", "default 44", str(300 * MIB), "1"], done
    told = path.read_text()
    assert ('"IOWeight"' in told.partition('"not_enforced"')[0]) == scopes.io_is_weighed()
    hungry = (sys.executable, "-c", "held = bytearray(200 << 20)")
    done = run(slicer, someone, "--set=MemoryMax=64M", "--set=MemorySwapMax=0", "--", *hungry)
    assert done.code in (137, 143), done  # killed by the kernel, or by systemd for it
    assert "out of memory" in done.stderr


def session_before(slicer: Slicer, look: str) -> Callable[[], str]:
    """What is open to a login session that is there by now; it looks when this is called."""
    gate = slicer.gate()
    seen = Path(f"{gate}.seen")
    line = ("systemd-run", "--quiet", "--slice=user.slice", "--collect", "sh", "-c")
    systemctl.output(*line, f": < {gate}; {look} > {seen}.part; mv {seen}.part {seen}")

    def now() -> str:
        gate.open()
        until(seen.exists, "it has looked")
        return seen.read_text()

    return now


@pytest.mark.usefixtures("nodes")
def test_in_a_closed_shop_only_a_lease_opens_a_gpu(
    public_slicer: Slicer, someone: User, eight: FakeNvml, look: str
) -> None:  # L4
    slicer = public_slicer
    before, within = session_before(slicer, look), session_before(slicer, look)
    asked = slicer.command("install", "--closed-shop", code=2)
    assert "add --yes" in asked.stderr
    told = slicer.command("install", "--closed-shop", "--yes").stdout
    assert "locked out:" in told
    assert "no broker" not in told

    def in_session(command: str, uid: str = someone.name) -> str:
        """What a login session of the user prints."""
        env = {**eight.env, "HOME": "/root" if uid == "root" else str(someone.home), "FAKE_NVML_NODES": "1"}
        options = ("--quiet", "--scope", "--slice=user.slice", f"--uid={uid}", "--collect")
        given = [f"--setenv={name}={value}" for name, value in env.items()]
        line = ["systemd-run", *options, *given, "sh", "-c", command]
        ask(SOCKET, Status(), DEADLINE_S)  # as the fixture: it may have left meanwhile
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    try:
        assert before() == "open:\n", "who was logged in is locked out, too"
        assert in_session(look) == in_session(look, "root") == "open:\n"
        assert in_session(f"slicer run -q --gpu 1 -- {look}") == "open: 6 ctl\n"
        assert in_session(f"slicer run -q --gpu 2 -- {look}", "root") == "open: 5 ctl\n"
        eight.state.chmod(0o666)
        seen = "for try in $(seq 100); do grep -q declared $HOME/told && break; sleep 0.2; done"
        job = f"slicer run --gpu 1 --vram 1G -- sh -c '{USE} use 1 2048; {seen}'"
        assert "uses 2.0G of GPU 1, declared 1.0G" in in_session(f"{job} 2>$HOME/told; cat $HOME/told")
        assert '"vram_peak_mib":[2048]' in "".join(in_session("slicer history --json").split())
        assert "24.0G" in in_session("slicer status")
        assert "24.0G" in in_session("slicer status", "root")
    finally:
        undone = slicer.command("install", "--closed-shop", "--remove")
    assert "removed" in undone.stdout
    assert within().strip() == EVERYTHING
    assert in_session(look).strip() == EVERYTHING
    assert "50-slicer-closed" not in systemctl.output("systemctl", "cat", "user.slice", check=False)


@pytest.mark.usefixtures("nodes")
def test_roots_job_inside_of_a_fenced_one_can_have_any_gpu(
    public_slicer: Slicer, broker: Broker, eight: FakeNvml, look: str
) -> None:  # X1, L2: its slicer asks the broker, which nobody fences
    env = {**eight.env, "FAKE_NVML_NODES": "1"}
    inner = f"slicer run -q --gpu 3 -- sh -c '{look}'"
    done = run(public_slicer, user("root"), "-q", "--", "sh", "-c", inner, **env)
    assert (done.code, done.stdout) == (0, "open: 4 ctl\n"), done


# U19, L1: nothing of its own gets into the kernel's log
def test_the_broker_reads_the_kernels_log_and_cannot_write_there(installed: Broker) -> None:
    there = "(true </dev/kmsg) && echo reads\n(true >/dev/kmsg) 2>/dev/null && echo writes\necho CapEff\n"
    assert looks(there)[:2] == ["reads", "CapEff"]
