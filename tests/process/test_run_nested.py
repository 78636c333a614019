"""slicer inside slicer: what the outer job holds is held for the whole tree."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.patience import LONGEST_S, until
from tests.process.harness import Box, Gate

SCRUBBED = (
    "env -i PATH=$PATH PYTHONPATH=$PYTHONPATH SLICER_STATE_DIR=$SLICER_STATE_DIR HOME=$HOME CPU_RUN_SLOTS=1"
    " SLICER_SYSROOT=$SLICER_SYSROOT"
)


# A3
def test_a_wrapped_command_that_calls_wrapped_commands_does_not_deadlock(box: Box) -> None:
    done = box.run(
        *("-p", "heavy", "-q", "--", "inner", "-p", "heavy", "--"),
        "inner",
        "-p",
        "heavy",
        "--",
        "sh",
        "-c",
        "exit 3",
    )
    assert (done.returncode, done.stderr) == (3, "")
    assert [outcome.cpu_slots for outcome in box.outcomes()] == [1, 1, 1]
    box.assert_clean()


# A3
def test_nor_when_the_environment_was_scrubbed(box: Box) -> None:
    done = box.run(
        "-p", "heavy", "-q", "--", "sh", "-c", f"{SCRUBBED} inner -p heavy --no-wait -- sh -c 'exit 3'"
    )
    assert (done.returncode, done.stderr) == (3, "")


# A3
def test_what_the_outer_job_does_not_hold_is_acquired_as_usual(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    done = box.run("-q", "--", "sh", "-c", "inner -p heavy --no-wait -- true")
    assert done.returncode == 75
    assert json.loads(done.stderr)["error"] == "cpu-busy"
    gate.open()
    assert job.process.wait(LONGEST_S) == 0
    assert box.run("-q", "--", "sh", "-c", "inner -p heavy --no-wait -- true").returncode == 0


# A3
def test_only_the_missing_part_is_acquired(make_box: Callable[[int], Box]) -> None:
    box = make_box(2)
    config = box.root / "config.toml"
    config.write_text('[profiles.wide]\ninherits = "heavy"\ncpu_slots = 2\n')
    config.chmod(0o644)
    done = box.run(
        "-p",
        "heavy",
        "-q",
        "--",
        "sh",
        "-c",
        "inner -p wide --no-wait -- true",
        env={"SLICER_CONFIG": str(config)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(outcome.cpu_slots for outcome in box.outcomes()) == [1, 1]


# A3, K2
def test_the_inner_jobs_end_is_not_the_end_of_the_lease(box: Box, gate: Gate) -> None:
    script = f'inner -p heavy -- true; echo "start after $$" >>"$LOG"; read x <"{gate.path}"'
    outer = box.start("-p", "heavy", "-q", "--", "sh", "-c", script)
    until(lambda: box.started("after"), "the inner job is over")
    assert box.run("-p", "heavy", "--no-wait", "-q", "--", "true").returncode == 75
    gate.open()
    assert outer.wait(LONGEST_S) == 0
    box.assert_clean()


# A3
def test_a_marker_of_a_job_that_is_over_means_nothing(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    done = box.run("-p", "heavy", "--no-wait", "-q", "--", "true", env={"SLICER_LEASE": "0123456789ab"})
    assert done.returncode == 75
    gate.open()
    assert job.process.wait(LONGEST_S) == 0


# A3
def test_an_inner_job_has_its_own_time_limit_and_exit_code(box: Box) -> None:
    done = box.run(
        "-p", "heavy", "-q", "--", "sh", "-c", "inner -p heavy --timeout 100ms -- sleep 60; exit $?"
    )
    assert done.returncode == 124
    inner, outer = box.outcomes()[::-1]
    assert (inner.reason, outer.reason) == ("timeout", "exited")
    box.assert_clean()


# A3: --exec inside another job would leave the outer scope
def test_exec_inside_another_job_is_refused(box: Box) -> None:
    done = box.run("-p", "heavy", "-q", "--", "sh", "-c", "inner -p heavy --exec -- true")
    assert done.returncode == 2
    assert "--exec" in done.stderr


# A6, A7
def test_the_settings_of_the_old_wrapper_scripts_are_honoured(box: Box) -> None:
    done = box.run(
        "-p", "heavy", "-q", "--", "sh", "-c", "echo $OMP_NUM_THREADS", env={"CPU_RUN_THREADS": "5"}
    )
    assert done.stdout == "5\n"
