"""The owner of a server, whose job is made up: what becomes of requests when things go wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from slicer.serve.terms import RequestNeed, Unavailable
from tests.unit import made_up
from tests.unit.serve.front import played, until

owner_module = pytest.importorskip("slicer.serve.owner", reason="aiohttp is not installed")
WORK = RequestNeed("gpu", "", False)


class InLine:
    """A server that waits for its lease for ever, and takes its time to leave the line."""

    at_once = most_at_once = 0
    may_leave: asyncio.Event

    def __init__(self, *_: object, without_gpu: bool) -> None:
        self.job = ""

    async def start(self) -> None:
        InLine.at_once += 1
        InLine.most_at_once = max(InLine.most_at_once, InLine.at_once)
        await asyncio.Event().wait()

    async def stop(self) -> None:
        await InLine.may_leave.wait()
        InLine.at_once -= 1


@played
async def test_who_comes_and_goes_again_and_again_is_in_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # B6
    monkeypatch.setattr(owner_module, "StartedServer", InLine)
    InLine.may_leave = asyncio.Event()
    owner = owner_module.Owner(made_up.server(command=("server",)), str(tmp_path / "log"), {}, print)
    for _ in range(3):
        client = asyncio.ensure_future(owner.use(WORK).__aenter__())
        await until(lambda: owner.life.state == "waiting", "it waits")
        await asyncio.sleep(0)
        client.cancel()
        await until(lambda: owner.life.state == "stopped", "it has given up")
    client = asyncio.ensure_future(owner.use(WORK).__aenter__())
    await asyncio.sleep(0.01)
    InLine.may_leave.set()
    await until(lambda: InLine.at_once == 1, "the last one waits")
    assert InLine.most_at_once == 1
    client.cancel()
    await owner.close()


@played
async def test_where_no_job_can_be_started_the_client_hears_of_it(tmp_path: Path) -> None:  # B6
    said: list[str] = []
    settings, log = made_up.server(command=("server",)), str(tmp_path / "gone" / "log")
    owner = owner_module.Owner(settings, log, {}, said.append)
    with pytest.raises(Unavailable, match=r"cannot be started: .*No such file"):
        await owner.use(WORK).__aenter__()
    assert len(said) == 1
    await owner.close()
