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


GIVEN_BACK = {
    "by another thread": """
        import threading
        lease = slicer.acquire("first", gpus=0, cpu_slots=1)
        with slicer.acquire("inner", gpus=0, cpu_slots=1) as inner:
            assert not inner.is_own
        thread = threading.Thread(target=lease.release)
        thread.start()
        thread.join()
        ask()
    """,
    "by a task that ended before its own": """
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
    "by the parent": """
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
}


# D16
@pytest.mark.parametrize("program", GIVEN_BACK.values(), ids=list(GIVEN_BACK))
def test_a_lease_that_was_given_back_elsewhere_is_not_held(box: Box, program: str) -> None:
    assert run(box, ASK + program) == "True\n"
    box.assert_clean()
