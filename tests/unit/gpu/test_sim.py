"""Simulated GPUs: which there are, where their state is, what is used of them, and what a job does."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slicer.errors import EX_USAGE, GpuError, StateError, UsageError
from slicer.gpu import open_gpus
from slicer.gpu.sim.driver import simulated_gpus
from slicer.gpu.sim.job import LIBRARIES, MemoryPlan, Spike, demand_mib, next_step_s, oom_text, visible_gpus
from slicer.gpu.sim.usage import NoRoom, UsageFolder, Use, in_use
from slicer.kernel import proc
from slicer.model import GpuMemory, GpuProcess
from slicer.state import statedir
from slicer.state.simulated import DEFAULT_MIB, canonical, parse_spec, spec_of
from slicer.state.statedir import StateDir
from tests.fake_nvml import TWO_GPUS, FakeNvml
from tests.patience import until
from tests.process.harness import SRC

pytestmark = pytest.mark.both_pythons

pytest_plugins = ["tests.fake_nvml"]

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
GPU_0, GPU_1 = (f"SIM-0000000{index}-0000-0000-0000-000000000000" for index in range(2))
GPUS = simulated_gpus((DEFAULT_MIB, 2 * DEFAULT_MIB))


# -- which GPUs there are ---------------------------------------------------------------------------------


# E11
@pytest.mark.parametrize(
    ("text", "sizes", "same_as"),
    [
        ("1", (24576,), "1x24G"),
        ("4", (24576,) * 4, "4x24G"),
        ("2x24576M", (24576,) * 2, "2x24G"),
        ("2x24G,1x80G", (24576, 24576, 81920), "2x24G,1x80G"),
        (" 1x24G , 1x24GiB ", (24576, 24576), "2x24G"),
        ("1x80G,1x1.5G,1x80G", (81920, 1536, 81920), "1x80G,1x1536M,1x80G"),
        ("64", (24576,) * 64, "64x24G"),
    ],
)
def test_gpus_are_described_in_one_variable(text: str, sizes: tuple[int, ...], same_as: str) -> None:
    assert parse_spec(text) == sizes
    assert canonical(sizes) == same_as
    assert parse_spec(same_as) == sizes


@pytest.mark.parametrize(
    "text",
    [
        "0", "-1", "65", "x", "4x", "x24G", "4x24", "4x0G", "4xinfinity", "4x24GB", "4,", ",", "four",
        "4 x 24 Q", "32,33", "٤", "9" * 5000, "1.5", "4x24G;rm", "4x../..",
        ",".join(f"1x{size}M" for size in range(1000, 1060)),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_by_name(text: str) -> None:  # E11
    with pytest.raises(UsageError) as caught:
        parse_spec(text)
    assert caught.value.where == "SLICER_SIM"
    assert caught.value.exit_code == EX_USAGE
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


# E11, E12
@pytest.mark.parametrize(
    ("count", "sizes", "made"),
    [
        (4, None, "4x24G"),
        (1, "80G", "1x80G"),
        (4, "24G,24G,80G", "2x24G,2x80G"),  # the last counts for all that follow
        (2, "24000", "2x24000M"),  # gpusched's unit
        (3, " 1G , 2G ", "1x1G,2x2G"),
    ],
)
def test_the_options_of_a_queue_say_the_same(count: int, sizes: str | None, made: str) -> None:
    assert spec_of(count, sizes) == made
    assert len(parse_spec(made)) == count


@pytest.mark.parametrize(
    ("count", "sizes", "where"),
    [
        (0, None, "--sim"),
        (-1, None, "--sim"),
        (65, None, "--sim"),
        (1, "24G,80G", "--sim-vram"),
        (2, "", "--sim-vram"),
        (2, "24G,", "--sim-vram"),
        (2, "0", "--sim-vram"),
        (2, "big", "--sim-vram"),
        (64, ",".join(f"{size}M" for size in range(1000, 1064)), "--sim-vram"),
    ],
)
def test_bad_options_of_a_queue_are_refused_by_name(count: int, sizes: str | None, where: str) -> None:
    with pytest.raises(UsageError) as caught:
        spec_of(count, sizes)
    assert caught.value.where == where


# -- whose state they have --------------------------------------------------------------------------------


def located(path: Path, sim: str = "2") -> StateDir:
    return statedir.locate({"SLICER_STATE_DIR": str(path), "SLICER_SIM": sim}, os.geteuid())


# E11
def test_simulated_jobs_have_a_ledger_of_their_own(tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert located(state).path == str(state / "sim-2x24G")
    assert located(state, "2x24G").path == located(state, " 2x24576M").path
    assert sorted(os.listdir(state)) == ["sim-2x24G"]
    assert sorted(os.listdir(state / "sim-2x24G")) == ["bells", "leases", "tickets", "version"]
    for made in (state, *(state / "sim-2x24G").iterdir()):
        assert stat.S_IMODE(made.stat().st_mode) & 0o077 == 0 or not made.is_dir()
    real = {"SLICER_STATE_DIR": str(state), "SLICER_SIM": ""}
    assert statedir.where(real, os.geteuid()) == str(state)


def test_looking_makes_no_directory(tmp_path: Path) -> None:
    state = tmp_path / "state"
    environ = {"SLICER_STATE_DIR": str(state), "SLICER_SIM": "3"}
    assert statedir.where(environ, os.geteuid()) == f"{state}/sim-3x24G"
    assert not state.exists()


def test_its_parent_is_as_little_trusted_as_any(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(StateError, match="symbolic link"):
        located(tmp_path / "link")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(StateError, match="writable by everybody"):
        located(tmp_path / "open")
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "private" / "sim-2x24G").symlink_to(tmp_path)
    with pytest.raises(StateError, match="symbolic link"):
        located(tmp_path / "private")


@ROOT_ONLY
def test_in_a_private_directory_nobody_elses_is_trusted(tmp_path: Path) -> None:
    located(tmp_path / "state")
    os.chown(tmp_path / "state" / "sim-2x24G", 65534, -1)
    with pytest.raises(StateError, match="belongs to uid 65534"):
        located(tmp_path / "state")


# -- what is used of them ---------------------------------------------------------------------------------


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[StateDir]:
    made = located(tmp_path / "state", "1x24G,1x48G")
    yield made
    made.close()


@pytest.fixture
def directory(state_dir: StateDir) -> Path:
    return Path(state_dir.path)


@pytest.fixture
def usage(state_dir: StateDir) -> Iterator[UsageFolder]:
    made = UsageFolder(state_dir.base, GPUS)
    yield made
    made.close()


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def use_of(pid: int, *mib: int, utilisation: int = 90, started: int | None = None) -> Use:
    begun = proc.start_time(pid) if started is None else started
    assert begun is not None
    return Use(pid, begun, utilisation, (GPU_0, GPU_1)[: len(mib)], mib)


# E11
def test_an_allocation_that_does_not_fit_changes_nothing(
    usage: UsageFolder, other: subprocess.Popen[bytes]
) -> None:
    mine, theirs = use_of(os.getpid(), 20_000, 1000), use_of(other.pid, 4576)
    assert usage.allocate(mine) is None
    assert usage.allocate(theirs) is None  # exactly full
    assert usage.allocate(use_of(other.pid, 4577)) == NoRoom(GPUS[0], 4576)
    assert sorted(usage.living(), key=lambda use: use.pid == other.pid) == [mine, theirs]
    assert usage.allocate(use_of(os.getpid(), 24_577)) == NoRoom(GPUS[0], 20_000)
    assert usage.allocate(use_of(os.getpid(), 10, 49_152)) is None
    assert dict(in_use(usage.living())) == {GPU_0: 4586, GPU_1: 49_152}


# E11
def test_what_a_dead_process_used_is_free_again(
    directory: Path, usage: UsageFolder, other: subprocess.Popen[bytes]
) -> None:
    usage.allocate(use_of(other.pid, 24_000))
    (directory / "usage" / f"{other.pid}-1.tmp").write_bytes(b"half")  # of a process before it with this pid
    assert usage.allocate(use_of(os.getpid(), 1000)) is not None
    other.kill()
    until(lambda: proc.start_time(other.pid) is None, "it is a zombie")
    assert usage.allocate(use_of(os.getpid(), 24_000)) is None
    assert os.listdir(directory / "usage") == [f"{os.getpid()}-{proc.start_time(os.getpid())}"]


def test_a_pid_that_was_given_anew_does_not_inherit(directory: Path, usage: UsageFolder) -> None:  # E11
    usage.allocate(use_of(os.getpid(), 24_000, started=17))
    assert usage.living() == []
    assert os.listdir(directory / "usage") == []


def test_what_else_lies_there_is_left_alone(directory: Path, usage: UsageFolder) -> None:
    mine = use_of(os.getpid(), 5)
    name = f"{mine.pid}-{mine.started}"
    for content in (b"", b"SLICER_USE=1\nPID=", b"\xff\xfe" * 100):
        (directory / "usage" / name).write_bytes(content)
        assert usage.living() == []
    (directory / "usage" / name).unlink()
    strange = ["a", "1", "1-", "-1", "1-2-3", "x-y", f"{'9' * 30}-1", "README"]
    for word in strange:
        (directory / "usage" / word).write_text("?")
    assert usage.living() == []
    assert sorted(os.listdir(directory / "usage")) == sorted(strange)


# S9
def test_nobody_else_can_read_what_is_used_whatever_the_umask(directory: Path, usage: UsageFolder) -> None:
    before = os.umask(0)
    try:
        usage.allocate(use_of(os.getpid(), 5))
    finally:
        os.umask(before)
    (made,) = (directory / "usage").iterdir()
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.parent.stat().st_mode) == 0o700


def make_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(path.parent):  # their paths are short
        made.bind(path.name)


# S7
@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, make_link, make_socket])
def test_what_is_no_plain_file_there_counts_for_nothing(
    directory: Path, usage: UsageFolder, make: Callable[[Path], None]
) -> None:
    mine = use_of(os.getpid(), 5)
    make(directory / "usage" / f"{mine.pid}-{mine.started}")
    assert usage.living() == []


def test_memory_can_be_handed_to_another_process(usage: UsageFolder, other: subprocess.Popen[bytes]) -> None:
    mine, theirs = use_of(os.getpid(), 20_000), use_of(other.pid, 20_000)
    usage.allocate(mine)
    usage.take_over(theirs, mine)
    assert usage.living() == [theirs]
    usage.free(theirs)
    usage.free(theirs)
    assert usage.living() == []


# -- behind the protocol ----------------------------------------------------------------------------------


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLICER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("SLICER_SIM", "1x24G,1x48G")


# E11
@pytest.mark.usefixtures("environ")
def test_everybody_sees_simulated_gpus_in_place_of_the_drivers(
    usage: UsageFolder, other: subprocess.Popen[bytes]
) -> None:
    gpus = open_gpus()
    assert [(gpu.index, gpu.uuid, gpu.name, gpu.memory_mib, gpu.minor) for gpu in gpus.list()] == [
        (0, GPU_0, "Simulated GPU (24 GiB)", 24576, -1),
        (1, GPU_1, "Simulated GPU (48 GiB)", 49152, -1),
    ]
    assert gpus.memory() == (GpuMemory(GPU_0, 24576, 0), GpuMemory(GPU_1, 49152, 0))
    assert (gpus.processes(), gpus.utilisation()) == ((), {GPU_0: 0, GPU_1: 0})
    usage.allocate(use_of(os.getpid(), 100, 200, utilisation=30))
    usage.allocate(use_of(other.pid, 1000, utilisation=70))
    assert gpus.memory() == (GpuMemory(GPU_0, 24576, 1100), GpuMemory(GPU_1, 49152, 200))
    assert gpus.memory((GPU_1,)) == (GpuMemory(GPU_1, 49152, 200),)
    assert set(gpus.processes()) == {
        GpuProcess(GPU_0, os.getpid(), 100),
        GpuProcess(GPU_1, os.getpid(), 200),
        GpuProcess(GPU_0, other.pid, 1000),
    }
    assert gpus.processes((GPU_1,)) == (GpuProcess(GPU_1, os.getpid(), 200),)
    assert gpus.utilisation() == {GPU_0: 70, GPU_1: 30}
    assert gpus.utilisation((GPU_1,)) == {GPU_1: 30}
    assert gpus.busy((GPU_1,)) == {GPU_1: {os.getpid()}}
    usage.allocate(use_of(other.pid, 1000, utilisation=0))
    assert gpus.busy() == {GPU_0: {os.getpid()}, GPU_1: {os.getpid()}}
    assert gpus.notes() == ("the GPUs are simulated (SLICER_SIM=1x24G,1x48G)",)
    gpus.close()
    gpus.close()


@pytest.mark.usefixtures("environ")
def test_usage_that_cannot_be_read_is_a_failure_of_the_gpus(directory: Path) -> None:
    (directory / "usage").write_text("")
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(GpuError, match="is not a directory") as caught:
        open_gpus()
    assert caught.value.where == str(directory / "usage")
    assert set(os.listdir("/proc/self/fd")) == before
    (directory / "usage").unlink()
    gpus = open_gpus()
    (directory / "usage").rmdir()
    with pytest.raises(GpuError, match="cannot be read"):
        gpus.memory()
    gpus.close()


def test_without_the_variable_nothing_of_this_is_loaded(tmp_path: Path) -> None:
    code = (
        "import sys; from slicer import gpu; from slicer.errors import GpuError\n"
        "from slicer.state import statedir\n"
        "statedir.locate({'SLICER_STATE_DIR': sys.argv[1]}, 0)\n"
        "try: gpu.open_gpus().close()\nexcept GpuError: pass\n"
        "print(*sorted(sys.modules))"
    )
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": SRC}
    command = [sys.executable, "-c", code, str(tmp_path / "state")]
    out = subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout.split()
    assert "slicer.gpu.nvml" in out
    assert {"slicer.gpu.sim.usage", "slicer.gpu.sim.job", "slicer.gpu.sim.driver"}.isdisjoint(out)


# E5
def test_the_driver_is_asked_how_busy_real_gpus_are(fake_nvml: FakeNvml) -> None:
    first, second = (line.split()[2] for line in TWO_GPUS.splitlines())
    fake_nvml.write(TWO_GPUS.replace("01:00.0 0 0 ", "01:00.0 0 97 "))
    code = (
        "from slicer.gpu import open_gpus; gpus = open_gpus(); "
        f"print(gpus.utilisation(), gpus.utilisation(({second!r},)))"
    )

    def asked() -> str:
        command = [sys.executable, "-c", code]
        environ = {**os.environ, **fake_nvml.env, "PYTHONPATH": os.pathsep.join([SRC, *sys.path])}
        done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    assert asked() == f"{ {first: 97, second: 0} } { {second: 0} }"
    fake_nvml.add("error nvmlDeviceGetUtilizationRates 3 0")  # not supported
    assert asked() == f"{ {first: None, second: 0} } { {second: 0} }"


# -- what a simulated job does ----------------------------------------------------------------------------


def steps(plan: MemoryPlan) -> list[tuple[float, int]]:
    """When the job changes what it uses, as long as nothing holds it up."""
    at_s, found = 0.0, [(0.0, demand_mib(plan, 0.0))]
    while at_s < plan.end_s:
        at_s = next_step_s(plan, at_s, at_s)
        found.append((round(at_s, 3), demand_mib(plan, at_s)))
    return found


# E11
def test_a_ramp_goes_up_in_steps_and_is_held() -> None:
    assert steps(MemoryPlan(1000, 0.1, 2.0, None)) == [
        (0.0, 0), (0.02, 200), (0.04, 400), (0.06, 600), (0.08, 800), (0.1, 1000), (2.1, 1000)
    ]  # fmt: skip
    assert steps(MemoryPlan(1000, 0.0, 0.0, None)) == [(0.0, 1000)]
    assert steps(MemoryPlan(1000, 0.05, 0.0, None))[-1] == (0.05, 1000)


def test_a_late_step_of_the_ramp_leaves_out_those_that_it_missed() -> None:
    plan = MemoryPlan(1000, 1.0, 1.0, Spike(5000, 0.5, 0.1))
    assert next_step_s(plan, 0.02, 0.33) == pytest.approx(0.34)
    assert next_step_s(plan, 0.02, 0.75) == 0.5  # but no spike
    assert next_step_s(plan, 1.0, 9.0) == 2.0


def test_a_spike_comes_and_goes() -> None:
    plan = MemoryPlan(1000, 0.0, 2.0, Spike(5000, 0.5, 0.1))
    assert steps(plan) == [(0.0, 1000), (0.5, 5000), (0.6, 1000), (2.0, 1000)]
    assert steps(MemoryPlan(1000, 0.0, 2.0, Spike(10, 0.5, 0.1)))[1] == (0.5, 1000)  # no dip
    assert steps(MemoryPlan(1000, 0.0, 2.0, Spike(5000, 1.95, 0.1)))[-1] == (2.0, 5000)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (None, [0]),
        ("", []),
        ("0", [0]),
        ("1,0", [1, 0]),
        ("1,1", [1]),
        (GPU_1, [1]),
        ("sim-00000001", [1]),
        (f" {GPU_0} , 1", [0, 1]),
        ("1,-1,0", [1]),
        ("-1", []),
    ],
)
def test_the_gpus_are_those_that_cuda_would_see(text: str | None, shown: list[int]) -> None:  # E11
    assert [gpu.index for gpu in visible_gpus(text, GPUS)] == shown


@pytest.mark.parametrize("text", ["2", "SIM-", "GPU-0", "x", "00", "0,7"])
def test_a_gpu_that_is_not_there_is_an_error(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        visible_gpus(text, GPUS)
    assert caught.value.where == "CUDA_VISIBLE_DEVICES"


# E9
@pytest.mark.parametrize(
    ("library", "words"),
    [
        ("pytorch", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 1 has"),
        ("jax", "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2684354560 bytes."),
        ("tf", "OOM when allocating tensor with shape[671088640]"),
        ("cupy", "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 2,684,354,560 bytes"),
    ],
)
def test_each_library_has_its_own_words_for_it(library: str, words: str) -> None:
    assert library in LIBRARIES
    said = oom_text(library, NoRoom(GPUS[1], 1024), 2560)
    assert words in said
    assert "\n" not in said
