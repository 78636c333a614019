"""Slurm's commands over slicer: what was submitted runs, waits, is shown and ends as in Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from slicer.backend.slurm_shims import COMMANDS
from tests.patience import LONGEST_S, until
from tests.process.harness import Gate, kill_9
from tests.process.slurm_commands import SlurmCommands

pytest_plugins = ["tests.process.slurm_commands"]

GPUS = [f"SIM-0000000{index}-0000-0000-0000-000000000000" for index in range(2)]


def waits_at(gate: Gate) -> str:
    return f"read x <{gate.path} || :"  # one opening may let through several, of which one gets its line


def test_the_links_are_in_a_folder_of_their_own_and_go_without_a_trace(slurm: SlurmCommands) -> None:  # U9
    assert sorted(path.name for path in slurm.shims.iterdir()) == sorted(COMMANDS)
    assert f"next: export PATH={slurm.shims}:$PATH" in slurm.installed
    for name in COMMANDS:
        assert slurm(name, "--version").stdout.startswith("slurm "), name
    (slurm.shims / "sinfo").unlink()
    (slurm.shims / "sinfo").write_text("mine")
    assert "edited" in slurm("slicer", "install", "--user", "--slurm-commands").stdout
    slurm("slicer", "install", "--user", "--remove", "--force")
    assert not slurm.shims.exists()


def test_a_real_sbatch_is_not_hidden(slurm: SlurmCommands, tmp_path: Path) -> None:  # U9
    real = tmp_path / "sbatch"
    real.write_text("#!/bin/sh\n")
    real.chmod(0o755)
    path = f"{slurm.box.env['PATH']}:{tmp_path}"
    again = ("slicer", "install", "--user", "--slurm-commands")
    assert f"Slurm is here: {real}" in slurm(*again, code=125, PATH=path).stderr
    # Nor is slicer's taken for Slurm's.
    (slurm.box.root / "jobs.txt").write_text("true\n")
    refused = slurm("slicer", "queue", "jobs.txt", "--engine", "slurm", code=2)
    assert "there is no sbatch here" in refused.stderr


def test_a_script_runs_as_it_was_submitted_with_its_gpu_its_files_and_its_variables(
    slurm: SlurmCommands,
) -> None:  # U9
    script = slurm.script(
        "#SBATCH -J train -G 1 --mem=1G -A lab\n#SBATCH -o out/%x-%j.log -e out/%j.err\n"
        'echo "$SLURM_JOB_ID $SLURM_JOB_NAME $SLURM_JOB_GPUS $CUDA_VISIBLE_DEVICES $1 ${LAB-unset}"\n'
        "echo bad >&2; exit 3"
    )
    done = slurm("sbatch", "--wait", "--export=NONE", script, "argument", code=3, LAB="lab")
    number = done.stdout.removeprefix("Submitted batch job ").strip()
    assert done.stderr == "slicer: without meaning on one machine: --account\n"
    out = slurm.box.root / "out"
    assert (out / f"train-{number}.log").read_text() == f"{number} train 0 {GPUS[0]} argument unset\n"
    assert (out / f"{number}.err").read_text() == "bad\n"
    assert slurm("sacct", "-nPj", number, "-o", "JobName,State,ExitCode").stdout == "train|FAILED|3:0\n"
    assert slurm("slicer", "logs", "train").stdout == (out / f"train-{number}.log").read_text()
    slurm.box.assert_clean()


def test_a_script_may_be_changed_once_it_was_submitted(slurm: SlurmCommands, gate: Gate) -> None:  # U9
    script = slurm.script(f"{waits_at(gate)}; echo first >&2")
    number = slurm.submitted(script)
    after = slurm.submitted("-d", f"afterok:{number}", "-o", "after", slurm.script("echo second", "job2.sh"))
    slurm.script("echo changed", "job2.sh")
    assert slurm("squeue", "-h", "-o", "%i %t %r").stdout.splitlines() == [
        f"{number} R None", f"{after} PD Dependency",
    ]  # fmt: skip
    gate.open()
    until(lambda: slurm.states(after) == {after: "COMPLETED"}, "the second has ended")
    assert (slurm.box.root / f"slurm-{number}.out").read_text() == "first\n"
    assert (slurm.box.root / "after").read_text() == "second\n"
    assert slurm("squeue", "-h").stdout == ""
    assert slurm("squeue", "-h", "-t", "all", "-o", "%i %t").stdout.splitlines() == [
        f"{number} CD", f"{after} CD",
    ]  # fmt: skip


def test_an_array_has_a_job_a_task_and_so_many_at_a_time(slurm: SlurmCommands, gate: Gate) -> None:  # U9
    words = ("--array=1-7:3%2", "-o", "%A_%a.out", "--wrap", f"echo $SLURM_ARRAY_JOB_ID; {waits_at(gate)}")
    number = slurm.submitted(*words)
    running, waiting = {"RUNNING"}, {"PENDING"}
    assert [{state} for state in slurm.states(number).values()] == [running, running, waiting]
    gate.open()
    until(lambda: slurm.states(number)[f"{number}_7"] == "RUNNING", "the third has its turn")
    until(lambda: gate.open_if_awaited() or set(slurm.states(number).values()) == {"COMPLETED"}, "all end")
    assert {path.read_text() for path in slurm.box.root.glob(f"{number}_[147].out")} == {f"{number}\n"}
    slurm.box.assert_clean()


def test_scancel_ends_tasks_and_takes_out_those_that_wait(slurm: SlurmCommands) -> None:  # U9 U15
    number = slurm.submitted("--array=0-2", "-G2", "-J", "sweep", "--wrap", "sleep 600")
    slurm("scancel", f"{number}_0")
    until(lambda: slurm.states(number)[f"{number}_1"] == "RUNNING", "the next one runs")
    slurm("scancel", "--name=sweep")
    uid = os.geteuid()
    assert set(slurm.states(number).values()) == {f"CANCELLED by {uid}"}
    one, other = (slurm.submitted("--wrap", "sleep 600") for _ in range(2))
    assert "Invalid job id specified: 12" in slurm("scancel", one, "12", other, code=1).stderr
    assert {**slurm.states(one), **slurm.states(other)} == dict.fromkeys((one, other), f"CANCELLED by {uid}")
    slurm.box.assert_clean()


def test_a_time_limit_and_the_signal_before_it(slurm: SlurmCommands) -> None:  # U9
    trap = "trap 'echo warned; exit 0' USR1; sleep 600 & wait"
    number = slurm.submitted("-t", "0:600", "--signal=B:USR1@599", "-o", "out", "--wrap", trap)
    until(lambda: slurm.states(number) == {number: "COMPLETED"}, "it has ended by the signal")
    assert (slurm.box.root / "out").read_text() == "warned\n"
    late = slurm.submitted("-t", "0:1", "--wrap", "sleep 600")
    until(lambda: slurm.states(late) == {late: "TIMEOUT"}, "the limit has ended it")


def test_a_signal_reaches_what_the_script_started(slurm: SlurmCommands) -> None:  # U9
    step = "exec 2>/dev/null; trap 'echo got it; exit 0' USR2; echo up; while :; do sleep 0.1; done"
    number = slurm.submitted("-o", "out", slurm.script(f'srun sh -c "{step}"; echo "step ended: $?"'))
    out = slurm.box.root / "out"
    until(lambda: out.exists() and out.read_text() == "up\n", "the step runs")
    slurm("scancel", "--signal", "SIGUSR2", number)
    until(lambda: slurm.states(number) == {number: "COMPLETED"}, "it has ended")
    assert out.read_text() == "up\ngot it\nstep ended: 0\n"


def test_requeue_runs_the_same_job_again(slurm: SlurmCommands) -> None:  # U9
    again = 'if mkdir once 2>&-; then scontrol requeue "$SLURM_JOB_ID"; sleep 600; fi'
    number = slurm.submitted("-G1", "-o", "out", slurm.script(f'{again}; echo "$SLURM_JOB_ID"'))
    until(lambda: slurm.states(number) == {number: "COMPLETED"}, "its second run has ended")
    assert (slurm.box.root / "out").read_text() == f"{number}\n"
    (outcome,) = slurm.box.outcomes()
    assert [each.reason for each in outcome.attempts] == ["stopped", "exited"]
    assert "does not run" in slurm("scontrol", "requeue", number, code=1).stderr
    slurm.box.assert_clean()


def test_srun_runs_one_process_in_a_job_and_takes_a_gpu_outside(slurm: SlurmCommands) -> None:  # U9
    slurm(
        "sbatch",
        "--wait",
        "-n2",
        slurm.script("srun -n1 -o step-%j sh -c 'echo one'; srun true 2>refused; :"),
    )
    (step,) = slurm.box.root.glob("step-*")
    assert step.read_text() == "one\n"
    assert "--ntasks: srun starts one process here, not 2" in (slurm.box.root / "refused").read_text()
    alone = slurm("srun", "--gres=gpu:1", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exit 4", code=4)
    assert alone.stdout == f"{GPUS[0]}\n"


def test_a_task_that_is_killed_with_slicer_is_lost_and_said_to_be(slurm: SlurmCommands) -> None:  # U9 G1
    number = slurm.submitted("-G1", "--wrap", "sleep 600")
    (lease,) = until(slurm.box.leases, "it has its lease")
    until(lambda: slurm.box.leases()[0].keeper, "it runs")
    pids = [slurm.box.leases()[0].keeper, lease.pid]
    for pid in slurm.box.processes():
        if pid not in pids:
            os.kill(pid, signal.SIGSTOP)
    kill_9(*pids, *(pid for pid in slurm.box.processes() if pid not in pids))
    until(lambda: slurm.states(number) == {number: "NODE_FAIL"}, "it is lost")


def test_requeue_ends_no_job_that_would_not_run_again(slurm: SlurmCommands) -> None:  # U9
    number = slurm.submitted("-G1", "--wrap", "sleep 600")
    until(lambda: slurm.box.leases() and slurm.box.leases()[0].keeper, "it runs")
    kill_9(slurm.box.leases()[0].pid)
    assert "nobody is left" in slurm("scontrol", "requeue", number, code=1).stderr
    assert slurm.states(number) == {number: "RUNNING"}
    slurm("scancel", number)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["-N", "2", "--wrap", "true"], "--nodes: there is one node: this machine"),
        (["--frob", "--wrap", "true"], "option --frob not recognized"),
        (["/etc/passwd"], "This does not look like a batch script"),
        (["missing.sh"], "missing.sh: No such file or directory"),
        (["-G", "9", "--wrap", "true"], "Batch job submission failed"),
        (["-d", "afterok:99", "--wrap", "true"], "Invalid job id specified: 99"),
        (["--signal=nonsense@@", "--wrap", "true"], "expected --signal=SIGNAL@SECONDS"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_printed_for_programs(
    slurm: SlurmCommands, words: list[str], error: str
) -> None:  # U9
    refused = slurm("sbatch", *words, code=1)
    assert refused.stdout == ""
    assert f"sbatch: error: {error}" in refused.stderr
    assert slurm.box.outcomes() == []


HOSTILE = {
    "DOS line breaks": (b"#!/bin/sh\r\necho\r\n", ()),
    "larger than 4 MiB": (b"#!" + b"x" * (4 << 20), ()),
    "look like a batch script": (b"echo no shebang\n", ()),
    "line 2 of the script: No closing quotation": (b"#!/bin/sh\n#SBATCH -J 'open\n", ()),
    "Is a directory": (b"", (".",)),
}


@pytest.mark.parametrize("error", HOSTILE)
def test_a_script_that_is_none_is_refused(slurm: SlurmCommands, error: str) -> None:  # U9
    text, words = HOSTILE[error]
    script = slurm.box.root / "job.sh"
    script.write_bytes(text)
    refused = slurm("sbatch", *(words or (str(script),)), code=1)
    assert error in refused.stderr
    assert refused.stdout == ""


def test_a_hostile_name_makes_no_rows_and_no_paths(slurm: SlurmCommands) -> None:  # U9 U15
    done = slurm("sbatch", "--wait", "--parsable", "-J", "../a\n7|\x1b[2J", "-o", "out-%x", "--wrap", "true")
    number = done.stdout.strip()
    (row,) = slurm("sacct", "-nPj", number, "-o", "JobID,JobName").stdout.splitlines()
    assert row.startswith(f"{number}|")
    assert "\x1b" not in row
    assert [path.parent for path in slurm.box.root.glob("out-*")] == [slurm.box.root]


def test_sixteen_submissions_at_once_are_sixteen_jobs(slurm: SlurmCommands) -> None:  # U9
    words = ["sbatch", "--wait", "--parsable", "-G1", "-o", "/dev/null", "--wrap", "true"]
    all_at_once = [
        subprocess.Popen(words, env=slurm.box.env, cwd=slurm.box.root, stdout=subprocess.PIPE, text=True)
        for _ in range(16)
    ]
    numbers = {each.communicate(timeout=LONGEST_S)[0].strip() for each in all_at_once}
    assert [each.returncode for each in all_at_once] == [0] * 16
    assert set(slurm.states(",".join(numbers)).values()) == {"COMPLETED"}
    assert len(numbers) == 16
    slurm.box.assert_clean()


def test_an_output_that_slicer_does_not_take_as_a_log(slurm: SlurmCommands) -> None:  # U9
    shared = slurm.box.root / "shared"
    shared.mkdir()
    shared.chmod(0o775)  # a group's
    slurm("sbatch", "--wait", "-o", "shared/out", "--wrap", "echo written")
    assert (shared / "out").read_text() == "written\n"
    slurm("sbatch", "--wait", "-o", "/dev/null", "--wrap", "echo lost")


@pytest.mark.slow
def test_two_hundred_tasks_at_once(slurm: SlurmCommands) -> None:  # U9
    words = ("-G1", "-o", "/dev/null", "--wrap", "echo $SLURM_ARRAY_TASK_ID >>all")
    number = slurm.submitted("-a", "0-199", *words)
    until(lambda: set(slurm.states(number).values()) == {"COMPLETED"}, "all have ended", 300.0)
    assert sorted(map(int, (slurm.box.root / "all").read_text().split())) == list(range(200))
    slurm.box.assert_clean()
