"""What the journal has about a job, and where journalctl finds it (K7)."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.systemd.helpers import systemctl
from tests.systemd.helpers.jobs import Slicer

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd


@pytest.mark.core
def test_every_event_of_a_job_is_found_by_scope_identifier_and_job(slicer: Slicer) -> None:  # K7
    gate = slicer.gate()
    holder = slicer.hold(gate, "-p", "heavy")
    job = slicer.start("-p", "heavy", "--name", "second", "--", "sh", "-c", "exit 3")
    ticket = job.ticket()
    gate.open()
    assert holder.end().code == 0
    assert job.end().code == 3
    unit = f"slicer-{ticket.job}.scope"
    kinds = ["waiting", "acquired", "started", "finished", "released"]
    assert systemctl.events(ticket.job) == kinds
    for args in (
        ("-t", "slicer", f"SLICER_UNIT={unit}"),
        ("-t", "slicer", "-u", unit),
        (f"SLICER_JOB={ticket.job}",),
    ):
        entries = systemctl.journal(*args)
        assert [entry["SLICER_EVENT"] for entry in entries] == kinds, args
    assert {entry["SLICER_NAME"] for entry in entries} == {"second"}
    assert {entry["SLICER_PROFILE"] for entry in entries} == {"heavy"}
    by_kind = {entry["SLICER_EVENT"]: entry for entry in entries}
    assert by_kind["waiting"]["SLICER_HOLDER"] == f"slicer-{systemd_job(slicer, holder.pid)}.scope"
    assert float(by_kind["acquired"]["SLICER_WAITED_S"]) > 0
    assert by_kind["started"]["SLICER_COMMAND"] == "sh -c exit 3"
    assert by_kind["finished"]["SLICER_EXIT_CODE"] == "3"
    assert by_kind["finished"]["SLICER_REASON"] == "exited"
    told = by_kind["finished"]["MESSAGE"]
    assert told.startswith("second: finished with exit 3 after ")  # W20
    # systemd's own lines about the scope are beside ours.
    texts = [entry["MESSAGE"] for entry in systemctl.journal("-u", unit)]
    assert any(text.startswith(f"Started {unit}") for text in texts), texts


def systemd_job(slicer: Slicer, pid: int) -> str:
    (entry,) = systemctl.journal("-t", "slicer", "SLICER_EVENT=started", f"_PID={pid}")
    job: str = entry["SLICER_JOB"]
    return job


@pytest.mark.core
def test_every_event_with_a_gpu_is_found_by_its_index_and_by_its_uuid(slicer: Slicer) -> None:  # K7
    env = {"SLICER_SIM": "2x24G"}
    lease = ("--gpu", "1", "--vram", "1G", "--name", "shares")
    leaves = "slicer simjob --vram 2G --hold 60 & slicer simjob --vram 2G --hold 0.7"
    done = slicer.run(*lease, "--", "sh", "-c", leaves, env=env)
    assert done.code == 0, done
    kinds = ["acquired", "started", "over-limit", "stopped", "finished", "released"]
    (uuid,) = {
        word
        for entry in systemctl.journal("-t", "slicer", "SLICER_NAME=shares", "SLICER_EVENT=started")
        for word in entry["SLICER_GPU"]
        if word != "1"
    }
    for word in ("1", uuid):
        entries = systemctl.journal(f"SLICER_GPU={word}", "SLICER_NAME=shares")
        assert [kind for kind in kinds if kind in {entry["SLICER_EVENT"] for entry in entries}] == kinds
    assert not systemctl.journal("SLICER_GPU=0", "SLICER_NAME=shares")


def test_a_queues_jobs_are_found_by_the_file_and_by_its_path(slicer: Slicer) -> None:  # K7
    jobs = slicer.path("night.txt")
    jobs.write_text("[profile=heavy] sleep 0.5\n[profile=heavy] true\n")
    slicer.command("queue", "-q", str(jobs), "--log-dir", str(slicer.path("logs")))
    kinds = ["acquired", "started", "finished", "released"]
    for word in ("night.txt", str(jobs)):
        entries = systemctl.journal(f"SLICER_QUEUE={word}", "SLICER_PROFILE=heavy")
        first = [entry for entry in entries if entry["SLICER_NAME"] == "night.txt#1"]
        second = [entry for entry in entries if entry["SLICER_NAME"] == "night.txt#2"]
        assert [entry["SLICER_EVENT"] for entry in first] == kinds
        assert [entry["SLICER_EVENT"] for entry in second] == ["waiting", *kinds]
        assert len({entry["SLICER_JOB"] for entry in second}) == 1
        assert "held by night.txt#1 (pid " in second[0]["MESSAGE"]


def test_no_message_has_the_command_line(slicer: Slicer) -> None:  # K7 S10
    gate = slicer.gate()
    holder = slicer.start("-p", "heavy", "--", "sh", "-c", f": TOP-SECRET; echo up; : < {gate}")
    holder.said("up")
    job = slicer.start("-p", "heavy", "--", "sh", "-c", ": TOP-SECRET")
    job.ticket()
    gate.open()
    assert (holder.end().code, job.end().code) == (0, 0)
    entries = systemctl.journal("-t", "slicer", f"_PID={holder.pid}", "+", f"_PID={job.pid}")
    assert len(entries) >= 9
    assert not [entry for entry in entries if "SECRET" in entry["MESSAGE"]]


def test_a_job_that_takes_no_lease_has_its_events_too(slicer: Slicer) -> None:  # K7
    done = slicer.run("--", "true")
    assert systemctl.events(systemd_job(slicer, done.pid)) == ["started", "finished"]


def test_systemctl_status_shows_the_events_of_a_running_job(slicer: Slicer) -> None:  # K6, K7
    gate = slicer.gate()
    job = slicer.hold(gate, "--name", "train")
    systemctl.output("journalctl", "--sync")
    assert "train: started" in systemctl.output("systemctl", "status", job.lease().unit)
    gate.open()
    assert job.end().code == 0


@pytest.mark.core
def test_the_commands_output_goes_to_the_journal_too(slicer: Slicer) -> None:  # K7
    script = "echo to stdout; echo to stderr >&2; printf 'no newline'; exit 5"
    done = slicer.run("--journal", "--name", "talk", "--", "sh", "-c", script)
    assert (done.code, done.stdout) == (5, "to stdout\nno newline")
    assert done.told.startswith("to stderr\n")
    unit = f"slicer-{systemd_job(slicer, done.pid)}.scope"
    entries = {entry["MESSAGE"]: entry for entry in systemctl.journal("-u", unit, "-t", "talk")}
    assert set(entries) == {"to stdout", "to stderr", "no newline"}
    assert (entries["to stdout"]["PRIORITY"], entries["to stderr"]["PRIORITY"]) == ("6", "3")
    assert entries["to stdout"]["_SYSTEMD_UNIT"] == unit


def test_without_the_option_the_output_is_not_in_the_journal(slicer: Slicer) -> None:  # K7
    done = slicer.run("--", "echo", "private words")
    unit = f"slicer-{systemd_job(slicer, done.pid)}.scope"
    assert not [entry for entry in systemctl.journal("-u", unit) if entry["MESSAGE"] == "private words"]


def test_large_output_arrives_whole_in_both_places(slicer: Slicer) -> None:  # K7
    done = slicer.run("--journal", "--", "sh", "-c", "seq 5000")
    expected = [str(number) for number in range(1, 5001)]
    assert done.stdout.split() == expected
    unit = f"slicer-{systemd_job(slicer, done.pid)}.scope"
    found = [entry["MESSAGE"] for entry in systemctl.journal("-u", unit, "-p", "6", "_TRANSPORT=stdout")]
    assert found == expected


def test_a_reader_that_leaves_ends_a_journalled_job_by_sigpipe(slicer: Slicer) -> None:  # K7
    script = "slicer run -q --journal -- sh -c 'while echo y; do :; done' | head -n 2; echo ${PIPESTATUS[0]}"
    done = subprocess.run(
        ["bash", "-c", script], env=slicer.environ(), capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "y\ny\n141\n", done


def test_an_error_is_in_the_journal(slicer: Slicer) -> None:  # K7
    os.rename("/var/lib/slicer", "/var/lib/slicer.aside")
    try:
        with open("/var/lib/slicer", "w"):
            pass
        done = slicer.run("--", "true")
    finally:
        os.unlink("/var/lib/slicer")
        os.rename("/var/lib/slicer.aside", "/var/lib/slicer")
    assert done.code == 0
    assert "history" in done.stderr
    entries = systemctl.journal(f"SLICER_JOB={systemd_job(slicer, done.pid)}", "SLICER_EVENT=error")
    assert len(entries) == 1
    assert "history" in entries[0]["MESSAGE"]


def test_no_journald_does_no_harm(slicer: Slicer) -> None:  # K7
    # Not a stopped journald, which systemd's sockets would start again: a mount namespace without its socket.
    hidden = (
        "unshare",
        "--mount",
        "--propagation=private",
        "sh",
        "-c",
        'mount -t tmpfs none /run/systemd/journal && exec "$@"',
        "sh",
    )
    done = slicer.run("--journal", "--", "sh", "-c", "echo out; exit 6", via=hidden)
    assert (done.code, done.stdout) == (6, "out\n")
    assert done.told.count("\n") == 1
