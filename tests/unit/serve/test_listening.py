"""The sockets of a proxy: closed to others, given by systemd, or refused because they are taken."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from slicer.errors import UsageError
from slicer.serve import listening

pytestmark = pytest.mark.both_pythons


def _opened(address: str) -> socket.socket:
    return listening.open_all([address], {})[address]


def test_a_unix_socket_is_its_owners_alone_and_goes_at_the_end(tmp_path: Path) -> None:  # B6
    address = f"unix:{tmp_path}/s"
    before = os.umask(0)
    try:
        with _opened(address) as made:
            assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(f"{tmp_path}/s")
            listening.remove({address: made}, {})
    finally:
        os.umask(before)
    assert not (tmp_path / "s").exists()


def test_what_a_killed_proxy_left_is_replaced_and_what_lives_is_not(tmp_path: Path) -> None:  # B6
    address = f"unix:{tmp_path}/s"
    _opened(address).close()  # its file stays
    with _opened(address), pytest.raises(UsageError, match="cannot listen: Address already in use"):
        _opened(address)


@pytest.mark.parametrize("other", ["file", "link"])
def test_nothing_else_is_removed(tmp_path: Path, other: str) -> None:  # B6
    (tmp_path / "mine").write_text("x")
    if other == "link":
        _opened(f"unix:{tmp_path}/abandoned").close()
        (tmp_path / "s").symlink_to(tmp_path / "abandoned")
    else:
        (tmp_path / "s").write_text("x")
    with pytest.raises(UsageError, match="cannot listen"):
        _opened(f"unix:{tmp_path}/s")
    assert (tmp_path / "s").exists()


def test_a_port_that_is_taken_is_said() -> None:  # B6
    with _opened("127.0.0.1:0") as made:
        port = made.getsockname()[1]
        with pytest.raises(UsageError, match="in use") as raised:
            _opened(f"127.0.0.1:{port}")
        assert raised.value.where == f"127.0.0.1:{port}"


SYSTEMD = """
import os, socket, sys
from slicer.serve import listening
with socket.socket(fileno=os.dup(3)) as first:
    port = first.getsockname()[1]
environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2"}
assert listening.handed({**environ, "LISTEN_PID": "1"}) == []
found = listening.open_all([f"127.0.0.1:{port}", "unix:" + sys.argv[1], "127.0.0.1:0"], environ)
print([each.fileno() for each in found.values()][:2], os.get_inheritable(3))
listening.remove(found, environ)
"""


def test_systemds_sockets_are_found_by_their_address(tmp_path: Path) -> None:  # B6
    """In a process of its own, which has them from 3 on."""
    path = tmp_path / "s"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(path))
        unix.listen()
        fds = (tcp.fileno(), unix.fileno())
        shift = f'exec 3<&{fds[0]} 4<&{fds[1]}; exec "$@"'
        found = subprocess.run(
            ["bash", "-c", shift, "sh", sys.executable, "-c", SYSTEMD, str(path)],
            pass_fds=fds, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert found.stdout == "[3, 4] False\n", found.stderr
        assert path.exists()  # systemd's own


def test_an_address_has_a_host_and_a_port() -> None:  # B6
    assert listening.split("[::1]:80") == ("::1", 80)
    assert listening.split("127.0.0.1:11434") == ("127.0.0.1", 11434)
    with pytest.raises(ValueError, match="invalid literal"):
        listening.split("localhost:x")
