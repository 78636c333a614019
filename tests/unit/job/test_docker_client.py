"""What is asked of dockerd through docker's client, here a script of that name, and what follows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slicer.errors import RefusedError
from slicer.job import docker_client
from slicer.job.docker_client import Docker, found

JOB = "0123456789ab"
INFO = {
    "CgroupDriver": "systemd", "CgroupVersion": "2", "Name": os.uname().nodename,
    "KernelVersion": os.uname().release, "SecurityOptions": ["name=seccomp"], "DefaultRuntime": "runc",
}  # fmt: skip
FAKE = """\
#!/bin/sh
echo "$*" >>"$DOCKER_LOG"
case " $* " in
*" info "*) read -r info <"$DOCKER_INFO"; printf '%s' "$info";;
*" ps "*) echo one; echo two;;
*" inspect "*) echo two; echo;;
esac
"""


class Client:
    """The script, its daemon's answer, and a plan to run it."""

    def __init__(self, directory: Path) -> None:
        self.program = directory / "docker"
        self.program.write_text(FAKE)
        self.program.chmod(0o755)
        self._log, self._info = directory / "log", directory / "info"
        self._log.touch()
        self.answers(INFO)
        self.environ = {"DOCKER_LOG": str(self._log), "DOCKER_INFO": str(self._info), "PATH": "/nonexistent"}

    def answers(self, info: object) -> None:
        self._info.write_text(json.dumps(info))

    @property
    def asked(self) -> list[str]:
        return self._log.read_text().splitlines()

    def plan(self, *words: str, gpus: int = 1, **changes: Any) -> Any:
        invocation = SimpleNamespace(
            command=changes.pop("command", ("docker", *words)), exec=False,
            container=changes.pop("container", True), docker=changes.pop("docker", False),
        )  # fmt: skip
        profile = SimpleNamespace(gpus=gpus, slice="gpu" if gpus else "cpu", linger=False, env={})
        made = {
            "invocation": invocation, "profile": profile, "program": str(self.program), "nested": False,
            "missing": SimpleNamespace(gpus=gpus), "environ": self.environ, "visible_gpus": lambda them: them,
        }  # fmt: skip
        return SimpleNamespace(**{**made, **changes})

    def found(self, *words: str, manager: str = "system", name: str = "systemd", **changes: Any) -> Any:
        backend: Any = SimpleNamespace(manager=manager, name=name)
        self.said: list[str] = []
        return found(self.plan(*words, **changes), backend, self.said.append)


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr(docker_client, "_kind", lambda _: "docker")
    return Client(tmp_path)


def test_the_daemon_of_the_command_line_is_asked(client: Client) -> None:  # U5
    made = client.found("-H", "unix:///s", "run", "box")
    assert made.words("gpu-x.slice", JOB, ("GPU-a",))[-3:] == (
        f"--label=slicer.job={JOB}", '--gpus="device=GPU-a"', "box"
    )  # fmt: skip
    assert client.asked == ["-H unix:///s info --format={{json .}}"]
    assert client.said == []


@pytest.mark.parametrize("words", [("ps",), ("compose", "ps"), ("create", "box")])
def test_a_command_that_starts_no_container_is_left_alone_and_asks_nobody(
    client: Client, words: tuple[str, ...]
) -> None:  # U5
    assert client.found(*words) is None
    assert client.found("run", "box", container=False) is None
    assert client.asked == []
    assert "outside of this job" in client.said[0]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"manager": "user"}, "the broker"),
        ({"name": "plain"}, "no slice of its own"),
        ({"name": "inner", "nested": True}, "no slice of its own"),
    ],
)
def test_a_job_with_gpus_is_refused_where_the_container_would_leave_it(
    client: Client, changes: dict[str, Any], why: str
) -> None:  # K2, U5
    with pytest.raises(RefusedError, match=why):
        client.found("run", "box", **changes)
    assert client.found("run", "box", gpus=0, **changes) is None
    assert "leaves this job" in client.said[0]


@pytest.mark.parametrize("info", [None, [], {}, {**INFO, "Name": "elsewhere"}, {"ServerErrors": ["no"]}])
def test_a_daemon_that_is_unknown_or_elsewhere_starts_nothing_with_gpus(
    client: Client, info: object
) -> None:  # K2, U5
    client.answers(info)
    with pytest.raises(RefusedError, match="outside of the job"):
        client.found("run", "box")


def test_compose_is_refused_with_gpus_until_the_job_has_a_slice_for_it(client: Client) -> None:  # K2, U5
    with pytest.raises(RefusedError, match="--docker"):
        client.found("compose", "-f", "a.yaml", "up")
    assert client.asked == []
    assert client.found("compose", "up", gpus=0) is None
    assert client.found("compose", "up", container=False) is None
    made = client.found("compose", "up", docker=True)
    assert made.words("gpu-x.slice", JOB, ("GPU-a",)) == ("docker", "compose", "up")
    assert made.added("gpu-x.slice", JOB, ("GPU-a",)) == ("SLICER_SLICE=gpu-x.slice",)


@pytest.mark.parametrize("changes", [{"manager": "user"}, {"name": "plain"}, {"gpus": 0}])
def test_a_slice_that_was_asked_for_is_there_or_nothing_starts(
    client: Client, changes: dict[str, Any]
) -> None:  # K2, U5
    script = {"command": ("./script",), "program": "/script", "docker": True}
    client.environ["PATH"] = f"{client.program.parent}:/usr/bin:/bin"
    assert client.found(**script).program == str(client.program)
    with pytest.raises(RefusedError, match="outside of the job"):
        client.found(**script, **changes)


def test_the_end_removes_what_may_be_started_by_the_jobs_label_and_slice(client: Client) -> None:  # K2, U5
    made = client.found("--context", "c", "run", "box")
    made.end(JOB, "/gpu.slice/gpu-x.slice", client.environ)
    labelled, inspected, removed = client.asked[1:]
    assert labelled.startswith(f"--context c ps --quiet --filter=label=slicer.job={JOB} --filter=status=")
    assert "exited" not in labelled
    assert '"gpu-x.slice"' in inspected
    assert inspected.endswith("one two")
    assert removed == "--context c rm --force two"  # the other one's label is forged


def test_the_end_removes_what_runs_in_the_slice(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # K2, U5
    monkeypatch.setattr(docker_client, "path_of", lambda _: str(tmp_path))
    for name in ("docker-ab12.scope", "slicer-x.scope", "memory.max"):
        (tmp_path / name).mkdir()
    made = client.found("compose", "up", docker=True)
    made.end(JOB, "/gpu.slice/gpu-x.slice", client.environ)
    assert client.asked[1:] == ["rm --force ab12"]


def test_a_client_that_cannot_be_run_hides_no_end(client: Client) -> None:  # K2
    made = client.found("run", "box")
    assert isinstance(made, Docker)
    client.program.unlink()
    made.end(JOB, "/gpu.slice/gpu-x.slice", client.environ)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\x7fELF and so on", "docker"),
        (b'#!/bin/sh\nexec /usr/bin/podman "$@"\n', "podman"),
        (b'#!/bin/bash -e\nexec -a "$0" "/nix/store/a/libexec/docker/docker" "$@"\n', "docker"),
        (b"#!/bin/sh\necho mine\n", ""),
        (b"", ""),
    ],
)
def test_podmans_stand_in_and_a_users_script_are_not_docker(
    tmp_path: Path, content: bytes, kind: str
) -> None:  # U5
    path = tmp_path / "docker"
    path.write_bytes(content)
    is_wrapper = content.startswith(b"#!")
    assert docker_client._kind(str(path)) == ("" if is_wrapper and os.geteuid() else kind)  # root's alone
    assert docker_client._kind(str(tmp_path / "none")) == ""
    os.mkfifo(tmp_path / "fifo", 0o755)
    assert docker_client._kind(str(tmp_path / "fifo")) == ""  # and nobody is waited for
