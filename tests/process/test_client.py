"""``slicer_client`` in programs of any Python, beside jobs of ``slicer run``, with simulated GPUs."""

from __future__ import annotations

import ast
import glob
import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from slicer.model import Lease
from tests.broker_box import CLIENT as ASKS
from tests.broker_box import BrokerBox
from tests.fake_cuda import FakeCuda
from tests.machines.host import REPO
from tests.patience import LONGEST_S, until
from tests.process.harness import SLICER, SRC, Box, gone, kill_9, sleeps_in_poll
from tests.unit.test_readme import block

pytest_plugins = ["tests.fake_cuda"]

CLIENT = REPO / "slicer-client" / "slicer_client.py"
GPU, SECOND = (f"SIM-0000000{index}-0000-0000-0000-000000000000" for index in range(2))
START = """\
import os, signal, sys, threading, warnings
warnings.simplefilter("error", ResourceWarning)
import slicer_client
from slicer_client import acquire
def held(): print("held", flush=True)
"""
HOLDS = 'lease = acquire("holder", gpus=2)\nheld()\nsys.stdin.read()'


@pytest.fixture
def box(make_box: Callable[[int], Box]) -> Box:
    """A box with two simulated GPUs, and a program slicer in PATH."""
    made = make_box(1)
    made.env["SLICER_SIM"] = "2x24G"
    made.state /= "sim-2x24G"
    program(made, f'PYTHONPATH={shlex.quote(SRC)} exec {shlex.join(SLICER)} "$@"')
    return made


def program(box: Box, script: str, name: str = "slicer") -> Path:
    path = box.root / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def start(
    box: Box, code: str, python: str = sys.executable, group: int | None = None, **env: str
) -> subprocess.Popen[bytes]:
    """A program that has slicer_client, and nothing of slicer's, in its environment."""
    environ = {**box.env, "PYTHONPATH": str(CLIENT.parent), **env}
    made = subprocess.Popen(
        [python, "-c", START + textwrap.dedent(code)], env=environ, cwd=box.root, process_group=group,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    box.adopt(made)
    return made


def run(box: Box, code: str, python: str = sys.executable, **env: str) -> list[str]:
    """The lines of such a program, which must end well and say nothing else."""
    process = start(box, code, python, **env)
    out, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0, err.decode()
    assert b"Warning" not in err, err.decode()
    return out.decode().splitlines()


def holding(box: Box, code: str = HOLDS, **options: int) -> subprocess.Popen[bytes]:
    process = start(box, code, **options)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n", process.communicate()
    return process


def waiting(box: Box, code: str, **options: int) -> subprocess.Popen[bytes]:
    """A program that waits for what another one holds."""
    process = start(box, code, **options)
    until(lambda: any(ticket.name == "waiter" for ticket in box.tickets()), "it waits")
    return process


def lease(box: Box) -> Lease:
    (found,) = box.leases()
    return found


def test_the_gpu_is_held_and_shown_for_a_part_of_the_program(box: Box) -> None:  # U2
    lines = run(
        box,
        """
        os.environ["CUDA_VISIBLE_DEVICES"] = "7"
        with acquire("train", gpus=1, vram="8G", expected_seconds=900) as lease:
            print(lease.gpus == (os.environ["CUDA_VISIBLE_DEVICES"],), lease.gpu_indices, lease.is_held)
            with open(os.environ["SLICER_STATE_DIR"] + "/sim-2x24G/leases/" + lease.job) as file:
                print(file.read())
            print("pid", os.getpid())
            lease.release()
            lease.release()
        print(os.environ["CUDA_VISIBLE_DEVICES"], "SLICER_LEASE" in os.environ, lease.is_held)
        """,
    )
    pid = next(line for line in lines if line.startswith("pid ")).partition(" ")[2]
    assert lines[0] == "True (0,) True"
    assert {f"PID={pid}", "NAME=train", f"GPUS={GPU}", "VRAM_MIB=8192", "EXPECT_S=900.0"} <= set(lines)
    assert lines[-1] == "7 False False"
    box.assert_clean()


def pythons() -> list[str]:
    root = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    found = {}
    for minor in range(9, 15):
        for path in (f"/usr/bin/python3.{minor}", *glob.glob(f"{root}/versions/3.{minor}.*/bin/python3")):
            if os.access(path, os.X_OK):
                found[minor] = path
    return list(found.values())


@pytest.mark.parametrize("python", pythons(), ids=lambda path: path.rpartition("versions/")[2])
def test_it_works_under_every_python_beside_another_slicer(box: Box, python: str) -> None:  # U2, W3
    """With shap's slicer in its environment, and variables that are meant for its Python alone."""
    other = box.root / "site" / "slicer" / "__init__.py"
    other.parent.mkdir(parents=True)
    other.write_text("class AtomicType: 'shap needs it'\n")
    (box.root / "broken").mkdir()
    (box.root / "broken" / "json.py").write_text("raise SystemExit('broken')\n")
    lines = run(
        box,
        f"""
        import asyncio, slicer
        os.environ.update(PYTHONHOME="/nowhere", PYTHONPATH={str(box.root / "broken")!r})
        with acquire("train", gpus=2):
            print(slicer.AtomicType.__name__)
        async def main():
            async with slicer_client.acquire_async("train", gpus=2) as lease:
                print(len(lease.gpus), lease.is_held)
            print(lease.is_held)
        asyncio.run(main())
        """,
        python, PYTHONPATH=f"{CLIENT.parent}:{other.parents[1] / 'slicer' / '..'}".replace(":", os.pathsep),
    )  # fmt: skip
    assert lines == ["AtomicType", "2 True", "False"]
    box.assert_clean()


def test_its_syntax_is_that_of_python_3_9() -> None:  # U2
    ast.parse(CLIENT.read_text(), feature_version=(3, 9))


def test_it_ends_with_the_program_whatever_ends_that(box: Box) -> None:  # U2
    holder = holding(box)
    waiter = box.start("-q", "--gpus", "2", "--", "true")
    until(lambda: sleeps_in_poll(waiter.pid), "it waits")
    kill_9(holder.pid)
    assert waiter.wait(LONGEST_S) == 0
    holder = holding(box)
    kill_9(waiting(box, "acquire('waiter')").pid)
    until(lambda: not box.tickets(), "it has left the queue")
    assert box.run("-q", "--gpus", "1", "--no-wait", "--", "true").returncode == 75
    holder.communicate()  # without a release
    assert (holder.returncode, box.run("-q", "--gpus", "2", "--no-wait", "--", "true").returncode) == (0, 0)
    box.assert_clean()


def test_a_forked_child_neither_keeps_nor_ends_it(box: Box) -> None:  # U2
    holder = holding(
        box,
        """
        import gc, subprocess
        lease = acquire("holder", gpus=2)
        child = os.fork()
        if not child:
            with acquire("inner", wait=False) as inner:
                assert inner.gpus == lease.gpus
            seen = lease.is_held, os.environ["CUDA_VISIBLE_DEVICES"] == ",".join(lease.gpus)
            lease.release()
            gc.collect()
            sys.exit(0 if seen == (False, True) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert lease.is_held
        if not os.fork():
            signal.pause()
        subprocess.Popen(["sleep", "1000"], close_fds=False)
        held()
        sys.stdin.read()
        """,
    )
    assert lease(box).pid == holder.pid
    kill_9(holder.pid)
    until(lambda: not box.snapshot().leases, "the children keep nothing")


def test_busy_tells_the_holder_and_how_long(box: Box) -> None:  # U2, B4
    holder = holding(box, HOLDS.replace("gpus=2", "gpus=2, expected_seconds=900"))
    lines = run(
        box,
        """
        for limits in ({"wait": False}, {"max_wait": 0.01, "then": "fail"}):
            try:
                acquire(quiet=True, **limits)
            except slicer_client.GpuBusy as busy:
                print(busy.holder.name, busy.holder.pid, 800 < busy.expected_remaining() <= 900)
                print(busy)
        """,
    )
    assert lines == [f"holder {holder.pid} True", f"gpu is busy: held by holder (pid {holder.pid})"] * 2
    holder.communicate()
    box.assert_clean()


def test_ctrl_c_while_waiting_leaves_the_queue_and_later_does_nothing(box: Box) -> None:  # U2
    handles = "signal.signal(signal.SIGINT, lambda *_: print('again', flush=True))\n"
    holder = holding(box, handles + HOLDS, group=0)
    waiter = waiting(
        box,
        """
        def once(signo, frame):
            signal.signal(signal.SIGINT, signal.default_int_handler)
            print("once", flush=True)
        signal.signal(signal.SIGINT, once)
        try:
            acquire("waiter")
        except KeyboardInterrupt:
            print(os.listdir(os.environ["SLICER_STATE_DIR"] + "/sim-2x24G/tickets"))
        """,
        group=0,
    )
    assert waiter.stdout is not None
    for said, left in ((b"once\n", ["waiter"]), (b"[]\n", [])):  # a program that handles it goes on waiting
        os.killpg(waiter.pid, signal.SIGINT)
        assert waiter.stdout.readline() == said
        assert box.run("-q", "--gpus", "1", "--no-wait", "--", "true").returncode == 75
        assert [ticket.name for ticket in box.tickets()] == left
    assert waiter.wait(LONGEST_S) == 0
    for signo in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        os.kill(holding_child(holder.pid), signo)
    os.killpg(holder.pid, signal.SIGINT)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"again\n"
    assert box.run("-q", "--gpus", "1", "--no-wait", "--", "true").returncode == 75
    holder.communicate()
    box.assert_clean()


def holding_child(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def test_slicer_stop_ends_a_request_and_a_program(box: Box) -> None:  # U2
    holder = holding(box)
    waiter = waiting(
        box, "try: acquire('waiter')\nexcept slicer_client.RequestCancelled as error: print(error.kind)"
    )
    for name in ("waiter", "holder"):
        done = subprocess.run([*SLICER, "stop", name], env=box.env, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
    assert waiter.communicate(timeout=LONGEST_S)[0] == b"cancelled\n"
    assert holder.wait(LONGEST_S) == -signal.SIGTERM
    box.assert_clean()


def test_inside_another_nothing_is_taken_and_another_thread_gets_its_own(box: Box) -> None:  # U2, A3
    lines = run(
        box,
        """
        def other():
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                with acquire("thread") as mine:
                    print(mine.gpus != outer.gpus, caught[-1].message)
                    print(os.environ["CUDA_VISIBLE_DEVICES"] == outer.gpus[0])
        with acquire("outer") as outer:
            with acquire("inner", vram="1000M") as inner:
                print(inner.gpus == outer.gpus)
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            with acquire("more", gpus=2) as more:
                print(len(more.gpus), os.environ["CUDA_VISIBLE_DEVICES"] == ",".join(more.gpus))
            print(os.environ["CUDA_VISIBLE_DEVICES"] == outer.gpus[0])
        print("CUDA_VISIBLE_DEVICES" in os.environ)
        """,
    )
    another = "it shows another lease of this program, to all threads and tasks alike"
    told = f"os.environ is left as it is: {another} (lease.env is for child processes)"
    assert lines == ["True", f"True {told}", "True", "2 True", "True", "False"]
    inside = box.run("-q", "--gpus", "2", "--", sys.executable, "-c", START + "print(len(acquire().gpus))",
                     env={"PYTHONPATH": str(CLIENT.parent)})  # fmt: skip
    assert inside.stdout == "2\n", inside.stderr
    box.assert_clean()


def test_cuda_that_has_started_is_left_alone_and_that_is_said(box: Box, fake_cuda: FakeCuda) -> None:  # U2
    lines = run(
        box,
        """
        import ctypes
        cuda = ctypes.CDLL("libcuda.so.1")
        with acquire() as lease:  # loaded, and not yet started
            print(os.environ["CUDA_VISIBLE_DEVICES"] == lease.gpus[0])
        cuda.cuInit(0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with acquire() as lease:
                print("CUDA_VISIBLE_DEVICES" in os.environ, *lease.gpus, caught[-1].message)
        """,
        **fake_cuda.env,
    )
    assert lines[0] == "True"
    assert lines[1].startswith(f"False {GPU} os.environ is left as it is: CUDA has started in this process")
    box.assert_clean()


@pytest.mark.parametrize(
    ("script", "error", "text"),
    [
        ("exit 2", "TooOld", "is too old: it knows no `hold --protocol` (install a newer slicer)"),
        ("echo '{\"event\": \"hello\", \"protocol\": 9}'", "TooOld", "does not speak protocol 1"),
        ("echo PrusaSlicer", "ProtocolError", "said b'PrusaSlicer', which is no line of its protocol (is it"),
        ("echo '[1]'", "ProtocolError", "said b'[1]', which is no line"),
        ("yes | tr -d '\\n'", "ProtocolError", "said b'yyyy"),
        ("exit 3", "ProtocolError", "ended with 3 before there was a lease"),
        ("echo '{\"event\": \"acquired\"}'; read x", "ProtocolError", "that lacks 'job'"),
        (None, "NotInstalled", "there is no program slicer in "),
    ],
)  # fmt: skip
def test_a_program_that_is_not_slicer_is_named(box: Box, script: str, error: str, text: str) -> None:  # U2
    path = program(box, script or "exit 0")
    if script is None:
        path.unlink()
    catch = "except slicer_client.SlicerError as error: print(type(error).__name__, error)"
    (line,) = run(
        box, f"slicer_client._BESIDE = ()\ntry: acquire()\n{catch}", PATH=f"{path.parent}:/usr/bin:/bin"
    )
    assert line.startswith(f"{error} ")
    assert text in line
    assert str(path.parent) in line


def test_what_cannot_be_is_said_as_slicer_says_it(box: Box) -> None:  # U2
    catch = "except slicer_client.SlicerError as error: print(error.kind, error.hint)"
    assert run(box, f"try: acquire(gpus=3)\n{catch}") == ["infeasible ask for fewer"]
    (line,) = run(box, f"try: acquire(program={str(box.root)!r})\n{catch}")
    assert line.startswith("not-installed install slicer-systemd, or say where it is: acquire(")
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))"
    assert run(box, f"{few}\ntry: acquire(program='/bin/true')\n{catch}") == ["error see ulimit -a"]


def test_a_lease_that_was_lost_is_noticed(box: Box) -> None:  # U2
    # Its process has a thread, which may take a moment longer to die.
    lost = "\nimport time\nwhile lease.is_held: time.sleep(0.01)\nwarnings.simplefilter('always')"
    holder = holding(box, f"{HOLDS}{lost}\nprint(lease.is_held)\nlease.release()\nprint('on')")
    kill_9(holding_child(holder.pid))
    out, err = holder.communicate(timeout=LONGEST_S)
    assert (out, b"was lost: `slicer hold` had ended" in err) == (b"False\non\n", True)
    box.assert_clean()


def test_a_cancelled_task_leaves_the_queue_while_the_loop_runs_on(box: Box) -> None:  # U2
    holder = holding(box)
    lines = run(
        box,
        """
        import asyncio
        async def main():
            task = asyncio.create_task(slicer_client.acquire_async("waiter").__aenter__())
            while not os.listdir(os.environ["SLICER_STATE_DIR"] + "/sim-2x24G/tickets"):
                await asyncio.sleep(0.01)
            task.cancel()
            print(*await asyncio.gather(task, return_exceptions=True))
            print(os.listdir(os.environ["SLICER_STATE_DIR"] + "/sim-2x24G/tickets"))
        asyncio.run(main())
        """,
    )
    assert lines == ["", "[]"]
    holder.communicate()
    box.assert_clean()


def test_the_shell_example_of_the_protocol_works(box: Box) -> None:  # U2
    script = block("client.md", "sh") + "cat"
    for refused, code, said in (("", 0, f"working on {GPU}"), ("--gpu 7 ", 1, "no such GPU: '7'")):
        line = script.replace("--gpus 1 ", f"--gpus 1 {refused}")
        done = subprocess.run(["bash", "-uc", line], env=box.env, input=b"", capture_output=True, check=False)
        assert (done.returncode, said.encode() in done.stdout + done.stderr) == (code, True), done
    box.assert_clean()


def test_the_command_prints_the_file(box: Box) -> None:  # U2
    assert (
        subprocess.run([*SLICER, "client"], env=box.env, stdout=-1, check=True).stdout == CLIENT.read_bytes()
    )


@pytest.fixture
def broker(tmp_path: Path) -> BrokerBox:
    path = tmp_path / "broker"
    path.mkdir()
    yield from BrokerBox.running(path, "config.toml", "[slots]\ncpu = 1\n")


def test_with_the_broker_it_is_the_program_that_holds_it(broker: BrokerBox) -> None:  # U2, L1
    """Its memory is the lease's. The lease lasts as long as the program, also when the child is killed."""
    argv = [sys.executable, ASKS, broker.socket, json.dumps({"slots": {"cpu": 1}, "for_parent": True})]
    code = f"""import subprocess, sys
child = subprocess.Popen({argv!r}, stdin=-1, stdout=-1)
print(next(line for line in child.stdout if b'"granted"' in line).decode(), end="", flush=True)
child.kill()
child.wait()
print("killed", flush=True)
sys.stdin.read()
"""
    environ = {**os.environ, "PYTHONPATH": SRC}
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, env=environ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["lease"]["pid"] == process.pid
        assert process.stdout.readline() == b"killed\n"
        after = broker.call(slots={"cpu": 1})
        assert after.await_("waiting")["busy"]["holders"][0]["pid"] == process.pid
        process.kill()
        after.await_("granted")
        assert gone(process.pid)
