"""Which keepers a scope may have."""

from __future__ import annotations

import pytest

from slicer.broker.server import keepers
from slicer.broker.server.book import Claim
from slicer.broker.server.refusal import Refusal
from slicer.broker.server.register import Holding
from slicer.record import replace
from tests.unit import made_up


def test_a_keeper_on_its_way_into_another_jobs_scope_is_refused() -> None:  # K2, X1
    lease = replace(made_up.lease("a" * 12), keeper=7)
    holding = Holding(lease, Claim(lease.job, "", "scope", 0, 0.0, (), (), "gpu", 1.0, 0))
    register = type("Register", (), {"holdings": {lease.job: holding}})()
    keepers.check_free(register, "b" * 12, 7)
    holding.is_starting = True
    keepers.check_free(register, lease.job, 7)
    keepers.check_free(register, "b" * 12, 8)
    with pytest.raises(Refusal, match="on its way"):
        keepers.check_free(register, "b" * 12, 7)
