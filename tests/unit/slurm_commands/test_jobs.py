"""slicer's jobs as Slurm shows them, in the forms that programs read."""

from __future__ import annotations

import os
from typing import Any

import pytest

from slicer.cli.job_register import KnownJob
from slicer.errors import UsageError
from slicer.kernel import proc
from slicer.model import Lease, Outcome, Ticket
from slicer.outcome.job_files import DetachedJob
from slicer.slurm_commands import jobs
from slicer.text import visible
from tests.unit import made_up

BEGAN, NOW, JOB = 1_700_000_000.0, 1_700_000_100.0, "000000000007"
ALIVE = {"pid": os.getpid(), "pid_start": proc.start_time(os.getpid()), "boot_id": proc.boot_id()}


def file(**fields: Any) -> DetachedJob:
    known: dict[str, Any] = {
        "job": JOB, "name": "x", "command": ("/bin/slicer", *jobs.STEP, "--jobid=7", "/j/7.script"),
        "directory": "/d", "profile": "", "log": "/d/slurm-7.out", "pid": 1, "pid_start": 1, "boot_id": "b",
        "after": (), "began_at": BEGAN,
    }  # fmt: skip
    return DetachedJob(**{**known, **fields})


def seen(
    entry: Lease | Ticket | None = None, file: DetachedJob | None = None, outcome: Outcome | None = None, *,
    job: str = JOB, name: str = "x",
) -> KnownJob:  # fmt: skip
    return KnownJob(job, name, 0, "command", entry, file, outcome)


def ended(**fields: Any) -> KnownJob:
    return seen(outcome=made_up.outcome(job=JOB, **fields))


def called(*words: str) -> DetachedJob:
    return file(command=("python", "-m", "slicer", *words))


@pytest.mark.parametrize(
    ("found", "state", "compact", "code"),
    [
        (seen(made_up.ticket(JOB)), "PENDING", "PD", "0:0"),
        (seen(file=file(after=("3f:ok",), **ALIVE)), "PENDING", "PD", "0:0"),
        (seen(made_up.lease(JOB)), "RUNNING", "R", "0:0"),
        (ended(), "COMPLETED", "CD", "0:0"),
        (ended(exit_code=3), "FAILED", "F", "3:0"),
        (ended(exit_code=139, reason="signal", signal=11), "FAILED", "F", "0:11"),
        (ended(exit_code=137, reason="oom-kill", signal=9), "OUT_OF_MEMORY", "OOM", "0:125"),
        (ended(exit_code=124, reason="timeout"), "TIMEOUT", "TO", "0:0"),
        (ended(exit_code=143, reason="stopped"), "CANCELLED", "CA", "0:15"),
        (ended(exit_code=125, reason="unknown"), "NODE_FAIL", "NF", "1:0"),
        (ended(exit_code=143, ended_by="shutdown"), "NODE_FAIL", "NF", "1:0"),
        (seen(file=file(exit_code=75)), "CANCELLED", "CA", "0:15"),
        (seen(file=file(exit_code=125)), "FAILED", "F", "125:0"),
        (seen(file=file()), "NODE_FAIL", "NF", "1:0"),
        (seen(file=file(**ALIVE), outcome=made_up.outcome()), "COMPLETING", "CG", "0:0"),
    ],
)
def test_states(found: KnownJob, state: str, compact: str, code: str) -> None:  # U9
    assert (*jobs.state_words(found), jobs.state_of(found)[1]) == (state, compact, code)


def test_a_number_is_the_id_and_the_command_says_which_task_it_is() -> None:  # U9
    assert jobs.number_of("3f2a9c01b7de") == str(0x3F2A9C01B7DE)
    assert jobs.number(seen(file=file())) == "7"
    assert jobs.number(seen(file=called(*jobs.STEP, "--jobid=7_2"), job="00000000000a")) == "7_2"
    for odd in (
        ("srun", "--jobid=7"), (*jobs.STEP, "--jobid="), (*jobs.STEP, "--jobid=7;rm"),
        (*jobs.STEP, "-n1", "--jobid=7"), ("--jobid=7", *jobs.STEP),
    ):  # fmt: skip
        assert jobs.number(seen(file=called(*odd), job="00000000000a")) == "10", odd


def test_words_that_name_jobs() -> None:  # U9
    tasks = [
        seen(file=called(*jobs.STEP, f"--jobid=7_{index}"), job=f"{7 + index:012x}") for index in range(4)
    ]
    found = [*tasks, seen(file=called("sh", "-c"), job="0000000000ff")]

    def named(words: str, *, is_strict: bool = True) -> list[str]:
        return [jobs.number(each) for each in jobs.selected(found, words, is_strict=is_strict)]

    assert named("255") == named("255.batch") == ["255"]
    assert named("7") == ["7_0", "7_1", "7_2", "7_3"]
    assert named("7_2,255 7_2") == ["7_2", "255"]
    assert named("8") == ["7_1"]  # by its own number
    assert named("99", is_strict=False) == []
    with pytest.raises(UsageError, match="Invalid job id specified: 99"):
        named("7,99")


def test_many_numbers_cost_no_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:  # U9
    found, looks = [seen(file=file(), job=f"{number:012x}") for number in range(1, 100)], []
    monkeypatch.setattr(jobs, "number", lambda known: looks.append(known) or str(int(known.job, 16)))
    of_id = jobs.number_of
    monkeypatch.setattr(jobs, "number_of", lambda job: looks.append(job) or of_id(job))
    assert jobs.selected(found, ",".join(map(str, range(1, 100)))) == found
    assert len(looks) == 2 * len(found)


def test_squeues_default_and_the_forms_of_nextflow_and_parsl() -> None:  # U9
    waits = seen(made_up.ticket(), job="0000000000ff", name="next")
    lease = made_up.lease(uid=0)
    found = [seen(lease, file(), name="a-long-name"), waits]

    def rows(form: str) -> list[str]:
        return jobs.squeue_rows(found, form, NOW, "box")

    head, first, second = rows("%.18i %.9P %.8j %.8u %.2t %.6D %R")
    assert head == "             JOBID PARTITION     NAME     USER ST  NODES NODELIST(REASON)"
    assert first == "                 7    slicer a-long-n     root  R      1 box"
    assert second.split()[0::4] == ["255", "PD"]
    assert second.endswith("1 (Resources)")
    assert rows("%i %t") == ["JOBID ST", "7 R", "255 PD"]
    assert rows("%i|%T") == ["JOBID|STATE", "7|RUNNING", "255|PENDING"]


def test_saccts_forms() -> None:  # U9
    found = [ended(exit_code=3, wall_s=3700.0)]

    def rows(form: str, between: str = "") -> list[str]:
        return jobs.sacct_rows(found, form, NOW, "box", between=between)

    assert rows("JobID,State,NodeList,Elapsed,Nonsense", "|") == [
        "JobID|State|NodeList|Elapsed|Nonsense", "7|FAILED|box|01:01:40|",
    ]  # fmt: skip
    assert rows("JobIdRaw%-4,State%8") == ["Job+    State ", "---- -------- ", "7      FAILED "]
    outcome = made_up.outcome(command=(*jobs.STEP, "--jobid=123456789012345_1000"))
    long = [seen(outcome=outcome, name="train-resnet")]
    row = jobs.sacct_rows(long, "JobID,JobName,Start", NOW, "box", between="")[2].split()
    assert row[:2] == ["123456789012345_1000", "train-res+"]
    assert row[2] == jobs.columns(long[0], NOW, "box")["start"]


def test_a_hostile_name_stays_in_its_line() -> None:  # U9
    name = "x\n7|COMPLETED\x1b[2J"
    found = [seen(made_up.lease(), name=name)]
    assert jobs.sacct_rows(found, "JobName", NOW, "box", between="|")[1:] == [visible(name)]
    assert jobs.squeue_rows(found, "%j", NOW, "box")[1:] == [visible(name)]
