"""What an account is good for against the broker and other users' jobs: the list B in docs/dev/attacks.md."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from slicer.broker.client.connection import Connection
from slicer.broker.protocol import messages, wire
from slicer.kernel import cgroup
from slicer.state import BROKER
from tests.broker_client import replies
from tests.patience import DEADLINE_S, until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.attackers import BOB, THIRD, THIRD_UID, attempts, contents
from tests.systemd.helpers.callers import (
    Puppet,
    Running,
    acquire,
    as_before_linux_6_16,
    ask,
    bring_loopback_up,
    by,
    dial,
    heard,
    is_served,
    main_pid,
    new_job,
    say,
    start,
)  # fmt: skip
from tests.systemd.helpers.hanging_files import hanging_file
from tests.systemd.helpers.users import User

pytest_plugins = [
    "tests.systemd.helpers.fixtures", "tests.systemd.helpers.attackers", "tests.systemd.helpers.callers",
]  # fmt: skip
pytestmark = [pytest.mark.systemd, pytest.mark.usefixtures("one_broker")]

MALLORY = THIRD_UID
STATE = Path("/run/slicer-broker")


@pytest.fixture
def victim(alice: User) -> Iterator[Running]:
    """A job of alice's. Whatever is tried, it goes on, and so does the broker's process."""
    with Running(alice.uid, acquire(name="alices", command="train --token=secret")) as job:
        before = main_pid()
        yield job
        assert job.is_well()
        assert main_pid() == before
        assert is_served(alice.uid)


# -- other users' jobs ---------------------------------------------------------------------------------------


def test_nobody_acts_on_anothers_job(victim: Running) -> None:  # L1, S8
    job = victim.job

    def act() -> list[Any]:
        finished = messages.Finished(job, "exited", 0, 1.0, 0.0, None, None, ())
        tried: list[Any] = [
            messages.Stop(job), messages.Freeze(job), messages.Thaw(job),
            messages.Set(job, (("CPUWeight", "1"),)), messages.Release(job), finished,
        ]  # fmt: skip
        tried += [start(job, os.getpid()), acquire(job), acquire(job, slots={})]
        return [ask(each) for each in tried]

    assert by(MALLORY, act) == ["NoSuchJob"] * 7 + ["JobExists"] * 2
    assert systemctl.show(victim.unit, "CPUWeight")["CPUWeight"] == "[not set]"


@pytest.fixture
def suid_sleep() -> Iterator[str]:
    path = Path("/usr/local/bin/suid-sleep")
    shutil.copy("/usr/bin/sleep", path)
    path.chmod(0o4755)
    yield str(path)
    path.unlink()


def test_nobody_moves_a_process_that_is_not_its_own(
    victim: Running, alice: User, suid_sleep: str
) -> None:  # L1, S8
    """Another's process, root's, a set-uid program, a dead one, one of before, a thread, or none."""
    asked = acquire(slots={"own": 1}, slot_limits={"own": 1})
    alices = Puppet(alice.uid, lambda: None)
    became = subprocess.Popen([*THIRD, suid_sleep, "1000"])
    until(lambda: b"suid" in Path(f"/proc/{became.pid}/cmdline").read_bytes()[:40], "it runs")
    dead = subprocess.Popen(["sleep", "1000"])
    pids = {
        "alice": alices.pid, "root": 1, "set-uid": became.pid, "her keeper": victim.keeper.pid,
    }  # fmt: skip
    calls = {name: start(asked.job, pid) for name, pid in {**pids, "dead": dead.pid}.items()}
    dead.kill()
    dead.wait()
    before = {name: cgroup.of(pid) for name, pid in pids.items()}

    def act() -> dict[str, Any]:
        assert isinstance(ask(asked), messages.Granted)
        thread = threading.Thread(target=time.sleep, args=(60.0,), daemon=True)
        thread.start()
        assert thread.native_id
        more = {
            "none": start(asked.job), "of before": start(asked.job, os.getpid(), keeper_start=1),
            "a thread": start(asked.job, thread.native_id), "no pid": start(asked.job, keeper=1 << 22),
        }  # fmt: skip
        return {name: ask(call) for name, call in {**calls, **more}.items()}

    try:
        found = by(MALLORY, act)
        assert set(found.values()) == {"BadProcess"}, found
        assert {name: cgroup.of(pid) for name, pid in pids.items()} == before
    finally:
        became.kill()
        became.wait()
        alices.end()


# What systemd would do to a scope, and would harm others or outlive its limits.
NEVER = {
    "Delegate": "yes", "MemoryMin": "1G", "MemoryLow": "1G", "OOMScoreAdjust": "-1000",
    "DeviceAllow": "/dev/nvidia0 rw", "DevicePolicy": "auto", "SendSIGKILL": "no",
    "TimeoutStopSec": "infinity", "IODeviceLatencyTargetSec": "/dev/sda 1ms", "ManagedOOMPreference": "omit",
    "Slice": "system.slice", "KillMode": "none",
    "User": "root", "Environment": "A=1", "CPUSchedulingPolicy": "fifo", "DefaultMemoryMin": "1G",
    "StartupCPUWeight": "10000", "BPFProgram": "egress:/x", "IPAddressAllow": "any", "PIDs": "1",
    "RequiresMountsFor": "/x", "OnFailure": "reboot.target", "SuccessAction": "reboot",
    "FailureAction": "reboot-force", "JobTimeoutAction": "reboot", "RefuseManualStop": "yes",
}  # fmt: skip


def test_directives_that_could_harm_others_are_refused_by_name(victim: Running) -> None:  # L2, S8
    asked = acquire(slots={"own": 1}, slot_limits={"own": 1})
    keeper = Puppet(MALLORY, lambda: None)

    def act() -> dict[str, Any]:
        assert isinstance(ask(asked), messages.Granted)
        found = {
            name: ask(start(asked.job, keeper.pid, limits=((name, value),))) for name, value in NEVER.items()
        }
        started = ask(start(asked.job, keeper.pid))
        later = {
            f"set {name}": ask(messages.Set(asked.job, ((name, value),))) for name, value in NEVER.items()
        }
        return found | later | {"started": type(started).__name__}

    found = by(MALLORY, act)
    assert found.pop("started") == "StartedScope"
    assert found == dict.fromkeys(found, "RefusedLimit")
    keeper.end()


# -- the socket ----------------------------------------------------------------------------------------------

NOISE: dict[str, bytes] = {
    "NUL": b"\0" * 1000,
    "HTTP": b"GET / HTTP/1.1\r\n\r\n\0",
    "deep": b'{"method":' + b"[" * 16000 + b"\0",
    "deeper": b'{"a":' * 3000 + b"\0",
    "NaN": b'{"method":"io.slicer.Broker.Acquire","parameters":{"expect_s":NaN}}\0',
    "infinite": b'{"method":"io.slicer.Broker.Acquire","parameters":{"expect_s":1e999}}\0',
    "endless digits": b'{"method":"io.slicer.Broker.Acquire","parameters":{"gpus":' + b"9" * 9000 + b"}}\0",
    "a key twice": b'{"method":"io.slicer.Broker.Status","method":"io.slicer.Broker.Status"}\0',
    "no text": b"\xff\xfe" * 8000 + b"\0",
    "without an end": b"x" * (4 << 20),
    "all bytes": bytes(range(256)) * 64,
    "D-Bus": b"\0AUTH EXTERNAL 30\r\n",
}


def test_noise_is_refused_and_costs_its_sender_alone(victim: Running) -> None:  # L1, S7
    def shout(data: bytes) -> str:
        with dial() as caller:
            try:
                caller.sendall(data)
            except (BrokenPipeError, ConnectionResetError):
                pass
            return heard(caller)

    found = by(MALLORY, lambda: {name: shout(data) for name, data in NOISE.items()})
    assert set(found.values()) <= {"InvalidParameter", ""}, found


def most_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def test_ten_thousand_connections_keep_nobody_waiting(victim: Running, bob: User) -> None:  # L1, S9
    """Silent ones, halves of messages, and ones that wait for their turn: so many of each as there can be."""
    half = wire.encode_call(acquire())[:100]
    waits = wire.encode_call(acquire(wait=True, max_wait_s=None), more=True)

    def act() -> int:
        most_files()
        for number in range(10_000):
            caller = dial()
            caller.setblocking(False)
            kept.append(caller)
            try:
                caller.send((b"", half, waits)[number % 3])
            except (BrokenPipeError, ConnectionResetError):
                pass
        return sum(_is_refused(caller) for caller in kept)

    kept: list[socket.socket] = []
    with Puppet(MALLORY, act, waits=False) as mallory:
        for _ in range(5):
            assert is_served(bob.uid)
        assert mallory.hear() > 5_000
        assert is_served(bob.uid)


def test_a_few_connections_are_ahead_of_anothers(victim: Running, bob: User) -> None:  # L1, S9, S16
    """Each has hung up before the broker comes to it, and is accepted before those that come later."""

    def act() -> int:
        for number in range(10_000):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
                caller.setblocking(False)
                try:
                    caller.connect(BROKER)
                except BlockingIOError:
                    return number
        return 10_000

    os.kill(main_pid(), signal.SIGSTOP)
    try:
        assert 0 < by(MALLORY, act) <= 65
    finally:
        os.kill(main_pid(), signal.SIGCONT)
    assert is_served(bob.uid)


def _is_refused(caller: socket.socket) -> bool:
    try:
        return b".TooMany" in caller.recv(65536)
    except (BlockingIOError, ConnectionResetError):
        return False


def test_who_never_reads_is_left(victim: Running, bob: User) -> None:  # L1, S9
    def act() -> int:
        kept.extend(dial() for _ in range(300))
        for caller in kept:
            caller.setblocking(False)
            try:
                while True:
                    caller.send(wire.encode_call(messages.Status()) * 100)
            except (BlockingIOError, BrokenPipeError, ConnectionResetError):
                continue
        return len(kept)

    kept: list[socket.socket] = []
    with Puppet(MALLORY, act):
        assert is_served(bob.uid)


@pytest.fixture(params=[True, False], ids=["6.16", "older"])
def descriptors(request: pytest.FixtureRequest) -> Iterator[None]:
    """With a kernel that refuses to send them, and with one that does not."""
    with nullcontext() if request.param else as_before_linux_6_16():
        yield


def test_descriptors_are_not_collected(victim: Running, descriptors: None) -> None:  # L1, S9, S17
    """Each byte brings descriptors, to a call that wants none; and hundreds come with one call."""

    def act() -> list[str]:
        null = os.open("/dev/null", os.O_RDONLY)
        frame, told = wire.encode_call(messages.Status()), []
        for _ in range(20):
            told += [say(frame[:1], *[null] * 20), say(frame, *[null] * 100)]
        return told

    before = os.listdir(f"/proc/{main_pid()}/fd")
    assert "Done" not in by(MALLORY, act)
    assert len(os.listdir(f"/proc/{main_pid()}/fd")) < len(before) + 10


def _send_files(path: str) -> None:
    """Send files to a broker that is stopped. Nobody else has them open; and what they say is not written."""
    for _ in range(10):
        kept.append(dial())
        fd = os.open(path, os.O_RDWR)
        socket.send_fds(kept[-1], [wire.encode_call(messages.Status())], [fd])
        os.close(fd)
    kept.pop().close()
    os.pwrite(os.open(path, os.O_RDWR), bytes(4096), 0)


kept: list[socket.socket] = []  # by a user's process, to its end


@pytest.fixture
def older_kernel() -> Iterator[None]:
    with as_before_linux_6_16():
        yield


@pytest.fixture
def hanging(older_kernel: None) -> Iterator[None]:
    """Files are on their way to the broker, and whoever gives them up hangs."""
    path = Path("/var/tmp/hangs/file")
    with hanging_file(path.parent, writes=True) as is_there:
        if not is_there:
            pytest.skip("no FUSE in this machine")
        os.kill(main_pid(), signal.SIGSTOP)  # so that all copies but those in flight are closed
        mallory = Puppet(MALLORY, lambda: _send_files(str(path)))
        os.kill(main_pid(), signal.SIGCONT)
        yield
        os.kill(mallory.pid, signal.SIGKILL)
    mallory.end()  # only now: it hung itself


def test_a_file_that_cannot_be_closed_hangs_nobody(
    victim: Running, bob: User, hanging: None
) -> None:  # L1, S9, S17
    """A file of a file system of the sender's own, which never answers."""
    assert is_served(bob.uid)


def test_nor_when_the_broker_is_killed_meanwhile(alice: User, bob: User, hanging: None) -> None:  # L1, S17
    assert is_served(bob.uid)
    before = main_pid()
    os.kill(before, signal.SIGKILL)
    until(lambda: main_pid() not in (0, before), "systemd has started it again")
    assert is_served(bob.uid)


def test_a_socket_that_lingers_hangs_nobody(
    victim: Running, bob: User, older_kernel: None
) -> None:  # L1, S9, S17
    """The kernel closes what nobody takes, in the receiver's time; here that waits for the sender's peer."""

    def act() -> None:
        for frame in (wire.encode_call(messages.Status()), wire.encode_call(start(new_job())), b""):
            for _ in range(5):
                caller = dial()
                socket.send_fds(caller, [frame or b"x"], [_lingering(kept)])
                os.close(kept[-1].detach())
                kept.append(caller)
        for caller in kept[-6:]:
            caller.close()

    bring_loopback_up()
    os.kill(main_pid(), signal.SIGSTOP)  # so that all copies but those in flight are closed
    try:
        with Puppet(MALLORY, act):
            os.kill(main_pid(), signal.SIGCONT)
            assert is_served(bob.uid)
    finally:
        os.kill(main_pid(), signal.SIGCONT)


def _lingering(kept: list[socket.socket]) -> int:
    """A TCP socket with something to send that its peer never reads. The last one of the list."""
    listener, found = socket.socket(), socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    found.connect(listener.getsockname())
    kept += [listener, listener.accept()[0], found]
    found.setblocking(False)
    try:
        while True:
            found.send(bytes(65536))
    except BlockingIOError:
        pass
    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1000))
    return found.fileno()


def test_a_connection_stays_that_of_who_made_it(victim: Running) -> None:  # L1
    """Its process executes a set-uid program with it, or gives it to one of root's."""
    python = Path("/usr/local/bin/suid-python")
    shutil.copy(os.path.realpath("/usr/bin/python3"), python)
    python.chmod(0o4755)
    frame = wire.encode_call(messages.Stop(victim.job))
    code = (
        "import os, socket, sys; assert os.geteuid() == 0; caller = socket.socket(fileno=int(sys.argv[1]))\n"
        f"caller.sendall({frame!r}); print(caller.recv(65536).decode())"
    )

    def act() -> str:
        caller = dial()
        caller.setblocking(True)
        command = [str(python), "-I", "-S", "-c", code, str(caller.fileno())]
        done = subprocess.run(command, pass_fds=[caller.fileno()], capture_output=True, text=True)
        return done.stdout + done.stderr

    try:
        assert "NoSuchJob" in by(MALLORY, act)
    finally:
        python.unlink()


def test_a_subordinate_uid_is_nobody(victim: Running) -> None:  # L1, L3
    """Else everybody with rootless containers had 65,536 users' caps and shares."""
    file = Path("/etc/subuid")
    before = file.read_bytes() if file.exists() else None
    file.write_text("mallory:700000:65536\n")
    try:
        assert by(700_007, lambda: ask(acquire())) == "NotAllowed"
    finally:
        file.unlink() if before is None else file.write_bytes(before)


# -- files and words -----------------------------------------------------------------------------------------

REACH = """
base = sys.argv[1]
for folder in ("commands", "tickets"):
    attempt("list " + folder, lambda: os.listdir(base + "/" + folder))
for name in ("leases", "commands", "tickets"):
    attempt("make in " + name, lambda: os.open(base + "/" + name + "/0123456789ab", os.O_WRONLY | os.O_CREAT))
    attempt("rename " + name, lambda: os.rename(base + "/" + name, base + "/gone"))
attempt("exchange the socket", lambda: os.rename(base + "/socket", base + "/gone"))
attempt("remove the socket", lambda: os.unlink(base + "/socket"))
attempt("make", lambda: os.mkdir(base + "/x"))
attempt("link", lambda: os.link(base + "/leases/" + sys.argv[2], base + "/leases/0123456789ab"))
attempt("write a lease", lambda: os.open(base + "/leases/" + sys.argv[2], os.O_WRONLY))
attempt("remove a lease", lambda: os.unlink(base + "/leases/" + sys.argv[2]))
attempt("read the command", lambda: os.open(base + "/commands/" + sys.argv[2], os.O_RDONLY))
attempt("rename all", lambda: os.rename(base, base + ".gone"))
attempt("read the accounts", lambda: os.open("/var/lib/slicer/usage.db", os.O_RDONLY))
"""


@pytest.mark.parametrize("who", [BOB, THIRD], ids=["bob", "third"])
def test_nobody_reaches_into_the_brokers_files(
    victim: Running, who: tuple[str, ...]
) -> None:  # L1, S1, S2, S4
    before = contents(STATE)
    assert attempts(who, REACH, STATE, victim.job) == ""
    assert contents(STATE) == before


def test_a_lease_that_somebody_locks_holds_up_nobody(victim: Running, bob: User) -> None:  # L1, S9
    """It is open to be read, and who can open a file can lock it."""
    code = """
import fcntl, os, sys
locked = []
for folder, _, names in os.walk(sys.argv[1]):
    for path in [folder, *(folder + "/" + name for name in names)]:
        try: fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX)
        except OSError: continue
        locked.append(path)
print("locked", *locked, flush=True)
sys.stdin.read()
"""
    command = [*THIRD, sys.executable, "-I", "-S", "-c", code, str(STATE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as mallory:
        assert mallory.stdout is not None
        assert str(STATE / "leases" / victim.job) in mallory.stdout.readline().split()
        assert is_served(bob.uid)
        assert mallory.poll() is None
        mallory.communicate("")


def test_a_command_is_its_owners_and_roots_alone(victim: Running, alice: User) -> None:  # L1, S10
    def status() -> str:
        with dial() as caller:
            caller.sendall(wire.encode_call(messages.Status()))
            found = b""
            while not found.endswith(b"\0"):
                found += caller.recv(65536)
        return found.decode()

    seen = {uid: by(uid, status) for uid in (MALLORY, alice.uid, 0)}
    assert all("alices" in text for text in seen.values())
    assert [uid for uid, text in seen.items() if "secret" in text] == [alice.uid, 0]
    public = subprocess.run(
        [*THIRD, "sh", "-c", f"cat {STATE}/leases/*; systemctl show {victim.unit}; systemctl list-units"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert public.stdout.count(victim.job) > 1, public.stderr
    assert "secret" not in public.stdout


# -- leases --------------------------------------------------------------------------------------------------


def test_a_lease_lasts_while_anybody_is_in_its_scope(alice: User, bob: User) -> None:  # K2, L1, S3
    """Its client and its keeper are killed, it is released, and the scope's process says it has ended."""
    with Running(alice.uid) as job:
        job_id = job.job

        def act() -> list[Any]:
            told = messages.Finished(job_id, "exited", 0, 1.0, 0.0, None, None, ())
            return [type(ask(each)).__name__ for each in (told, messages.Release(job_id))]

        by(alice.uid, act)
        systemctl.output("systemctl", "kill", "--signal=SIGKILL", "slicer-broker.service")
        assert by(bob.uid, lambda: ask(acquire())) == "Busy"
        assert job.is_well()
    until(lambda: by(bob.uid, lambda: type(ask(acquire())).__name__) == "Granted", "it is free again")


def test_a_process_takes_nothing_along_to_another_lease(alice: User, bob: User) -> None:  # K2, X1, L1
    """A job has another lease's scope made around it: what it had opened counts on for its first one."""
    with Running(alice.uid) as job:
        other = acquire(slots={"own": 1}, slot_limits={"own": 1})
        moved = start(other.job, job.keeper.pid)
        found = by(alice.uid, lambda: [type(ask(other)).__name__, type(ask(moved)).__name__])
        assert found[0] == "Granted"
        assert by(bob.uid, lambda: ask(acquire())) == "Busy", found
    until(lambda: by(bob.uid, lambda: type(ask(acquire())).__name__) == "Granted", "it is free again")


def test_a_tickets_scope_is_its_users_own_and_no_lease(victim: Running, bob: User) -> None:  # L1, X1
    """Who waits for its turn gets a scope before it, but nobody else gets one in that name."""
    job = new_job()
    waiting: list[Connection] = []

    def waits() -> None:
        waiting.append(Connection())
        waiting[0].send(acquire(job, wait=True), more=True)
        assert waiting[0].receive(DEADLINE_S)

    def tried(uid: int, keeper: int) -> object:
        def act() -> str:
            answer = ask(start(job, keeper))
            return answer if isinstance(answer, str) else type(answer).__name__

        return by(uid, act)

    keepers = [Puppet(uid, lambda: None) for uid in (bob.uid, MALLORY)]
    with Puppet(bob.uid, waits), keepers[0] as keeper, keepers[1] as hers:
        before = cgroup.of(keeper.pid)
        tries = (MALLORY, keeper.pid), (MALLORY, hers.pid), (bob.uid, hers.pid)
        assert [tried(*each) for each in tries] == ["NoSuchJob", "NoSuchJob", "BadProcess"]
        assert cgroup.of(keeper.pid) == before
        assert tried(bob.uid, keeper.pid) == "StartedScope"
        assert cgroup.of(keeper.pid).endswith(f".slice/slicer-{job}.scope")
        assert os.listdir(STATE / "leases") == [victim.job]


def test_nobody_leaves_its_scope(alice: User) -> None:  # K2, L2
    with Running(alice.uid) as job:
        here = cgroup.of(job.keeper.pid)
        code = """
def write(path, text):
    os.write(os.open("/sys/fs/cgroup" + path, os.O_WRONLY), text.encode())
for place in sys.argv[2:]:
    attempt(place, lambda: write(place + "/cgroup.procs", sys.argv[1]))
limits = {"cpu.max", "memory.max", "pids.max", "cgroup.max.descendants"}
for name in limits & set(os.listdir("/sys/fs/cgroup" + sys.argv[3])):
    attempt(name, lambda: write(sys.argv[3] + "/" + name, "max"))
attempt("freeze", lambda: write(sys.argv[3] + "/cgroup.freeze", "1"))
attempt("kill", lambda: write(sys.argv[3] + "/cgroup.kill", "1"))
"""
        own = f"/user.slice/user-{alice.uid}.slice/user@{alice.uid}.service"
        places = (os.path.dirname(here), here, "", "/user.slice", own, f"{own}/app.slice")
        assert attempts(alice.identity, code, job.keeper.pid, *places) == ""
        assert cgroup.of(job.keeper.pid) == here
        refused = subprocess.run(
            [*alice.via, "systemctl", "set-property", "--runtime", job.unit, "CPUWeight=1"],
            capture_output=True, text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert refused.returncode != 0
        assert job.is_well()


def test_anothers_slot_is_not_to_be_had_by_its_inner_name(victim: Running, alice: User) -> None:  # L1
    own = acquire(slots={"license": 1}, slot_limits={"license": 1}, binding="process")
    with Puppet(alice.uid, lambda: type(ask(own)).__name__) as holder:
        assert holder.said == "Granted"
        name = f"u{alice.uid}.license"
        for slots in ({"license": 1}, {name: 1}):
            asked = acquire(slots=slots, slot_limits=slots, binding="process")
            assert by(MALLORY, lambda asked=asked: type(ask(asked)).__name__) == "Granted"
        assert by(alice.uid, lambda: ask(acquire(slots={"license": 1}, slot_limits={"license": 1}))) == "Busy"


def test_a_stopped_or_dead_waiter_keeps_nobody_waiting(alice: User, bob: User) -> None:  # L1, S9
    def wait() -> None:
        dial_kept.append(dial())
        dial_kept[0].sendall(wire.encode_call(acquire(wait=True), more=True))
        assert heard(dial_kept[0]) == "Done"

    dial_kept: list[socket.socket] = []
    with Running(alice.uid) as job, Puppet(MALLORY, wait) as stopped:
        os.kill(stopped.pid, signal.SIGSTOP)
        dead = Puppet(MALLORY, wait)
        behind = Puppet(bob.uid, lambda: _waits_and_gets(acquire(wait=True)), waits=False)
        until(lambda: len(list((STATE / "tickets").iterdir())) == 3, "three wait")
        dead.end()
        job.keeper.end()
        assert behind.hear()[-1] == "Granted"
        behind.end()
        job.keeper = Puppet(alice.uid, lambda: None)


def _waits_and_gets(asked: messages.Acquire) -> list[str]:
    from slicer.broker.client.connection import Connection

    return [type(reply).__name__ for reply in replies(Connection(), asked)]
