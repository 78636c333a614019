"""The real pynvml over a fake driver library, each in a process of its own: the loader must see it first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import slicer
from slicer.kernel import SYSROOT
from tests.fake_nvml import LIBRARY, TWO_GPUS, FakeNvml
from tests.patience import LONGEST_S

pytestmark = pytest.mark.both_pythons

pytest_plugins = ["tests.fake_nvml"]

SRC = str(Path(slicer.__file__).parents[1])
LOST, NO_PERMISSION, UNKNOWN = 15, 4, 999

PROBE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from slicer.gpu import open_gpus
from slicer.errors import SlicerError
from slicer.record import as_dict
try:
    gpus = open_gpus()
    try:
        said = {"gpus": [as_dict(g) for g in gpus.list()], "notes": gpus.notes()}
        said["processes"] = [as_dict(p) for p in gpus.processes()]
        said["memory"] = [as_dict(m) for m in gpus.memory()]
        last = said["gpus"][-1]["uuid"] if said["gpus"] else "none"
        said["last"] = [x.gpu_uuid for x in (*gpus.memory((last,)), *gpus.processes((last,)))]
    finally:
        gpus.close()
        gpus.close()
except SlicerError as error:
    said = {"error": type(error).__name__, "kind": error.kind, "reason": getattr(error, "reason", None),
            "text": str(error), "hint": error.hint}
print(json.dumps(said))
"""


LOSES_ONE = f"""
import json, os, sys
sys.path.insert(0, sys.argv[1])
from slicer.gpu import open_gpus
from slicer.record import as_dict
gpus = open_gpus()
gpus.memory()
with open(os.environ["FAKE_NVML_STATE"], "a") as state:
    state.write("error nvmlDeviceGetMemoryInfo {LOST} 1\\n")
print(json.dumps([as_dict(m) for m in gpus.memory()]))
"""


def python(code: str, env: dict[str, str], **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, SRC],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def probe(env: dict[str, str], before: str = "") -> dict[str, Any]:
    with python(before + PROBE, env) as process:
        out = process.communicate(timeout=LONGEST_S)[0]
    assert process.returncode == 0
    said: dict[str, Any] = json.loads(out)
    return said


def test_gpus_are_listed_with_what_slicer_needs(fake_nvml: FakeNvml) -> None:  # A1
    assert probe(fake_nvml.env) == {
        "gpus": [
            {
                "index": i,
                "uuid": "GPU-" + "-".join(str(i) * n for n in (8, 4, 4, 4, 12)),
                "name": "NVIDIA H100 80GB HBM3",
                "memory_mib": 81559,
                "minor": i,
            }
            for i in range(2)
        ],
        "notes": [],
        "processes": [],
        "memory": [
            {"gpu_uuid": uuid, "total_mib": 81559, "used_mib": 0, "fault": ""}
            for uuid in (
                "GPU-00000000-0000-0000-0000-000000000000",
                "GPU-11111111-1111-1111-1111-111111111111",
            )
        ],
        "last": ["GPU-11111111-1111-1111-1111-111111111111"],
    }


def test_how_full_each_gpu_is_in_the_order_of_the_list(fake_nvml: FakeNvml) -> None:  # E3
    fake_nvml.write(
        "gpu 0 GPU-b 1000 00000000:C1:00.0 1 0 N\n"
        "gpu 1 GPU-a 2000 00000000:0F:00.0 2 0 N\n"
        "process 0 10 100 compute\nprocess 0 11 n/a compute\nused 0 30\n"
    )
    said = probe(fake_nvml.env)
    assert [gpu["uuid"] for gpu in said["gpus"]] == ["GPU-a", "GPU-b"]
    assert [(m["gpu_uuid"], m["total_mib"], m["used_mib"]) for m in said["memory"]] == [
        ("GPU-a", 2000, 0),
        ("GPU-b", 1000, 130),
    ]
    assert said["last"] == ["GPU-b", "GPU-b", "GPU-b"]


def test_the_drivers_own_memory_is_neither_free_nor_used(fake_nvml: FakeNvml) -> None:  # E2
    """Else no GPU would ever count as idle: it keeps some 500 MiB of a large one."""
    fake_nvml.add("reserved 0 600", "used 0 3")
    (first, _) = probe(fake_nvml.env)["memory"]
    assert (first["total_mib"], first["used_mib"]) == (81559 - 600, 3)


def test_gpus_count_in_pci_order_as_cuda_does(fake_nvml: FakeNvml) -> None:  # A1
    fake_nvml.write(
        "gpu 0 GPU-c 100 00000001:01:00.0 0 0 N\n"
        "gpu 1 GPU-b 100 00000000:C1:00.0 1 0 N\n"
        "gpu 2 GPU-a 100 00000000:0F:00.0 2 0 N\n"
    )
    assert [(g["index"], g["uuid"], g["minor"]) for g in probe(fake_nvml.env)["gpus"]] == [
        (0, "GPU-a", 2),
        (1, "GPU-b", 1),
        (2, "GPU-c", 0),
    ]


def test_processes_of_every_kind_are_seen_once_per_gpu(fake_nvml: FakeNvml) -> None:  # B5
    fake_nvml.write("gpu 0 GPU-a 100 00000000:01:00.0 0 0 N\ngpu 1 GPU-b 100 00000000:02:00.0 1 0 N\n")
    fake_nvml.add(
        "process 0 10 1024 compute",
        "process 1 10 512 compute",
        "process 1 11 7 graphics",
        "process 0 12 300 compute",
        "process 0 12 300 graphics",  # nvidia-smi's "C+G"
        "process 0 13 n/a compute",
        "process 0 14 n/a compute",
        "process 0 14 5 graphics",
        "process 1 15 64 mps",
    )
    used = {(p["gpu_uuid"], p["pid"]): p["used_mib"] for p in probe(fake_nvml.env)["processes"]}
    assert used == {
        ("GPU-a", 10): 1024,
        ("GPU-b", 10): 512,
        ("GPU-b", 11): 7,
        ("GPU-a", 12): 300,
        ("GPU-a", 13): None,
        ("GPU-a", 14): 5,
        ("GPU-b", 15): 64,
    }


def test_hundreds_of_processes_are_no_problem(fake_nvml: FakeNvml) -> None:  # B5
    fake_nvml.add(*(f"process 0 {pid} 1 compute" for pid in range(100, 600)))
    assert len(probe(fake_nvml.env)["processes"]) == 500


def test_a_driver_before_510_is_read_too(old_nvml_library: Path, tmp_path: Path) -> None:
    old = FakeNvml(old_nvml_library, tmp_path / "state")
    old.add("process 0 10 1024 compute", "process 1 11 n/a graphics")
    old.add("reserved 0 600")
    said = probe(old.env)
    assert [(p["pid"], p["used_mib"]) for p in said["processes"]] == [(10, 1024), (11, None)]
    assert [(m["total_mib"], m["used_mib"]) for m in said["memory"]] == [(81559, 1624), (81559, 0)]


def test_what_happens_meanwhile_is_seen(fake_nvml: FakeNvml) -> None:  # B5
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from slicer.gpu import open_gpus
gpus = open_gpus()
for _ in sys.stdin:
    print([(p.pid, p.used_mib) for p in gpus.processes()], [m.used_mib for m in gpus.memory()], flush=True)
gpus.close()
"""
    with python(code, fake_nvml.env, stdin=subprocess.PIPE) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def ask() -> str:
            print(file=stdin, flush=True)
            return stdout.readline().strip()

        assert ask() == "[] [0, 0]"
        fake_nvml.add("process 0 10 1024 compute")
        assert ask() == "[(10, 1024)] [1024, 0]"
        fake_nvml.remove("process 0 10 1024 compute")
        assert ask() == "[] [0, 0]"
        fake_nvml.add(f"error nvmlDeviceGetComputeRunningProcesses {LOST} 0")
        assert ask() == "[] [0, 0]"
        stdin.close()
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("code", "reason", "text"),
    [
        (9, "no-driver", "not loaded"),
        (12, "no-library", "libnvidia-ml.so.1"),
        (18, "driver-mismatch", "different versions"),
        (4, "permission", "may not use"),
        (28, "no-devices", "no GPU"),
    ],
)
def test_each_way_of_having_no_gpu_is_told_apart(
    fake_nvml: FakeNvml, code: int, reason: str, text: str
) -> None:  # X10
    fake_nvml.add(f"error nvmlInit {code}")
    said = probe(fake_nvml.env)
    assert (said["error"], said["kind"], said["reason"]) == ("NoGpu", "no-gpu", reason)
    assert text in said["text"]
    assert said["hint"]


def test_no_driver_library_is_told(tmp_path: Path) -> None:  # X10
    (tmp_path / LIBRARY).touch()  # shadows a real one, and cannot be loaded
    said = probe({"LD_LIBRARY_PATH": str(tmp_path)})
    assert (said["reason"], bool(said["hint"])) == ("no-library", True)


def test_a_missing_pynvml_is_told(fake_nvml: FakeNvml) -> None:  # X10
    said = probe(fake_nvml.env, "import sys; sys.modules['pynvml'] = None\n")
    assert said["reason"] == "no-pynvml"
    assert "nvidia-ml-py" in said["hint"]


def test_a_driver_without_gpus_is_told(fake_nvml: FakeNvml) -> None:  # X10
    fake_nvml.write("")
    assert probe(fake_nvml.env)["reason"] == "no-devices"


def test_gpus_that_are_all_forbidden_are_told(fake_nvml: FakeNvml) -> None:  # X10
    fake_nvml.add(f"error nvmlDeviceGetHandleByIndex {NO_PERMISSION}")
    assert probe(fake_nvml.env)["reason"] == "permission"


def test_a_lost_gpu_leaves_the_others_usable(fake_nvml: FakeNvml) -> None:  # X10
    fake_nvml.add(f"error nvmlDeviceGetHandleByIndex {LOST} 0", "process 1 10 5 compute")
    said = probe(fake_nvml.env)
    assert [(g["index"], g["minor"]) for g in said["gpus"]] == [(0, 1)]
    assert [p["pid"] for p in said["processes"]] == [10]
    assert [m["gpu_uuid"] for m in said["memory"]] == [g["uuid"] for g in said["gpus"]]
    assert said["notes"] == ["GPU 0 is left out: GPU is lost"]


# U19: actions about links between GPUs are none, nor is an error of these calls
@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (["recovery 1 1"], "the driver asks for a reset"),
        (["recovery 1 7", "rows 1 1"], "the driver asks for a reboot"),
        (["recovery 1 3"], ""),
        (["rows 1 1"], "the driver could not replace bad memory"),
        (["rows 1 0"], ""),
        ([f"error nvmlDeviceGetFieldValues {UNKNOWN}", f"error nvmlDeviceGetRemappedRows {UNKNOWN}"], ""),
    ],
)
def test_a_gpu_that_the_driver_gives_up_is_told(
    fake_nvml: FakeNvml, tmp_path: Path, lines: list[str], fault: str
) -> None:
    fake_nvml.add(*lines)
    log = tmp_path / "dev/kmsg"  # the kernel's, which says nothing
    log.parent.mkdir()
    log.touch()
    env = {**fake_nvml.env, SYSROOT: str(tmp_path)}
    assert [each["fault"] for each in probe(env)["memory"]] == ["", fault]


# U19
def test_a_gpu_that_is_lost_meanwhile_stays_with_its_fault(fake_nvml: FakeNvml) -> None:
    fake_nvml.add("used 1 300")
    with python(LOSES_ONE, fake_nvml.env) as process:
        out = process.communicate(timeout=LONGEST_S)[0]
    assert [each["fault"] for each in json.loads(out)] == ["", "the driver says: GPU is lost"]
    assert [each["used_mib"] for each in json.loads(out)] == [0, 0]


@pytest.mark.parametrize(
    "name",
    [
        "nvmlInit",
        "nvmlDeviceGetCount",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetComputeRunningProcesses",
    ],
)
def test_any_other_failure_is_a_clear_error(fake_nvml: FakeNvml, name: str) -> None:
    fake_nvml.add(f"error {name} {UNKNOWN}")
    said = probe(fake_nvml.env)
    assert (said["error"], said["kind"]) == ("GpuError", "gpu")
    assert "Unknown Error" in said["text"]
    assert said["hint"]


def test_a_process_list_that_never_fits_is_an_error_not_a_loop(fake_nvml: FakeNvml) -> None:
    fake_nvml.add("error nvmlDeviceGetComputeRunningProcesses 7")
    assert probe(fake_nvml.env)["error"] == "GpuError"


def test_what_a_gpu_does_not_support_is_left_open(fake_nvml: FakeNvml) -> None:
    fake_nvml.add(
        "error nvmlDeviceGetMemoryInfo 3 0",  # memory shared with the CPU
        "error nvmlDeviceGetMinorNumber 3 0",  # WSL
        "error nvmlDeviceGetGraphicsRunningProcesses 3",
        "process 0 10 5 compute",
    )
    said = probe(fake_nvml.env)
    assert [(g["memory_mib"], g["minor"]) for g in said["gpus"]] == [(0, -1), (81559, 1)]
    assert len(said["processes"]) == 1
    assert [(m["total_mib"], m["used_mib"]) for m in said["memory"]] == [(0, 0), (81559, 0)]
    assert "shares its memory" in said["notes"][0]


def test_a_gpu_in_mig_mode_is_listed_whole_with_a_note(fake_nvml: FakeNvml) -> None:
    fake_nvml.add("mig 0 1 1", "mig 1 0 0")
    said = probe(fake_nvml.env)
    assert len(said["gpus"]) == 2
    (note,) = said["notes"]
    assert "GPU 0" in note
    assert "MIG" in note


MASKS = """
import os, signal
def masks():
    found = {}
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/status") as file:
            mask = next(line.split()[1] for line in file if line.startswith("SigBlk:"))
        found[int(task) == os.getpid()] = int(mask, 16)
    return found
import sys; sys.path.insert(0, sys.argv[1])
from slicer.gpu.nvml import Nvml
gpus = Nvml()
gpus.list()
every = sum(1 << each - 1 for each in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
found = masks()
assert found[True] == 0 and found[False] & every == every, found
"""


def test_the_drivers_threads_take_no_signal_of_ours(fake_nvml: FakeNvml) -> None:  # A9
    """A job's end was lost to one: slicer run waited for ever, and its lease was held (found on an H100)."""
    with python(MASKS, fake_nvml.env) as process:
        process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0


@pytest.mark.parametrize("extra", ["", "error nvmlDeviceGetCount 999\n", "error nvmlDeviceGetUUID 999\n"])
def test_every_init_has_its_shutdown(fake_nvml: FakeNvml, tmp_path: Path, extra: str) -> None:
    fake_nvml.write(f"{TWO_GPUS}log {tmp_path / 'log'}\n{extra}")
    probe(fake_nvml.env)
    calls = [line.split()[1] for line in (tmp_path / "log").read_text().splitlines()]
    assert calls == ["nvmlInit", "nvmlShutdown"]


def test_text_of_old_pynvml_is_bytes(fake_nvml: FakeNvml) -> None:
    before = """
import pynvml
for name in ("nvmlDeviceGetUUID", "nvmlDeviceGetName"):
    setattr(pynvml, name, lambda handle, function=getattr(pynvml, name): function(handle).encode())
"""
    gpus = probe(fake_nvml.env, before)["gpus"]
    assert gpus[1]["uuid"] == "GPU-11111111-1111-1111-1111-111111111111"
    assert gpus[1]["name"] == "NVIDIA H100 80GB HBM3"


def test_the_fake_answers_what_else_pynvml_may_ask(fake_nvml: FakeNvml) -> None:
    fake_nvml.write("gpu 0 GPU-a 100 00000000:01:00.0 0 42 Some GPU\nused 0 10\nprocess 0 1 5 compute\n")
    code = """
from pynvml import *
nvmlInit()
h = nvmlDeviceGetHandleByUUID("GPU-a")
old, new = nvmlDeviceGetMemoryInfo(h), nvmlDeviceGetMemoryInfo(h, version=nvmlMemory_v2)
print(nvmlSystemGetDriverVersion(), nvmlSystemGetCudaDriverVersion(), nvmlDeviceGetUtilizationRates(h).gpu,
      old.total >> 20, old.used >> 20, new.free >> 20,
      nvmlDeviceGetName(nvmlDeviceGetHandleByPciBusId("00000000:01:00.0")))
nvmlShutdown()
"""
    with python(code, fake_nvml.env) as process:
        assert process.communicate(timeout=LONGEST_S)[0].strip() == "575.57.08 12090 42 100 15 85 Some GPU"


def test_the_fake_lists_a_live_process_as_long_as_it_lives(fake_nvml: FakeNvml) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as cat:
        fake_nvml.add(f"live 1 {cat.pid} 512 compute", "live 1 4194305 64 compute")
        said = probe(fake_nvml.env)
        assert [(p["pid"], p["used_mib"]) for p in said["processes"]] == [(cat.pid, 512)]
        assert [m["used_mib"] for m in said["memory"]] == [0, 512]
        cat.kill()
        os.waitid(os.P_PID, cat.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
        said = probe(fake_nvml.env)
        assert (said["processes"], said["memory"][1]["used_mib"]) == ([], 0)


def test_asking_for_no_gpu_loads_no_driver() -> None:  # the hot path of CPU jobs
    code = "import sys; sys.path.insert(0, sys.argv[1]); import slicer.gpu; print('pynvml' in sys.modules)"
    with python(code, {}) as process:
        assert process.communicate(timeout=LONGEST_S)[0].strip() == "False"


LIMIT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from slicer.gpu.nvml import Nvml
gpus = Nvml()
wanted = {gpu.uuid: (gpu.index + 1) << 30 for gpu in gpus.list()} | {"GPU-none": 1}
print(json.dumps([gpus.why_no_limits(), gpus.limit(wanted, DIRECTORY)]))
gpus.close()
"""
GPUS = tuple("GPU-" + "-".join(str(i) * n for n in (8, 4, 4, 4, 12)) for i in range(2))
ABSENT = "it is not among the driver's GPUs"


@pytest.mark.parametrize(
    ("state", "why", "said", "is_made"),
    [
        ("driver 615.20.01\n", "", ("", ""), True),
        ("driver 615.20.01\nmig 1 1 1\n", "", ("", "this GPU or kernel does not support it"), True),
        (
            "driver 700.1\nerror nvmlDeviceSetMemoryLimits 4\n", "",
            ("only root may", "only root may"), True,
        ),
        (
            "driver 615.20.01\n", "",
            ("the job's cgroup has no dmem controller", "the job's cgroup has no dmem controller"), False,
        ),
        ("driver 615.20.01\nerror nvmlDeviceSetMemoryLimits 15 0\n", "", (ABSENT, ""), True),
        ("driver 610.1\n", "it requires driver 615, this is 610.1", None, True),
        ("driver none\n", "it requires driver 615, this is none", None, True),
    ],
)  # fmt: skip
def test_the_driver_holds_a_cgroup_to_a_part_of_a_gpu(  # X7
    fake_nvml: FakeNvml, tmp_path: Path, state: str, why: str, said: tuple[str, str] | None, is_made: bool
) -> None:
    scope = tmp_path / "slicer-0123456789ab.scope"
    if is_made:
        scope.mkdir()
    fake_nvml.write(f"{TWO_GPUS}{state}log {tmp_path}/log\n")
    with python(LIMIT.replace("DIRECTORY", repr(str(scope))), fake_nvml.env) as process:
        out = process.communicate(timeout=LONGEST_S)[0]
    each = said or (why, why)
    assert json.loads(out) == [why, {**dict(zip(GPUS, each, strict=True)), "GPU-none": why or ABSENT}]
    logged = (line.partition(" limit ")[2] for line in (tmp_path / "log").read_text().splitlines())
    asked = [f"{i} 0 {(i + 1) << 30} {scope}" for i in range(2) if not each[i]]
    assert [line for line in logged if line] == asked


BUSY = """
import json, sys
sys.path.insert(0, sys.argv[1])
from slicer.gpu import open_gpus
gpus = open_gpus()
for _ in range(2):
    print(json.dumps([sorted(pids) if pids is not None else None for pids in gpus.busy().values()]))
only = gpus.busy((gpus.list()[1].uuid,))
print(json.dumps([len(only)]))
"""


def test_each_look_has_the_processes_that_used_a_gpu_since_the_last_one(fake_nvml: FakeNvml) -> None:  # U4
    fake_nvml.add("busy 0 4711 40 1000", "busy 0 4712 1 2000", "busy 0 4713 0 3000", "busy 1 4714 7")
    with python(BUSY, fake_nvml.env) as process:
        out = process.communicate(timeout=LONGEST_S)[0]
    assert out.splitlines() == ["[[4711, 4712], [4714]]", "[[], [4714]]", "[1]"]


LOAD = """
import json, sys
sys.path.insert(0, sys.argv[1])
from slicer.gpu.nvml import Nvml
from slicer.record import as_dict
gpus = Nvml()
print(json.dumps([list(as_dict(each).values()) for each in gpus.load().values()]))
print(len(gpus.load((gpus.list()[1].uuid,))))
"""


def test_how_busy_warm_and_hungry_each_gpu_is(fake_nvml: FakeNvml) -> None:  # W7
    first = fake_nvml.state.read_text().replace(":01:00.0 0 0 ", ":01:00.0 0 93 ")
    fake_nvml.write(f"{first}sensors 0 64 412300 700000\n")
    assert _load(fake_nvml) == [[93, 64, 412, 700], [0, None, None, None]]
    # A sensor that is broken (nvidia-smi says ERR!) hides no other figure.
    fake_nvml.add("error nvmlDeviceGetPowerUsage 999", "error nvmlDeviceGetUtilizationRates 3 1")
    assert _load(fake_nvml) == [[93, 64, None, 700], [None, None, None, None]]


def test_an_older_driver_has_another_function_for_the_temperature(  # W7
    old_nvml_library: Path, tmp_path: Path
) -> None:
    fake_nvml = FakeNvml(old_nvml_library, tmp_path / "state")
    fake_nvml.add("sensors 0 64 412300 700000")
    assert _load(fake_nvml)[0][1] == 64


def _load(fake_nvml: FakeNvml) -> list[list[int | None]]:
    with python(LOAD, fake_nvml.env) as process:
        found, only = process.communicate(timeout=LONGEST_S)[0].splitlines()
    assert only == "1"
    loads: list[list[int | None]] = json.loads(found)
    return loads


def test_a_gpu_without_such_figures_is_told_apart_from_one_that_nobody_uses(  # U4
    fake_nvml: FakeNvml,
) -> None:
    fake_nvml.add("error nvmlDeviceGetProcessUtilization 3 0")
    with python(BUSY, fake_nvml.env) as process:
        out = process.communicate(timeout=LONGEST_S)[0]
    assert out.splitlines()[0] == "[null, []]"
