"""``slicer queue --engine slurm`` on a real Slurm of two nodes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import slurm_box
from tests.patience import until
from tests.process.harness import SLICER, Box, remove_tree
from tests.process.queue_box import QueueBox, Running
from tests.slurm_box import SlurmBox

pytestmark = [pytest.mark.systemd, pytest.mark.core]

SETTINGS = """\
[engine.slurm]
gib_per_shard = 1
partition = "{partition}"
"""
POINTS = [
    "queue-saving", "queue-saved", "queue-slurm-ordered", "queue-slurm-submitting", "queue-slurm-submitted",
    "queue-leaving",
]  # fmt: skip


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmBox]:
    why = slurm_box.missing()
    if why and os.environ.get("CI"):
        pytest.fail(why)
    if why:
        pytest.skip(why)
    home = Path(tempfile.mkdtemp(prefix="slurm-", dir="/var/tmp"))
    home.chmod(0o755)
    made = SlurmBox(home / "box")
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(home)


class Cluster(QueueBox):
    """A queue whose jobs go to Slurm."""

    def __init__(self, box: Box, slurm: SlurmBox) -> None:
        super().__init__(box)
        self.slurm = slurm
        box.env["SLURM_CONF"] = slurm.environ["SLURM_CONF"]
        path = box.root / "bin" / "slicer"
        path.write_text(f'#!/bin/sh\nexec "{SLICER[0]}" {SLICER[1]} "{SLICER[2]}" "$@"\n')
        path.chmod(0o755)
        self.use("main")

    def use(self, partition: str, more: str = "") -> None:
        self.config(SETTINGS.format(partition=partition) + more)

    def start(self, *options: str, **more: Any) -> Running:
        return super().start("--engine", "slurm", *options, **more)

    def in_slurm(self) -> dict[str, str]:
        """The states of this user's tasks, by their numbers."""
        said = self.slurm.run("squeue", "-h", "-r", "-t", "all", "-o", "%F_%K %T")
        return dict(line.split() for line in said.splitlines())

    def active(self) -> int:
        return sum(state in ("PENDING", "RUNNING") for state in self.in_slurm().values())

    def assert_clean(self) -> None:
        until(lambda: not self.active(), "nothing is left in Slurm")
        assert os.listdir(self.logs / "slurm") == []


@pytest.fixture
def queues(tmp_path: Path, slurm: SlurmBox) -> Iterator[Cluster]:
    (tmp_path / "box").mkdir()
    box = Box(tmp_path / "box", 4)
    made = Cluster(box, slurm)
    try:
        yield made
    finally:
        box.close()
        slurm.run("scancel", "-u", "root")
        slurm.resume()
        until(lambda: not made.active(), "Slurm is empty")


# X9: exit codes, time limits, variables, directories and the order of named jobs are as on one machine
def test_jobs_end_as_on_one_machine(queues: Cluster) -> None:
    (queues.root / "out").mkdir()
    queues.write(
        "[gpus=0 name=a] job a 0 7",
        "[gpus=0 timeout=1s] hold b",
        '[gpus=0 name=c cwd=out env.SEED="it\'s"] echo $SEED $PWD $SLURMD_NODENAME',
        "[gpus=0 after=c] job d",
        "[gpus=0 after=a] job e",
        "[gpus=0] kill -9 $$",
    )
    queue = queues.run()
    assert queue.process.returncode == 137, queue.out + queue.err
    assert queues.statuses() == {
        "job a 0 7": ("failed", 7), "hold b": ("timeout", 124), "job d": ("ok", 0),
        "echo $SEED $PWD $SLURMD_NODENAME": ("ok", 0), "job e": ("skipped", 1),
        "kill -9 $$": ("failed", 137),
    }  # fmt: skip
    said = queues.log("echo $SEED $PWD $SLURMD_NODENAME").split()
    assert said[:2] == ["it's", str(queues.root / "out")]
    assert said[2] in ("n1", "n2")
    assert queues.starts() == {"a": 1, "b": 1, "d": 1}
    queues.assert_clean()


# X9: a part of a GPU is as many shards, and a GPU has no more jobs than fit
def test_jobs_share_gpus_by_shards(queues: Cluster) -> None:
    queues.use("small")
    queues.write(*(f"[vram=12G name=s{number}] hold s{number}" for number in range(5)))
    queue = queues.start()
    until(lambda: len(queue.events("started")) == 4, "each GPU has two jobs")
    states = [state for state in queues.journal().values() if state.node]
    assert Counter(state.gpu_indices for state in states) == {(0,): 2, (1,): 2}
    assert {state.node for state in states} == {"n1"}
    until(lambda: "PENDING" in queues.in_slurm().values(), "the fifth waits")
    queues.append("[gpus=2] job whole")
    queues.let("s0", "s1", "s2", "s3", "s4")
    assert queue.wait() == 0
    assert queues.journal()["job whole"].gpu_indices == (0, 1)


# X9, E9
def test_a_job_out_of_gpu_memory_runs_again_and_declares_more(queues: Cluster) -> None:
    queues.write(f"[vram=6G retries=1] simjob --vram 5G --ramp 0 --hold 2 --oom-once {queues.root}/once")
    queue = queues.run()
    assert queue.process.returncode == 0, queue.out
    (retry,) = queue.events("retry")
    assert (retry["declared_mib"], retry["next_mib"]) == (6 << 10, 7680)
    (state,) = queues.journal().values()
    assert (state.status, state.vram_mib, state.vram_peak_mib) == ("ok", 7680, (5 << 10,))


# X9
def test_lines_of_jobs_that_wait_in_slurm_are_still_the_users(queues: Cluster) -> None:
    queues.use("small")
    queues.write("[gpus=2] hold a", "[gpus=1] job b", "[gpus=1] job c", "[gpus=1 name=d] job d")
    queue = queues.start()
    queues.started("a")
    until(lambda: list(queues.in_slurm().values()).count("PENDING") == 3, "the others wait")
    queues.write("[gpus=2] hold a", "[gpus=0] job b", "[gpus=1 cancel] job c")
    queue.event("cancelled")
    until(lambda: queues.statuses()["job b"] == ("ok", 0), "b runs without a GPU")
    until(lambda: queues.active() == 1, "Slurm has forgotten the others")
    queues.write("[gpus=2 cancel] hold a", "[gpus=0] job b")
    assert queue.wait() == 0, queue.out
    assert queues.statuses() == {
        "hold a": ("cancelled", 143), "job b": ("ok", 0), "job c": ("cancelled", 0), "job d": ("pending", 0),
    }  # fmt: skip
    assert queues.starts() == {"a": 1, "b": 1}


# X9, E7, E13: the same jobs are found again, and none is submitted or run twice
@pytest.mark.parametrize("point", POINTS)
def test_the_queue_killed_at_a_point(queues: Cluster, point: str) -> None:
    queues.write("[vram=2G] job a 0.1 3", "[gpus=0] job b", "[gpus=0] job c")
    queue = queues.start(env=queues.faults(point))
    until(lambda: queue.pid in queues.stopped(), f"the queue comes to {point}\n{queue.out}")
    queue.kill()
    again = queues.run()
    assert again.process.returncode == 3, again.out + again.err
    assert queues.statuses() == {"job a 0.1 3": ("failed", 3), "job b": ("ok", 0), "job c": ("ok", 0)}
    assert queues.starts() == {"a": 1, "b": 1, "c": 1}
    queues.assert_clean()


# X9, E13: and those that run or have ended meanwhile
def test_a_queue_killed_while_jobs_run_finds_them_again(queues: Cluster) -> None:
    queues.write("[gpus=0] hold a 3", "[gpus=0] hold b")
    queue = queues.start()
    queues.started("a", "b")
    until(lambda: len(queue.events("started")) == 2, "both were told of")
    queue.kill()
    queues.let("a")
    until(lambda: list(queues.in_slurm().values()).count("RUNNING") == 1, "a has ended")
    refused = queues.run("--engine", "local")
    assert (refused.process.returncode, "--engine slurm" in refused.err) == (125, True), refused.err
    forgets = queues.run("--fresh")
    assert "still run" in forgets.err
    again = queues.start()
    again.event("adopted")
    queues.let("b")
    assert again.wait() == 3
    assert queues.statuses() == {"hold a 3": ("failed", 3), "hold b": ("ok", 0)}
    assert queues.starts() == {"a": 1, "b": 1}
    queues.assert_clean()


# X9
def test_a_second_ctrl_c_ends_the_jobs_which_run_again_next_time(queues: Cluster) -> None:
    queues.use("small")
    queues.write("[gpus=2] hold a", "[gpus=2] job b")
    queue = queues.start()
    queues.started("a")
    until(lambda: "PENDING" in queues.in_slurm().values(), "b waits")
    queue.send(signal.SIGINT)
    queue.event("stopping")
    until(lambda: queues.active() == 1, "b is taken back")
    queue.send(signal.SIGINT)
    assert queue.wait() == 130
    assert {state.status for state in queues.journal().values()} == {"pending"}
    queues.write("[gpus=2] hold a", "[gpus=2] job b")
    again = queues.start()
    until(lambda: queues.starts()["a"] == 2, "a runs again")
    queues.let("a")
    assert again.wait() == 0


# X9: whoever ends a job in Slurm ends it for good; a node that fails does not
def test_what_slurm_ends_is_told_apart(queues: Cluster, slurm: SlurmBox) -> None:
    queues.use("small")
    queues.write("[gpus=1] hold a")
    queue = queues.start()
    queues.started("a")
    queues.append("[gpus=1] hold b")  # in an array of its own
    queues.started("b")
    until(lambda: len(queue.events("started")) == 2, "both were told of")
    (first, *_) = [task for task, state in queues.in_slurm().items() if state == "RUNNING"]
    slurm.run("scancel", first)
    queue.event("finished")
    until(lambda: len(queue.events("finished")) == 1, "one was stopped")
    slurm.run("scontrol", "update", "nodename=n1", "state=down", "reason=test")
    told = queue.event("requeued")
    slurm.resume()
    assert told["why"] == "n1 failed"
    name = told["job"]["command"].split()[1]
    until(lambda: queues.starts()[name] == 2, "it runs again")
    queues.let(name)
    assert queue.wait() == 143
    assert sorted(queues.statuses().values()) == [("failed", 143), ("ok", 0)]


# X9
def test_a_drained_cluster_is_waited_for(queues: Cluster, slurm: SlurmBox) -> None:
    slurm.run("scontrol", "update", "nodename=n1,n2", "state=drain", "reason=test")
    queues.write("[gpus=1] job a")
    queue = queues.start()
    board = queues.logs / "status.txt"
    until(lambda: board.exists() and "Slurm: " in board.read_text(), "the board says why")
    slurm.run("scontrol", "update", "nodename=n1,n2", "state=resume")
    assert queue.wait() == 0


# X9: the controller's absence is bounded, told, and over with it, even if it has forgotten what runs
@pytest.mark.parametrize("loses_state", [False, True])
def test_jobs_survive_a_controller_that_is_started_again(
    queues: Cluster, slurm: SlurmBox, loses_state: bool
) -> None:
    queues.write("[gpus=0] hold a 5")
    queue = queues.start()
    queues.started("a")
    (slurm.kill if loses_state else slurm.end)("slurmctld")
    queues.append("[gpus=0] job b")
    queue.event("warning")
    slurm.start_controller()
    queues.let("a")
    assert queue.wait() == 5, queue.out + slurm.run("squeue", "-t", "all") + slurm.run("sinfo", "-N")
    assert queues.statuses() == {"hold a 5": ("failed", 5), "job b": ("ok", 0)}
    assert queues.starts() == {"a": 1, "b": 1}


# X9: without its files nobody knows how an attempt ended, but it is known to have begun
def test_files_that_somebody_removed_let_nothing_run_twice(queues: Cluster) -> None:
    queues.write("[gpus=0] hold a")
    queue = queues.start()
    queue.event("started")
    queues.started("a")
    queue.kill()
    remove_tree(queues.logs / "slurm")
    queues.let("a")
    until(lambda: not queues.active(), "a has ended")
    again = queues.run()
    assert again.process.returncode == 1
    assert queues.journal()["hold a"].status == "lost"
    assert queues.starts() == {"a": 1}
    queues.assert_clean()


def test_a_directory_that_is_lost_while_a_job_runs_is_told(queues: Cluster) -> None:  # X9
    queues.write("[gpus=0] hold a")
    queue = queues.start()
    queue.event("started")
    queues.started("a")
    remove_tree(queues.logs / "slurm")
    assert "slurm" in queue.event("warning")["text"]
    assert queue.process.poll() is None
    queue.kill()
    queues.let("a")


# X9
def test_two_hundred_jobs(queues: Cluster) -> None:
    queues.write(*(f"[gpus=0] job j{number}" for number in range(200)))
    queue = queues.run()
    failed = [row for event in queue.events("summary") for row in event["failed"]]
    assert not failed, queues.slurm.log()
    assert queues.starts() == {f"j{number}": 1 for number in range(200)}
    assert len({task.partition("_")[0] for task in queues.in_slurm()} - {""}) < 200
    queues.assert_clean()


# X9: what fits here runs here, and a line may decide for itself
def test_both_engines_at_once(queues: Cluster) -> None:
    queues.write(
        "[vram=20G] hold a", "[vram=20G] hold b", "[vram=20G] hold c", "[gpus=0 engine=slurm] job d",
        "[gpus=0 engine=local] job e", "[gpus=2 engine=local] job f",
    )  # fmt: skip
    queue = queues.start("--engine", "auto")
    queues.started("a", "b", "c")
    until(lambda: all(queues.statuses()[name][0] == "ok" for name in ("job d", "job e")), "d and e end")
    engines = {command: state.engine for command, state in queues.journal().items()}
    assert engines == {
        "hold a": "", "hold b": "", "hold c": "slurm", "job d": "slurm", "job e": "", "job f": "",
    }  # fmt: skip
    queue.kill()
    again = queues.start("--engine", "auto")
    until(lambda: len(again.events("adopted")) == 3, "all three are found again")
    queues.let("a", "b", "c")
    assert again.wait() == 0
    assert set(queues.starts().values()) == {1}
    queues.assert_clean()


def test_a_line_for_another_engine_is_refused_with_its_place(queues: Cluster) -> None:  # X9
    queues.write("[gpus=0 engine=slurm] job a")
    queue = queues.run("--engine", "local", json=False)
    assert queue.process.returncode == 2
    assert "jobs.txt:1:9: this queue's engine is local" in queue.err


# X9: bad input is refused, with its place, before anything is submitted
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[vram=1G  slots=license=1] true", "jobs.txt:2:11: slots are counted on one machine"),
        ("[vram=1G share=both] true", "jobs.txt:2:10: jobs that Slurm places cannot share"),
        ("[vram=1G preemptible] true", "jobs.txt:2:10: Slurm itself decides which jobs it preempts"),
        ("[vram=1G snapshot] true", "jobs.txt:2:10: a snapshot is on this machine alone"),
    ],
)
def test_what_cannot_be_mapped_is_refused_with_its_place(queues: Cluster, line: str, said: str) -> None:
    queues.use("main", "[slots]\nlicense = 1\n")
    before = queues.in_slurm()
    queues.write("[gpus=0] job a", line)
    queue = queues.run(json=False)
    assert (queue.process.returncode, said in queue.err) == (2, True), queue.err
    assert queues.in_slurm() == before


# X9
def test_what_no_node_can_ever_run_is_infeasible(queues: Cluster) -> None:
    queues.use("small")
    queues.write("[vram=25G] job a", "[gpus=3] job b", "[gpus=0] job c")
    queue = queues.run()
    assert queue.process.returncode == 1
    assert queues.statuses() == {
        "job a": ("infeasible", 1), "job b": ("infeasible", 1), "job c": ("ok", 0),
    }  # fmt: skip
    why = queues.journal()["job a"].reason
    assert why == "it needs 25 shards of one GPU, and no node of partition small has more than 24"


# X9
def test_a_partition_that_does_not_exist_is_told(queues: Cluster) -> None:
    queues.use("nowhere")
    queues.write("job a")
    queue = queues.run(json=False)
    assert queue.process.returncode == 2
    assert "Slurm has no partition nowhere (it has main, small)" in queue.err


# X9
def test_without_slurms_commands_the_engine_is_refused(queues: Cluster) -> None:
    queues.write("job a")
    (queues.root / "empty").mkdir()
    queue = queues.run(env={"PATH": str(queues.root / "empty")})
    assert (queue.process.returncode, "there is no sbatch here" in queue.err) == (2, True)


# X9: nothing has run, so nothing has failed
def test_a_node_without_slicer_is_told_and_the_job_tried_again(queues: Cluster) -> None:
    queues.use("small", 'slicer = "/nowhere/slicer"\n')
    queues.write("[gpus=0] job a")
    queue = queues.start()
    assert "there is no slicer on n1" in queue.event("requeued")["why"]
    queue.send(signal.SIGINT)
    queue.wait()
    assert queues.journal()["job a"].status == "pending"


# X9: a command that never ran has not failed
def test_a_node_on_which_slicer_fails_is_told_and_the_job_tried_again(queues: Cluster) -> None:
    broken = queues.root / "broken"
    broken.write_text("#!/bin/sh\nexit 125\n")
    broken.chmod(0o755)
    queues.use("small", f'slicer = "{broken}"\n')
    queues.write("[gpus=0] job a")
    queue = queues.start()
    assert "slicer failed on n1 before the command began" in queue.event("requeued")["why"]
    queue.send(signal.SIGINT)
    queue.wait()
    assert queues.journal()["job a"].status == "pending"


# X9, X3
def test_a_shared_directory_that_is_full_at_the_end_loses_none(queues: Cluster) -> None:
    there = queues.logs / "slurm"
    there.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "none", there], check=True)
    try:
        queues.write("[gpus=0] hold a 3")
        queue = queues.start()
        queue.event("started")
        queues.started("a")
        with contextlib.suppress(OSError), open(there / "filler", "wb", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass
        queues.let("a")
        until(lambda: list(there.glob("*.tmp")), "the script tries to write the end")
        (there / "filler").unlink()
        assert queue.wait() == 3
        assert queues.journal()["hold a 3"].status == "failed"
    finally:
        subprocess.run(["umount", "--lazy", there], check=True)


# X9
def test_a_directory_that_is_not_shared_is_told(queues: Cluster, slurm: SlurmBox) -> None:
    queues.use("small")
    queues.write("[gpus=0] job a")
    slurm.kill("n1")
    slurm.start_node("n1", hides=str(queues.root))
    try:
        queue = queues.start()
        assert f"n1 cannot use {queues.logs}/slurm: is it shared?" in queue.event("requeued")["why"]
        queue.send(signal.SIGINT)
        queue.wait()
    finally:
        slurm.kill("n1")
        slurm.start_node("n1")
    assert queues.starts() == {}


# X9: a job's name and comment are anybody's, and prove nothing
def test_another_users_job_of_the_same_name_is_not_believed(queues: Cluster, slurm: SlurmBox) -> None:
    queues.use("small")
    queues.write("[gpus=2] hold a", "[gpus=2] job b")
    queue = queues.start()
    queues.started("a")
    for name in {path.stem for path in (queues.logs / "slurm").glob("*.batch")}:
        fake = ["sbatch", f"--job-name=slicer-{name}", f"--comment={name}", "--array=0-1", "--wrap=true"]
        as_bob = ["setpriv", "--reuid=bob", "--regid=bob", "--clear-groups"]
        subprocess.run([*as_bob, *fake, "--chdir=/", "--output=/dev/null"], env=slurm.environ, check=True)
    said = lambda: slurm.run("squeue", "-h", "-r", "-t", "all", "-u", "bob", "-o", "%T").split()  # noqa: E731
    until(lambda: set(said()) == {"COMPLETED"}, "bob's jobs have ended")
    until(lambda: queues.active() == 2, "ours have not")
    queues.let("a")
    assert queue.wait() == 0
    assert queues.starts() == {"a": 1, "b": 1}


# X9: inside, slicer shares out what Slurm gave, and nothing else
def test_a_run_inside_an_allocation_sees_what_slurm_gave(queues: Cluster, slurm: SlurmBox) -> None:
    out = queues.root / "inside.log"
    script = queues.root / "inside.sh"
    script.write_text(
        "#!/bin/sh\nslicer run --gpus 1 -- printenv CUDA_VISIBLE_DEVICES\n"
        "slicer run --gpus 2 -- true; echo $?\n"
    )
    script.chmod(0o755)
    environ = {**queues.box.env, "SLICER_SIM": "2x24G"}
    taken = ["sbatch", "-p", "small", "--gres=gpu:1", "--chdir=/", "--wrap=sleep 60", "--output=/dev/null"]
    subprocess.run(taken, env=environ, check=True)
    words = ["sbatch", "-p", "small", "--gres=gpu:1", "--wait", f"--output={out}", str(script)]
    assert subprocess.run(words, env=environ, check=False).returncode == 0
    said = out.read_text()
    assert "SIM-00000001-" in said, said
    assert "SIM-00000000-" not in said
    assert "\n2\n" in said
    assert [name for name in os.listdir(queues.box.state) if "slurm-" in name]
