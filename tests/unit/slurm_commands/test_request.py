"""What a submission to ``sbatch`` becomes: options, sizes, times, arrays, names of files."""

from __future__ import annotations

import pytest

from slicer.errors import UsageError
from slicer.quantity import QuantityError
from slicer.slurm_commands import options, request
from slicer.slurm_commands.request import NodeNeeds, TaskArray

SCRIPT = """\
#!/bin/bash
# a comment
#SBATCH --job-name='of the script' -c 2   # two
#SBATCH --time=10

#SBATCH -o script.out
echo hello
#SBATCH --mem=1G
"""


def asked(*words: str, environ: dict[str, str] | None = None, script: str = "") -> dict[str, str]:
    return options.submission("sbatch", words, environ or {}, script)


def test_the_command_line_goes_before_variables_and_these_before_the_script() -> None:  # U9
    environ = {"SBATCH_TIMELIMIT": "20", "SBATCH_OUTPUT": "variable.out", "SLURM_JOB_NAME": "outer"}
    assert asked("-oline.out", "job.sh", "--time=5", environ=environ, script=SCRIPT) == {
        "job-name": "of the script", "cpus-per-task": "2", "time": "20", "output": "line.out",
    }  # fmt: skip


def test_options_end_at_the_script_and_may_be_shortened() -> None:  # U9
    words = ["--exclusive", "--job=x", "-n1", "--nice", "train.py", "--lr", "-x", "--exclusive"]
    values, rest = options.read("sbatch", words, is_submission=True)
    assert values == {"exclusive": "", "job-name": "x", "ntasks": "1", "nice": ""}
    assert rest == ["train.py", "--lr", "-x", "--exclusive"]
    assert options.ignored(values) == ["--exclusive", "--nice"]
    placing = asked("--contiguous", "--ntasks-per-socket=1", "-k", "--no-kill=off", "--gpu-freq=high")
    assert options.ignored(placing) == [f"--{name}" for name in placing]
    assert options.read("sacct", ["-j", "1", "-XP", "-j", "2"])[0]["jobs"] == "1,2"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--frobnicate"], "option --frobnicate not recognized"),
        (["--mem"], "option --mem requires argument"),
        (["--het-group=1"], "--het-group: a job of several parts"),
        (["-H"], "--hold: nobody could release it"),
    ],
)
def test_what_is_not_known_or_cannot_be_is_refused(words: list[str], error: str) -> None:  # U9
    with pytest.raises(UsageError, match=error):
        asked(*words)


@pytest.mark.parametrize(
    ("text", "limit_s"),
    [
        ("5", 300), ("5:30", 330), ("1:2:3", 3723), ("1-2", 93_600), ("1-2:3", 93_780), ("1-2:3:4", 93_784),
        ("UNLIMITED", None), ("0", None),
    ],
)  # fmt: skip
def test_times_are_slurms(text: str, limit_s: int | None) -> None:  # U9
    assert request.seconds(text) == limit_s


@pytest.mark.parametrize(
    ("words", "needs"),
    [
        ((), NodeNeeds(None, None, 1, None, None)),
        (("--gres=gpu:a100:2,lscratch:10", "--mem=4G"), NodeNeeds(2, None, 1, 4096, None)),
        (("--gres=gres/gpu", "--mem=512"), NodeNeeds(1, None, 1, 512, None)),
        (("-G", "a100:1,v100:2", "-t1"), NodeNeeds(3, None, 1, None, 60)),
        (("--gpus-per-task=2", "-n2", "-c3", "--mem-per-cpu=1G"), NodeNeeds(4, 6, 2, 6144, None)),
        (("--gpus-per-node=2", "--cpus-per-gpu=4", "--mem-per-gpu=8GB"), NodeNeeds(2, 8, 1, 16384, None)),
        (("--ntasks-per-node=2", "-N1-4", "--mem=0"), NodeNeeds(None, 2, 2, None, None)),
        (("--gres=gpu:0", "--tasks-per-node=3"), NodeNeeds(0, 3, 3, None, None)),
    ],
)
def test_needs(words: tuple[str, ...], needs: NodeNeeds) -> None:  # U9
    assert request.needs(asked(*words)) == needs


@pytest.mark.parametrize(
    "words", [["-N2"], ["--mem=lots"], ["-t1:2:3:4"], ["-c", "-1"], ["--gres=gpu:many"], ["-Ggpu"]]
)
def test_needs_that_make_no_sense_here(words: list[str]) -> None:  # U9
    with pytest.raises((UsageError, QuantityError), match=r"^(--nodes: there is one|expected )"):
        request.needs(asked(*words))


def test_arrays() -> None:  # U9
    assert request.array("0-6:3,12%4") == TaskArray((0, 3, 6, 12), 4)
    assert request.array("5,1") == TaskArray((5, 1), 0)
    for text in ("", "a", "3-1", "0-9:0", "0-1000", "0-999999999999"):
        with pytest.raises(UsageError, match="--array"):
            request.array(text)


def test_dependencies_are_on_the_ends_of_jobs_alone() -> None:  # U9
    assert request.dependencies("afterok:1:2,afternotok:3_4") == [
        ("1", "ok"), ("2", "ok"), ("3_4", "failed"),
    ]  # fmt: skip
    for text in ("singleton", "after:3", "afterok", "afterok:1?afterok:2"):
        with pytest.raises(UsageError, match="--dependency"):
            request.dependencies(text)


def test_what_slicer_runs() -> None:  # U9
    values = asked("-G1", "-t10", "--mem=2G", "-c2", "--begin=now+2hours")
    assert request.run_options(values, request.needs(values), ["3f2a:any"]) == [
        "--after=3f2a:any", "--begin=2hours", "--gpus=1", "--timeout=600s", "--set=MemoryMax=2048M",
        "--set=CPUQuota=200%",
    ]  # fmt: skip
    for said, begin in (("now", "1s"), ("now+60", "60s"), ("2027-01-20T12:34", "2027-01-20T12:34")):
        assert request.run_options({"begin": said}, request.needs({}), []) == [f"--begin={begin}"]


def test_the_warning_before_the_time_limit() -> None:  # U9
    assert request.warning("USR2@90") == ("USR2", 90, False)
    assert request.warning("B:10") == ("10", 60, True)


def test_variables_and_names_of_files() -> None:  # U9
    needs = request.needs(asked("-n2", "-c3", "-G1"))
    tasks = request.array("1-3")
    more: dict[str, object] = {"JOB_ID": "77", "JOB_NAME": "a/x", "ARRAY_JOB_ID": "76", "ARRAY_TASK_ID": 2}
    found = request.environment(needs, "box", tasks, **more)
    some = ("JOB_ID", "ARRAY_JOB_ID", "ARRAY_TASK_ID", "ARRAY_TASK_MAX", "NTASKS", "CPUS_PER_TASK", "GPUS")
    assert [found[f"SLURM_{name}"] for name in some] == ["77", "76", "2", "3", "2", "3", "1"]
    assert "SLURMD_NODENAME" not in found  # slicer would take it for an allocation
    assert request.filled("%x-%A_%a-%j-%5j-%N-%u-%t-%%-%q", found, "me") == "a_x-76_2-77-00077-box-me-0-%-%q"


def test_what_of_the_callers_environment_a_job_gets() -> None:  # U9
    inside = {"SLICER_LEASE": "3f", "CUDA_VISIBLE_DEVICES": "G", "SLURM_JOB_ID": "1", "A": "a", "PATH": "/"}
    assert request.exported(inside, "ALL") == {"A": "a", "PATH": "/"}
    assert request.exported(inside, "NONE") == {"PATH": "/"}
    assert request.exported(inside, "A,B=b") == {"A": "a", "PATH": "/", "B": "b"}
    assert request.exported(inside, "ALL,B=b,A=") == {"A": "", "PATH": "/", "B": "b"}
    assert request.exported({"CUDA_VISIBLE_DEVICES": "1"}, "ALL") == {"CUDA_VISIBLE_DEVICES": "1"}
