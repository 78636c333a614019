"""``import slicer`` in a program: leases for a part of it, beside the jobs of ``slicer run``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.fake_nvml import FakeNvml
from tests.patience import LONGEST_S, until
from tests.process.harness import (
    SLICER,
    Box,
    Gate,
    gone,
    kill_9,
    sleeps_in_poll,
    state_of,
)

pytest_plugins = ["tests.fake_nvml"]
pytestmark = pytest.mark.both_pythons

GPU_A = "GPU-00000000-0000-0000-0000-000000000000"
GPU_B = "GPU-11111111-1111-1111-1111-111111111111"


def start(box: Box, program: str, **env: str) -> subprocess.Popen[bytes]:
    """A Python program that has slicer, its standard input a pipe."""
    code = "import slicer, sys, os\n" + textwrap.dedent(program)
    made = subprocess.Popen(
        [*box.prefix, sys.executable, "-c", code], env={**box.env, **env}, cwd=box.root,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    box.adopt(made)
    return made


def run(box: Box, program: str, **env: str) -> str:
    """The output of such a program, which must end well."""
    process = start(box, program, **env)
    out, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0, err.decode()
    return out.decode()


# B4
@pytest.mark.usefixtures("gpus")
def test_a_lease_for_a_part_of_a_program(box: Box) -> None:
    out = run(
        box,
        """
        with slicer.acquire("train", gpus=1, expected_seconds=900) as lease:
            print(lease.gpus, lease.cpu_slots, lease.env["CUDA_VISIBLE_DEVICES"])
            print(os.listdir(os.environ["SLICER_STATE_DIR"] + "/leases") == [lease.job])
            lease.release()
            lease.release()
        print(os.listdir(os.environ["SLICER_STATE_DIR"] + "/leases"))
        """,
    )
    assert out == f"('{GPU_A}',) 0 {GPU_A}\nTrue\n[]\n"
    box.assert_clean()


# B4, B2
@pytest.mark.usefixtures("gpus")
def test_busy_tells_the_holder_and_how_long(box: Box) -> None:
    out = run(
        box,
        """
        with slicer.acquire("train", gpus=2, expected_seconds=900):
            import threading
            def other():
                try:
                    slicer.acquire("second")
                except slicer.GpuBusy as busy:
                    print(busy.holder.name, busy.holder.pid == os.getpid(), 890 < busy.expected_remaining())
                    print(busy)
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        print(issubclass(slicer.GpuBusy, slicer.ResourceBusy), slicer.acquire("third").gpus)
        """,
    )
    lines = out.splitlines()
    assert lines[0] == "train True True"
    assert lines[1].startswith("gpu is busy: held by train (pid ")
    assert lines[2] == f"True ('{GPU_A}',)"
    box.assert_clean()


# B4, B1
@pytest.mark.usefixtures("gpus")
def test_programs_and_jobs_exclude_each_other(box: Box) -> None:
    holder = start(
        box, 'lease = slicer.acquire("script", gpus=2)\nprint("held", flush=True)\nsys.stdin.read()'
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    busy = box.run("-q", "-p", "gpu", "--no-wait", "--", "true")
    assert busy.returncode == 75
    assert json.loads(busy.stderr)["holder"]["name"] == "script"
    waiter = box.start("-q", "-p", "gpu", "--name", "next", "--", "true")
    until(lambda: sleeps_in_poll(waiter.pid), "it waits")
    holder.communicate(timeout=LONGEST_S)  # without a release: the interpreter's end is one
    assert waiter.wait(LONGEST_S) == 0
    box.assert_clean()


# A2
@pytest.mark.usefixtures("gpus")
def test_a_killed_program_holds_nothing(box: Box) -> None:
    holder = start(box, 'lease = slicer.acquire(gpus=2)\nprint("held", flush=True)\nsys.stdin.read()')
    assert holder.stdout is not None
    holder.stdout.readline()
    waiter = box.start("-q", "-p", "gpu", "--", "true")
    until(lambda: sleeps_in_poll(waiter.pid), "it waits")
    kill_9(*(lease.pid for lease in box.leases()))
    assert waiter.wait(LONGEST_S) == 0
    box.assert_clean()


# A3
@pytest.mark.usefixtures("gpus")
def test_inside_a_job_that_holds_it_nothing_more_is_taken(box: Box) -> None:
    program = (
        "import slicer; print(slicer.acquire('inner').gpus, slicer.acquire(gpus=0, cpu_slots=1).cpu_slots)"
    )
    done = box.run("-q", "--gpus", "2", "-p", "heavy", "--", sys.executable, "-c", program)
    assert (done.returncode, done.stdout) == (0, f"('{GPU_A}', '{GPU_B}') 1\n"), done.stderr
    box.assert_clean()


# A3
@pytest.mark.usefixtures("gpus")
def test_one_with_inside_another(box: Box) -> None:
    out = run(
        box,
        """
        import subprocess
        with slicer.acquire("outer", gpus=1) as outer:
            with slicer.acquire("inner", gpus=1, vram="8G") as inner:
                print(inner.gpus == outer.gpus, inner.job != outer.job)
            child = "import slicer; print(slicer.acquire('child').gpus)"
            env = {**os.environ, **outer.env}
            sys.stdout.flush()
            subprocess.run([sys.executable, "-c", child], env=env, check=True)
            with slicer.acquire("more", gpus=2) as more:
                print(more.gpus)
        with slicer.acquire("again", gpus=2, wait=True) as again:
            print(len(again.gpus))
        """,
    )
    assert out.splitlines() == ["True True", f"('{GPU_A}',)", f"('{GPU_A}', '{GPU_B}')", "2"]
    box.assert_clean()


# B4, E2
@pytest.mark.usefixtures("gpus")
def test_two_programs_share_a_gpu_by_memory(box: Box, fake_nvml: FakeNvml) -> None:
    holder = start(
        box, 'a = slicer.acquire("a", vram="30G")\nprint(*a.gpus, flush=True)\nsys.stdin.read()\na.release()'
    )
    assert holder.stdout is not None
    first = holder.stdout.readline().decode().strip()
    out = run(
        box,
        """
        print(*slicer.acquire("b", vram="20G").gpus)
        try:
            slicer.acquire("c", gpus=2)
        except slicer.GpuBusy as busy:
            print(busy.holder.name)
        """,
    )
    assert out.splitlines() == [first, "a"]
    holder.communicate(timeout=LONGEST_S)
    box.assert_clean()


# A8
def test_waiting_has_its_limit(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    out = run(
        box,
        """
        for then in ("fail", "run", None):
            try:
                lease = slicer.acquire(gpus=0, cpu_slots=1, wait=True, max_wait=0.2, then=then)
                print(lease.forced, lease.cpu_slots, lease.waited_s >= 0.2)
                lease.release()
            except slicer.CpuBusy as busy:
                print(busy.holder.name)
        """,
    )
    assert out.splitlines() == ["holder", "True 1 True", "True 1 True"]
    gate.open()
    assert job.process.wait(LONGEST_S) == 0
    box.assert_clean()


# W21: the program that waits goes on; it gets no signal, which would end all of it
@pytest.mark.parametrize("how", ["acquire", "acquire_async"])
def test_a_request_that_is_stopped_raises(box: Box, gate: Gate, how: str) -> None:
    job = box.hold(gate)
    waits = "slicer.acquire('mine', gpus=0, cpu_slots=1, wait=True)"
    if how == "acquire_async":
        waits = "asyncio.run(wait())"
    program = start(
        box,
        f"""
        import asyncio
        async def wait():
            await slicer.acquire_async('mine', gpus=0, cpu_slots=1, wait=True)
        try:
            {waits}
        except slicer.RequestCancelled as error:
            print(error)
        """,
    )
    until(box.tickets, "it waits")
    subprocess.run([*box.prefix, *SLICER, "stop", "-q", "mine"], env=box.env, check=True)
    assert program.communicate(timeout=LONGEST_S) == (b"taken out of the queue (slicer stop)\n", b"")
    assert program.returncode == 0
    gate.open()
    assert job.process.wait(LONGEST_S) == 0
    box.assert_clean()


# B4
def test_the_loop_runs_on_while_a_task_waits(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    program = start(
        box,
        """
        import asyncio
        async def main():
            async def hold(name):
                async with slicer.acquire_async(name, gpus=0, cpu_slots=1, wait=True) as lease:
                    print(name, lease.cpu_slots, flush=True)
            tasks = [asyncio.create_task(hold(name)) for name in ("first", "second", "third")]
            await asyncio.sleep(0)
            print("alive", flush=True)
            line = await asyncio.to_thread(sys.stdin.readline)
            tasks[1].cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            print([type(result).__name__ for result in results])
            await slicer.acquire_async("last", gpus=0, cpu_slots=1)
            try:
                await slicer.acquire_async(gpus=0, cpu_slots=0)
            except ValueError as error:
                print(error)
        asyncio.run(main())
        """,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == b"alive\n"
    until(lambda: len(box.tickets()) == 3, "all three wait")
    assert program.stdin is not None
    program.stdin.write(b"\n")
    program.stdin.flush()
    until(lambda: len(box.tickets()) == 2, "the cancelled one has left")
    gate.open()
    out, err = program.communicate(timeout=LONGEST_S)
    lines = out.decode().splitlines()
    assert sorted(lines[:2]) == ["first 1", "third 1"], err.decode()
    assert lines[2:] == [
        "['NoneType', 'CancelledError', 'NoneType']", "gpus, cpu_slots and slots: nothing is requested",
    ]  # fmt: skip
    assert job.process.wait(LONGEST_S) == 0
    box.assert_clean()


# B4
def test_ctrl_c_while_waiting_leaves_the_queue(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    program = start(
        box,
        """
        try:
            slicer.acquire(gpus=0, cpu_slots=1, wait=True)
        except KeyboardInterrupt:
            print("interrupted")
        """,
    )
    pid = until(lambda: next((ticket.pid for ticket in box.tickets()), 0), "it waits")
    until(lambda: sleeps_in_poll(pid), "it sleeps")
    os.kill(pid, signal.SIGINT)
    out, err = program.communicate(timeout=LONGEST_S)
    assert out == b"interrupted\n", err.decode()
    assert not box.tickets()
    gate.open()
    assert job.process.wait(LONGEST_S) == 0
    assert gone(pid)
    box.assert_clean()


# D21: as numpy's are
def test_numbers_of_other_types_are_told_as_numbers(box: Box) -> None:
    program = """
        import fractions
        class Whole(int):
            def __repr__(self):
                return "np.int64(1)"
        half = fractions.Fraction(1, 2)
        lease = slicer.acquire(gpus=0, cpu_slots=Whole(1), priority=Whole(1), expected_seconds=half)
        print(sys.stdin.readline(), end="")
        lease.release()
        """
    process = start(box, program)
    lease = until(lambda: box.leases(), "its lease")[0]
    assert (lease.slots, lease.priority, lease.expect_s) == ({"cpu": 1}, 1, 0.5)
    out, err = process.communicate(b"done\n", timeout=30)
    assert out == b"done\n", err.decode()
    box.assert_clean()


# D17
@pytest.mark.parametrize("name", ["'x' * 1_200_000", r"'\ud800'"])
def test_a_name_that_cannot_be_written_down_takes_nothing(box: Box, name: str) -> None:
    program = f"""
        try:
            slicer.acquire({name}, gpus=0, cpu_slots=1)
        except slicer.SlicerError as error:
            print(error.kind, error)
        slicer.acquire(gpus=0, cpu_slots=1).release()
        """
    assert run(box, program).startswith("usage the lease cannot be written: ")
    assert box.leases() == []


# B4, issue: named slots
def test_a_slot_is_shared_inside_and_busy_by_its_name_outside(box: Box) -> None:
    config = box.root / "slots.toml"
    config.write_text("[slots]\nmatlab = 1\n")
    out = run(
        box,
        """
        import threading
        def other():
            try:
                slicer.acquire("second", gpus=0, slots={"matlab": 1})
            except slicer.SlotBusy as busy:
                print(busy, busy.slot, busy.holder.name)
        with slicer.acquire("first", gpus=0, cpu_slots=1, slots={"matlab": 1}) as lease:
            print(lease.slots, lease.cpu_slots)
            with slicer.acquire("inner", gpus=0, slots={"matlab": 1}) as inner:
                print(inner.is_own)
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        for wrong in ("mathlab", "gpu"):
            try:
                slicer.acquire(gpus=0, slots={wrong: 1})
            except slicer.SlicerError as error:
                print(type(error).__name__, error)
        """,
        SLICER_CONFIG=str(config),
    )
    known = "known: cpu, matlab; [slots] in the configuration names them)"
    first, second, busy, *wrong = out.splitlines()
    assert (first, second) == ("{'cpu': 1, 'matlab': 1} 1", "False")
    assert busy.startswith("matlab is busy: held by first (pid ")
    assert busy.endswith(") matlab first")
    assert wrong == [
        f"UsageError slots: there is no slot named 'mathlab' (did you mean \"matlab\"? {known}",
        f"UsageError slots: there is no slot named 'gpu' ({known}",
    ]
    box.assert_clean()


# B4
@pytest.mark.usefixtures("gpus")
def test_what_this_machine_cannot_do_is_slicers_error(box: Box) -> None:
    out = run(
        box,
        """
        for arguments in ({"gpus": 3}, {"gpu": 7}, {"vram": "900G"}, {"gpus": 0, "cpu_slots": 2}):
            try:
                slicer.acquire(**arguments)
            except slicer.SlicerError as error:
                print(error)
        """,
    )
    found = out.splitlines()
    assert len(found) == 4, found
    assert "this machine has 2 GPUs" in found[0]
    assert "no such GPU: '7'" in found[1]
    assert "900G + 512M margin fits on no GPU" in found[2]
    assert "1 CPU slot" in found[3]


# B4
def test_importing_loads_next_to_nothing() -> None:
    code = (
        "import sys; before = set(sys.modules); import slicer; print(sorted(set(sys.modules) - before));"
        "slicer.acquire; heavy = {'click', 'pystemd', 'psutil', 'pynvml', 'asyncio'};"
        "print(heavy & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == ["['slicer']", "set()"]


def test_a_forked_child_neither_ends_nor_keeps_its_parents_lease(box: Box) -> None:
    out = run(
        box,
        """
        lease = slicer.acquire(gpus=0, cpu_slots=1)
        child = os.fork()
        if child == 0:
            lease.release()
            os._exit(0)
        os.waitpid(child, 0)
        print(os.listdir(os.environ["SLICER_STATE_DIR"] + "/leases") == [lease.job])
        """,
    )
    assert out == "True\n"
    box.assert_clean()


# D10
INTERRUPTED = """
import threading
threads = [threading.Thread(target=sys.stdin.read) for _ in range({others})]
for thread in threads:
    thread.start()
lease = None
try:
    lease = slicer.acquire(gpus=0, cpu_slots=1, wait={waits})
except KeyboardInterrupt:
    print("interrupted", lease)
print(os.listdir(os.environ["SLICER_STATE_DIR"] + "/leases"))
slicer.acquire(gpus=0, cpu_slots=1).release()
"""


@pytest.mark.parametrize("point", ["ledger-judged", "ledger-created", "ledger-converted"])
@pytest.mark.parametrize("others", [0, 2])  # to which the kernel gives what the first thread holds back
def test_ctrl_c_while_the_lease_is_made_leaves_none(box: Box, gate: Gate, point: str, others: int) -> None:
    waits = point == "ledger-converted"
    if waits:
        box.hold(gate)
    program = start(box, INTERRUPTED.format(others=others, waits=waits), SLICER_FAULTS=f"{box.state}:{point}")
    if waits:
        until(box.tickets, "it waits")
        gate.open()
    pid = until(lambda: next((pid for pid in box.processes() if state_of(pid) == "T"), 0), "it is there")
    os.kill(pid, signal.SIGINT)
    until(lambda: _held_back(pid), "the signal waits for the first thread")
    box.state.with_suffix(".go").touch()
    assert program.stdin is not None
    program.stdin.close()  # for the other threads
    program.stdin = None
    until(lambda: gone(pid) or os.kill(pid, signal.SIGCONT), "it ends")  # it may just be about to stop
    out, err = program.communicate(timeout=LONGEST_S)
    assert out.decode() == "interrupted None\n[]\n", err.decode()
    box.assert_clean()


def _held_back(pid: int) -> bool:
    """Continue a program that stops itself again, until no other thread is still about to take its SIGINT."""
    os.kill(pid, signal.SIGCONT)
    status = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    mine, everybodys = int(status["SigPnd"], 16), int(status["ShdPnd"], 16)
    pending = mine if int(status["Threads"]) > 1 else everybodys
    return bool(pending >> signal.SIGINT - 1 & 1)


# D14
def test_a_task_that_is_cancelled_just_before_it_sleeps_leaves_the_queue(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    ahead = box.wait_in_line("ahead")  # who leads looks twice
    program = start(
        box,
        """
        import asyncio, threading
        from slicer.ledger import tickets
        looks, goes_on = threading.Event(), threading.Event()
        silence = tickets.silence
        def silenced(bell):  # what was rung is forgotten, and nobody looks any more whether it is cancelled
            looks.set()
            goes_on.wait()
            silence(bell)
        tickets.silence = silenced
        async def main():
            task = asyncio.create_task(slicer.acquire_async(gpus=0, cpu_slots=1, wait=True)._acquire())
            await asyncio.to_thread(looks.wait)
            task.cancel()
            await asyncio.sleep(0)
            goes_on.set()
            print((await asyncio.gather(task, return_exceptions=True))[0].__class__.__name__)
        asyncio.run(main())
        """,
    )
    out, err = program.communicate(timeout=LONGEST_S)
    assert out == b"CancelledError\n", err.decode()
    assert len(box.tickets()) == 1
    gate.open()
    assert job.process.wait(LONGEST_S) == 0
    assert ahead.wait(LONGEST_S) == 0
    box.assert_clean()


# D14: without a cancellation, as when Ctrl-C breaks the loop
def test_a_broken_loop_waits_for_no_lease(box: Box, gate: Gate) -> None:
    job = box.hold(gate)
    program = start(
        box,
        """
        import asyncio
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(slicer.acquire_async(gpus=0, cpu_slots=1, wait=True)._acquire())
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """,
    )
    pid = until(lambda: next((ticket.pid for ticket in box.tickets()), 0), "it waits")
    os.kill(pid, signal.SIGINT)
    out, err = program.communicate(timeout=LONGEST_S)
    assert out == b"interrupted\n", err.decode()
    gate.open()
    assert job.process.wait(LONGEST_S) == 0
    box.assert_clean()
