"""Scopes that were left empty: those that nobody has any more are stopped, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slicer.broker.server import cleanup
from slicer.broker.server.cleanup import Leftovers
from slicer.broker.server.loop import Loop
from slicer.kernel import cgroup
from tests.patience import until

EMPTY, LIVE, HELD, OTHER = (f"{n:012x}" for n in range(4))


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def scope(root: Path, place: str, populated: int) -> Path:
    made = root / place
    made.mkdir(parents=True)
    (made / "cgroup.events").write_text(f"populated {populated}\nfrozen 0\n")
    return made


def test_an_empty_scope_without_a_lease_is_stopped(  # L1
    tmp_path: Path, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "_ROOTS", (str(tmp_path),))
    monkeypatch.setattr(cleanup, "_LOOKS_S", 0.0)
    (tmp_path / "cgroup.procs").touch()
    scope(tmp_path, f"gpu.slice/gpu-1001.slice/slicer-{EMPTY}.scope", 0)
    scope(tmp_path, f"gpu.slice/gpu-1001.slice/slicer-{LIVE}.scope", 1)
    scope(tmp_path, f"_cpu.slice/cpu-0.slice/slicer-{HELD}.scope", 0)
    scope(tmp_path, f"gpu.slice/slicer-{OTHER}.scope", 0)  # of root's own ledger, from before
    scope(tmp_path, "gpu.slice/gpu-0.slice/other.scope", 0)
    stopped: list[str] = []
    looks: list[int] = []
    scopes: Any = SimpleNamespace(above="", stop=lambda unit, done: stopped.append(unit))
    register: Any = SimpleNamespace(holdings={HELD: None})
    log: list[str] = []
    left = Leftovers(register, scopes, loop, log.append)
    loop.turn(0.0)
    assert not stopped, "systemd has its time"
    until(lambda: stopped or loop.turn(0.1), "it is stopped")
    assert stopped == [f"slicer-{EMPTY}.scope"]
    assert log == [f"<6>slicer-{EMPTY}.scope is stopped: it is empty, and systemd has not noticed"]

    (tmp_path / f"gpu.slice/gpu-1001.slice/slicer-{EMPTY}.scope/cgroup.events").unlink()
    (tmp_path / f"gpu.slice/gpu-1001.slice/slicer-{EMPTY}.scope").rmdir()
    loop.after(0.0, lambda: looks.append(1))
    until(lambda: loop.turn(0.0) or looks, "another look")
    loop.turn(0.0)
    assert len(stopped) == 1
    register.holdings.clear()  # its lease ends
    left.expect()
    until(lambda: loop.turn(0.1) or len(stopped) == 2, "its scope is stopped, too")
    assert stopped[1] == f"slicer-{HELD}.scope"
