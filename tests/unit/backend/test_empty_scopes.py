"""Scopes that were left empty: the old ones are found, and no others."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from slicer.backend import empty_scopes
from slicer.backend.empty_scopes import empty_beside
from slicer.job.job import NOBODY
from slicer.job.watching import Watching
from slicer.kernel import cgroup

EMPTY, LIVE, TOO = (f"{number:012x}" for number in range(3))


def scope(root: Path, place: str, populated: int) -> None:
    made = root / place
    made.mkdir(parents=True)
    (made / "cgroup.events").write_text(f"populated {populated}\nfrozen 0\n")


# D22
@pytest.mark.parametrize("above", ["", "/user.slice/user-7.slice/user@7.service"])
def test_old_scopes_that_nobody_is_in_are_found_beside_a_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above: str
) -> None:
    monkeypatch.setattr(cgroup, "_ROOTS", (str(tmp_path),))
    (tmp_path / "cgroup.procs").touch()
    base = above.lstrip("/")
    scope(tmp_path / base, f"gpu.slice/slicer-{EMPTY}.scope", 0)
    scope(tmp_path / base, f"gpu.slice/slicer-{LIVE}.scope", 1)
    scope(tmp_path / base, "gpu.slice/other.scope", 0)
    scope(tmp_path / base, "gpu.slice/slicer-x.scope", 0)
    scope(tmp_path / base, f"gpu.slice/gpu-1001.slice/slicer-{TOO}.scope", 0)  # the broker's
    scope(tmp_path / base, f"_cpu.slice/slicer-{TOO}.scope", 0)
    own = f"{above}/_cpu.slice/slicer-{LIVE}.scope"
    assert empty_beside(own, time.time()) == ()  # just made: perhaps its job is to come
    assert empty_beside(own, time.time() + 60) == (f"slicer-{TOO}.scope", f"slicer-{EMPTY}.scope")
    for number in range(80):
        scope(tmp_path / base, f"_cpu.slice/slicer-{number + 16:012x}.scope", 0)
    assert empty_beside(own, time.time() + 60) == (f"slicer-{EMPTY}.scope",)


Swept = list[tuple[str, str]]


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> Swept:
    """The scopes beside which somebody looked, and their managers."""
    found: Swept = []
    monkeypatch.setattr(empty_scopes, "stop_beside", lambda scope, manager: found.append((scope, manager)))
    return found


# D22
@pytest.mark.parametrize(
    ("backend", "broker", "looks"),
    [("systemd", "", [("/own", "user")]), ("systemd", "/socket", []), ("plain", "", [])],
)
def test_a_job_looks_once_it_has_run_for_a_while(
    swept: Swept, monkeypatch: pytest.MonkeyPatch, backend: str, broker: str, looks: Swept
) -> None:
    lease = SimpleNamespace(cgroup="/own", gpus=(), min_run_s=None)
    held = SimpleNamespace(do_postponed_slow=lambda: None, fd=1, lease=lease)
    monkeypatch.setattr("slicer.job.sampling.Sampler", lambda *_: None)
    monkeypatch.setattr("slicer.job.scope_watch.limit_at", lambda *_: None)
    monkeypatch.setattr("slicer.job.scope_watch.ScopeWatch", lambda *_: None)
    listener = SimpleNamespace(warning=pytest.fail)
    Watching(
        SimpleNamespace(broker=broker), held, SimpleNamespace(name=backend, manager="user"),
        SimpleNamespace(directory=None), listener, NOBODY, 1, -1, 0.0,
    )._settle()  # fmt: skip
    assert swept == looks
