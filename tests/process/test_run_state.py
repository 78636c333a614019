"""A state directory or a disk that cannot be used: said in one line, and nothing of others' touched."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slicer.kernel import proc
from slicer.record import replace
from slicer.state import statefile
from tests.patience import LONGEST_S, until
from tests.process.harness import Box, Gate, mounting, text, unprivileged
from tests.unit import made_up

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away and mount")
USER_ONLY = pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unwritable for root")
HEAVY = ("-p", "heavy", "-q", "--", "sh", "-c", 'echo "start it $$" >>"$LOG"')


def refused(box: Box, *words: str, env: dict[str, str] | None = None) -> None:
    """A job is refused with exit code 125 and one line with these words, and did not run."""
    done = box.run(*HEAVY, env=env)
    assert done.returncode == 125, done
    (line,) = done.stderr.splitlines()
    for word in words:
        assert word in line
    assert line.startswith("slicer: ")
    assert line.endswith(")"), "no hint"
    assert box.lines() == []
    assert box.processes() == []


@pytest.mark.parametrize("path", ["state", "./state", "../state"])
def test_a_relative_state_directory_is_refused(box: Box, path: str) -> None:
    refused(box, "absolute", path, env={"SLICER_STATE_DIR": path})
    assert not box.state.exists()


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/nowhere/state", "/nowhere"), ("/dev/null/state", "/dev/null"), ("/proc/state", "/proc/state"),
        ("/" + "x" * 300, "/" + "x" * 300),
    ],
)  # fmt: skip
def test_a_state_directory_that_cannot_be_made_is_refused(box: Box, path: str, named: str) -> None:
    refused(box, f"{named}: ", env={"SLICER_STATE_DIR": path})


@USER_ONLY
@pytest.mark.parametrize("part", ["", "leases", "tickets"])
def test_a_state_directory_that_is_not_writable_is_refused(box: Box, part: str) -> None:
    assert box.run("-q", "--", "true").returncode == 0
    (box.state / part).chmod(0o500)
    refused(box, "not writable")
    (box.state / part).chmod(0o700)


@ROOT_ONLY
@pytest.mark.parametrize("part", ["", "leases", "tickets"])
def test_a_read_only_state_directory_is_refused(box: Box, part: str) -> None:
    assert box.run("-q", "--", "true").returncode == 0
    place = str(box.state / part)
    script = f'mount --bind "{place}" "{place}" && mount -o remount,bind,ro "{place}"'
    box.prefix = mounting(script)
    refused(box, place)


@ROOT_ONLY
@pytest.mark.parametrize("part", ["", "leases", "tickets"])
def test_a_state_directory_of_somebody_else_is_refused(box: Box, part: str) -> None:
    assert box.run("-q", "--", "true").returncode == 0
    os.chown(box.state / part, 65534, -1)
    refused(box, "belongs to uid 65534")


@pytest.mark.parametrize("part", ["", "leases", "tickets", "lock"])
def test_a_symbolic_link_is_not_followed(box: Box, part: str) -> None:
    elsewhere = box.root / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    place = box.state / part
    place.parent.mkdir(mode=0o700, exist_ok=True)
    place.symlink_to(elsewhere / "target" if part == "lock" else elsewhere)
    refused(box, str(place) if part else str(box.state), "symbolic link")
    assert os.listdir(elsewhere) == []


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda path: os.link(path.parents[1] / "precious", path)]
)
def test_a_lock_that_is_no_plain_file_is_refused(box: Box, make: Callable[[Path], None]) -> None:
    (box.root / "precious").write_text("precious")
    assert box.run("-q", "--", "true").returncode == 0
    (box.state / "lock").unlink()
    make(box.state / "lock")
    refused(box, str(box.state / "lock"))
    assert (box.root / "precious").read_text() == "precious"


def put_symlink(path: Path) -> None:
    path.symlink_to(path.parents[2] / "precious")


def put_hard_link(path: Path) -> None:
    os.link(path.parents[2] / "precious", path)


def put_fifo(path: Path) -> None:
    os.mkfifo(path)


def put_directory(path: Path) -> None:
    path.mkdir()


def put_garbage(path: Path) -> None:
    path.write_bytes(b"\xff\0garbage\n")


def put_huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**36)


def put_odd_name(path: Path) -> None:
    Path(os.fsdecode(os.fsencode(path.parent) + b"/a\nb\xff\x1b[31m")).write_text("garbage")


PUTS = [put_symlink, put_hard_link, put_fifo, put_directory, put_garbage, put_huge, put_odd_name]


@pytest.mark.parametrize("folder", ["leases", "tickets"])
@pytest.mark.parametrize("put", PUTS)
def test_what_is_no_lease_of_ours_is_named_and_passed_over(
    box: Box, put: Callable[[Path], None], folder: str
) -> None:
    (box.root / "precious").write_text("precious")
    assert box.run("-q", "--", "true").returncode == 0
    put(box.state / folder / "0123456789ab")
    done = box.run("-p", "heavy", "--no-wait", "--", "true")
    assert done.returncode == 0
    said = [line for line in done.stderr.splitlines() if "ignored" in line]
    assert said
    assert all(line.startswith(f"slicer: {box.state}/{folder}/") and line.isprintable() for line in said)
    assert len(os.listdir(box.state / folder)) == 1
    assert (box.root / "precious").read_text() == "precious"


def test_it_is_said_once_a_run(box: Box) -> None:
    assert box.run("-q", "--", "true").returncode == 0
    put_garbage(box.state / "leases" / "0123456789ab")
    done = box.run("-p", "heavy", "--no-wait", "--", "true")
    assert done.stderr.count("ignored") == 1


@ROOT_ONLY
def test_a_lease_that_speaks_for_somebody_else_frees_and_takes_nothing(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    forged = box.state / "leases" / "0123456789ab"
    forged.write_bytes(statefile.encode(replace(job.lease, job="0123456789ab", uid=0, slots={"cpu": 5})))
    os.chown(forged, 65534, -1)
    with forged.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        busy = box.run("-p", "heavy", "--no-wait", "--", "true")
        assert busy.returncode == 75
        gate.open()
        assert job.process.wait(LONGEST_S) == 0
        done = box.run("-p", "heavy", "--no-wait", "--", "true")
        assert done.returncode == 0
        assert f"{forged}: ignored: belongs to uid 65534" in done.stderr


# A2
def test_files_of_the_dead_are_removed_by_the_next_look(box: Box) -> None:
    assert box.run("-q", "--", "true").returncode == 0
    dead = made_up.lease(
        "0123456789ab", pid=2**22, keeper=2**22 - 1, boot_id=proc.boot_id(), uid=os.geteuid(),
        backend="plain", unit="", cgroup="", slots={"cpu": 1},
    )  # fmt: skip
    (box.state / "leases" / dead.job).write_bytes(statefile.encode(dead))
    done = box.run(*HEAVY[:3], "--no-wait", *HEAVY[3:])
    assert (done.returncode, done.stderr) == (0, "")
    box.assert_clean()


@ROOT_ONLY
def test_a_full_state_directory_is_said_and_leaves_nothing(box: Box) -> None:
    place = str(box.state)
    box.state.mkdir(mode=0o700)
    # The directory itself, leases, tickets, bells, the lock, the version: each in turn is too much.
    for inodes in range(2, 7):
        script = f'mount -t tmpfs -o mode=700,nr_inodes={inodes} none "{place}"'
        before, box.prefix = box.prefix, mounting(script)
        done = box.run(*HEAVY)
        box.prefix = before
        assert done.returncode == 125, (inodes, done)
        (line,) = done.stderr.splitlines()
        assert "No space left" in line
        assert box.lines() == []


# Issue section 4: a full disk under history
@ROOT_ONLY
def test_a_full_disk_under_the_history_stops_no_job(box: Box) -> None:
    script = 'mount -t tmpfs -o size=4k,nr_inodes=3 none "$0"'
    box.prefix = mounting(script, box.var_lib)
    done = box.run("-p", "heavy", "--", "sh", "-c", "exit 3")
    assert done.returncode == 3
    assert "history" in done.stderr
    assert "Traceback" not in done.stderr
    box.assert_clean()


def test_a_history_that_may_not_grow_stops_no_job(box: Box) -> None:
    """RLIMIT_FSIZE: the write fails with EFBIG where SIGXFSZ is ignored."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))

    process = box.start("-p", "heavy", "--", "sh", "-c", "exit 3", preexec_fn=limit)
    _, error = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 3
    assert "history" in text(error)
    assert "Traceback" not in text(error)
    box.assert_clean()


def test_an_outcome_that_cannot_be_written_in_the_end_is_said_and_changes_no_exit_code(box: Box) -> None:
    (box.root / "there").mkdir()
    done = box.run(
        "--outcome", str(box.root / "there" / "it"), "--", "sh", "-c", f'rmdir "{box.root}/there"; exit 3'
    )
    assert done.returncode == 3
    assert any(
        f"{box.root}/there/it" in line and "cannot be written" in line for line in done.stderr.splitlines()
    )
    assert box.outcomes()[0].exit_code == 3
    box.assert_clean()


def test_and_it_is_an_error_that_quiet_does_not_hide(box: Box) -> None:
    done = box.run("-q", "--outcome", "/dev/full", "--", "true")
    assert "/dev/full" in done.stderr


NO_MORE_PROCESSES = """
import resource, slicer.__main__
resource.setrlimit(resource.RLIMIT_NPROC, ({processes}, {processes}))
slicer.__main__.main()
"""


@pytest.mark.parametrize("processes", [0, 1])
def test_when_no_process_can_be_forked_it_is_said_and_the_lease_is_given_back(
    box: Box, processes: int
) -> None:  # D15: wherever the checkout lies
    uid = 54321 if os.geteuid() == 0 else os.geteuid()  # root is exempt from the limit
    if os.geteuid() != 0:
        processes = 1  # this user has others
    state = Path("/dev/shm") / f"slicer-test-{box.mark}"
    state.mkdir(mode=0o700)
    try:
        os.chown(state, uid, -1)
        code = NO_MORE_PROCESSES.format(processes=processes)
        words = ("run", "--backend", "plain", "-p", "heavy", "-q", "--", "/bin/true")
        command = [*unprivileged(uid), sys.executable, "-c", code, *words]
        env = {**box.env, "SLICER_STATE_DIR": str(state), "XDG_STATE_HOME": str(state), "HOME": "/"}
        done = subprocess.run(
            command, env=env, cwd="/", capture_output=True, text=True, timeout=60, check=False
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode in (125, 126), done
        (line,) = done.stderr.splitlines()
        assert "Resource temporarily unavailable" in line
        assert os.listdir(state / "leases") == os.listdir(state / "tickets") == []
        assert box.processes() == []
    finally:
        subprocess.run(["rm", "-rf", str(state)], check=True)


def test_the_state_survives_nothing_that_matters(box: Box, gate: Gate) -> None:
    """Somebody removes the whole state directory under a running job: that job ends well."""
    job = box.hold(gate)
    for path in (*box.state.glob("*/*"), box.state / "lock"):
        path.unlink()
    (box.state / "version").unlink()
    for path in (box.state / "leases", box.state / "tickets", box.state / "bells", box.state):
        path.rmdir()
    gate.open()
    assert job.process.wait(LONGEST_S) == 0
    _, error = job.process.communicate()
    assert "error" not in text(error)
    until(lambda: not box.processes(), "all is gone")
    assert len(box.outcomes()) == 1
