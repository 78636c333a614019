"""Reading cgroups as they look on systemd 252 and 257 machines, with less, and while they vanish."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from slicer.kernel import cgroup
from slicer.model import Usage

pytestmark = pytest.mark.both_pythons

# Copied from a scope under Linux 6.12 (systemd 257).
FULL = {
    "cgroup.controllers": "cpuset cpu io memory pids\n",
    "cgroup.events": "populated 1\nfrozen 0\n",
    "cgroup.procs": "42\n43\n",
    "cpu.stat": (
        "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\nnice_usec 0\n"
        "nr_periods 10\nnr_throttled 3\nthrottled_usec 250000\nnr_bursts 0\nburst_usec 0\n"
    ),
    "memory.peak": "1073741824\n",
    "memory.events": "low 0\nhigh 7\nmax 3\noom 1\noom_kill 2\noom_group_kill 0\n",
    "io.stat": (
        "254:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n"
        "254:16 rbytes=100 wbytes=200 rios=1 wios=1 dbytes=0 dios=0\n"
    ),
    "cpu.pressure": (
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=2000000\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
    ),
    "memory.pressure": (
        "some avg10=1.53 avg60=0.87 avg300=0.10 total=500000\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    ),
    "io.pressure": (
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    ),
}  # fmt: skip

FULL_USAGE = Usage(
    cpu_s=1.5, cpu_user_s=1.0, cpu_system_s=0.5, throttled_s=0.25, memory_peak_bytes=2**30,
    io_read_bytes=4196, io_write_bytes=8392, oom_kills=2, pressure_cpu_s=2.0, pressure_memory_s=0.5,
    pressure_io_s=0.0,
)  # fmt: skip


def made(root: Path, *without: str, **instead: str) -> str:
    for name, text in {**FULL, **{key.replace("_", "."): value for key, value in instead.items()}}.items():
        if name not in without:
            (root / name).write_text(text)
    return str(root)


# X3
def test_all_figures_of_a_new_kernel(tmp_path: Path) -> None:
    assert cgroup.usage(made(tmp_path)) == FULL_USAGE


# X3
@pytest.mark.parametrize(
    ("missing", "figures"),
    [
        (("memory.peak",), {"memory_peak_bytes"}),  # Linux before 5.19
        (("cpu.pressure", "memory.pressure", "io.pressure"),
         {"pressure_cpu_s", "pressure_memory_s", "pressure_io_s"}),  # psi=0
        (("memory.peak", "memory.events"), {"memory_peak_bytes", "oom_kills"}),  # no memory controller
        (("io.stat",), {"io_read_bytes", "io_write_bytes"}),
        (tuple(FULL), set(Usage.__annotations__)),
    ],
)  # fmt: skip
def test_a_figure_without_its_file_is_unknown_and_never_zero(
    tmp_path: Path, missing: tuple[str, ...], figures: set[str]
) -> None:
    found = cgroup.usage(made(tmp_path, *missing))
    for name in Usage.__annotations__:
        expected = None if name in figures else getattr(FULL_USAGE, name)
        assert getattr(found, name) == expected, name


def test_a_vanished_cgroup_is_empty_and_used_nothing_known(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "slicer-x.scope")
    assert cgroup.usage(nowhere) == Usage()
    assert not cgroup.populated(nowhere)
    assert list(cgroup.processes(nowhere)) == []
    assert cgroup.controllers(nowhere) == frozenset()


def test_without_the_cpu_controller_there_is_no_throttling_to_know_of(tmp_path: Path) -> None:
    short = "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n"
    found = cgroup.usage(made(tmp_path, cpu_stat=short))
    assert (found.cpu_s, found.throttled_s) == (1.5, None)


@pytest.mark.parametrize("text", ["", "\n", "max\n", "garbage"])
def test_an_odd_file_is_unknown(tmp_path: Path, text: str) -> None:
    found = cgroup.usage(
        made(tmp_path, memory_peak=text, cpu_stat=text, memory_events=text, cpu_pressure=text, io_stat=text)
    )
    assert (found.memory_peak_bytes, found.cpu_s, found.oom_kills, found.pressure_cpu_s) == (None,) * 4
    assert (found.io_read_bytes, found.io_write_bytes) == (0, 0)


@pytest.mark.parametrize(
    "line", ["254:0", "254:0 rbytes=max", "254:0 rbytes= wbytes=1", "8:0 \n253:0 rbytes=1"]
)
def test_a_device_that_did_no_io_does_no_harm(tmp_path: Path, line: str) -> None:
    found = cgroup.usage(made(tmp_path, io_stat=f"{line}\n254:16 rbytes=100 wbytes=200\n"))
    assert (found.io_read_bytes or 0) >= 100


# K2
@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ("populated 1\nfrozen 0\n", True),
        ("populated 0\nfrozen 0\n", False),
        ("populated 1\n", True),
        ("", False),
    ],
)
def test_populated(tmp_path: Path, events: str, expected: bool) -> None:
    assert cgroup.populated(made(tmp_path, cgroup_events=events)) is expected


# S3, S7
@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("/x.scope", True),
        ("/gpu.slice/slicer-0123456789ab.scope", True),
        ("/a b/c:d\\x2d.scope", True),
        ("", False),
        ("/", False),
        ("x.scope", False),
        ("//x.scope", False),
        ("/x.scope/", False),
        ("/../x.scope", False),
        ("/a/./x.scope", False),
        ("/a/../../tmp/x.scope", False),
        ("/a\0b", False),
        ("/a\nb", False),
        ("/\udcff", False),
        ("/" + "x" * 4096, False),
    ],
)
def test_a_cgroup_that_a_file_names_lies_within_the_hierarchy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_one: bool
) -> None:
    monkeypatch.setattr(cgroup, "_ROOTS", (str(tmp_path),))
    assert cgroup.is_canonical(name) is is_one
    assert not cgroup.lives(name)
    if is_one:
        (tmp_path / name[1:]).mkdir(parents=True)
        (tmp_path / name[1:] / "cgroup.events").write_text("populated 1\n")
        assert cgroup.lives(name)


# S3, S7: /dev/shm and /tmp are other file systems than the hierarchy
def test_a_cgroup_on_another_file_system_is_none(tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    (tmp_path / "cgroup.events").write_text("populated 1\n")
    assert cgroup.populated(str(tmp_path))
    assert cgroup.populated(str(tmp_path), device)
    assert not cgroup.populated(str(tmp_path), device + 1)


# S3, S7
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_events_that_are_no_plain_file_are_not_waited_for(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "cgroup.events")
    assert not cgroup.populated(str(tmp_path))


# D14
def test_whether_a_cgroup_is_populated_is_not_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_descriptors(*args: object, **named: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", out_of_descriptors)
    with pytest.raises(OSError, match="Too many open files"):
        cgroup.populated(made(tmp_path))


def test_processes_below_count_and_those_of_other_namespaces_do_not(tmp_path: Path) -> None:
    made(tmp_path, cgroup_procs="42\n0\n43\n")
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "cgroup.procs").write_text("44\n")
    (tmp_path / "gone").mkdir()
    (tmp_path / "link").symlink_to(inner)
    assert sorted(cgroup.processes(str(tmp_path))) == [42, 43, 44]


def test_many_processes_are_all_seen(tmp_path: Path) -> None:
    pids = range(1000000, 1050000)
    (tmp_path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    assert list(cgroup.processes(str(tmp_path))) == list(pids)


def test_controllers(tmp_path: Path) -> None:
    assert cgroup.controllers(made(tmp_path)) == {"cpuset", "cpu", "io", "memory", "pids"}
    (tmp_path / "cgroup.controllers").write_text("\n")
    assert cgroup.controllers(str(tmp_path)) == frozenset()


def test_the_root_is_found_in_unified_and_hybrid_set_ups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = (str(tmp_path / "cgroup"), str(tmp_path / "cgroup" / "unified"))
    monkeypatch.setattr(cgroup, "_ROOTS", places)
    os.makedirs(places[1])
    assert cgroup.root() is None
    assert cgroup.path_of("/cpu.slice") == f"{places[0]}/cpu.slice"
    (Path(places[1]) / "cgroup.procs").write_text("")
    assert cgroup.root() == places[1]
    assert cgroup.path_of("/cpu.slice") == f"{places[1]}/cpu.slice"
    (Path(places[0]) / "cgroup.procs").write_text("")
    assert cgroup.root() == places[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0::/gpu.slice/slicer-x.scope\n", "/gpu.slice/slicer-x.scope"),
        ("0::/\n", "/"),
        ("12:pids:/a\n1:name=systemd:/b\n0::/c:d\n", "/c:d"),
        ("12:pids:/a\n", ""),
        ("", ""),
        ("0::/../../elsewhere\n", "/../../elsewhere"),
        ("0::/a.slice/x.scope (deleted)\n", "/a.slice/x.scope (deleted)"),
    ],
)
def test_the_cgroup_of_a_process(text: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "read_text", lambda path: text)
    assert cgroup.of("self") == expected


def test_the_cgroup_of_a_process_that_is_gone_is_unknown() -> None:
    assert cgroup.of(2**22 + 1) == ""
