"""Which keepers a scope may have."""

from __future__ import annotations

import pytest

from slicer.broker.server import scoping
from slicer.broker.server.lease_files import Claim
from slicer.broker.server.leases import Holding
from slicer.broker.server.requests import Refusal
from slicer.record import replace
from tests.unit import made_up


def test_a_keeper_on_its_way_into_another_jobs_scope_is_refused() -> None:  # K2, X1
    lease = replace(made_up.lease("a" * 12), keeper=7)
    holding = Holding(lease, Claim(lease.job, "", "scope", 0, 0.0, (), (), "gpu", 1.0, 0))
    register = type("Register", (), {"holdings": {lease.job: holding}})()
    scoping.check_keeper_free(register, (9,), "b" * 12, 7)
    holding.is_starting = True
    scoping.check_keeper_free(register, (9,), lease.job, 7)
    scoping.check_keeper_free(register, (9,), "b" * 12, 8)
    for pid in (7, 9):
        with pytest.raises(Refusal, match="on its way"):
            scoping.check_keeper_free(register, (9,), "b" * 12, pid)
