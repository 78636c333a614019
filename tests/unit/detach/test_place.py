"""Where a detached job runs, and what a logout does to it."""

from __future__ import annotations

from itertools import product

import pytest

from slicer.detach import service


@pytest.mark.parametrize(
    ("uid", "has_systemd", "reaches", "lingers", "place"),
    [
        (0, True, True, False, "system"),
        (0, False, False, False, "process"),
        (1000, True, True, True, "user"),
        (1000, True, True, False, "process"),
        (1000, True, False, True, "process"),
        (1000, False, False, False, "process"),
    ],
)
def test_it_is_a_service_only_of_a_manager_that_outlives_the_session(
    uid: int, has_systemd: bool, reaches: bool, lingers: bool, place: str
) -> None:  # U1
    found = service.place_of(uid, has_systemd=has_systemd, reaches_manager=reaches, lingers=lingers)
    assert found == place


def test_what_a_logout_does_is_said_where_it_does_something() -> None:  # U1
    for own, kills, broker, inside in product((False, True), repeat=4):
        said = service.at_logout(
            "bob", in_own_manager=own, kills_processes=kills, has_broker=broker, is_inside=inside
        )
        assert bool(said) is (own or kills or inside)
        assert ("enable-linger bob" in said) is (not inside and (own or (kills and not broker)))


def test_its_service_is_stopped_by_one_signal_and_never_started_again() -> None:  # U1
    told = {name: value for name, _, value in service.job_properties(stdin=5)}
    assert told["KillMode"] == "process"
    assert "Restart" not in told
    assert service.job_unit("0123456789ab") == "slicer-run-0123456789ab.service"
