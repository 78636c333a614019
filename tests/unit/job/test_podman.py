"""podman in a job: the file that its environment names, and the GPUs in it."""

from __future__ import annotations

import errno
import json
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slicer.config.profiles import THREAD_VARIABLES
from slicer.errors import StateError
from slicer.job import podman
from slicer.job.plan import job_of
from slicer.model import ScopeSpec
from slicer.record import replace
from slicer.state.directory import Directory
from slicer.state.statedir import StateDir, locate
from tests.unit import made_up
from tests.unit.job.test_plan import INVOCATION, PROFILE, plan

pytestmark = pytest.mark.both_pythons

A, B = "GPU-00000000-0000-0000-0000-00000000000a", "GPU-00000000-0000-0000-0000-00000000000b"
VARIABLE = "CONTAINERS_CONF_OVERRIDE"

# As `nvidia-ctk cdi generate` writes it, shortened.
YAML = f"""\
---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
- name: {A}
  containerEdits:
    deviceNodes:
    - {{path: /dev/nvidia0, hostPath: /dev/nvidia0}}
"""


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a machine with podman and crun."""
    place = tmp_path / "host"
    monkeypatch.setenv("SLICER_SYSROOT", str(place))
    for name in ("podman", "crun"):
        install(place, name)
    return place


def install(host: Path, name: str) -> None:
    (host / "usr/bin").mkdir(parents=True, exist_ok=True)
    (host / "usr/bin" / name).touch(mode=0o755)


def specify(host: Path, text: str, name: str = "etc/cdi/nvidia.yaml") -> Path:
    (host / name).parent.mkdir(parents=True, exist_ok=True)
    (host / name).write_text(text)
    return host / name


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateDir]:
    made = locate({"SLICER_STATE_DIR": str(tmp_path / "state")}, os.geteuid())
    yield made
    made.close()


def said(gpus: str, *, has_numbers: bool = False) -> dict[str, Any]:
    text = podman.settings(gpus, has_numbers=has_numbers)
    return dict(tomllib.loads(text)["containers"])


# U5: containers stay in the scope, with its GPUs and thread caps; the rest of the environment stays outside.
def test_a_container_gets_what_the_job_got(host: Path) -> None:
    found = said("")
    assert found["cgroups"] == "disabled"
    assert "devices" not in found
    path, *names = found["env"]
    assert path.startswith("PATH=/")
    assert names == ["CUDA_VISIBLE_DEVICES", *THREAD_VARIABLES]
    assert said(f"{A},{B}")["env"][1:] == [*names, f"NVIDIA_VISIBLE_DEVICES={A},{B}"]


def test_numbers_are_those_of_the_host_and_no_containers(host: Path) -> None:  # U5, U18
    assert f"CUDA_VISIBLE_DEVICES={A}" in said(A, has_numbers=True)["env"]
    # What a profile's env says instead is no name of a GPU.
    assert said("0", has_numbers=False).keys() == {"cgroups", "env"}
    assert said('x"\ny', has_numbers=False).keys() == {"cgroups", "env"}


@pytest.mark.parametrize("place", ["etc/cdi/nvidia.yaml", "var/run/cdi/nvidia.json"])
def test_the_gpus_are_handed_in_if_podman_knows_all_of_them_by_name(host: Path, place: str) -> None:  # U5
    spec = {"kind": "nvidia.com/gpu", "devices": [{"name": A, "containerEdits": {}}, {"name": "0"}]}
    path = specify(host, YAML if place.endswith("yaml") else json.dumps(spec, indent=2), place)
    assert said(A)["devices"] == [f"nvidia.com/gpu={A}"]
    assert "devices" not in said(f"{A},{B}")
    path.write_text(path.read_text().replace("nvidia.com/gpu", "nvidia.com/other"))
    assert "devices" not in said(A)


@pytest.mark.parametrize("kind", ["fifo", "folder", "dangling", "long", "noise", "no suffix", "another's"])
def test_what_is_no_specification_of_the_administrators_names_no_gpu(host: Path, kind: str) -> None:  # U5, S7
    path = specify(host, YAML)
    if kind == "long":
        path.write_text(YAML + "#" * (1 << 20))
    elif kind == "noise":
        path.write_bytes(bytes(range(256)) * 100)
    elif kind == "no suffix":
        path.rename(path.with_suffix(".bak"))
    elif kind == "another's":
        if os.geteuid():
            pytest.skip("only root can give a file away")
        os.chown(path, 4242, 4242)
    else:
        path.unlink()
        {"fifo": os.mkfifo, "folder": os.mkdir, "dangling": lambda path: path.symlink_to("none")}[kind](path)
    assert podman.specified() == set()


def test_jobs_that_want_the_same_share_one_file_that_others_may_read(state: StateDir) -> None:  # U5
    before = os.umask(0o377)
    try:
        first = podman.added({"A": "1"}, A, state.path)
    finally:
        os.umask(before)
    path = Path(first.pop(VARIABLE))
    assert first == {"A": "1"}
    assert path.parent == Path(state.path)
    assert path.stat().st_mode & 0o7777 == 0o644
    assert tomllib.loads(path.read_text())["containers"]["cgroups"] == "disabled"
    made = path.stat()
    assert podman.added({}, A, state.path)[VARIABLE] == str(path)
    assert os.path.samestat(path.stat(), made)
    assert podman.added({VARIABLE: ""}, B, state.path)[VARIABLE] != str(path)
    assert not [each for each in path.parent.iterdir() if each.suffix == ".tmp"]


# U5: its command may become another user.
def test_roots_file_lies_where_all_may_look() -> None:
    assert podman.path_of("/run/slicer", "text").startswith("/run/slicer-podman-")
    assert podman.path_of("/run/slicer/sim-1x24G", "text").startswith("/run/slicer/sim-1x24G/slicer-podman-")


def test_a_link_in_the_files_place_is_not_written_through(state: StateDir, tmp_path: Path) -> None:  # U5
    path, other = Path(podman.added({}, A, state.path)[VARIABLE]), tmp_path / "other"
    path.unlink()
    path.symlink_to(other)
    podman.added({}, A, state.path)
    assert not other.exists()


def test_a_file_that_cannot_be_made_is_said(state: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:  # U5
    full(monkeypatch)
    with pytest.raises(StateError, match="cannot be written"):
        podman.added({}, A, state.path)


def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no file be made in the state directory."""

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Directory, "replace_shared", fails)


def test_a_file_of_the_users_own_stays_and_an_outer_jobs_does_not(state: StateDir) -> None:  # U5
    own = {VARIABLE: "/home/ann/mine.conf"}
    assert podman.why_not(own)
    assert podman.added(own, A, state.path) == podman.without(own) == own
    outer = podman.added({"A": "1"}, A, state.path)
    assert podman.why_not(outer) == ""
    assert podman.added(outer, B, state.path) != outer
    assert podman.without(outer) == {"A": "1"}


def test_runc_alone_cannot_keep_a_container_in(host: Path, state: StateDir) -> None:  # U5
    (host / "usr/bin/crun").unlink()
    assert podman.why_not({}) == ""  # podman brings its own, or has none at all
    install(host, "runc")
    assert "crun" in podman.why_not({})
    assert podman.added({}, A, state.path) == {}


@pytest.mark.parametrize(
    ("text", "is_old"),  # U5
    [
        (b"\x7fELF..CONTAINERS_CONF..", True),  # 4.4 and before
        (b"\x7fELF..CONTAINERS_CONF..CONTAINERS_CONF_OVERRIDE..", False),
        (b"#!/bin/sh\nexec real-podman\n", False),
    ],
)
def test_a_podman_that_does_not_know_the_variable_is_found(host: Path, text: bytes, is_old: bool) -> None:
    program = host / "usr/bin/podman"
    program.write_bytes(text)
    assert podman.is_old(str(program)) is is_old
    assert podman.why_not({}, str(program)) == (f"{program} is older than 4.5" if is_old else "")
    assert podman.why_not({}) == ""


def variables(state: StateDir, backend: str = "systemd", *, container: bool = True, **environ: str) -> object:
    """What a job with one GPU names to podman."""
    environ = {"PATH": "/usr/bin", **environ}
    made = plan(PROFILE, environ=environ, invocation=replace(INVOCATION, container=container))
    spec = ScopeSpec("slicer-b.scope", "gpu.slice", "", (), "system")
    job = job_of("b" * 12, made, spec, SimpleNamespace(name=backend))
    held = SimpleNamespace(lease=made_up.lease(gpus=(A,)), directory=state)
    return job.variables(held).get(VARIABLE)


def test_a_job_with_a_scope_names_it_where_there_is_podman(host: Path, state: StateDir) -> None:  # U5
    path = variables(state)
    assert A in Path(str(path)).read_text()
    assert variables(state, PATH="/bin:/sbin") is None
    for backend in ("plain", "inner"):
        assert variables(state, backend) is None
        assert variables(state, backend, **{VARIABLE: str(path)}) == path  # an outer job's
        assert variables(state, backend, container=False, **{VARIABLE: str(path)}) is None
    assert variables(state, container=False) is None
    assert variables(state, container=False, **{VARIABLE: "/mine"}) == "/mine"


def test_a_job_runs_without_the_file_that_cannot_be_made(
    state: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:  # U5
    full(monkeypatch)
    assert variables(state) is None
