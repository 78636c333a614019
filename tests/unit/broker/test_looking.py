"""The GPUs through the broker, for users behind a fence: who sees what, and how often the driver is asked."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from slicer import gpu
from slicer.broker.client.gpu_look import BrokerGpus
from slicer.broker.protocol import messages, wire
from slicer.broker.protocol.messages import GpuNow, Seen, UseNow
from slicer.broker.server import looking
from slicer.broker.server.looking import uses_for
from slicer.broker.server.requests import Refusal
from slicer.errors import NoGpu
from slicer.gpu.attribution import devices, process_counts
from slicer.gpu.observer import GpuObserver
from slicer.gpu.sim.driver import SimulatedGpus
from slicer.gpu.snapshot import ProcessOnGpu
from slicer.model import GpuLoad
from slicer.record import fields_for, replace
from tests.unit.broker.callers import server
from tests.unit.broker.messages import GPU, LEASE, OTHER
from tests.unit.broker.within import acquire, within

HIS = replace(LEASE, job=OTHER, uid=LEASE.uid + 1, pid=1 << 21, keeper=0, cgroup="/gpu.slice/his.scope")


def process(pid: int, mib: int | None = 100) -> ProcessOnGpu:
    return ProcessOnGpu(GPU, pid, mib, 1, "python", "", (), ())


def test_a_user_is_told_of_its_own_processes_and_of_others_sums() -> None:  # S10
    owned = [
        (process(1), LEASE), (process(2), HIS), (process(3, 50), HIS), (process(4), None), (process(5), None)
    ]  # fmt: skip
    mine, theirs = UseNow(GPU, 1, LEASE.job, LEASE.cgroup, 100), UseNow(GPU, 0, OTHER, HIS.cgroup, 150)
    assert uses_for(owned, LEASE.uid) == (mine, theirs, UseNow(GPU, 0, "", "", 200))
    assert [each.pid for each in uses_for(owned, 4711)] == [0, 0, 0]
    assert [each.pid for each in uses_for(owned, 0)] == [1, 2, 3, 4, 5]
    silent = [(process(2, None), HIS), (process(3), HIS)]
    assert uses_for(silent, 4711) == (UseNow(GPU, 0, OTHER, HIS.cgroup, None),)


def test_a_process_without_a_job_is_known_by_its_user_only() -> None:  # S10, W7
    uids = {4: 1001, 5: 1002, 6: 1001, 7: None}
    owned = [(replace(process(pid), uid=uid), None) for pid, uid in uids.items()]
    assert uses_for(owned, 4711) == (
        UseNow(GPU, 0, "", "", 200, 1001), UseNow(GPU, 0, "", "", 100, 1002), UseNow(GPU, 0, "", "", 100)
    )  # fmt: skip
    assert uses_for([(replace(process(2), uid=1001), HIS)], 4711)[0].uid is None  # its lease says that


def test_an_older_broker_knows_less_of_a_gpu() -> None:  # W7
    sent = json.loads(wire.encode_reply(SEEN)[:-1])
    [now] = sent["parameters"]["now"]
    for name in ("temperature_c", "power_w", "power_limit_w"):
        del now[name]
    for use in sent["parameters"]["uses"]:
        use.pop("uid", None)
    heard = wire.decode_reply(messages.Look, json.dumps(sent).encode()).message
    assert (heard.now[0].utilisation, heard.now[0].temperature_c, heard.now[0].power_w) == (17, None, None)
    assert heard.uses[0].uid is None


def test_the_driver_is_asked_once_for_all_who_ask_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "FRESH_S", 8.0)  # however slow this host is
    asked: list[int] = []
    observe = GpuObserver.observe
    monkeypatch.setattr(GpuObserver, "observe", lambda self: asked.append(1) or observe(self))
    load = GpuLoad(17, 64, 412, 700)
    monkeypatch.setattr(SimulatedGpus, "load", lambda self, only=(): {self.list()[0].uuid: load})
    with within(tmp_path, monkeypatch) as inside:
        holder = acquire(gpus=1)
        assert isinstance(inside.dial().ask(holder, more=True), messages.Granted)
        seen = [inside.dial().ask(messages.Look()) for _ in range(5)]
        assert len(asked) == 1
        assert [(each.index, each.total_mib, each.used_mib) for each in seen[4].now] == [
            (0, 24576, 0), (1, 24576, 0)
        ]  # fmt: skip
        loads = [GpuLoad(**fields_for(GpuLoad, each)) for each in seen[4].now]
        assert loads == [load, GpuLoad()]
        inside.clocks.pass_(8.01)
        inside.dial().ask(messages.Look())
        assert len(asked) == 2


SEEN = Seen(
    (GpuNow(0, GPU, "H100", 81559, 81000, 3500, 17, 64, 412, 700),),
    (
        UseNow(GPU, os.getpid(), LEASE.job, "", 2048), UseNow(GPU, 0, OTHER, HIS.cgroup, 1024),
        UseNow(GPU, 0, "", "", None, 1002),
    ),
)


def test_who_is_fenced_off_sees_through_the_broker_and_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # E5, L4
    said = NoGpu("fenced", "the GPUs are fenced off from this process", hint="")

    def shut() -> Any:
        raise said

    monkeypatch.setattr(gpu, "open_gpus", shut)
    with server(tmp_path / "socket") as broker:
        broker.answer = lambda call: call.connection.send(SEEN)
        observer = GpuObserver(only=(GPU,), otherwise=lambda: BrokerGpus(broker.path))
        snapshot = observer.observe()
        assert [(each.index, each.name) for each in observer.gpus] == [(0, "H100")]
        mine = replace(LEASE, pid=os.getpid(), cgroup="", unit="")
        [device] = devices(snapshot, (mine, HIS), {})
        assert device.used_by == {LEASE.job: 2048, OTHER: 1024}
        assert process_counts(snapshot, (mine,)) == {(LEASE.job, GPU): 1}
        assert observer.utilisation() == {GPU: 17}
        assert observer.load() == {GPU: GpuLoad(17, 64, 412, 700)}
        assert [each.uid for each in snapshot.processes[1:]] == [None, 1002]
        observer.close()

        broker.answer = lambda call: call.connection.fail(Refusal("Broken", "the driver hangs"))
        with pytest.raises(NoGpu, match="fenced off"):  # what it was before there was another way
            observer.open()
    said = NoGpu("no-driver", "it is not loaded", hint="")
    with pytest.raises(NoGpu, match="not loaded"):
        observer.open()
