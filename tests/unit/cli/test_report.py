"""``slicer report``: what it reads, and the file that it writes (X8, U13)."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slicer.broker import accounts
from slicer.broker.accounts import AccountRow
from slicer.broker.client import standing
from slicer.cli import app
from slicer.model import Gpu, Outcome
from slicer.outcome import history, samples
from slicer.outcome.series import encode
from slicer.record import as_dict, replace
from slicer.report import page
from slicer.report.parts import Report
from tests.unit import made_up
from tests.unit.program import Cli
from tests.unit.report.jobs import series

pytest_plugins = ["tests.unit.program"]

HOUR = 3600.0
EVIL = "</script><img src=x onerror=alert(1)>$x_$\x1b]0;t\x07"
Run = Callable[..., Any]


@pytest.fixture
def run(cli: Cli, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """``slicer report`` in this process, in the box's directory, with two GPUs."""
    monkeypatch.setattr(os, "environ", {**cli.environ, "SLICER_BROKER": "off"})
    read = standing.read
    gpus = [SimpleNamespace(gpu=Gpu(number, f"GPU-{number}", "card", 24576, number)) for number in (0, 1)]
    monkeypatch.setattr(standing, "read", lambda *options: replace(read(*options), gpus=gpus))
    monkeypatch.setattr(accounts, "PATH", str(cli.root / "usage.db"))
    monkeypatch.chdir(cli.root)

    def act(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        capfd.readouterr()
        done = app.main(["report", *arguments])
        said = subprocess.CompletedProcess(arguments, done, *capfd.readouterr())
        assert done == code, said
        return said

    return act


def keep(cli: Cli, **fields: Any) -> Outcome:
    """Add an outcome of a job that began an hour ago to the history."""
    values = {"started_at": time.time() - HOUR, "uid": os.geteuid(), **fields}
    outcome = made_up.outcome(**values)
    history.append(outcome, str(cli.history))
    return outcome


def cpu_seconds(report: Report) -> float:
    return sum(filter(None, report.over_time.cpus_used)) * report.over_time.step_s


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[Report]:
    """The reports that were calculated. Their pages are only their titles."""
    found: list[Report] = []

    def draw(report: Report, title: str) -> str:
        found.append(report)
        return title

    monkeypatch.setattr(page, "made", draw)
    return found


def test_past_and_running_jobs_are_in_the_report(cli: Cli, run: Run, reports: list[Report]) -> None:  # X8
    gpus = {"gpus": ("GPU-1234abcd-5",), "gpu_indices": (7,), "vram_mib": 4096, "vram_peak_mib": (100,)}
    keep(cli, job="a" * 12, name=EVIL, waited_s=9.0, **gpus)
    kept = keep(cli, job="b" * 12, name="", command=("/opt/bin/tool", "--secret"), exit_code=3, cpu_slots=1)
    keep(cli, job="c" * 12, started_at=time.time() - 30 * 24 * HOUR)
    keep(cli, job="d" * 12, started_at=time.time() - 8 * 24 * HOUR, wall_s=48 * HOUR)  # into the period
    told = {"b" * 12: series(kept.started_at, 6.0, cpu=(2.0, 4.0))}
    samples.keep(str(cli.history), told, busy_timeout_s=5.0)
    lease = cli.running("-p", "heavy", "--name", "now")
    assert run().stdout == "wrote report.html\n"
    (made,) = reports
    by_id = {job.id: job for job in made.jobs}
    assert set(by_id) == {"a" * 12, "b" * 12, "d" * 12, lease.job}
    assert [card.label for card in made.cards] == ["GPU 0", "GPU 1", "GPU 7 1234"]  # which is gone
    evil, tool, now = by_id["a" * 12], by_id["b" * 12], by_id[lease.job]
    assert evil.name.isprintable()
    assert (evil.waited_s, evil.declared_mib, evil.peak_mib) == (9.0, 4096, (100,))
    assert (tool.name, tool.ending, tool.cpu_slots) == ("tool", "exit 3", 1)
    assert cpu_seconds(made) == pytest.approx(36, abs=0.01)
    assert "--secret" not in str(made)  # no command lines
    assert (now.name, now.ending, now.cpu_slots, now.waited_s) == ("now", "running", 1, None)


def test_a_job_that_has_just_begun_is_in_the_report_of_a_machine_that_paused(
    cli: Cli, run: Run, reports: list[Report], monkeypatch: pytest.MonkeyPatch
) -> None:  # X8
    lease, read = cli.running("-p", "heavy"), standing.read

    def paused(*given: Any) -> Any:
        status = read(*given)
        return replace(status, now_s=lease.since_s)  # all that follows is later

    monkeypatch.setattr(standing, "read", paused)
    run()
    assert [job.id for job in reports[0].jobs] == [lease.job]


def test_on_a_terminal_the_main_facts_are_told_too(
    cli: Cli, run: Run, reports: list[Report], monkeypatch: pytest.MonkeyPatch
) -> None:  # U13
    keep(cli, waited_s=0.0)
    monkeypatch.setattr("slicer.cli.output.is_terminal", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    assert run().stdout.splitlines() == [
        "1 job of 1 user: 1 ended well.", "No job waited for a second.", "", "wrote report.html",
    ]  # fmt: skip


def test_a_name_and_a_period_choose_jobs(cli: Cli, run: Run, reports: list[Report]) -> None:  # X8
    keep(cli, job="a" * 12, name="train-1")
    keep(cli, job="b" * 12, name="other")
    keep(cli, job="c" * 12, name="train-2", started_at=time.time() - 5 * HOUR)
    run("--name", "train*", "--since", "2h")
    run("--since", "6h", "--until", "2h", "--output", "then.html")
    run("--since", "infinity")
    assert [[job.id[0] for job in made.jobs] for made in reports] == [["a"], ["c"], ["c", "a", "b"]]
    assert [made.period.began for made in reports[1:]] == [made.jobs[0].began for made in reports[1:]]
    run("--since", "30m")
    run("--until", "2d", "--since", "3d")
    for made, hours in zip(reports[3:], (0.5, 24), strict=True):  # before which a job began, or none
        assert made.period.ended - made.period.began == pytest.approx(hours * HOUR, abs=60)


def test_root_gets_everybodys_jobs_from_the_accounts_and_their_file_is_roots_alone(
    cli: Cli, run: Run, reports: list[Report], monkeypatch: pytest.MonkeyPatch
) -> None:  # L5, X8
    monkeypatch.setattr("os.geteuid", lambda: 0)
    row = AccountRow(
        grant_key="b 1 2", job="e" * 12, uid=4242, gid=0, name="train", command="train --token=SECRET",
        profile="heavy", gpus="GPU-a GPU-b", vram_peak_mib=900, slots="cpu=3 w=2",
        granted_at=time.time() - HOUR, held_s=60.0, waited_s=7.0, gpu_rate=2.0, vram_mib=48000, cpu_s=3.5,
        memory_peak_bytes=1, reason="exited", exit_code=None,
    )  # fmt: skip
    part = {"grant_key": "b 3 4", "gpus": "GPU-a", "gpu_rate": 0.5, "vram_mib": 12000, "exit_code": 0}
    database = sqlite3.connect(accounts.PATH)
    database.executescript(f"{accounts.SCHEMA}; PRAGMA user_version={accounts.SCHEMA_VERSION}")
    for values in (as_dict(row), {**as_dict(row), **part}):  # users choose ids: these two have the same
        database.execute(accounts.INSERT_JOB, (*values.values(), 0.0))
    database.execute(accounts.SAMPLES)
    told = encode(series(row.granted_at, 30.0, cpu=(2.0, 4.0)))
    database.execute(accounts.INSERT_SAMPLES, ("b 1 2", 4242, told))
    database.commit()
    database.close()
    run("--all-users")
    whole, shared = reports[0].jobs
    assert (whole.user, whole.ending, whole.declared_mib, whole.cpu_slots) == ("4242", "unknown", None, 3)
    assert (whole.peak_mib, whole.key, whole.waited_s) == ((900, 900), "b 1 2", 7.0)
    assert (shared.declared_mib, shared.ending, shared.key) == (12000, "ok", "b 3 4")
    assert cpu_seconds(reports[0]) == pytest.approx(180)
    assert "SECRET" not in str(reports[0])
    assert Path("report.html").read_text() == f"slicer report: all users on {os.uname().nodename}"
    assert Path("report.html").stat().st_mode & 0o777 == 0o600


def test_others_do_not_get_everybodys_jobs(
    run: Run, reports: list[Report], monkeypatch: pytest.MonkeyPatch
) -> None:  # L5
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "only root may see the jobs of all users" in run("--all-users", code=2).stderr
    assert not Path("report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--output", "r.pdf"), 2, "--output: expected a name that ends in .html, not 'r.pdf'"),
        (("--since", "2h", "--until", "3h"), 2, "--since: is not before --until"),
        (("--since", "x"), 2, "--since: expected a duration"),
        (("--until", "-1h"), 2, "--until: expected a duration"),
        (("--output", "none/r.html"), 125, "none/r.html: the report cannot be written: No such file"),
    ],
)
def test_what_cannot_be_written_or_understood_is_said(
    run: Run, reports: list[Report], arguments: tuple[str, ...], code: int, said: str
) -> None:  # U13
    assert said in run(*arguments, code=code).stderr


def test_only_a_regular_file_of_ours_is_replaced_and_no_link_is_followed(
    run: Run, reports: list[Report]
) -> None:  # S11
    Path("target").write_text("precious")
    Path("link.html").symlink_to("target")
    Path("dangling.html").symlink_to("made-by-it")
    os.mkfifo("pipe.html")  # whose reader it would wait for
    Path("folder.html").mkdir()
    for name in ("link.html", "dangling.html", "pipe.html", "folder.html"):
        assert f"{name}: is not a regular file, and is left alone" in run("--output", name, code=125).stderr
    assert Path("target").read_text() == "precious"
    assert Path("link.html").is_symlink()
    assert not Path("made-by-it").exists()
    Path("old.html").write_text("old")
    os.link("old.html", "same.html")
    run("--output", "old.html")
    assert Path("same.html").read_text() == "old"  # a new file took the name
    assert Path("old.html").read_text().startswith("slicer report: ")
    assert not list(Path().glob("*.tmp"))


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root: a file of another user")
def test_a_file_of_another_user_is_left_alone(run: Run, reports: list[Report]) -> None:  # S11
    Path("theirs.html").write_text("theirs")
    os.chown("theirs.html", 4242, 4242)
    assert "belongs to uid 4242, and is left alone" in run("--output", "theirs.html", code=125).stderr
    assert Path("theirs.html").read_text() == "theirs"
