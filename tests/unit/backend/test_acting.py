"""Which directives really act: what is claimed beyond that would be believed (X3)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slicer.backend import scopes
from slicer.backend.plain import PlainBackend, niceness
from slicer.model import Property, ScopeSpec

ALL = frozenset({"cpu", "cpuset", "io", "memory", "pids"})
WEIGHTS = ("IOWeight", "IODeviceWeight")
OOMD = ("ManagedOOMSwap", "ManagedOOMMemoryPressure", "ManagedOOMPreference")
ASKED = (*WEIGHTS, *OOMD, "IOReadBandwidthMax", "MemoryMax", "RuntimeMaxSec", "DevicePolicy")


# D11
@pytest.mark.parametrize("weighed", [True, False])
@pytest.mark.parametrize("oomd", [True, False])
def test_weights_and_oomd_need_somebody_who_heeds_them(weighed: bool, oomd: bool) -> None:
    found = scopes.acting(ASKED, ALL, "system", lambda: weighed, lambda: oomd, lambda: True)
    silent = (() if weighed else WEIGHTS) + (() if oomd else OOMD)
    assert found == set(ASKED) - set(silent)


def test_nothing_acts_without_its_controller() -> None:
    found = scopes.acting(ASKED, frozenset(), "user", lambda: True, lambda: True, lambda: True)
    assert found == {"RuntimeMaxSec"}


@pytest.mark.parametrize("filters", [True, False])
def test_device_rules_act_where_the_kernel_has_them(filters: bool) -> None:  # X1: systemd only logs it
    found = scopes.acting(("DevicePolicy",), ALL, "system", lambda: True, lambda: True, lambda: filters)
    assert ("DevicePolicy" in found) == filters


# D11
@pytest.mark.parametrize(
    ("scheduler", "qos", "expected"),
    [
        ("mq-deadline kyber [none] bfq\n", "", False),
        ("mq-deadline kyber none [bfq]\n", "", True),
        ("[none]\n", "8:0 enable=0 ctrl=auto\n", False),
        ("[none]\n", "8:0 enable=0 ctrl=auto\n8:16 enable=1 ctrl=user\n", True),
    ],
)
def test_weights_act_under_bfq_or_with_io_cost(
    tmp_path: Path, scheduler: str, qos: str, expected: bool
) -> None:
    for disk in ("loop0", "sda"):
        (tmp_path / disk / "queue").mkdir(parents=True)
    (tmp_path / "sda/queue/scheduler").write_text(scheduler)
    (tmp_path / "qos").write_text(qos)
    assert scopes.io_is_weighed(str(tmp_path), str(tmp_path / "qos")) is expected
    assert not scopes.io_is_weighed(str(tmp_path / "none"), str(tmp_path / "none"))


# D11
@pytest.mark.parametrize("may", [True, False])
@pytest.mark.parametrize("weight", [50, 100, 101, 1000])
def test_a_high_weight_without_systemd_is_for_those_who_may(
    monkeypatch: pytest.MonkeyPatch, may: bool, weight: int
) -> None:
    monkeypatch.setattr("slicer.kernel.proc.may_be_faster", lambda: may)
    given = Property("CPUWeight", "CPUWeight", "t", weight, str(weight))
    spec = ScopeSpec("x.scope", "cpu.slice", "", (given,), "user")
    done, missing = PlainBackend(os.geteuid()).enforced(spec, "")
    acts = may or niceness(weight) >= 0
    assert (done, missing) == ((("CPUWeight (by niceness)",), ()) if acts else ((), ("CPUWeight",)))
