"""Which processes that left a job's scope are still the job's."""

from __future__ import annotations

import pytest

from slicer.backend.scopes import is_of_another

OWN = "slicer-aaaaaaaaaaaa.scope"
USERS = "/user.slice/user-1000.slice/user@1000.service"
MINE, SYSTEMS = f"{USERS}/gpu.slice/{OWN}", f"/gpu.slice/{OWN}"


# K2, U5
@pytest.mark.parametrize(
    ("there", "is_mine", "is_systems"),
    [
        (f"{USERS}/app.slice/run-r1.scope", True, True),
        (f"{USERS}/gpu.slice/slicer-bbbbbbbbbbbb.scope", False, True),
        ("/gpu.slice/slicer-bbbbbbbbbbbb.scope", False, False),
        (f"{USERS}/user.slice/podman-pause-1a2b3c4d.scope", False, True),
        (f"{USERS}/user.slice/rootless-netns-1a2b3c4d.scope", False, True),
        (f"{USERS}/user.slice/podman-4242.scope", True, True),
        ("", True, True),
    ],
)
def test_who_left_the_scope_is_still_of_the_job(there: str, is_mine: bool, is_systems: bool) -> None:
    assert is_of_another(there, MINE) is not is_mine
    assert is_of_another(there, SYSTEMS) is not is_systems
