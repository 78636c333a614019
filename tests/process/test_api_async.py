"""``slicer.acquire_async`` whose task is cancelled: it leaves the queue, and nobody hears of it any more."""

from __future__ import annotations

import pytest

from tests.patience import LONGEST_S, until
from tests.process.harness import Box, Gate
from tests.process.test_api import start

pytestmark = pytest.mark.both_pythons


# D20
@pytest.mark.parametrize(
    "waits",
    [
        "await asyncio.wait_for(slicer.acquire_async(gpus=0, cpu_slots=1, wait=True), 0.2)",
        "await asyncio.wait_for(acquire(), 0.2)",
        "task = begun(); await asyncio.sleep(0.2); task.cancel(); await task",
        "task = begun(); await asyncio.sleep(0.2); task.cancel(); await once(); task.cancel(); await task",
    ],
)
def test_a_wait_that_is_given_up_says_nothing_more(box: Box, gate: Gate, waits: str) -> None:
    job = box.hold(gate)
    program = start(
        box,
        f"""
        import asyncio, gc
        async def acquire():
            async with slicer.acquire_async(gpus=0, cpu_slots=1, wait=True):
                print("granted")
        def once():
            return asyncio.sleep(0)
        def begun():
            return asyncio.create_task(acquire())
        async def main():
            try:
                {waits}
            except (TimeoutError, asyncio.CancelledError):
                print("given up")
            while os.listdir(os.environ["SLICER_STATE_DIR"] + "/tickets"):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
        asyncio.run(main())
        gc.collect()
        """,
    )
    out, err = program.communicate(timeout=LONGEST_S)
    assert (out, err) == (b"given up\n", b"")
    until(lambda: not box.tickets(), "it has left the queue")
    gate.open()
    assert job.process.wait(LONGEST_S) == 0
    box.assert_clean()
