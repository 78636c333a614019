"""The rings of a test session, side by side, and where each test's results come from."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Literal

import pytest

from tests.machines.host import MachineError, Unavailable
from tests.machines.ring import HOST, Ring, Target
from tests.machines.settings import DEFAULT_SUITE, ci

# How many machines of a kind a suite's tests are parted among, where there are enough of them.
MOST_MACHINES = {HOST: 1, "namespace": 2, "qemu": 1}
WORTH_A_MACHINE_S = 60.0
# What a test takes, on average; the first that fits a file's name.
COST_S = {
    "tests/systemd/test_package_wheel": 14.0, "tests/systemd/test_package_debian": 7.0,
    "tests/systemd/test_bench": 9.0, "tests/systemd/test_broker_off": 9.0, "tests/systemd/test_serve.": 9.0,
    "tests/systemd/test_doctor_": 4.0, "tests/systemd/": 1.0, "tests/process/": 0.3,
}  # fmt: skip
PURE_COST_S = 0.02


class MachineItem(pytest.Item):
    """A test that runs elsewhere: `inner_id` is its node id there."""

    def __init__(self, *, original: pytest.Item, target: Target, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.own_markers = [*original.own_markers, pytest.mark.machine.mark]
        self.inner_id = original.nodeid
        self.target = target
        self._reportinfo = original.reportinfo()

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        path, line, _ = self._reportinfo
        return path, line, self.name

    def runtest(self) -> None:
        raise NotImplementedError("pytest_runtest_protocol below does it")


class Rings:
    """The session's rings, side by side; but emulated machines one after another, the longest first."""

    def __init__(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        self._config = config
        self._workers = config.option.workers
        options = [f"--tb={config.option.tbstyle}", *["-v"] * max(0, config.option.verbose)]
        options += ["--showlocals"] if config.option.showlocals else []
        wanted: dict[Target, list[str]] = {}
        for item in items:
            if (target := self._target(item)) is not None:
                wanted.setdefault(target, []).append(inner_id(item))
        self._rings: list[Ring] = []
        self._ring_of: dict[tuple[Target, str], Ring] = {}
        for target, node_ids in wanted.items():
            for share in shares(node_ids, MOST_MACHINES[target.kind]):
                ring = Ring(target, share, options, self._workers if target.kind == HOST else 0)
                self._rings.append(ring)
                self._ring_of.update({(target, node_id): ring for node_id in share})
        self._threads: list[threading.Thread] = []

    def _target(self, item: pytest.Item) -> Target | None:
        if isinstance(item, MachineItem):
            return item.target
        return Target(HOST, DEFAULT_SUITE) if self._workers else None

    def ring(self, item: pytest.Item) -> Ring | None:
        """Where the item runs; None: in this process."""
        target = self._target(item)
        return None if target is None else self._ring_of[target, inner_id(item)]

    def start(self) -> None:
        emulated = [ring for ring in self._rings if ring.target.kind == "qemu"]
        others = [[ring] for ring in self._rings if ring.target.kind != "qemu"]
        for rings in [emulated, *others]:
            self._threads.append(threading.Thread(target=run_all, args=(rings,), daemon=True))
            self._threads[-1].start()

    def reports(self, item: pytest.Item, ring: Ring) -> list[pytest.TestReport]:
        """The item's reports, waited for; a missing machine skips it, or fails it in CI."""
        try:
            serialised = ring.reports(inner_id(item))
        except Unavailable as reason:
            return (
                failure(item, f"{reason} (CI=true, so this is no skip)")
                if ci()
                else [skip(item, str(reason))]
            )
        except MachineError as error:
            return failure(item, str(error))
        return [self._adopt(item, ring.target, data) for data in serialised]

    def end(self) -> None:
        for ring in self._rings:
            if not ring.ends_itself():
                ring.abort("the test session ended")
        for thread in self._threads:
            # One that builds an image goes on until this process ends, and the build ends with it. So it is
            # with workers that do not come to their end.
            thread.join(10.0)

    def times(self) -> list[str]:
        return [f"{ring.target}: {ring.times()}" for ring in self._rings]

    def _adopt(self, item: pytest.Item, target: Target, data: dict[str, object]) -> pytest.TestReport:
        report = self._config.hook.pytest_report_from_serializable(config=self._config, data=data)
        assert isinstance(report, pytest.TestReport)
        if isinstance(report.longrepr, list):  # a skip's (path, line, reason), which JSON made a list
            path, line, reason = report.longrepr
            if target.kind != HOST:
                path = path.replace("/src", str(self._config.rootpath), 1)
            report.longrepr = (path, line, reason)
        report.nodeid = item.nodeid
        report.location = item.location
        report.user_properties.append(("machine", str(target)))
        return report


def inner_id(item: pytest.Item) -> str:
    """The item's node id in the pytest that runs it."""
    return item.inner_id if isinstance(item, MachineItem) else item.nodeid


def shares(node_ids: Sequence[str], most: int) -> list[list[str]]:
    """The tests for each of at most ``most`` machines: whole files, and about as much work for each."""
    files: dict[str, list[str]] = {}
    for node_id in node_ids:
        files.setdefault(node_id.partition("::")[0], []).append(node_id)
    costs = {file: cost_s(file) * len(ids) for file, ids in files.items()}
    count = min(most, 1 + int(sum(costs.values()) / WORTH_A_MACHINE_S))
    loads_s = [0.0] * count
    machines: dict[str, int] = {}
    for file in sorted(files, key=costs.__getitem__, reverse=True):
        machines[file] = loads_s.index(min(loads_s))
        loads_s[machines[file]] += costs[file]
    return [
        [node_id for file, ids in files.items() if machines[file] == machine for node_id in ids]
        for machine in range(count)
    ]


def cost_s(file: str) -> float:
    """About what each test of this file takes."""
    return next((cost for folder, cost in COST_S.items() if file.startswith(folder)), PURE_COST_S)


def run_all(rings: list[Ring]) -> None:
    for ring in rings:
        ring.run()


def failure(item: pytest.Item, text: str) -> list[pytest.TestReport]:
    keywords: Mapping[str, Literal[1]] = {item.name: 1}
    return [
        pytest.TestReport(item.nodeid, item.location, keywords, "failed", text, "call"),
        pytest.TestReport(item.nodeid, item.location, keywords, "passed", None, "teardown"),
    ]


def skip(item: pytest.Item, reason: str) -> pytest.TestReport:
    path, line, _ = item.reportinfo()
    longrepr = (str(path), line or 0, f"Skipped: {reason}")
    return pytest.TestReport(item.nodeid, item.location, {item.name: 1}, "skipped", longrepr, "setup")
