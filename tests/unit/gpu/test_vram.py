"""Whose a GPU's memory is: by cgroup, marker and ancestry; where the driver does not say; foreign peaks."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from slicer.gpu import vram
from slicer.gpu.vram import ForeignPeaks, GpuWatch, Owners, Seen, Sighting
from slicer.job import gpu_leftovers
from slicer.kernel import cgroup
from slicer.model import LEASE_VARIABLE, GpuMemory, GpuProcess, Lease
from slicer.placement.capacity import Policy, headroom, is_idle
from slicer.state.directory import Directory
from tests.unit.made_up import lease

G0, G1 = "GPU-0", "GPU-1"
TOTAL = 80_000


def scope(job: str, *gpus: str, **fields: Any) -> Lease:
    """A lease under systemd."""
    return lease(
        job, gpus=gpus, cgroup=f"/gpu.slice/slicer-{job}.scope", unit=f"slicer-{job}.scope", **fields
    )


def loose(job: str, *gpus: str, **fields: Any) -> Lease:
    """A lease without a cgroup: of the plain backend, or of a program that took it itself."""
    return lease(job, gpus=gpus, cgroup="", unit="", backend="plain", **fields)


def seen(pid: int = 100, gpu: str = G0, used: int | None = 1000, **fields: Any) -> Seen:
    values = {
        "started": 5000,
        "name": "python",
        "cgroup": "/user.slice/user-1000.slice/session-1.scope",
        "jobs": (),
        "above": (),
        **fields,
    }
    return Seen(gpu_uuid=gpu, pid=pid, used_mib=used, **values)


def sighting(*processes: Seen, used: dict[str, int] | None = None, gpus: int = 2) -> Sighting:
    """What ``processes`` add up to, unless ``used`` says otherwise."""
    memory = []
    for uuid in (G0, G1)[:gpus]:
        mib = sum(each.used_mib or 0 for each in processes if each.gpu_uuid == uuid)
        memory.append(GpuMemory(uuid, TOTAL, (used or {}).get(uuid, mib)))
    return Sighting(tuple(memory), processes)


def owner(process: Seen, *leases: Lease) -> str:
    found = Owners(leases).of(process)
    return found.job if found else ""


# -- attribution ------------------------------------------------------------------------------------------

A = scope("aaa", G0)
B = scope("bbb", G0)
PLAIN = loose("ppp", G0, pid=50, keeper=51)

CASES = {
    "in the scope itself": ("/gpu.slice/slicer-aaa.scope", {}, "aaa"),
    "in a container's cgroup below the scope": ("/gpu.slice/slicer-aaa.scope/docker/f00/init", {}, "aaa"),
    "in a scope whose name begins like it": ("/gpu.slice/slicer-aaa.scope2", {}, ""),
    "in another job's scope": ("/gpu.slice/slicer-bbb.scope", {}, "bbb"),
    "in the slice, but in no scope": ("/gpu.slice", {}, ""),
    "in the same place of another hierarchy": ("/user.slice/gpu.slice/slicer-aaa.scope", {}, ""),
    "in the root cgroup": ("/", {}, ""),
    "outside our pid namespace": ("", {"started": 0, "name": ""}, ""),
    # A cgroup decides where there is one: who left it (systemd-run, docker) is not in the job any more.
    "left its scope, marker and all": ("/system.slice/x.service", {"jobs": ("aaa",)}, ""),
    "moved into another job's scope": ("/gpu.slice/slicer-bbb.scope", {"jobs": ("aaa",)}, "bbb"),
    # Without systemd.
    "marked": ("/x", {"jobs": ("ppp",)}, "ppp"),
    "marked by a job that ended": ("/x", {"jobs": ("old",)}, ""),
    "marked, below a job that ended": ("/x", {"jobs": ("ppp", "old")}, "ppp"),
    "the lease's own process": ("/x", {"pid": 50}, "ppp"),
    "below the keeper, with an empty environment": ("/x", {"above": (70, 51, 50, 1)}, "ppp"),
    "below somebody else": ("/x", {"above": (70, 1)}, ""),
}


@pytest.mark.parametrize("case", CASES)
def test_a_process_belongs_to(case: str) -> None:  # X2
    where, fields, job = CASES[case]
    assert owner(seen(**{"cgroup": where, **fields}), A, B, PLAIN) == job


IN_A = "/gpu.slice/slicer-aaa.scope"


@pytest.mark.parametrize(
    ("fields", "leases", "job"),
    [
        # A lease that a program took inside a scope, which is shared by memory.
        ({"cgroup": IN_A, "jobs": ("aaa", "ppp")}, (A, PLAIN), "ppp"),
        ({"cgroup": IN_A, "jobs": ("aaa",), "above": (50, 4212)}, (A, PLAIN), "aaa"),
        ({"cgroup": IN_A, "above": (50, 49, 4212, 4211)}, (A, PLAIN), "ppp"),
        # A scope that was started by a program with a lease of its own (`slicer hold -- slicer run …`).
        ({"cgroup": IN_A, "jobs": ("ppp", "aaa")}, (A, PLAIN), "aaa"),
        ({"cgroup": IN_A, "above": (4212, 4211, 51, 50)}, (A, PLAIN), "aaa"),
        # Two leases of one program: the younger one is inside the older.
        ({"pid": 50}, (PLAIN, loose("qqq", G0, pid=50, since_s=999.0)), "qqq"),
        # A scope inside a scope, as a container's systemd makes them.
        (
            {"cgroup": f"{IN_A}/inner.scope/x"},
            (A, scope("ccc", G0), lease("ddd", gpus=(G0,), cgroup=f"{IN_A}/inner.scope")),
            "ddd",
        ),
    ],
)
def test_of_several_leases_the_innermost_wins(
    fields: dict[str, Any], leases: tuple[Lease, ...], job: str
) -> None:  # X2
    assert owner(seen(**fields), *leases) == job
    assert owner(seen(**fields), *reversed(leases)) == job


@pytest.mark.parametrize(
    ("fields", "leases", "job"),
    [
        # An inner job that asked for a CPU slot alone uses the outer one's GPU.
        ({"cgroup": IN_A, "jobs": ("out", "aaa")}, (scope("aaa"), scope("out", G0)), "out"),
        ({"cgroup": IN_A, "above": (4212, 9, 8)}, (scope("aaa"), scope("out", G0, pid=8, keeper=9)), "out"),
        # Two leases of one program, on a GPU each.
        ({"pid": 50}, (PLAIN, loose("qqq", G1, pid=50, since_s=999.0)), "ppp"),
        # Nobody around it holds this GPU.
        ({"cgroup": IN_A, "jobs": ("out", "aaa")}, (scope("aaa", G1), scope("out", G1)), "aaa"),
    ],
)
def test_a_lease_counts_for_its_own_gpus(
    fields: dict[str, Any], leases: tuple[Lease, ...], job: str
) -> None:  # X2, A3
    assert owner(seen(**fields), *leases) == job


def test_the_process_of_a_job_is_its_use_and_others_are_foreign() -> None:  # X2, E3
    found, other = vram.devices(
        sighting(
            seen(1, G0, 1000, cgroup=IN_A),
            seen(2, G0, 500, cgroup=f"{IN_A}/nested"),
            seen(3, G0, 300, cgroup="/gpu.slice/slicer-bbb.scope"),
            seen(4, G0, 70),
            seen(5, G0, 5),
            used={G0: 2000},
        ),
        (A, B),
        {(4, 5000, G0): 900, (5, 4999, G0): 7000, (4, 5000, G1): 7000},
    )
    assert (found.total_mib, found.used_mib) == (TOTAL, 2000)
    assert found.used_by == {"aaa": 1500, "bbb": 300}
    assert found.foreign_mib == 900 + 5  # held at the peak of the same process on the same GPU
    assert found.foreign_pids == (4, 5)
    assert (other.uuid, other.used_mib, other.used_by, other.foreign_mib) == (G1, 0, {}, 0)


def test_a_jobs_process_on_a_gpu_that_it_does_not_hold_is_in_everybodys_way() -> None:  # X2, E3
    _, found = vram.devices(sighting(seen(7, G1, 9000, cgroup=IN_A)), (A,), {})
    assert found.used_by == {"aaa": 9000}
    assert (found.foreign_mib, found.foreign_pids) == (9000, (7,))
    assert not is_idle(found, (A,), Policy())
    assert headroom(found, (A,), Policy()) == TOTAL - 9900


# -- what the driver does not say -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("processes", "used_by", "foreign_mib"),
    [
        # All mute ones are of one job: the memory that nobody accounts for is its.
        ([("aaa", None), ("aaa", None)], {"aaa": 20_000}, 0),
        ([("aaa", None), ("bbb", 3000)], {"aaa": 17_000, "bbb": 3000}, 0),
        ([("aaa", None), ("aaa", 4000), ("", 1000)], {"aaa": 19_000}, 1000),
        # One of them is nobody's: it may be using all of it.
        ([("aaa", None), ("", None)], {"aaa": 0}, 20_000),
        ([("", None), ("", 2000)], {}, 20_000),
        # Several jobs: their declarations (8000 and 6000) are set aside anyway, the rest is not.
        ([("aaa", None), ("bbb", None)], {"aaa": 0, "bbb": 0}, 6000),
        ([("aaa", None), ("bbb", None), ("", 5000)], {"aaa": 0, "bbb": 0}, 5000 + 1000),
        # Nothing is left over.
        ([("aaa", None), ("bbb", 20_000)], {"aaa": 0, "bbb": 20_000}, 0),
        ([("aaa", None), ("bbb", 21_000)], {"aaa": 0, "bbb": 21_000}, 0),
        # All that is listed accounts for itself: contexts of the driver are nobody's.
        ([("aaa", 5000)], {"aaa": 5000}, 0),
    ],
)
def test_use_that_is_not_said(
    processes: list[tuple[str, int | None]], used_by: dict[str, int], foreign_mib: int
) -> None:  # E13
    leases = (scope("aaa", G0, vram_mib=8000), scope("bbb", G0, vram_mib=6000))
    listed = [
        seen(pid, G0, used, cgroup=f"/gpu.slice/slicer-{job}.scope" if job else "/x")
        for pid, (job, used) in enumerate(processes, 1)
    ]
    found, _ = vram.devices(sighting(*listed, used={G0: 20_000}), leases, {})
    assert (found.used_by, found.foreign_mib) == (used_by, foreign_mib)
    assert found.foreign_pids == tuple(pid for pid, (job, _) in enumerate(processes, 1) if not job)


def test_a_mute_process_on_a_gpu_that_its_job_does_not_hold_is_foreign_there() -> None:  # E13
    _, found = vram.devices(sighting(seen(7, G1, None, cgroup=IN_A), used={G1: 400}), (A,), {})
    assert (found.used_by, found.foreign_mib, found.foreign_pids) == ({"aaa": 400}, 400, (7,))


# -- looking ----------------------------------------------------------------------------------------------


class MadeUpGpus:
    """A driver that says what it is told."""

    def __init__(self, *processes: GpuProcess) -> None:
        self.listed = [list(processes)]
        self.is_open = True

    def list(self) -> tuple[Any, ...]:
        return ()

    def notes(self) -> tuple[str, ...]:
        return ()

    def memory(self, only: Collection[str] = ()) -> tuple[GpuMemory, ...]:
        return tuple(GpuMemory(uuid, TOTAL, 0) for uuid in (G0, G1) if not only or uuid in only)

    def processes(self, only: Collection[str] = ()) -> tuple[GpuProcess, ...]:
        now = self.listed.pop(0) if len(self.listed) > 1 else self.listed[0]
        return tuple(each for each in now if not only or each.gpu_uuid in only)

    def close(self) -> None:
        self.is_open = False


class Child:
    """A process that waits to be told to end, with the marker of jobs in its environment."""

    def __init__(self, jobs: str) -> None:
        self.process = subprocess.Popen(
            ["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, LEASE_VARIABLE: jobs}
        )
        self.pid = self.process.pid
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"x")
        self.process.stdin.flush()
        self.process.stdout.read(1)  # it has executed

    def end(self) -> None:
        """It has ended, and nothing of it is in /proc."""
        self.process.communicate()


@pytest.fixture
def child() -> Any:
    made = Child("aaa,bbb")
    yield made
    if made.process.returncode is None:
        made.end()


def test_a_look_finds_what_tells_whose_a_process_is(child: Child) -> None:  # X2
    watch = GpuWatch(MadeUpGpus(GpuProcess(G0, child.pid, 5), GpuProcess(G1, child.pid, None)))
    found = watch.look()
    assert [memory.gpu_uuid for memory in found.memory] == [G0, G1]
    on_0, on_1 = found.processes
    assert (on_0.gpu_uuid, on_0.pid, on_0.used_mib, on_0.name) == (G0, child.pid, 5, "cat")
    assert (on_1.gpu_uuid, on_1.pid, on_1.used_mib, on_1.name) == (G1, child.pid, None, "cat")
    assert on_0.jobs == ("aaa", "bbb")
    assert on_0.above[0] == os.getpid()
    assert on_0.cgroup == cgroup.of("self")
    assert on_0.started > 0


def test_a_look_may_be_at_some_gpus_only(child: Child) -> None:
    watch = GpuWatch(MadeUpGpus(GpuProcess(G0, child.pid, 5), GpuProcess(G1, child.pid, 6)))
    found = watch.look((G1,))
    assert [memory.gpu_uuid for memory in found.memory] == [G1]
    assert [process.used_mib for process in found.processes] == [6]


def test_a_process_that_ended_meanwhile_is_not_taken_for_a_foreign_one(child: Child) -> None:  # B5
    gone = GpuProcess(G0, child.pid, 5)
    child.end()
    gpus = MadeUpGpus()
    gpus.listed = [[gone], []]
    assert GpuWatch(gpus).look().processes == ()


def test_a_process_that_ended_is_its_jobs_until_the_driver_frees_its_memory(child: Child) -> None:  # B5
    watch = GpuWatch(MadeUpGpus(GpuProcess(G0, child.pid, 5)))
    (before,) = watch.look().processes
    child.end()
    for _ in range(2):
        (after,) = watch.look().processes
        assert after == before
    assert owner(after, loose("bbb", G0)) == "bbb"


def test_a_process_that_proc_does_not_show_is_foreign() -> None:  # E13: we are in a pid namespace
    watch = GpuWatch(MadeUpGpus(GpuProcess(G0, 2**22 + 1, 5)))
    (found,) = watch.look().processes
    assert (found.started, found.name, found.cgroup, found.jobs) == (0, "", "", ())
    assert owner(found, A, PLAIN) == ""


def test_a_pid_that_is_given_anew_is_another_process(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = GpuWatch(MadeUpGpus(GpuProcess(G0, child.pid, 5)))
    (before,) = watch.look().processes
    real = vram._identity
    monkeypatch.setattr(vram, "_identity", lambda pid: (real(pid)[0] + 1, "other"))
    monkeypatch.setattr(vram, "_marker", lambda pid: ())
    (after,) = watch.look().processes
    assert (before.name, before.jobs) == ("cat", ("aaa", "bbb"))
    assert (after.name, after.jobs, after.started) == ("other", (), before.started + 1)


def test_a_name_with_parentheses_and_spaces_is_read() -> None:
    code = "import sys; open('/proc/self/comm', 'w').write('a) b (c'); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        while Path(f"/proc/{process.pid}/comm").read_text() != "a) b (c\n":
            assert process.poll() is None
        assert vram._identity(process.pid)[1] == "a) b (c"
        process.communicate()


def test_closing_gives_the_driver_back() -> None:
    gpus = MadeUpGpus()
    watch = GpuWatch(gpus)
    watch.close()
    assert not gpus.is_open


# -- foreign peaks ----------------------------------------------------------------------------------------

KEY = (4, 5000, G0)


def opened(path: Path) -> Directory:
    """For the length of a test; the descriptor ends with it."""
    made = Directory(os.open(path, os.O_RDONLY | os.O_DIRECTORY), str(path))
    weakref.finalize(made, os.close, made.fd)
    return made


def looked(tmp_path: Path, *processes: Seen, leases: tuple[Lease, ...] = (A,)) -> ForeignPeaks:
    """A newcomer's knowledge after one look."""
    peaks = ForeignPeaks(opened(tmp_path))
    assert peaks.update(sighting(*processes), leases) is None
    return peaks


def test_the_peak_of_a_foreign_process_is_kept_for_all(tmp_path: Path) -> None:  # E3
    assert looked(tmp_path, seen(4, used=900), seen(5, used=70, cgroup=IN_A)).peaks == {KEY: 900}
    assert looked(tmp_path, seen(4, used=100)).peaks == {KEY: 900}
    assert looked(tmp_path, seen(4, used=1000)).peaks == {KEY: 1000}
    assert looked(tmp_path, seen(4, used=100)).peaks == {KEY: 1000}
    assert os.listdir(tmp_path) == ["foreign"]


def test_a_jobs_process_beside_its_lease_has_a_peak_too(tmp_path: Path) -> None:  # E3
    assert looked(tmp_path, seen(4, G1, 900, cgroup=IN_A)).peaks == {(4, 5000, G1): 900}


def test_who_has_left_the_gpu_is_forgotten_and_the_last_takes_the_file_along(tmp_path: Path) -> None:  # A2
    looked(tmp_path, seen(4, used=900), seen(5, used=10), seen(4, G1, 30))
    assert looked(tmp_path, seen(5, used=10)).peaks == {(5, 5000, G0): 10}
    assert looked(tmp_path, seen(5, used=10, started=6000)).peaks == {(5, 6000, G0): 10}  # another process
    assert looked(tmp_path, seen(5, used=10, cgroup=IN_A)).peaks == {}  # it got a lease
    assert os.listdir(tmp_path) == []


def test_small_changes_are_not_written(tmp_path: Path) -> None:
    looked(tmp_path, seen(4, used=1000))
    written = os.stat(tmp_path / "foreign").st_ino
    peaks = looked(tmp_path, seen(4, used=1049))
    assert peaks.peaks == {KEY: 1049}
    peaks.update(sighting(seen(4, used=1)), (A,))
    assert peaks.peaks == {KEY: 1049}  # who saw it knows it
    assert os.stat(tmp_path / "foreign").st_ino == written
    assert looked(tmp_path, seen(4, used=1051)).peaks == {KEY: 1051}
    assert os.stat(tmp_path / "foreign").st_ino != written


def test_a_look_at_some_gpus_leaves_the_others_peaks(tmp_path: Path) -> None:
    looked(tmp_path, seen(4, G0, 900), seen(4, G1, 30), seen(5, G1, 40))
    peaks = ForeignPeaks(opened(tmp_path))
    here = sighting(seen(4, G1, 20))
    assert peaks.is_stale(here, (A,), (G1,))
    assert peaks.update(here, (A,), (G1,)) is None
    assert peaks.peaks == {KEY: 900, (4, 5000, G1): 30}
    assert not peaks.is_stale(here, (A,), (G1,))
    assert looked(tmp_path, seen(4, G0, 1), seen(4, G1, 1)).peaks == {KEY: 900, (4, 5000, G1): 30}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"SLICER_FOREIGN=1\n",
        b"SLICER_FOREIGN=1\nPEAK=4 5000 GPU-0 9",
        b"SLICER_FOREIGN=1\nPEAK=4 5000 GPU-0 9000\n",
        b"SLICER_FOREIGN=2\nPEAK=4 5000 GPU-0 9000\nEND=\n",
        b"SLICER_FOREIGN=1\nPEAK=4 5000 GPU-0\nEND=\n",
        b"SLICER_FOREIGN=1\nPEAK=4 5000 GPU-0 -9000\nEND=\n",
        b"SLICER_FOREIGN=1\nPEAK=x 5000 GPU-0 9000\nEND=\n",
        b"SLICER_FOREIGN=1\nPEAK=4 5000 GPU-0 9000 1\nEND=\n",
        b"SLICER_FOREIGN=1\nEVIL=4 5000 GPU-0 9000\nEND=\n",
        b"SLICER_FOREIGN=1\nPEAK=4 5000 GPU-0 " + b"9" * 5000 + b"\nEND=\n",
        b"\xff\xfe\0\n" * 1000,
    ],
)
def test_a_torn_or_foreign_file_counts_for_nothing_and_is_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "foreign").write_bytes(content)
    assert looked(tmp_path, seen(4, used=7)).peaks == {KEY: 7}
    assert vram.parse_peaks((tmp_path / "foreign").read_bytes()) == {KEY: 7}


@pytest.mark.parametrize("kind", ["link", "hard link", "fifo"])
def test_what_is_no_file_of_ours_is_not_read_but_replaced(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "state"
    place.mkdir()
    bait = tmp_path / "bait"
    bait.write_bytes(vram.format_peaks({KEY: 9000}))
    if kind == "fifo":
        os.mkfifo(place / "foreign")
    elif kind == "link":
        (place / "foreign").symlink_to(bait)
    else:
        os.link(bait, place / "foreign")
    (place / "foreign.new").symlink_to(bait)  # a trap in the way of the writer
    assert looked(place, seen(4, used=7)).peaks == {KEY: 7}
    assert bait.read_bytes() == vram.format_peaks({KEY: 9000})
    assert os.listdir(place) == ["foreign"]


def test_what_a_killed_writer_left_is_cleared_away(tmp_path: Path) -> None:  # A2
    (tmp_path / "foreign.new").write_bytes(b"half")
    looked(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_directory_that_cannot_be_written_is_said_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    peaks = ForeignPeaks(opened(tmp_path))
    said = peaks.update(sighting(seen(4, used=7)), (A,))
    assert said is not None
    assert "foreign" in said
    assert "\n" not in said
    assert peaks.peaks == {KEY: 7}


# S9
def test_nobody_else_can_read_the_peaks_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        looked(tmp_path, seen(4, used=900))
    finally:
        os.umask(before)
    assert os.stat(tmp_path / "foreign").st_mode & 0o777 == 0o600


# S7
def test_peaks_that_somebody_else_wrote_count_for_nothing_and_are_replaced(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a file away")
    (tmp_path / "foreign").write_bytes(vram.format_peaks({KEY: 9000}))
    os.chown(tmp_path / "foreign", 65534, 65534)
    assert looked(tmp_path, seen(4, used=7)).peaks == {KEY: 7}
    assert (tmp_path / "foreign").stat().st_uid == 0


def test_without_a_state_directory_peaks_are_known_to_who_looks_alone() -> None:
    peaks = ForeignPeaks(None)
    assert peaks.update(sighting(seen(4, used=900)), (A,)) is None
    assert peaks.update(sighting(seen(4, used=7)), (A,)) is None
    assert peaks.peaks == {KEY: 900}


# -- what is left after a job -----------------------------------------------------------------------------

WHOLE = scope("aaa", G0, since_s=100.0)
SHARER = scope("aaa", G0, since_s=100.0, vram_mib=8000)


def test_after_the_job_its_own_processes_are_told_from_the_rest() -> None:  # B5
    here = sighting(seen(1, cgroup=IN_A), seen(2), seen(3, G1, cgroup=IN_A))
    left = gpu_leftovers.remains(here, WHOLE, 200)
    assert [process.pid for process in left.own] == [1]
    assert left.unexplained == {}


@pytest.mark.parametrize(
    ("held", "used", "processes", "odd"),
    [
        (WHOLE, 201, (), {G0: 201}),
        (WHOLE, 200, (), {}),  # no more than on an idle GPU
        (WHOLE, 5000, (seen(2, G0, 4000),), {}),  # there is somebody to blame
        (WHOLE, 5000, (seen(2, G1, 4000),), {G0: 5000}),
        (SHARER, 5000, (), {}),  # may be a sharer's: the driver lists none in some containers
    ],
)
def test_memory_without_a_process_is_odd_on_a_whole_gpu(
    held: Lease, used: int, processes: tuple[Seen, ...], odd: dict[str, int]
) -> None:  # B5
    assert gpu_leftovers.remains(sighting(*processes, used={G0: used}), held, 200).unexplained == odd


@pytest.mark.parametrize(
    ("held", "process", "is_reported"),
    [
        (WHOLE, seen(2, started=10_001), True),  # began after the lease, at 100 s
        (WHOLE, seen(2, started=9_999), False),  # was there before
        (WHOLE, seen(2, started=10_001, gpu=G1), False),
        (WHOLE, seen(2, started=10_001, cgroup="/gpu.slice/slicer-bbb.scope"), False),
        (WHOLE, seen(2, started=10_001, cgroup=IN_A), False),
        (WHOLE, seen(2, started=0, cgroup=""), True),  # the GPU was empty
        (scope("aaa", G0, since_s=100.0, forced=1), seen(2, started=0, cgroup=""), False),
        (SHARER, seen(2, started=0, cgroup=""), False),  # may have been there before
        (SHARER, seen(2, started=10_001), True),
    ],
)
def test_who_came_during_the_job_and_is_in_no_job_is_reported(
    held: Lease, process: Seen, is_reported: bool
) -> None:  # B5
    found = gpu_leftovers.strangers(sighting(process), held, (held, B), 100)
    assert bool(found) == is_reported
