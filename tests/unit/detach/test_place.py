"""Where a detached job runs, and what a logout does to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from slicer.detach import service

if TYPE_CHECKING:
    from slicer.detach.service import Place


@pytest.mark.parametrize(
    ("uid", "has_systemd", "reaches", "lingers", "stays", "place"),
    [
        (0, True, True, False, False, "system"),
        (0, False, False, False, False, "process"),
        (1000, True, True, True, True, "user"),
        (1000, True, True, False, True, "process"),
        (1000, True, True, False, False, "user"),
        (1000, True, False, True, False, "process"),
        (1000, False, False, False, False, "process"),
    ],
)
def test_it_is_where_it_lasts_longest(
    uid: int, has_systemd: bool, reaches: bool, lingers: bool, stays: bool, place: str
) -> None:  # U1
    found = service.place_of(
        uid, has_systemd=has_systemd, reaches_manager=reaches, lingers=lingers, stays=stays
    )
    assert found == place


SESSION = "/user.slice/user-1000.slice/session-3.scope"
HUB = "/system.slice/jupyter-bob.service/sub"


@pytest.mark.parametrize(
    ("place", "cgroup", "lingers", "is_inside", "kills", "says"),
    [
        ("system", HUB, False, False, True, ""),
        ("user", SESSION, True, True, True, ""),
        ("user", HUB, False, False, False, "your last logout would end it"),
        ("process", SESSION, False, False, False, ""),  # it keeps the session, and that the user's manager
        ("process", SESSION, False, False, True, "KillUserProcesses=yes"),
        ("process", SESSION, False, True, False, "the job around it"),
        ("process", HUB, False, False, False, "it ends with jupyter-bob.service"),
        ("process", "", False, False, True, ""),
    ],
)
def test_what_would_end_it_early_is_said(
    place: Place, cgroup: str, lingers: bool, is_inside: bool, kills: bool, says: str
) -> None:  # U1
    said = service.ends_early(
        "bob", place, cgroup, lingers=lingers, is_inside=is_inside, kills_processes=kills
    )
    assert says in said
    assert bool(said) is bool(says)
    assert ("enable-linger bob" in said) is (bool(says) and not is_inside)


def test_its_service_is_stopped_by_one_signal_and_never_started_again() -> None:  # U1
    told = {name: value for name, _, value in service.job_properties(stdin=5)}
    assert told["KillMode"] == "process"
    assert "Restart" not in told
    assert service.job_unit("0123456789ab") == "slicer-run-0123456789ab.service"
