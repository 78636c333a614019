"""How many attempts may begin at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from slicer.queue.engine.local.limits import Limits
from tests.unit import made_up


# Q15: a time limit counts from the scope's start, so only the scopes of jobs without one may be early
@pytest.mark.parametrize(
    ("timeout_s", "running", "early", "may"),
    [
        (None, 2, 0, True),
        (None, 2, 7, True),
        (None, 2, 8, False),
        (5.0, 2, 0, False),
        (5.0, 1, 0, True),
        (5.0, 1, 1, False),  # it goes behind those that are ready
    ],
)
def test_a_scope_with_a_time_limit_is_started_when_it_is_the_jobs_turn(
    timeout_s: float | None, running: int, early: int, may: bool
) -> None:
    limits = Limits(SimpleNamespace(), SimpleNamespace(), None, 2)
    begun: Any = [SimpleNamespace(may_be_early=True, is_unbound=True, has_word=False)] * early
    living: Any = [SimpleNamespace(is_unbound=True)] * running
    plan: Any = SimpleNamespace(missing=made_up.profile(), profile=SimpleNamespace(timeout_s=timeout_s))
    assert limits.may_add(plan, begun, living) is may
