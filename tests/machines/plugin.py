"""The pytest plugin: marked tests run inside test machines, and their results appear as if they had run here.

`systemd` runs in the namespace machine, `enforced` in the QEMU machine, both on Debian 13; those marked
`core` as well also on the other suites of $SLICER_TEST_SUITES (comma-separated; default trixie, with CI=true
also bookworm). With both marks they run in the QEMU machine, which is slow, with CI=true only, and there on
Debian 13 alone. What is marked `with_ci` is skipped without CI=true: it tells little that no other does. With
--both-pythons, the tests marked `both_pythons` run once more, in a namespace machine that has another Python.
What runs in a machine is marked `machine`, so `-m machine` leaves this host's own tests out. Inside a machine
the marks mean nothing: the tests run.

The namespace machines, two for each suite, run side by side, the QEMU machines one after another, and this
host's own tests beside them all, with --workers N in N processes: most tests wait for something, and an
emulated machine needs one CPU for itself.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import pytest

from tests.machines import inner, recipe, second_try
from tests.machines.ring import Target
from tests.machines.rings import MachineItem, Rings
from tests.machines.settings import DEFAULT_SUITE, ci, wanted_suites

IN_MACHINE = "SLICER_TEST_MACHINE" in os.environ
TEST_LIMIT_S = {"host": 300, "namespace": 300, "qemu": 600}
KIND_BY_MARK = {"systemd": "namespace", "enforced": "qemu"}

_RINGS = pytest.StashKey["Rings"]()
_SUITES = pytest.StashKey[list[str]]()


@dataclass(frozen=True)
class Variant:
    """One of the places where a test runs; the suffix tells it from the others in its name."""

    suffix: str
    target: Target | None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--both-pythons",
        action="store_true",
        help="run those marked so also on the other Python (3.13 or 3.11)",
    )
    parser.addoption(
        "--workers", type=int, default=0, metavar="N", help="run this host's own tests in N processes"
    )


def pytest_configure(config: pytest.Config) -> None:
    try:
        config.stash[_SUITES] = wanted_suites()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    config.pluginmanager.register(Skips())
    config.pluginmanager.register(second_try.SecondTry())
    if hasattr(config, "workerinput"):
        return
    if "SLICER_TEST_REPORTS" in os.environ:
        config.pluginmanager.register(inner.Reporter(config))
    else:
        config.pluginmanager.register(second_try.Unsteady())


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector: pytest.Collector) -> Generator[None, object, object]:
    made = yield
    if IN_MACHINE or made is None:
        return made
    nodes = made if isinstance(made, list) else [made]
    return [placed for node in nodes for placed in place(collector, node)]


def place(collector: pytest.Collector, node: object) -> Iterator[object]:
    """The items that stand for a collected test, one for each place it runs in."""
    if not isinstance(node, pytest.Item):
        yield node
        return
    for variant in variants(node):
        if variant.target is None:
            yield node
        else:
            name = suffixed(node.name, variant.suffix)
            yield MachineItem.from_parent(collector, name=name, original=node, target=variant.target)


def variants(item: pytest.Item) -> list[Variant]:
    marks = {mark.name for mark in item.iter_markers()}
    kinds = [kind for mark, kind in KIND_BY_MARK.items() if mark in marks]
    kinds = kinds if ci() else kinds[:1]
    if not kinds:
        return [Variant("", None), *other_python(item, marks)]
    suites = item.config.stash[_SUITES]
    return [
        Variant(suffix(kind, suite, kinds), Target(kind, suite))
        for kind in kinds
        for suite in suites
        if suite == DEFAULT_SUITE or ("core" in marks and kind == kinds[0])
    ]


def suffix(kind: str, suite: str, kinds: list[str]) -> str:
    """What tells this variant's name from the others'; nothing for the first kind on the default suite."""
    parts = [kind] if kind != kinds[0] else []
    parts += [suite] if suite != DEFAULT_SUITE else []
    return "-".join(parts)


def other_python(item: pytest.Item, marks: set[str]) -> list[Variant]:
    """Where it runs again. Whole jobs run on both Pythons anyway, in the machines of the two suites."""
    if not item.config.getoption("both_pythons") or "both_pythons" not in marks:
        return []
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    suite = next(suite for suite in recipe.SUITES.values() if suite.python != here)
    return [Variant(f"py{suite.python}", Target("namespace", suite.name))]


def suffixed(name: str, suffix: str) -> str:
    """The name with one more parameter, as pytest writes them."""
    if not suffix:
        return name
    return f"{name[:-1]}-{suffix}]" if name.endswith("]") else f"{name}[{suffix}]"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if IN_MACHINE:
        return
    for item in items:
        if not isinstance(item, MachineItem) and any(
            mark.name in KIND_BY_MARK for mark in item.iter_markers()
        ):
            raise pytest.UsageError(
                f"{item.nodeid} would run on this host: write it as a function or a plain class"
            )
    items.sort(key=rank)


def rank(item: pytest.Item) -> int:
    """The ring's place in the order: this host, namespace machines, QEMU machines; the longest ring first."""
    if not isinstance(item, MachineItem):
        return 0
    return 1 + 2 * (item.target.kind == "qemu") + (item.target.suite != DEFAULT_SUITE)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    if not session.config.option.collectonly and not session.testsfailed:
        rings = Rings(session.config, session.items)
        session.config.stash[_RINGS] = rings
        rings.start()


def pytest_sessionfinish(session: pytest.Session) -> None:
    rings = session.config.stash.get(_RINGS, None)
    if rings is not None:
        rings.end()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rings = config.stash.get(_RINGS, None)
    if rings is not None and (times := rings.times()):
        terminalreporter.section("machines")
        for line in times:
            terminalreporter.write_line(line)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("with_ci") is not None and not ci():
        pytest.skip("with CI=true only")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that hangs, and go on; where even this fails, the ring's limits end the run."""
    limit_s = TEST_LIMIT_S[os.environ.get("SLICER_TEST_MACHINE", "host")]

    def expire(*_: object) -> None:
        pytest.fail(f"not done after {limit_s} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    rings = item.config.stash.get(_RINGS, None)
    if rings is None or (ring := rings.ring(item)) is None:
        return None
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in rings.reports(item, ring):
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


class Skips:
    """One line a reason in the summary, where pytest has one for each place that skips a test."""

    def __init__(self) -> None:
        self._where: dict[str, object] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            report.longrepr = self._where.setdefault(report.longrepr[2], report.longrepr)  # type: ignore[assignment]
