"""What a queue says of each event: one clean line."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from slicer.queue.file import suggestion
from slicer.queue.model import Event, EventKind, JobRow, JobState, Status
from slicer.queue.show import event_text
from slicer.queue.show.event_text import summary_lines

NASTY = "a\x1b[31mb\nc\r\u202ed\udcff\x00"


def row(no: int = 3, **fields: Any) -> JobRow:
    """A job that runs within its declaration."""
    usual: dict[str, Any] = {
        "name": "", "command": f"python train.py --seed {no}", "status": "running", "attempt": 1,
        "declared_mib": 18 << 10, "gpu_indices": (0,), "now_mib": (17_000,), "peak_mib": (17_613,),
        "utilisation": 96.2, "looks": 20, "wall_s": 724.0, "exit_code": 0, "reason": "", "verdict": "within",
        "waits_for": "", "note": "",
    }  # fmt: skip
    return JobRow(no, **{**usual, **fields})


def event(kind: EventKind, job: JobRow | None = None, **data: Any) -> Event:
    return Event(kind, 1_700_000_000.0, job, data)


def said(kind: EventKind, job: JobRow | None = None, *, verbose: bool = False, **data: Any) -> str:
    line = event_text.line(event(kind, job, **data), verbose=verbose)
    assert line is not None
    return line


def summed_up(**data: Any) -> Event:
    usual: dict[str, Any] = {
        "counts": {"ok": 2}, "failed": [], "under": [], "over": [], "exit_code": 0, "wall_s": 3700.0,
        "jobs_file": "my jobs.txt", "log_dir": "logs",
    }  # fmt: skip
    return event("summary", **{**usual, **data})


UNSEEN: dict[str, Any] = {
    "peak_mib": (), "now_mib": (), "utilisation": None, "looks": 0, "gpu_indices": ()
}  # fmt: skip
SMALL: dict[str, Any] = {"declared_mib": 8 << 10, "gpu_indices": (1,), "peak_mib": (9318,)}


@pytest.mark.parametrize("kind", get_args(EventKind))
@pytest.mark.parametrize("verbose", [False, True])
def test_each_kind_of_event_has_clean_words(kind: EventKind, verbose: bool) -> None:  # E5, E8
    job = row(name=NASTY, command=NASTY, reason=NASTY, waits_for=NASTY, status="failed")
    keys = ("why", "error", "reason", "text", "log", "log_dir", "jobs_file")
    full = event(
        kind, job, count=2, added=1, failed=[job], under=[job], over=[job], **dict.fromkeys(keys, NASTY)
    )
    bare = event(kind, job)
    for one in (full, bare):
        line = event_text.line(one, verbose=verbose)
        assert line is None or (line.isprintable() and line == line.strip() and line), line
    assert kind == "summary" or event_text.line(full, verbose=True)
    assert all(line.isprintable() for line in summary_lines(full))


def test_memory_that_grows_is_said_to_those_who_ask() -> None:  # E8
    growing = row(2, now_mib=(1024, 2048), peak_mib=(1024, 3072), gpu_indices=(0, 1))
    assert event_text.line(event("usage", growing), verbose=False) is None
    line = said("usage", growing, verbose=True)
    assert line == "job 2 uses 1G, 2G of GPUs 0,1, declared 18G (peak 1G, 3G)"


@pytest.mark.parametrize(
    ("job", "line"),
    [
        (row(), "job 3 started on GPU 0 (declared 18G): python train.py --seed 3"),
        (row(name="a", declared_mib=None), "job 3 (a) started on GPU 0 (alone): python train.py --seed 3"),
        (row(gpu_indices=(), declared_mib=None), "job 3 started: python train.py --seed 3"),
        (
            row(attempt=2, gpu_indices=(0, 1), declared_mib=1536),
            "job 3 started again (attempt 2) on GPUs 0,1 (declared 1.5G): python train.py --seed 3",
        ),
    ],
)
def test_a_start_says_where_and_what_was_declared(job: JobRow, line: str) -> None:
    assert said("started", job) == line


@pytest.mark.parametrize(
    ("job", "line"),
    [
        (row(status="ok"), "job 3 ok after 12m4s: GPU 0 peak 17.2G of 18G declared, 96% busy"),
        (
            row(status="ok", gpu_indices=(0, 1), peak_mib=(17_613, 17_306)),
            "job 3 ok after 12m4s: GPUs 0,1 peak 17.2G, 16.9G of 18G declared, 96% busy",
        ),
        (
            row(status="ok", peak_mib=(7000,), verdict="over-declared"),
            "job 3 ok after 12m4s: GPU 0 peak 6.8G of 18G declared, 96% busy; "
            "62% less than declared: [vram=7424M] would do",
        ),
        (
            row(5, status="ok", verdict="under-declared", utilisation=None, **SMALL),
            "job 5 ok after 12m4s: GPU 1 peak 9.1G of 8G declared, busy n/a; "
            "14% more than declared: [vram=9984M] is needed",
        ),
        (  # Q7: no figure that was not measured
            row(5, status="ok", utilisation=None, looks=2, verdict="unknown", peak_mib=(2048,)),
            "job 5 ok after 12m4s: GPU 0 peak 2G of 18G declared in 2 looks, busy n/a",
        ),
        (
            row(5, status="ok", utilisation=None, looks=1, verdict="under-declared", **SMALL),
            "job 5 ok after 12m4s: GPU 1 peak 9.1G of 8G declared in 1 look, busy n/a; "
            "14% more than declared: at least [vram=9984M] is needed",
        ),
        (
            row(5, status="ok", utilisation=None, looks=1, verdict="unknown", peak_mib=()),
            "job 5 ok after 12m4s: GPU 0 peak n/a, busy n/a",
        ),
        (row(status="ok", **UNSEEN), "job 3 ok after 12m4s"),
        (
            row(status="failed", exit_code=3, wall_s=2.0, command="x", utilisation=5.0),
            "job 3 failed with exit code 3 after 2s: GPU 0 peak 17.2G of 18G declared, 5% busy; x (log: l)",
        ),
        (
            row(4, status="failed", exit_code=3, wall_s=2.0, command="python x.py", **UNSEEN),
            "job 4 failed with exit code 3 after 2s: python x.py (log: l)",
        ),
        (
            row(status="failed", exit_code=139, reason="signal", wall_s=2.0, command="x", **UNSEEN),
            "job 3 killed by SIGSEGV after 2s: x (log: l)",
        ),
        (
            row(status="failed", exit_code=137, reason="oom-kill", wall_s=2.0, command="x", **UNSEEN),
            "job 3 failed: the kernel ended it, out of host memory after 2s: x (log: l)",
        ),
        (
            row(status="oom", attempt=3, exit_code=1, wall_s=2.0, command="x", **UNSEEN),
            "job 3 ran out of GPU memory (attempt 3) after 2s: x (log: l)",
        ),
        (
            row(status="timeout", exit_code=124, wall_s=2.0, command="x", **UNSEEN),
            "job 3 timed out after 2s: x (log: l)",
        ),
        (
            row(status="cancelled", wall_s=2.0, command="x", **UNSEEN),
            "job 3 cancelled after 2s: x (log: l)",
        ),
    ],
)
def test_a_completion_says_peak_and_utilisation(job: JobRow, line: str) -> None:  # E5
    assert said("finished", job, log="l") == line


def test_a_failure_shows_a_log_that_can_be_pasted_and_its_last_line() -> None:  # W19
    job = row(status="failed", exit_code=3, wall_s=2.0, command="x", **UNSEEN)
    where = {"log": "job0003.log", "log_path": "my logs/job0003.log", "last_line": "ValueError: no"}
    assert said("finished", job, **where) == (
        "job 3 failed with exit code 3 after 2s: x (log: 'my logs/job0003.log'), last line: ValueError: no"
    )
    where = {"log": "job0003.log", "log_path": "logs/job0003.log", "last_line": ""}
    assert said("lost", job, **where).endswith("; x (log: logs/job0003.log)")


def test_a_suggestion_that_is_no_better_is_not_made() -> None:  # E5
    close = row(status="ok", declared_mib=256, peak_mib=(225,), verdict="over-declared")
    assert said("finished", close).endswith("; 12% less than declared")


@pytest.mark.parametrize("peak", [1, 243, 244, 7000, 79_999])
def test_lines_advise_what_the_corrected_jobs_file_says(peak: int) -> None:  # E5
    job = JobState("k", 1, "x", status="ok", vram_peak_mib=(peak, 1), looks=10)
    assert suggestion.proposals([job], 0.1) == {"k": suggestion.enough_mib(peak)}


def test_who_exceeds_its_declaration_is_named_with_the_consequence() -> None:  # E5
    line = said("exceeds", row(5), gpu=1, used_mib=9318, declared_mib=8 << 10)
    assert line == (  # Q12
        "WARN job 5 uses 9.1G of GPU 1, declared 8G (14% more): what shares the GPU may run out of memory"
    )
    assert event_text.level(event("exceeds", row(5))) == "warning"


def test_what_may_go_wrong_is_marked_and_what_went_well_or_wrong_is_not() -> None:  # Q12
    assert said("warning", text="no room") == "WARN no room"
    assert said("stalled", why="no room").startswith("WARN nothing is started")
    for kind in ("finished", "started", "lost", "drained"):
        assert "WARN" not in said(kind, row(status="failed"))


def test_a_job_that_follows_one_that_failed_is_skipped() -> None:
    line = said("unrunnable", row(4, command="echo hi"), why="bad, which it follows, failed (exit 3)")
    assert line == "job 4 skipped: bad, which it follows, failed (exit 3); echo hi"


def test_nothing_left_to_do_says_why_that_is_no_success() -> None:  # W6
    failed = row(1, status="failed", exit_code=143, command="x")
    one = summed_up(counts={}, earlier=[failed], exit_code=143, wall_s=0.002)
    retry = "slicer queue retry 'my jobs.txt' --log-dir logs"
    assert summary_lines(one) == [f"nothing left; job 1 failed earlier (143); to run it again: {retry}"]
    assert event_text.level(one) == "bad"
    two = summed_up(counts={}, earlier=[failed, row(7, status="lost", exit_code=1)], exit_code=143)
    assert summary_lines(two) == [
        "nothing left; 2 jobs failed earlier: 1 (143), 7 (1); exit code 143; to run them again: " + retry
    ]
    assert summary_lines(summed_up(counts={})) == ["nothing left"]
    more = summed_up(counts={"ok": 2}, earlier=[failed], exit_code=143)
    assert summary_lines(more) == ["2 jobs in 1h2m: 2 ok; job 1 failed earlier (143); exit code 143"]


def test_a_retry_says_what_changes() -> None:  # E9
    line = said("retry", row(6), declared_mib=8 << 10, next_mib=10 << 10, attempt=1, attempts=3)
    assert line == "WARN job 6 ran out of GPU memory (attempt 1 of 3): again with 10G instead of 8G"
    same = said("retry", row(6), declared_mib=8 << 10, next_mib=8 << 10, attempt=2, attempts=3)
    assert same == "WARN job 6 ran out of GPU memory (attempt 2 of 3): again with 8G"
    assert said("retry", row(6), declared_mib=None, next_mib=None, attempt=1, attempts=3).endswith(
        "3): again"
    )


def test_long_commands_and_errors_are_cut() -> None:
    assert len(said("started", row(command="x" * 10**6))) < 200
    assert len(said("warning", text="x" * 10**6)) < 600
    assert said("started", row(command="\n" * 10**6)).isprintable()


def test_the_middle_of_a_long_command_is_cut() -> None:  # Q14
    command = f"python train.py {'x' * 10**6} --seed 3"
    assert said("started", row(command=command)).endswith("x --seed 3")


def test_jobs_of_an_earlier_run_are_not_called_done_whatever_became_of_them() -> None:  # Q14
    line = said("skipped", count=15, counts={"failed": 2, "ok": 13})
    again = "slicer queue retry runs failed ones again, --fresh all"
    assert line == f"15 jobs ended in an earlier run: 13 ok, 2 failed ({again})"
    line = said("skipped", count=1, counts={"ok": 1})
    assert line == "1 job ended in an earlier run: 1 ok (--fresh runs all again)"


def test_nothing_that_happened_is_not_worth_a_line() -> None:
    assert event_text.line(event("skipped", count=0), verbose=True) is None
    assert event_text.line(event("file-changed", added=0, removed=0), verbose=True) is None
    assert said("file-changed", added=2, removed=0) == "jobs file changed: 2 added"


def test_the_event_of_a_job_needs_one() -> None:
    with pytest.raises(ValueError, match="'started' needs a job"):
        event_text.line(event("started"), verbose=False)


@pytest.mark.parametrize("status", get_args(Status))
def test_each_status_is_counted(status: Status) -> None:  # E12
    assert summary_lines(summed_up(counts={status: 7}))[0].startswith("7 jobs in 1h2m: 7 ")


def test_the_summary_of_a_good_run_is_one_line() -> None:  # E12
    assert summary_lines(summed_up()) == ["2 jobs in 1h2m: 2 ok"]
    assert event_text.level(summed_up()) == "info"


def test_jobs_that_failed_alike_share_a_line_and_the_sum_is_the_last() -> None:  # E8, U15
    """Else a mistake that ends a whole sweep fills the screen with itself, and the sum is above it."""
    sweep = [row(no, status="failed", exit_code=2, command=f"train.py --seed {no}") for no in range(5, 85)]
    other = row(85, status="failed", exit_code=3, command="x")
    skipped = [row(no, status="skipped", exit_code=1, reason="a, which it follows, failed") for no in (1, 3)]
    one = summed_up(
        counts={"failed": 81, "skipped": 2}, failed=[*skipped, *sweep, other], exit_code=3,
        logs={no: f"job{no:04}.log" for no in range(5, 86)},
        last_lines={no: f"12:00:{no - 5:02} error: no --seed" for no in range(5, 85)},
    )  # fmt: skip
    assert summary_lines(one) == [
        "  2 jobs (1,3) skipped, as job 1: python train.py --seed 1",
        "    a, which it follows, failed",
        "  80 jobs (5-84) failed with exit code 2, as job 5: train.py --seed 5 (log: logs/job0005.log)",
        "    12:00:00 error: no --seed",
        "  job 85 failed with exit code 3: x (log: logs/job0085.log)",
        "83 jobs in 1h2m: 81 failed, 2 skipped; exit code 3",
    ]


def test_the_summary_names_failures_wrong_declarations_and_the_remedy() -> None:  # E5, E12
    failed = row(4, status="failed", exit_code=3, command="x")
    under = row(5, status="ok", verdict="under-declared", command="y", **SMALL)
    over = row(7, status="ok", verdict="over-declared", peak_mib=(7000,), command="z")
    one = summed_up(
        counts={"ok": 2, "failed": 1}, failed=[failed], under=[under], over=[over], exit_code=3,
        logs={4: "job0004.log"}, last_lines={4: "ValueError: no"},
    )  # fmt: skip
    assert summary_lines(one) == [
        "  job 4 failed with exit code 3: x (log: logs/job0004.log)",
        "    ValueError: no",
        "1 job used more than declared:",
        "  job 5: GPU 1 peak 9.1G of 8G declared, 96% busy (14% more), [vram=9984M]: y",
        "1 job used less than declared:",
        "  job 7: GPU 0 peak 6.8G of 18G declared, 96% busy (62% less), [vram=7424M]: z",
        "corrected declarations: slicer queue suggest 'my jobs.txt' --log-dir logs",
        "3 jobs in 1h2m: 2 ok, 1 failed; exit code 3",
    ]
    assert event_text.level(one) == "bad"


def test_the_sum_says_what_is_held_back_and_how_to_start_it() -> None:  # U19
    held = ["4 jobs of t.py are held back: why"]
    one = summed_up(counts={"failed": 5, "pending": 4}, held=held, exit_code=1)
    assert summary_lines(one) == [
        "  WARN 4 jobs of t.py are held back: why",
        "    to start them: slicer queue retry 'my jobs.txt' --log-dir logs",
        "9 jobs in 1h2m: 4 pending, 5 failed; exit code 1",
    ]
    assert event_text.level(one) == "warning"
    assert said("drained", held=1) == "nothing is left to do, but 1 job held back"


def test_a_job_that_runs_again_says_how_its_attempt_ended_and_when() -> None:  # U8
    failed = row(status="pending", exit_code=3, reason="exited")
    more: dict[str, Any] = {"declared_mib": 8, "next_mib": None, "attempt": 1, "attempts": 3}
    log = {"log_path": "l/a.log", "last_line": "no"}
    assert said("retry", failed, status="failed", again_in_s=30.0, **more, **log) == (
        "WARN job 3 failed with exit code 3 (attempt 1 of 3): again in 30s (log: l/a.log), last line: no"
    )
    assert said("retry", failed, status="timeout", again_in_s=960.0, **more).endswith(
        "job 3 timed out (attempt 1 of 3): again in 16m"
    )
