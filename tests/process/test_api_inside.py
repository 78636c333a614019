"""``import slicer``: inside a lease nothing more is taken, but only while the lease is held."""

from __future__ import annotations

import pytest

from tests.process.harness import Box
from tests.process.test_api import run

pytestmark = pytest.mark.both_pythons

ASK = """
        import subprocess
        def ask():
            beside = subprocess.Popen(
                [sys.executable, "-c", "from slicer.__main__ import main; main()", "run", "-q",
                 "--backend", "plain", "-p", "heavy", "--", "sh", "-c", "echo; read x"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            beside.stdout.readline()
            try:
                print("granted", slicer.acquire("second", gpus=0, cpu_slots=1).is_own, flush=True)
            except slicer.CpuBusy as busy:
                print(busy.holder.pid == beside.pid, flush=True)
            beside.communicate(b"\\n")
"""


# D16
def test_a_lease_that_another_thread_gave_back_is_not_held(box: Box) -> None:
    out = run(
        box,
        ASK
        + """
        import threading
        lease = slicer.acquire("first", gpus=0, cpu_slots=1)
        print(slicer.acquire("inner", gpus=0, cpu_slots=1).is_own, flush=True)
        thread = threading.Thread(target=lease.release)
        thread.start()
        thread.join()
        ask()
        """,
    )
    assert out == "False\nTrue\n"
    box.assert_clean()


# D16
def test_a_task_that_outlives_its_tasks_lease_does_not_hold_it(box: Box) -> None:
    out = run(
        box,
        ASK
        + """
        import asyncio
        async def main():
            given_back = asyncio.Event()
            async def later():
                await given_back.wait()
                ask()
            async with slicer.acquire_async("first", gpus=0, cpu_slots=1):
                task = asyncio.create_task(later())
                await asyncio.sleep(0)
            given_back.set()
            await task
        asyncio.run(main())
        """,
    )
    assert out == "True\n"
    box.assert_clean()


# D16
def test_a_child_that_outlives_its_parents_lease_does_not_hold_it(box: Box) -> None:
    out = run(
        box,
        ASK
        + """
        lease = slicer.acquire("first", gpus=0, cpu_slots=1)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.read(reading, 1)
            ask()
            os._exit(0)
        lease.release()
        os.write(writing, b"x")
        os.waitpid(child, 0)
        """,
    )
    assert out == "True\n"
    box.assert_clean()
