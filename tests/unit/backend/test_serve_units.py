"""The units of `slicer install --serve`: what they say for which server."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from slicer.backend import serve_units
from slicer.backend.serve_units import Units
from slicer.backend.unit_files import install
from slicer.config.serve import Server
from slicer.errors import SlicerError
from slicer.record import replace
from tests.unit import made_up

OLLAMA = made_up.server("ollama", command=("ollama", "serve"))
RUNS = made_up.server("runs", listen=("127.0.0.1:8000",), upstream="http://127.0.0.1:8001")
PROGRAM = "/opt/slicer/bin/slicer"
# Of `systemd-analyze security`, as docs/serve.md has them.
EXPOSED = {"ollama": 3.9, "runs": 2.4}


def units(*servers: Server, is_user: bool = False, run_as: str = "") -> Units:
    return Units(servers[0].name, servers, PROGRAM, is_user, run_as)


def said(text: str, key: str) -> list[str]:
    return [line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{key}=")]


def test_the_socket_listens_where_the_configuration_says() -> None:  # B6
    server = replace(OLLAMA, listen=("localhost:11434", "[::1]:11434", "unix:/run/ollama.sock"))
    text = serve_units.socket_text(units(server))
    assert said(text, "ListenStream") == ["127.0.0.1:11434", "[::1]:11434", "/run/ollama.sock"]
    assert said(text, "SocketMode") == ["0600"]
    assert said(text, "BindIPv6Only") == ["ipv6-only"]
    assert said(text, "ConditionFileIsExecutable") == [PROGRAM]
    assert not said(text, "FreeBind")
    later = serve_units.socket_text(units(replace(OLLAMA, listen=("10.0.0.7:80",))))
    assert said(later, "FreeBind") == ["yes"]


def test_a_name_or_a_strange_path_is_refused() -> None:  # B6
    for listen in ("gpu.example:80", "unix:/run/a b"):
        with pytest.raises(SlicerError):
            serve_units.socket_text(units(replace(OLLAMA, listen=(listen,))))
    with pytest.raises(SlicerError, match="a unit cannot name this"):
        serve_units.actions(replace(units(OLLAMA), program="/home/a b/slicer"), "/x")


def test_servers_at_one_address_have_one_socket_and_one_service() -> None:  # B6
    other = replace(OLLAMA, name="other", drain_s=300.0)
    both = units(OLLAMA, other)
    assert said(serve_units.socket_text(both), "ListenStream") == ["127.0.0.1:11434"]
    assert said(serve_units.service_text(both), "ExecStart") == [f"{PROGRAM} serve ollama other"]


def test_systemd_waits_for_as_long_as_the_configuration_lets_it_take() -> None:  # B6
    slow = replace(OLLAMA, drain_s=300.0, release_timeout_s=60.0)
    assert said(serve_units.service_text(units(OLLAMA, slow)), "TimeoutStopSec") == ["380s"]


def test_it_belongs_to_the_user_who_is_named() -> None:  # B6
    server = replace(OLLAMA, listen=("unix:/run/ollama.sock",))
    of_user = units(server, run_as="ollama")
    assert said(serve_units.service_text(of_user), "User") == ["ollama"]
    assert said(serve_units.socket_text(of_user), "SocketUser") == ["ollama"]


def test_only_a_server_that_others_may_reach_gets_the_network() -> None:  # B6, S9
    assert said(serve_units.service_text(units(OLLAMA)), "IPAddressDeny") == ["any"]
    for other in (replace(OLLAMA, public=True), replace(RUNS, upstream="http://10.0.0.7:80")):
        assert not said(serve_units.service_text(units(other)), "IPAddressDeny")


def test_a_users_manager_gets_nothing_that_takes_a_namespace() -> None:  # B6
    text = serve_units.service_text(units(OLLAMA, is_user=True))
    assert "NoNewPrivileges=yes" in text
    # It would see all other users as nobody, and trust none of root's directories.
    assert not re.findall(r"^(?:Protect|Private|Capability|Device|IPAddress)\w*=", text, re.MULTILINE)


def test_containers_are_not_shut_in() -> None:  # B6
    text = serve_units.service_text(units(replace(OLLAMA, command=("/usr/bin/podman", "run", "x"))))
    assert "RestrictNamespaces" not in text
    assert "NoNewPrivileges" not in text
    assert said(text, "DevicePolicy") == ["closed"]


@pytest.mark.parametrize("server", [OLLAMA, RUNS], ids=lambda server: server.name)
def test_the_sandbox_is_as_tight_as_the_docs_say(server: Server, tmp_path: Path) -> None:  # S9
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    for action in serve_units.actions(units(server), str(tmp_path)):
        install(action, force=False)
    path = tmp_path / serve_units.service_of(server.name)
    command = (analyze, "security", "--offline=true", "--no-pager", str(path))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    if not found:
        pytest.skip(f"this systemd-analyze cannot: {done.stderr.strip()}")
    assert float(found[0]) <= EXPOSED[server.name]
    docs = (Path(__file__).parents[3] / "docs/serve.md").read_text()
    assert f"**{EXPOSED[server.name]}**" in docs


def test_what_is_installed_is_found_again(tmp_path: Path) -> None:  # K5
    of_user = units(OLLAMA, run_as="ann")
    for action in serve_units.actions(of_user, str(tmp_path)):
        install(action, force=False)
    (tmp_path / "slicer-serve-half.socket").touch()
    (tmp_path / "slicer-broker.socket").touch()
    assert serve_units.there(str(tmp_path)) == ("half", "ollama")
    assert serve_units.run_as_of(str(tmp_path), "ollama") == "ann"
    assert serve_units.program_of(str(tmp_path), "ollama") == PROGRAM
    assert serve_units.program_of(str(tmp_path), "half") == ""
    assert serve_units.there(str(tmp_path / "none")) == ()


def test_a_service_that_runs_is_stopped_before_its_socket_starts_anew() -> None:  # K5
    stop, start = serve_units.enable(units(OLLAMA, is_user=True), is_changed=True)
    both = ("slicer-serve-ollama.socket", "slicer-serve-ollama.service")
    assert stop == ("systemctl", "--user", "stop", *both)
    assert start == ("systemctl", "--user", "enable", "--now", "slicer-serve-ollama.socket")
    assert serve_units.enable(units(OLLAMA, is_user=True), is_changed=False) == (start,)


