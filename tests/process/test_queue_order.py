"""Which job goes when and where, among the queue's own, other queues' and those of ``slicer run`` (E2-E4)."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable

import pytest

from slicer.state import simulated
from tests.patience import LONGEST_S, until
from tests.process.harness import SLICER, Box
from tests.process.queue_box import QueueBox


@pytest.fixture
def queues(make_box: Callable[[int], Box]) -> QueueBox:
    return QueueBox(make_box(4))


def order(queues: QueueBox) -> list[str]:
    """The names of the jobs as they started."""
    return [line.split()[1] for line in queues.box.lines() if line.startswith("start ")]


def test_after(queues: QueueBox) -> None:
    queues.write(
        "[vram=1G after=b] job c", "[vram=1G name=a] job a 0.05", "[vram=1G name=b after=a] job b 0.02",
        "[vram=1G name=x] job x 0 4", "[vram=1G after=x name=y] job y", "[vram=1G after=y,a] job z",
    )  # fmt: skip
    queue = queues.run()
    assert queue.wait() == 4
    assert [name for name in order(queues) if name in "abc"] == ["a", "b", "c"]
    assert queues.starts() == {"a": 1, "b": 1, "c": 1, "x": 1}
    assert [event["job"]["no"] for event in queue.events("unrunnable")] == [5, 6]
    # W19: they count as what they are, not as pending for ever
    assert queues.statuses()["job y"] == queues.statuses()["job z"] == ("skipped", 1)
    assert queue.events("summary")[0]["counts"] == {"ok": 3, "failed": 1, "skipped": 2}
    # Once it has ended well after all, who waited for it goes.
    queues.write("[vram=1G name=x] job x", "[vram=1G after=x name=y] job y", "[vram=1G after=y,a] job z")
    assert queues.run().wait() == 0
    assert order(queues)[-3:] == ["x", "y", "z"]
    queues.assert_clean()


# U7: the time counts from when the line was first seen, also for the next queue
def test_a_line_begins_at_its_time(queues: QueueBox) -> None:
    queues.write("[vram=1G begin=1s] job a", "[vram=1G] job b", "[vram=1G begin=1d] job c")
    queue = queues.start()
    until(lambda: order(queues) == ["b", "a"], "a begins after b")
    state = queues.journal()["job c"]
    assert state.begin == "1d"
    assert state.begins_at - time.time() > 80_000
    queue.kill()
    again = queues.start("--verbose")
    until(lambda: again.events("opened"), "it goes on")
    queues.asleep(again)
    assert queues.journal()["job c"].begins_at == state.begins_at
    assert again.process.poll() is None  # it waits for c
    queues.write("[vram=1G begin=2020-02-20] job c")
    assert again.wait() == 0
    assert order(queues) == ["b", "a", "c"]
    queues.assert_clean()


def test_priority_then_the_file(queues: QueueBox) -> None:
    queues.write("hold a")
    queue = queues.start("-j", "1")
    queues.started("a")
    queues.append("[vram=1G] job b", "[vram=1G priority=5] job c", "[vram=2G] job d", "[vram=1G] job e")
    assert queue.event("file-changed")["added"] == 4
    queues.let("a")
    assert queue.wait() == 0
    assert order(queues) == list("acbde")


# Q19: however many kinds wait, what fits goes, and what needs nothing
def test_hundreds_of_kinds_keep_nothing_that_fits_waiting(queues: QueueBox) -> None:
    queues.gpus, queues.sizes = 1, "80G"
    queues.write(
        "[vram=70G] hold a", *(f"[vram={60 * 1024 - n}M] job {n}" for n in range(200)),
        "[vram=4G] job small", "[profile=light] job light", "[profile=heavy] job heavy",
    )  # fmt: skip
    queue = queues.start()
    queues.started("a", "small", "light", "heavy")
    assert queues.starts() == {"a": 1, "small": 1, "light": 1, "heavy": 1}
    queue.send(signal.SIGTERM)
    queue.event("stopping")
    queues.let("a")
    assert queue.wait() == 143
    queues.assert_clean()


# W21: `slicer stop` of a line that waits takes out this line, and neither the queue nor the others
def test_a_waiting_line_is_stopped_alone(queues: QueueBox) -> None:
    queues.gpus = 1
    queues.write("[name=a] hold a", "[name=b] job b", "[name=c] job c", "[name=d after=b] job d")
    queue = queues.start()
    queues.started("a")
    until(lambda: [ticket.name for ticket in queues.snapshot().tickets] == ["b"], "b waits")
    env = {**queues.box.env, "SLICER_SIM": simulated.spec_of(1, "24G")}
    subprocess.run([*queues.box.prefix, *SLICER, "stop", "-q", "b"], env=env, check=True)
    assert queue.event("cancelled")["job"]["name"] == "b"
    queue.event("unrunnable")
    queues.let("a")
    assert queue.wait() == 1
    assert order(queues) == ["a", "c"]
    assert queues.statuses() == {
        "hold a": ("ok", 0), "job b": ("cancelled", 0), "job c": ("ok", 0), "job d": ("skipped", 1),
    }  # fmt: skip
    queues.assert_clean()


# W21: nor does it end the queue that is just starting the job
def test_a_job_is_stopped_while_its_queue_starts_it(queues: QueueBox) -> None:
    queues.write("[vram=1G name=a] job a", "[vram=1G] job b")
    queues.arm("supervisor-started-scope")
    queue = queues.start("-j", "1", env=queues.faults())
    until(queues.stopped, "the keeper is there, and the queue has not been told")
    env = {**queues.box.env, "SLICER_SIM": simulated.spec_of(2, "24G")}
    stop = subprocess.Popen([*queues.box.prefix, *SLICER, "stop", "-q", "a"], env=env)
    queue.event("cancelled")
    queues.go_on()
    assert stop.wait(LONGEST_S) == 0
    assert queue.wait() == 0
    assert queues.statuses() == {"job a": ("cancelled", 0), "job b": ("ok", 0)}
    assert queues.starts() == {"b": 1}
    queues.assert_clean()


# W21: those behind it are known to the queue alone, which is asked
def test_lines_that_have_not_begun_are_stopped_by_name_and_number(queues: QueueBox) -> None:
    queues.gpus = 1
    twins = "[name=twin] job e", "[name=twin] job f"
    queues.write("[name=a] hold a", "[name=b] job b", "[name=c] job c", "job d", *twins)
    queue = queues.start()
    queues.started("a")
    until(lambda: [ticket.name for ticket in queues.snapshot().tickets] == ["b"], "b waits")
    env = {**queues.box.env, "SLICER_SIM": simulated.spec_of(1, "24G")}
    stop = [*queues.box.prefix, *SLICER, "stop", "c", "jobs.txt#4", "twin", "nobody"]
    done = subprocess.run(stop, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "no longer waits: jobs.txt#3\nno longer waits: jobs.txt#4\n")
    pid = queue.pid
    twins_named = f"jobs.txt#5 (pid {pid}, job e), jobs.txt#6 (pid {pid}, job f)"
    assert done.stderr.splitlines()[0].startswith(f"slicer: 'twin' could be 2 jobs: {twins_named}")
    assert "no such job: 'nobody'" in done.stderr
    queues.let("a")
    assert queue.wait() == 0
    assert order(queues) == ["a", "b", "e", "f"]
    assert queues.statuses()["job c"] == queues.statuses()["job d"] == ("cancelled", 0)
    queues.assert_clean()


# E4: a small one passes one that does not fit
def test_backfill(queues: QueueBox) -> None:
    queues.gpus = 1
    queues.write("[vram=20G] hold a", "[vram=20G] job b", "[vram=2G] job c")
    queue = queues.start()
    queues.started("a")
    queues.ended("c")
    assert queues.starts() == {"a": 1, "c": 1}
    queues.let("a")
    assert queue.wait() == 0


# E2: nothing declared: alone on an idle GPU
def test_undeclared_jobs_are_alone(queues: QueueBox) -> None:
    queues.write("hold a", "hold b", "job c", "[vram=1G] job d")
    queue = queues.start()
    queues.started("a", "b")
    queues.asleep(queue)
    assert queues.starts() == {"a": 1, "b": 1}
    queues.let("a", "b")
    assert queue.wait() == 0


# E4
@pytest.mark.parametrize("line", ["[vram=24G] job a", "[vram=30G] job a", "[gpus=3] job a"])
def test_infeasible_fails_at_once(queues: QueueBox, line: str) -> None:
    queues.write("[vram=2G] hold b", line)
    queue = queues.start()
    assert queue.event("infeasible")["job"]["no"] == 2
    queues.started("b")
    queues.let("b")
    assert queue.wait() == 1
    assert queues.statuses()["job a"] == ("infeasible", 1)
    queues.assert_clean()


# E12
def test_exclusive(queues: QueueBox) -> None:
    queues.write("[vram=1G] hold a", "[vram=1G] hold b", "[vram=1G] job c")
    queue = queues.start("--exclusive")
    queues.started("a", "b")
    queues.asleep(queue)
    assert queues.starts() == {"a": 1, "b": 1}
    journal = queues.journal()
    assert journal["hold a"].gpus != journal["hold b"].gpus
    queues.let("b")
    queues.ended("c")
    queues.let("a")
    assert queue.wait() == 0
    queues.assert_clean()


# E12
def test_only_these_gpus(queues: QueueBox) -> None:
    queues.gpus = 3
    queues.write("[vram=20G] hold a", "[vram=20G] hold b", "[vram=20G] job c", "[gpus=3] job d")
    queue = queues.start("--gpu", "0,2")
    queues.started("a", "b")
    queues.asleep(queue)
    assert queues.starts() == {"a": 1, "b": 1}
    queues.let("a", "b")
    assert queue.wait() == 1
    used = {index for state in queues.journal().values() for index in state.gpu_indices}
    assert used == {0, 2}
    assert queues.statuses()["job d"][0] == "infeasible"
    assert queues.run("--gpu", "7", "--fresh").wait() == 2


# Q2: a wrong word on the command line is told of at once, and costs no job
def test_gpus_that_are_not_there_are_told_of_at_once(queues: QueueBox) -> None:
    queues.write("[vram=2G] job a", "[profile=light] job b")
    wrong = queues.run("--gpu", "0,7")
    assert wrong.wait() == 2
    assert """no such GPU: '7'", "where": "--gpu", "hint": "this machine has 0 (""" in wrong.err
    assert queues.starts() == {}
    assert queues.run().wait() == 0
    assert queues.starts() == {"a": 1, "b": 1}


# Q2: what cannot be in this run may well be in the next
def test_what_was_infeasible_is_asked_for_again_by_the_next_run(queues: QueueBox) -> None:
    queues.write("[gpus=2] job a")
    assert queues.run("--gpu", "0").wait() == 1
    assert queues.statuses() == {"job a": ("infeasible", 1)}
    assert queues.run("--gpu", "0").wait() == 1
    again = queues.run()
    assert again.wait() == 0
    assert queues.statuses() == {"job a": ("ok", 0)}
    assert queues.starts() == {"a": 1}
    queues.assert_clean()


# Q2: nor does it have to be in this one, once its line asks for less
def test_what_was_infeasible_is_asked_for_again_when_its_line_changes(queues: QueueBox) -> None:
    queues.write("[vram=900G] job a")
    queue = queues.start("--watch")
    queue.event("infeasible")
    queues.write("[vram=9G] job a")
    queues.ended("a")
    queues.write("[vram=900G] job a", "# it is done")
    queues.asleep(queue)
    queue.send(signal.SIGTERM)
    assert queue.wait() == 0
    assert queues.statuses() == {"job a": ("ok", 0)}


# E12
def test_at_most_so_many(queues: QueueBox) -> None:
    queues.write(*(f"[vram=1G] hold {name}" for name in "abcd"))
    queue = queues.start("-j", "2")
    queues.started("a", "b")
    queues.asleep(queue)
    assert queues.starts() == {"a": 1, "b": 1}
    queues.let("a")
    queues.started("c")
    queues.let("b", "c")
    queues.started("d")
    queues.let("d")
    assert queue.wait() == 0


# E7
def test_watch_stays_and_fresh_forgets(queues: QueueBox) -> None:
    queues.write("[vram=1G] job a 0 3")
    queue = queues.start("--watch")
    assert queue.event("drained")["watch"] is True
    queues.append("[vram=1G] job b")
    queues.ended("b")
    until(lambda: len(queue.events("drained")) == 2, "drained again")
    queue.send(signal.SIGTERM)
    assert queue.wait() == 3
    assert queues.run().wait() == 3
    assert queues.starts() == {"a": 1, "b": 1}
    assert queues.run("--fresh").wait() == 3
    assert queues.starts() == {"a": 2, "b": 2}
    queues.assert_clean()


# E13: several queues, and "slicer run", on the same GPUs: never more than they have
def test_two_queues_share_without_over_commit(queues: QueueBox) -> None:
    jobs = [
        f"[vram={size}G] simjob --vram {size}G --ramp 0 --hold 0.1; job {size} 0 $?" for size in (11, 11, 14)
    ]
    queues.write(*jobs)
    (queues.root / "others.txt").write_text("".join(f"{line}; true\n" for line in jobs))
    first = queues.start()
    second = queues.start("--log-dir", "others", file="others.txt")
    assert (first.wait(), second.wait()) == (0, 0)
    assert sum(queues.starts().values()) == 6
    queues.assert_clean()


# E13
def test_a_queue_and_slicer_run_compete(queues: QueueBox) -> None:
    queues.gpus = 1
    env = {"SLICER_SIM": simulated.spec_of(1, "24G")}
    single = queues.box.start("-p", "gpu", "--vram", "20G", "--name", "single", "--", "hold", "s", env=env)
    queues.started("s")
    queues.write("[vram=20G] hold a", "[vram=20G] job b")
    queue = queues.start()
    assert "held by single" in queue.event("waiting")["why"]
    queues.asleep(queue)
    waiting = queues.box.start("-p", "gpu", "--vram", "20G", "--name", "w", "--", "job", "w", env=env)
    until(lambda: len(queues.snapshot().tickets) == 2, "both wait")
    assert queues.starts() == {"s": 1}
    queues.let("s")
    assert single.wait(LONGEST_S) == 0
    queues.started("a")
    assert queues.starts() == {"s": 1, "a": 1}
    queues.let("a")
    assert queue.wait() == 0
    assert waiting.wait(LONGEST_S) == 0
    assert order(queues) == ["s", "a", "w", "b"]
    assert len(queue.events("waiting")) in (1, 2)  # b may have had to wait for w
    queues.assert_clean()


# Q4: however often the queue is woken meanwhile, it sees that memory of others becomes free
def test_memory_of_others_is_looked_at_however_often_jobs_are(queues: QueueBox) -> None:
    queues.gpus = 1
    spec, box = simulated.spec_of(1, "24G"), queues.box
    foreign = subprocess.Popen(
        [*SLICER, "simjob", "--vram", "10G", "--ramp", "0", "--hold", "600", "--print-every", "0.05"],
        env={**box.env, "SLICER_SIM": spec}, cwd=box.root, stdout=subprocess.PIPE,
    )  # fmt: skip
    box.adopt(foreign)
    assert foreign.stdout is not None
    assert foreign.stdout.readline()  # it uses its memory
    queues.write("[vram=2G] hold a", "[vram=12G] job b")
    queue = queues.start("--poll", "0.1")
    queues.started("a")
    queues.asleep(queue)
    assert queues.starts() == {"a": 1}
    foreign.kill()
    foreign.wait()
    queues.ended("b")
    queues.let("a")
    assert queue.wait() == 0


# Q13: few descriptors mean few jobs at a time
def test_few_descriptors(queues: QueueBox) -> None:
    queues.write(*(f"[profile=light] job {number} 0.05" for number in range(30)))
    queue = queues.run("-j", "30", prefix=("sh", "-c", 'ulimit -n 90; exec "$@"', "sh"))
    assert queue.wait() == 0, queue.err
    assert queues.starts() == {f"{number}": 1 for number in range(30)}
    queues.assert_clean()


# Q13: and few places in the ledger's queue
def test_few_descriptors_for_many_kinds(queues: QueueBox) -> None:
    queues.gpus = 1
    queues.write("hold a", *(f"[vram={number + 1}M] job {number}" for number in range(30)))
    queue = queues.start(prefix=("sh", "-c", 'ulimit -n 90; exec "$@"', "sh"))
    queues.started("a")
    queues.asleep(queue)
    queues.let("a")
    assert queue.wait() == 0, queue.err
    assert sum(queues.starts().values()) == 31
    queues.assert_clean()


# Q13: a command that cannot be executed says so in its log
def test_a_command_that_is_too_long(queues: QueueBox) -> None:
    queues.write(f"[profile=light] : {'x' * (1 << 17)}", "[profile=light] job b")
    queue = queues.run()
    assert queue.wait() == 126
    log = (queues.logs / "job0001.log").read_text()
    assert "/bin/sh: cannot execute: Argument list too long (a command, and each" in log
    assert queues.starts() == {"b": 1}


# Q13
@pytest.mark.parametrize("option", ["--spike-buffer=nan", "--tolerance=nan", "--tolerance=-0.1"])
def test_a_fraction_that_cannot_be(queues: QueueBox, option: str) -> None:
    queues.write("job a")
    assert queues.run(option).wait() == 2
    assert queues.starts() == {}
    assert queues.run("--tolerance", "1.5").wait() == 0


# Q12: once is enough
def test_a_job_that_outgrows_its_declaration_is_told_of_once(queues: QueueBox) -> None:
    queues.write("[vram=1G] simjob --vram 8G --ramp 1 --hold 2")
    queue = queues.run("--poll", "0.05")
    assert queue.wait() == 0
    assert len(queue.events("exceeds")) == 1


# W19: what was given up has its chance when the file says something else
def test_a_job_that_followed_a_failure_is_started_when_it_no_longer_does(queues: QueueBox) -> None:
    bad, follower = "[name=bad] job x 0 4", "[after=bad name=y] job y"
    queues.write(bad, follower, "[after=y] job z")
    queue = queues.start("--watch")
    until(lambda: len(queue.events("unrunnable")) == 2, "both are given up")
    queues.write(bad, follower, "[after=y] job z", "# nothing new")
    queues.append("job other")
    queues.ended("other")
    assert len(queue.events("unrunnable")) == 2  # said once
    queues.write(bad, "[name=y] job y", "[after=y] job z")
    queues.ended("z")
    queue.send(signal.SIGTERM)
    assert queue.wait() == 4
    assert queues.starts() == {"x": 1, "y": 1, "z": 1, "other": 1}
    queues.assert_clean()
