"""Whether a caller is a system service, by its cgroup."""

from __future__ import annotations

import pytest

from slicer.broker.rules.services import service_of


@pytest.mark.parametrize(
    ("cgroup", "service"),
    [
        ("/system.slice/runner.service", "runner.service"),
        ("/system.slice/system-runner.slice/runner@7.service/payload", "runner@7.service"),
        ("/user.slice/user-1001.slice/own.service", "own.service"),  # the administrator put it there
        ("/user.slice/user-1001.slice/session-3.scope", ""),
        ("/user.slice/user-1001.slice/user@1001.service/app.slice/tmux.service", ""),
        ("/gpu.slice/gpu-1001.slice/slicer-0123456789ab.scope", ""),
        ("/system.slice/cron.service", ""),
        ("/machine/system.slice/atd.service", ""),
        ("/", ""),
        ("", ""),
    ],
)
def test_a_system_service_is_told_from_all_else(cgroup: str, service: str) -> None:  # S20
    assert service_of(cgroup) == service
