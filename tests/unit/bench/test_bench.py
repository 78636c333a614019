"""The benchmark keeps up with what it measures. tests/systemd/test_bench.py runs what needs a machine."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import bench


def modules() -> list[str]:
    # The programs are for frameworks that are not here.
    found = pkgutil.walk_packages(bench.__path__, "bench.")
    return [module.name for module in found if not module.name.startswith("bench.gpu.programs")]


@pytest.mark.parametrize("name", [name for name in modules() if not name.endswith("__main__")])
def test_each_module_can_be_imported(name: str) -> None:  # Q23
    importlib.import_module(name)


def test_days_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:  # Q23
    packing = importlib.import_module("bench.packing")
    monkeypatch.setattr(packing, "JOBS", 120)
    monkeypatch.setattr(packing, "SEEDS", range(1, 2))
    found = packing.measure()
    assert found.keys() == set(packing.MIXES)
    assert packing.OURS["runs"] in packing.tables(found)
