"""Simulated GPUs from outside: ``slicer simjob`` under ``slicer run`` and by itself, without any GPU."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slicer.gpu.sim.driver import simulated_gpus
from slicer.gpu.sim.usage import UsageFolder, Use
from slicer.kernel import proc
from slicer.model import Lease
from slicer.state import simulated, statefile
from slicer.state.directory import Directory
from tests.patience import LONGEST_S, until
from tests.process.harness import SLICER, Box, Gate, kill_9, sleeps_in_flock, state_of, text
from tests.process.hot_path import PLAIN, imported, surplus

SPEC = "2x24G"
UUIDS = tuple(gpu.uuid for gpu in simulated_gpus(simulated.parse_spec(SPEC)))
SIMJOB = (*SLICER, "simjob")
ENDLESS = ("--ramp", "0", "--hold", "infinity")


@pytest.fixture
def sim(make_box: Callable[[int], Box]) -> Box:
    """A box with two simulated GPUs of 24 GiB."""
    made = make_box(1)
    made.env["SLICER_SIM"] = SPEC
    made.state /= f"sim-{SPEC}"
    return made


def simjob(box: Box, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start a simulated job that no slicer looks after."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    env = {**box.env, **options.pop("env", {})}
    made = subprocess.Popen([*SIMJOB, *arguments], env=env, cwd=box.root, **{**pipes, **options})
    box.adopt(made)
    return made


def ended(box: Box, *arguments: str, **options: Any) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of a simulated job."""
    process = simjob(box, *arguments, **options)
    out, err = process.communicate(timeout=LONGEST_S)
    return process.returncode, text(out), text(err)


def uses(box: Box) -> list[Use]:
    try:
        base = Directory(os.open(box.state, os.O_RDONLY | os.O_DIRECTORY), str(box.state))
    except FileNotFoundError:
        return []  # nobody has simulated anything yet
    with contextlib.closing(base):
        usage = UsageFolder(base, simulated_gpus(simulated.parse_spec(SPEC)))
        with contextlib.closing(usage):
            return usage.living()


def used(box: Box) -> dict[int, tuple[int, ...]]:
    """MiB by pid."""
    return {use.pid: use.mib for use in uses(box)}


def slicer(box: Box, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A slicer command other than ``run``."""
    command = [*box.prefix, *SLICER, *arguments]
    return subprocess.run(
        command, env=box.env, cwd=box.root, capture_output=True, text=True, check=False, timeout=LONGEST_S
    )


def status(box: Box) -> Any:
    return json.loads(slicer(box, "status", "--json").stdout)


def lease_of(box: Box, name: str) -> Lease | None:
    return next((lease for lease in box.leases() if lease.name == name), None)


# -- memory -----------------------------------------------------------------------------------------------


# E11
def test_a_job_for_which_a_gpu_has_no_room_fails_as_with_cuda(sim: Box) -> None:
    first = simjob(sim, "--vram", "20G", *ENDLESS)
    until(lambda: used(sim) == {first.pid: (20480,)}, f"the first has its memory: {used(sim)}")
    code, out, err = ended(sim, "--vram", "10G", "--ramp", "0.2")
    assert (code, out) == (1, "")
    assert err.startswith("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate ")
    assert used(sim) == {first.pid: (20480,)}
    assert ended(sim, "--vram", "10G", *ENDLESS[:2], "--hold", "0", env={"CUDA_VISIBLE_DEVICES": "1"})[0] == 0
    # Killed without a word, and its memory is back.
    kill_9(first.pid)
    assert ended(sim, "--vram", "24G", "--ramp", "0", "--hold", "0") == (0, "", "")
    sim.assert_clean()


# E11
def test_many_at_once_never_have_more_than_there_is(sim: Box) -> None:
    jobs = [simjob(sim, "--vram", "5G", *ENDLESS) for _ in range(7)]

    # One that fails has given its memory back before it has ended.
    until(lambda: sum(job.poll() is not None for job in jobs) == 3, "three have failed")
    assert [job.returncode for job in jobs].count(1) == 3
    until(lambda: sorted(used(sim).values()) == [(5120,)] * 4, "the others have their memory")
    kill_9(*(job.pid for job in jobs))
    assert used(sim) == {}
    sim.assert_clean()


# E11: no two allocations at the same moment
def test_who_allocates_waits_until_another_allocation_is_done(sim: Box) -> None:
    assert ended(sim, "--ramp", "0", "--hold", "0")[0] == 0
    usage = sim.state / "usage"
    lock = os.open(usage, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        late = simjob(sim, "--vram", "10G", *ENDLESS)
        until(lambda: sleeps_in_flock(late.pid), "it waits")
        own = Use(os.getpid(), proc.start_time(os.getpid()) or 0, 0, (UUIDS[0],), (20480,))
        (usage / f"{own.pid}-{own.started}").write_bytes(statefile.encode(own))
    finally:
        os.close(lock)
    assert late.wait(LONGEST_S) == 1
    (usage / f"{own.pid}-{own.started}").unlink()
    sim.assert_clean()


# X2, E11
def test_what_a_simulated_job_uses_is_seen_as_its_jobs(sim: Box) -> None:
    job = sim.start("--name", "train", "--vram", "8G", "--", *SIMJOB, "--vram", "6G", *ENDLESS)
    until(lambda: list(used(sim).values()) == [(6144,)], f"it has its memory; {sim.describe()}")
    lease = lease_of(sim, "train")
    assert lease is not None
    seen = status(sim)
    gpu = seen["gpus"]["all"][0]
    assert [gpu["name"], gpu["memory_mib"], gpu["used_mib"]] == ["Simulated GPU (24 GiB)", 24576, 6144]
    assert [(job["job"], job["gpus"][0]["used_mib"]) for job in seen["jobs"]] == [(lease.job, 6144)]
    assert "SLICER_SIM=2x24G" in slicer(sim, "status").stderr
    until(
        lambda: getattr(lease_of(sim, "train"), "vram_peak_mib", ()) == (6144,), "the supervisor has seen it"
    )
    assert slicer(sim, "stop", "train").returncode == 0
    job.wait()
    assert sim.outcomes()[0].vram_peak_mib == (6144,)
    assert "6.0G" in slicer(sim, "history").stdout
    sim.assert_clean()


# X2, E11, E13: by more than its process group
def test_so_is_that_of_a_process_which_forked_away(sim: Box, gate: Gate) -> None:
    script = '"$@" || exit 9; read x <"$GATE"'
    sim.env["GATE"] = str(gate.path)
    away = (*SIMJOB, "--fork-away", "--vram", "6G", *ENDLESS)
    job = sim.start("--name", "train", "--vram", "8G", "--", "sh", "-c", script, "sh", *away)
    until(lambda: list(used(sim).values()) == [(6144,)], f"it has its memory; {sim.describe()}")
    (pid,) = used(sim)
    assert os.getsid(pid) not in (os.getsid(job.pid), os.getpgid(job.pid))
    lease = lease_of(sim, "train")
    assert lease is not None
    jobs = status(sim)["jobs"]
    assert [(job["job"], job["gpus"][0]["used_mib"]) for job in jobs] == [(lease.job, 6144)]
    gate.open()
    assert job.wait() == 0
    assert used(sim) == {}  # ended with the job
    sim.assert_clean()


# E11
def test_a_job_with_two_gpus_uses_both(sim: Box) -> None:
    job = sim.start("--gpus", "2", "--", *SIMJOB, "--vram", "1G", "--utilisation", "40", *ENDLESS)
    until(lambda: [use.mib for use in uses(sim)] == [(1024, 1024)], "it uses both")
    assert uses(sim)[0].utilisation == 40
    job.terminate()
    job.wait()
    sim.assert_clean()


# E11
def test_a_spike_is_over_soon_and_fails_where_it_does_not_fit(sim: Box) -> None:
    options = ("--vram", "1G", "--ramp", "0")
    job = simjob(sim, *options, "--hold", "infinity", "--spike", "20G@0+300ms")
    until(lambda: used(sim).get(job.pid) == (20480,), "the spike")
    until(lambda: used(sim).get(job.pid) == (1024,), "its end")
    kill_9(job.pid)
    assert ended(sim, *options, "--hold", "1", "--spike", "30G@0.05")[0] == 1
    sim.assert_clean()


# B5, E11
def test_a_leak_keeps_the_memory_until_it_is_ended(sim: Box) -> None:
    options = ("--vram", "3G", "--ramp", "0", "--hold", "0", "--leak", "--leak-seconds", "infinity")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    leaky = simjob(sim, *options, "--exit-code", "3", **quiet)
    assert leaky.wait(LONGEST_S) == 3
    ((pid, mib),) = used(sim).items()
    assert (pid != leaky.pid, mib, uses(sim)[0].utilisation) == (True, (3072,), 0)
    kill_9(pid)
    assert used(sim) == {}
    done = sim.run("--vram", "4G", "--", *SIMJOB, *options)
    assert done.returncode == 0
    assert "1 leftover process" in done.stderr
    sim.assert_clean()


# -- the ledger -------------------------------------------------------------------------------------------


# E11
def test_simulated_and_real_jobs_do_not_wait_for_each_other(sim: Box, gate: Gate) -> None:
    sim.hold(gate)
    one_slot = ("-p", "heavy", "--no-wait", "-q", "--", "true")
    assert sim.run(*one_slot).returncode == 75
    assert sim.run(*one_slot, env={"SLICER_SIM": ""}).returncode == 0
    assert sim.run(*one_slot, env={"SLICER_SIM": "3"}).returncode == 0  # another machine
    gate.open()
    until(lambda: not sim.leases(), "it has ended")
    assert sim.run(*one_slot).returncode == 0


# E2, E4, E11: by the same decision as for real GPUs
def test_simulated_gpus_are_shared_by_the_rules_of_real_ones(sim: Box) -> None:
    job = sim.start("--name", "big", "--vram", "20G", "--gpu", "0", "--", *SIMJOB, "--vram", "1G", *ENDLESS)
    until(lambda: used(sim), "it runs")
    quick = ("--no-wait", "-q")
    assert sim.run(*quick, "--vram", "10G", "--gpu", "0", "--", "true").returncode == 75
    assert sim.run(*quick, "--vram", "2G", "--gpu", "SIM-00000000", "--", "true").returncode == 0
    assert sim.run(*quick, "--vram", "10G", "--", "true").returncode == 0
    assert sim.run(*quick, "--gpus", "2", "--", "true").returncode == 75
    refused = sim.run("--vram", "25G", "--", "true")
    assert (refused.returncode, "the largest has 24G" in refused.stderr) == (2, True)
    job.terminate()
    job.wait()
    sim.assert_clean()


# E5, U18
def test_a_command_that_chooses_another_gpu_than_its_leases_is_warned_of(sim: Box) -> None:
    said = sim.root / "said"
    with said.open("wb") as file:
        elsewhere = ("env", "CUDA_VISIBLE_DEVICES=1", *SIMJOB, "--vram", "1G", *ENDLESS)
        job = sim.start("--name", "stray", "--gpu", "0", "--vram", "4G", "--", *elsewhere, stderr=file)
    until(lambda: "stray uses GPU 1, on which it has no lease" in said.read_text(), "it is seen there")
    job.terminate()
    job.wait()
    sim.assert_clean()


def test_a_hold_has_simulated_gpus_too(sim: Box) -> None:  # E11
    shown = slicer(sim, "hold", "--gpus", "1", "-q", "--", "sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES"').stdout
    assert shown == "SIM-00000000-0000-0000-0000-000000000000\n"
    sim.assert_clean()


# A2: the points at which crash tests stop a process are there in a simulated machine, too
def test_faults_are_armed_by_the_name_of_the_directory_around_it(sim: Box) -> None:
    base = sim.env["SLICER_STATE_DIR"]
    job = sim.start("--vram", "1G", "-q", "--", "true", env={"SLICER_FAULTS": f"{base}:ledger-created"})
    until(lambda: state_of(job.pid) == "T", "it stands still")
    Path(f"{base}.go").touch()
    os.kill(job.pid, signal.SIGCONT)
    assert job.wait() == 0
    sim.assert_clean()


def test_a_simulated_run_imports_no_more_than_a_real_one(sim: Box) -> None:  # K8
    found = imported(sim, "--backend", "plain", "-q", "--vram", "1G", "--", "true")
    assert "slicer.gpu.sim.driver" in found
    assert surplus(found, PLAIN) == set()


# -- how it ends ------------------------------------------------------------------------------------------


def test_it_ends_as_it_was_told(sim: Box) -> None:  # E11
    quick = ("--ramp", "0", "--hold", "0")
    assert ended(sim, *quick, "--exit-code", "7") == (7, "", "")
    assert ended(sim, *quick, "--oom", "--oom-text", "cupy")[0] == 1
    once = (*quick, "--oom-once", str(sim.root / "new" / "marker"), "--oom-text", "jax")
    code, _, err = ended(sim, *once)
    assert (code, "RESOURCE_EXHAUSTED: Out of memory" in err) == (1, True)
    assert ended(sim, *once) == (0, "", "")
    sim.assert_clean()


# E10, E11
def test_sigterm_ends_it_unless_it_does_not_listen(sim: Box) -> None:
    tidy = simjob(sim, "--vram", "1G", *ENDLESS)
    until(lambda: used(sim), "it runs")
    tidy.terminate()
    assert tidy.wait(LONGEST_S) == -signal.SIGTERM
    assert not list((sim.state / "usage").iterdir())
    deaf = simjob(sim, "--vram", "1G", *ENDLESS, "--ignore-sigterm", "--print-every", "0.02")
    assert deaf.stdout is not None
    deaf.stdout.readline()
    deaf.terminate()
    for _ in range(10):
        assert deaf.stdout.readline().endswith(b", 1.0G\n")
    kill_9(deaf.pid)
    assert used(sim) == {}
    sim.assert_clean()


def test_its_host_memory_is_real(sim: Box) -> None:  # E11
    job = simjob(sim, "--host-memory", "100M", *ENDLESS)

    def resident_mib() -> int:
        status = proc.read_text(f"/proc/{job.pid}/status").partition("VmRSS:")[2].split()
        return int(status[0]) >> 10 if status else 0

    until(lambda: resident_mib() >= 100, "it has its memory")
    kill_9(job.pid)
    assert used(sim) == {}
    sim.assert_clean()


@pytest.mark.parametrize("binary", [(), ("--binary",)])
def test_it_prints_as_much_as_it_was_told(sim: Box, binary: tuple[str, ...]) -> None:  # E11
    job = simjob(sim, "--ramp", "0", "--hold", "0", "--log-bytes", "1000001", *binary)
    out, _ = job.communicate(timeout=LONGEST_S)
    assert (job.returncode, len(out)) == (0, 1_000_001)
    if binary:
        with pytest.raises(UnicodeDecodeError):
            out.decode()
    else:
        assert out.decode().startswith("simjob: ")


def test_output_that_cannot_be_written_is_an_error(sim: Box) -> None:
    with open("/dev/full", "wb") as full:
        code, _, err = ended(sim, "--log-bytes", "1M", stdout=full)
    assert (code, err) == (125, "slicer: output: cannot be written: No space left on device\n")
    assert used(sim) == {}


# -- bad input --------------------------------------------------------------------------------------------


def test_without_simulated_gpus_it_says_so(sim: Box) -> None:  # E11
    code, _, err = ended(sim, "--vram", "1G", env={"SLICER_SIM": ""})
    assert (code, "SLICER_SIM=2" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--vram", "8GB"), "--vram"),
        (("--vram", "-1"), "--vram"),
        (("--ramp", "soon"), "--ramp"),
        (("--spike", "3G"), "--spike"),
        (("--spike", "3G@"), "--spike"),
        (("--spike", "3G@9"), "--spike"),
        (("--utilisation", "101"), "--utilisation"),
        (("--exit-code", "256"), "--exit-code"),
        (("--oom-text", "x"), "--oom-text"),
        (("--log-bytes", "infinity"), "--log-bytes"),
        (("extra",), "extra"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_2(sim: Box, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = ended(sim, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


@pytest.mark.parametrize(
    "command", [("run", "--", "true"), ("status",), ("simjob",), ("hold", "--gpus", "1")]
)
def test_a_variable_that_makes_no_sense_is_an_error_everywhere(sim: Box, command: tuple[str, ...]) -> None:
    sim.env["SLICER_SIM"] = "4x"
    done = slicer(sim, *command)
    assert done.returncode == 2
    assert done.stderr.startswith("slicer: SLICER_SIM: ")
    assert done.stderr.count("\n") == 1


def test_a_job_that_sees_no_gpu_cannot_use_one(sim: Box) -> None:
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    assert ended(sim, "--vram", "1G", env=hidden)[0] == 125
    assert ended(sim, "--ramp", "0", "--hold", "0", env=hidden) == (0, "", "")
    assert ended(sim, "--vram", "1G", env={"CUDA_VISIBLE_DEVICES": "5"})[0] == 2
