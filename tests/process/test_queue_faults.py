"""Full disks, deleted directories, cut journals and jobs that misbehave: the queue copes (E7-E10, E13)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.patience import until
from tests.process.harness import Box, gone, kill_9, mounting, remove_tree
from tests.process.queue_box import QueueBox


@pytest.fixture
def queues(make_box: Callable[[int], Box]) -> QueueBox:
    return QueueBox(make_box(4))


# -- the journal ---------------------------------------------------------------------------------------------


# E7: whatever a crash left of the last record, the queue starts, and runs nothing again that has ended
def test_the_journal_cut_at_every_byte_of_its_last_record(queues: QueueBox) -> None:
    queues.write("[vram=2G] job a 0 3", "[vram=2G after=a] job b", "[vram=2G name=a] job c")
    assert queues.run("-j", "1").wait() == 3
    journal = queues.logs / "journal.jsonl"
    whole = journal.read_bytes()
    last = whole.rstrip(b"\n").rindex(b"\n") + 1
    ended = queues.statuses()
    starts = queues.starts()
    for size in [*range(last, len(whole), 97), len(whole) - 1]:
        journal.write_bytes(whole[:size])
        assert queues.run().wait() == 3
        assert queues.statuses() == ended
        assert queues.starts() == starts
    assert journal.read_bytes().endswith(b"}\n")
    queues.assert_clean()


# E7
def test_a_second_queue_is_told_of_the_first(queues: QueueBox) -> None:
    queues.write("hold a")
    first = queues.start()
    queues.started("a")
    before = (queues.logs / "journal.jsonl").read_bytes()
    for options in ((), ("--fresh",)):
        second = queues.run(*options)
        assert second.wait() == 75
        assert str(first.pid) in second.err
    assert (queues.logs / "journal.jsonl").read_bytes() == before
    queues.let("a")
    assert first.wait() == 0
    queues.assert_clean()


# E7: what is in an attempt's file is not taken for granted
@pytest.mark.parametrize(
    "junk", [b"", b"\xff\xfe\n{", b"1 1\n[]\n", b'1 1\n{"reason": 1}\n', b"1 1\n{}\n{}\n"]
)
def test_a_damaged_attempt_file(queues: QueueBox, junk: bytes) -> None:
    queues.write("[vram=20G gpus=2] hold a", "[vram=20G gpus=2] job b")
    queue = queues.start()
    queues.started("a")
    (attempt,) = (queues.logs / "attempts").iterdir()
    pids = [queue.pid, *queues.slicers("a"), int(queues.box.started("a"))]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: all(map(gone, pids)), "all are dead")
    attempt.write_bytes(junk)
    again = queues.run()
    assert again.wait() == 1, again.err
    assert queues.statuses() == {"hold a": ("lost", 1), "job b": ("ok", 0)}
    assert queues.starts() == {"a": 1, "b": 1}
    queues.assert_clean()


# -- the disk ------------------------------------------------------------------------------------------------


class SmallDisk:
    """The log directory is a small file system of its own, which queues and their jobs see."""

    def __init__(self, queues: QueueBox) -> None:
        queues.logs.mkdir()
        box = queues.box
        script = 'mount -t tmpfs -o size=1m,mode=755 none "$0" && echo ok'
        holder = subprocess.Popen(
            [*mounting(script, queues.logs), "sleep", "1000"],
            env=box.env, cwd=queues.root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        box.adopt(holder)
        assert holder.stdout is not None
        if holder.stdout.readline() != b"ok\n":
            pytest.skip("no tmpfs can be mounted here")
        box.prefix = ("nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", "sh", "-c", 'cd "$0" && exec "$@"',
                      str(queues.root))  # fmt: skip
        self._holder = holder
        queues.logs = Path(f"/proc/{holder.pid}/root{queues.logs}")
        self._filler = queues.logs / "filler"

    def fill(self) -> None:
        with self._filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        room = os.statvfs(self._filler)
        assert not room.f_bavail

    def empty(self) -> None:
        self._filler.unlink()

    def leave(self) -> None:
        self._holder.kill()
        self._holder.wait()


@pytest.fixture
def disk(queues: QueueBox) -> Iterator[SmallDisk]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    made = SmallDisk(queues)
    yield made
    made.leave()


NUMBERS = tuple(map(str, range(30)))
ALL = ("--hold-back", "off", "-j")  # though one after the other fails


# E7: nothing starts, it is said once, and goes on when there is room
def test_the_disk_of_the_log_directory_is_full(queues: QueueBox, disk: SmallDisk) -> None:
    queues.write("[vram=1G] hold a 5", *(f"[vram=1G] job {number} 0 {number}" for number in NUMBERS))
    queue = queues.start(*ALL, "1")
    queues.started("a")
    disk.fill()
    queues.let("a")
    queue.event("stalled")
    queues.asleep(queue)
    starts = queues.starts()
    assert len(starts) < len(NUMBERS)
    disk.empty()
    queue.event("resumed")
    assert queue.wait() == 29
    assert len(queue.events("stalled")) == 1
    expected = {f"job {n} 0 {n}": ("failed" if int(n) else "ok", int(n)) for n in NUMBERS}
    assert queues.statuses() == {"hold a 5": ("failed", 5), **expected}
    assert set(queues.starts().values()) == {1}
    disk.leave()


# E7, E13: killed just then
def test_killed_while_the_disk_is_full(queues: QueueBox, disk: SmallDisk) -> None:
    queues.write(*(f"[vram=1G] job {number} 0 {number}" for number in NUMBERS))
    queue = queues.start(*ALL, "2")
    queue.event("started")
    disk.fill()
    queue.event("stalled")
    queues.asleep(queue)
    queue.kill()
    again = queues.start(*ALL, "2")
    until(lambda: again.events("stalled") or again.process.poll(), "the next one gives up, or waits")
    assert set(queues.starts().values()) == {1}  # what the first one had reserved may be room for others
    again.kill()
    disk.empty()
    last = queues.start(*ALL, "4")
    assert last.wait() == 29, last.err
    assert queues.statuses() == {f"job {n} 0 {n}": ("failed" if int(n) else "ok", int(n)) for n in NUMBERS}
    assert set(queues.starts().values()) == {1}
    disk.leave()


# E7: a keeper that gets ready, or is killed, just then is no reason to look all the time
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_keeper_gets_ready_while_the_disk_is_full(
    queues: QueueBox, disk: SmallDisk, is_killed: bool
) -> None:
    queues.write("[vram=1G] hold a 3")
    queue = queues.start(env=queues.faults())
    queues.started("a")
    queues.arm("supervisor-started-scope")
    queues.append("[vram=1G] job b 0 4")
    until(queues.stopped, "the keeper is there, and the queue has not been told")
    disk.fill()
    long = f": {'x' * 5000}"
    queues.append(f"[cancel] {long}")  # more to write than fits what is left of the journal's last block
    queue.event("stalled")
    queues.go_on()
    until(lambda: not queues.stopped(), "it is told")
    queues.asleep(queue)
    if is_killed:
        kill_9(*{*queues.named("slicer-keeper")} - {queues.keeper("a")})
        queues.asleep(queue)
    queues.let("a")
    queues.ended("a")
    queues.asleep(queue)
    disk.empty()
    assert queue.wait() == 4
    assert queues.statuses() == {
        "hold a 3": ("failed", 3), "job b 0 4": ("failed", 4), long: ("cancelled", 0),
    }  # fmt: skip
    assert queues.starts() == {"a": 1, "b": 1}
    disk.leave()


# E7: asked twice to leave, it leaves, full disk or not; the next queue takes up what it could not write
@pytest.mark.parametrize("times", [1, 2])
def test_asked_to_leave_while_the_disk_is_full(queues: QueueBox, disk: SmallDisk, times: int) -> None:
    queues.write(*(f"[vram=1G] job {number} 0 {number}" for number in NUMBERS))
    queue = queues.start(*ALL, "2")
    queue.event("started")
    disk.fill()
    queue.event("stalled")
    for _ in range(times):
        queue.send(signal.SIGTERM)
    assert queue.wait() == 143
    disk.empty()
    assert queues.run(*ALL, "4").wait() == 29
    stopped = [outcome for outcome in queues.box.outcomes() if outcome.reason == "stopped"]
    assert queues.starts() == Counter([*NUMBERS, *(outcome.command[-1].split()[1] for outcome in stopped)])
    disk.leave()


# E7: a job that has its word, and of which the queue hears only now, is no reason to stay
def test_a_job_begins_and_ends_while_the_disk_is_full(queues: QueueBox, disk: SmallDisk) -> None:
    queues.write("[vram=1G] hold a 3", "[vram=1G] job b 0 4")
    queues.arm("supervisor-let-go")
    queue = queues.start("-j", "1", env=queues.faults())
    queues.started("a")
    until(queues.stopped, "its supervisor has not said so")
    disk.fill()
    queues.append(f"[cancel] : {'x' * 5000}")
    queue.event("stalled")
    queues.go_on()
    queues.let("a")
    until(lambda: not queues.named("slicer-keeper"), "it has ended")
    queues.asleep(queue)
    queue.send(signal.SIGTERM)
    assert queue.wait() == 143
    disk.empty()
    assert queues.run().wait() == 4
    assert queues.starts() == {"a": 1, "b": 1}
    disk.leave()


# E7: the log directory is deleted while jobs run: it is made again, and the next queue knows what was done
@pytest.mark.parametrize("is_killed", [False, True])
def test_the_log_directory_is_deleted(queues: QueueBox, is_killed: bool) -> None:
    queues.write("[vram=2G] job a 0 3", "[vram=2G] hold b 4", "[vram=2G] hold c")
    queue = queues.start(env=queues.faults())
    queues.started("b", "c")
    queue.event("finished", log="job0001.log")  # and is saved
    remove_tree(queues.logs)
    if is_killed:
        queues.arm("queue-saved")
    queues.let("b")
    until(lambda: (queues.logs / "journal.jsonl").exists(), "it is made again")
    until(lambda: queues.statuses().get("hold b 4") == ("failed", 4), "it is known")
    assert queues.statuses()["job a 0 3"] == ("failed", 3)
    if is_killed:
        queue.kill()
        queues.arm()
        queue = queues.start()
        queue.event("adopted")
    queues.let("c")
    assert queue.wait() == 4
    assert queues.run().wait() == 4
    assert queues.starts() == {"a": 1, "b": 1, "c": 1}
    queues.assert_clean()


# -- jobs that misbehave -------------------------------------------------------------------------------------

QUICK_STOP = "[profiles.gpu]\ntimeout_stop = '0.3s'\n"


# E10
def test_a_job_that_ignores_sigterm(queues: QueueBox) -> None:
    queues.config(QUICK_STOP)
    stubborn = "trap '' TERM; echo start a $$ >>$LOG; while :; do sleep 0.05; done"
    queues.write(f"[vram=2G timeout=0.2s] {stubborn}", "[vram=2G] job b")
    assert queues.run().wait() == 124
    assert queues.statuses() == {stubborn: ("timeout", 124), "job b": ("ok", 0)}
    queues.assert_clean()


# E6, E10
def test_a_job_that_ignores_sigterm_cancelled(queues: QueueBox) -> None:
    queues.config(QUICK_STOP)
    stubborn = "trap '' TERM; echo start a $$ >>$LOG; while :; do sleep 0.05; done"
    queues.write(f"[vram=2G] {stubborn}")
    queue = queues.start()
    queues.started("a")
    queues.write(f"[vram=2G cancel] {stubborn}")
    assert queue.wait() == 0
    assert queues.statuses()[stubborn][0] == "cancelled"
    queues.assert_clean()


# E13: who calls setsid and forks twice still counts to the job, and is ended with it
@pytest.mark.parametrize("is_adopted", [False, True])
def test_a_job_that_forks_away(queues: QueueBox, is_adopted: bool) -> None:
    queues.config(QUICK_STOP)
    away = "(setsid sh -c 'echo start daemon $$ >>$LOG; exec sleep 60' &) ; hold a 3"
    queues.write(f"[vram=20G gpus=2] {away}", "[vram=20G gpus=2] job b")
    queue = queues.start()
    queues.started("a", "daemon")
    daemon = int(queues.box.started("daemon"))
    if is_adopted:
        queue.kill()
        queue = queues.start()
        queue.event("adopted")
    queues.let("a")
    assert queue.wait() == 3
    assert gone(daemon)
    assert queues.statuses() == {away: ("failed", 3), "job b": ("ok", 0)}
    queues.assert_clean()


# E13: and its GPU memory is the job's
def test_memory_of_who_forked_away(queues: QueueBox) -> None:
    # It fails by itself: a success would count as lost work, or not, by how long it took.
    away = "simjob --vram 6G --ramp 0 --hold 3 --fork-away; hold a 3"
    queues.write(f"[vram=2G] {away}")
    queue = queues.start()
    exceeded = queue.event("exceeds")
    assert exceeded["used_mib"] == 6144
    queues.let("a")
    assert queue.wait() == 3
    queues.assert_clean()


# E8: the queue is not in the way of what a job prints
def test_a_log_of_50_mib(queues: QueueBox) -> None:
    chatty = "head -c 50M /dev/zero; hold a; echo the end; exit 3"
    queues.write(f"[vram=2G retries=2] {chatty}")
    queue = queues.start()
    queues.asleep(queue)
    before = memory_mib(queue.pid)
    queues.started("a")
    queues.let("a")
    seen = [before]

    def has_ended() -> bool:
        seen.append(memory_mib(queue.pid))
        return queue.process.poll() is not None

    until(has_ended, "it ends")
    assert max(seen) < before + 8
    assert queue.wait() == 3
    assert (queues.logs / "job0001.log").stat().st_size == (50 << 20) + len("the end\n")
    assert queues.statuses() == {chatty: ("failed", 3)}


def memory_mib(pid: int) -> float:
    """The most that the process has had in memory so far."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return 0.0
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024 if "VmHWM:" in status else 0.0


# E8
def test_binary_output(queues: QueueBox) -> None:
    binary = r"printf '\377\376\000CUDA\200\n'; exit 3"
    queues.write(f"[vram=2G retries=1] {binary}")
    assert queues.run().wait() == 3
    assert (queues.logs / "job0001.log").read_bytes() == b"\xff\xfe\0CUDA\x80\n"
    assert queues.journal()[binary].attempts == 1


# E12: 128+N
@pytest.mark.parametrize("signo", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_death_by_a_signal(queues: QueueBox, signo: signal.Signals) -> None:
    command = f"kill -{signo.value} $$"
    queues.write(f"[vram=2G] {command}")
    assert queues.run().wait() == 128 + signo
    state = queues.journal()[command]
    assert (state.status, state.exit_code, state.signal) == ("failed", 128 + signo, signo)


# E9: raised after CUDA's "out of memory", also by the next queue; never more than the GPU has
def test_out_of_memory_is_tried_again_with_more(queues: QueueBox) -> None:
    command = "echo start a $$ >>$LOG; simjob --oom --ramp 0"
    queues.write(f"[vram=16G retries=2] {command}")
    queue = queues.run()
    assert queue.wait() == 1
    assert [(e["declared_mib"], e["next_mib"]) for e in queue.events("retry")] == [
        (16 << 10, 20 << 10), (20 << 10, (24 << 10) - 512),
    ]  # fmt: skip
    state = queues.journal()[command]
    assert (state.status, state.attempts, state.ooms, state.vram_mib) == ("oom", 3, 2, (24 << 10) - 512)
    assert queues.starts() == {"a": 3}
    assert sorted(path.name for path in queues.logs.glob("job*")) == [
        "job0001.2.log", "job0001.3.log", "job0001.log",
    ]  # fmt: skip
    queues.assert_clean()


# E9: the raise outlives the queue
def test_the_raise_is_kept_across_a_kill(queues: QueueBox) -> None:
    command = "echo start a $$ >>$LOG; if [ -e once ]; then hold b; else touch once; simjob --oom; fi"
    queues.write(f"[vram=4G retries=1] {command}")
    queue = queues.start()
    queue.event("retry")
    queues.started("b")
    queue.kill()
    again = queues.start()
    again.event("adopted")
    queues.let("b")
    assert again.wait() == 0
    state = queues.journal()[command]
    assert (state.vram_mib, state.attempts, state.status) == (5120, 2, "ok")
    queues.assert_clean()


# E9: only the attempt's own log counts, and only CUDA's words
@pytest.mark.parametrize(
    "command",
    [
        "[ -e once ] && exit 4; touch once; echo CUDA out of memory; exit 4",
        "echo MemoryError: out of memory; touch once; exit 4",
    ],
)
def test_no_retry_without_reason(queues: QueueBox, command: str) -> None:
    queues.write(f"[vram=2G retries=5] {command}")
    assert queues.run().wait() == 4
    assert queues.journal()[command].status == "failed"
    assert queues.journal()[command].attempts == (2 if "CUDA" in command else 1)


# E5, U18
def test_a_line_that_chooses_another_gpu_than_its_leases_is_warned_of(queues: QueueBox) -> None:
    queues.write("[vram=2G] CUDA_VISIBLE_DEVICES=1 simjob --vram 1G --ramp 0 --hold infinity")
    queue = queues.start("--gpu", "0")
    until(lambda: len(queue.events("warning")) == 2, f"it is seen there\n{queue.out}")
    read, seen = (event["text"] for event in queue.events("warning"))
    assert read.startswith("jobs.txt:1:11: CUDA_VISIBLE_DEVICES=1 uses a GPU that the job may have no")
    assert seen.startswith("job 1 uses GPU 1, on which it has no lease")


# U18
def test_a_choice_of_the_environment_is_said_not_to_be_heeded(queues: QueueBox) -> None:
    queues.write("[vram=2G] true")
    queue = queues.run(env={"CUDA_VISIBLE_DEVICES": "1"})
    replaced = "CUDA_VISIBLE_DEVICES=1 is replaced by the lease's GPUs (--gpu LIST chooses them)"
    assert replaced in [event["text"] for event in queue.events("notice")]


# B1: the numbers that nvidia-smi shows are those of CUDA_VISIBLE_DEVICES
def test_the_order_of_devices_is_set(queues: QueueBox) -> None:
    command = "echo $CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES $SLICER_GPU_INDICES"
    queues.write(f"[vram=2G gpus=2] {command}")
    assert queues.run().wait() == 0
    order, visible, numbers = queues.log(command).split()
    assert (order, numbers) == ("PCI_BUS_ID", "0,1")  # U18
    assert len(visible.split(",")) == 2
