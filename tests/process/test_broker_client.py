"""A client of the broker that is killed on its way to a lease: what it leaves is nothing."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker_box import BrokerBox
from tests.patience import until

POINTS = ("broker-client-granted", "broker-client-lost")

# A program that waits for the only CPU slot, and tells when it has it.
_CLIENT = """
import os, sys
from slicer.broker.client import asking
from slicer.gpu.observer import GpuObserver
from slicer.job import granting
from slicer.ledger import leasing
from slicer.ledger.leasing import CancelToken, Hooks, Needs, Requester
from slicer.ledger.ledger import Ledger
from slicer.state import statedir
job, path = sys.argv[1:]
asking._BACK_S = 0.2
ledger = Ledger(statedir.locate(os.environ, os.geteuid()), lambda text: print(text, flush=True))
needs = Needs(0, (), None, 0, {"cpu": 1}, 0, {"cpu": 1}, None, None, True, None, "fail", "")
who = Requester(job, "", "client", "plain", "system", "", ())
wanted = leasing.drafted(who, needs, GpuObserver())
hooks = Hooks(lambda busy: print("waits", flush=True), None, CancelToken())
granting.obtain(path, wanted, ledger, hooks, "process")
print("has it", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def box(tmp_path: Path) -> Iterator[BrokerBox]:
    yield from BrokerBox.running(tmp_path, "config.toml", "[slots]\ncpu = 1\n")


def client(box: BrokerBox, job: str, point: str = "") -> subprocess.Popen[str]:
    state = f"{box.path}/state-{job}"
    environ = {
        **os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), "SLICER_STATE_DIR": state,
        "SLICER_FAULTS": f"{state}:{point}",
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-c", _CLIENT, job, box.socket], env=environ, text=True, bufsize=1,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip


def is_stopped(process: subprocess.Popen[str]) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].startswith("T")


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("point", POINTS)
def test_a_client_that_is_killed_leaves_nothing(box: BrokerBox, point: str) -> None:  # L1
    with client(box, "aaaaaaaaaaaa") as holder:
        assert says(holder) == "has it"
        killed = client(box, "bbbbbbbbbbbb", point)
        assert says(killed) == "waits"
        if point == "broker-client-granted":
            holder.kill()
        else:
            box.crash()
            box.start()
        until(lambda: is_stopped(killed), f"it comes to {point}")
        killed.kill()
        killed.communicate()
        holder.kill()
    assert not list(Path(f"{box.path}/state-bbbbbbbbbbbb/leases").iterdir())
    with client(box, "cccccccccccc") as last:
        until(lambda: says(last) == "has it", "the slot is free")
        until(lambda: box.files("tickets") == [], "no ticket is left")
        last.kill()


@pytest.mark.parametrize("point", ["broker-loaded", "broker-claimed", "broker-leased"])
def test_a_broker_that_stands_still_longer_than_anybody_waits_loses_nobody(
    box: BrokerBox, point: str
) -> None:  # L1
    clients = [client(box, "a" * 12)]
    holder = clients[0]
    try:
        assert says(holder) == "has it"
        waiters = [client(box, letter * 12) for letter in "bcdef"]
        clients += waiters
        assert [says(each) for each in waiters] == ["waits"] * 5
        box.crash()
        box.start("broker-loaded")  # they reconnect to one that stands still at once
        assert all("not answered for 0.2 s; the job waits on" in says(each) for each in waiters)
        until(box.stopped, "it comes to broker-loaded")
        if point != "broker-loaded":
            box.crash()
            box.start(point)
            holder.kill()
            until(box.stopped, f"it comes to {point}")
        else:
            holder.kill()
        for each in waiters:  # and the machine with it
            each.send_signal(signal.SIGSTOP)
        Path(f"{box.faults}.go").touch()
        for each in (*waiters, box.server):
            assert each is not None
            each.send_signal(signal.SIGCONT)
        left = list(waiters)
        while left:
            by_fd = {each.stdout.fileno(): each for each in left if each.stdout is not None}
            (ready,), _, _ = select.select([*by_fd], [], [], 60.0)
            assert says(by_fd[ready]) == "has it"
            by_fd[ready].kill()
            left.remove(by_fd[ready])
    finally:
        for each in clients:
            each.kill()
            each.communicate()
