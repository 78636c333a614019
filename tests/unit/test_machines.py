"""The frame that runs tests in machines, without a machine."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.machines import ring as ring_module
from tests.machines import saved
from tests.machines.host import MachineError, Unavailable
from tests.machines.image import Image
from tests.machines.inner import RECORD_START
from tests.machines.machine import Command, Result
from tests.machines.plugin import Skips, suffixed
from tests.machines.recipe import SUITES
from tests.machines.ring import RecordParser, Ring, Target
from tests.machines.rings import shares
from tests.machines.second_try import MOST, SecondTry, Unsteady
from tests.process import harness

pytest_plugins = ["pytester"]


def record(**content: object) -> bytes:
    return f"{RECORD_START}{json.dumps(content)}\n".encode()


class FakeMachine:
    """Prints what it is told to, then ends as it is told to."""

    kind = "namespace"
    suite = SUITES["trixie"]

    def __init__(self, output: bytes, end: int | Exception) -> None:
        self._output = output
        self._end = end

    def __enter__(self) -> FakeMachine:
        if isinstance(self._end, Unavailable):
            raise self._end
        return self

    def __exit__(self, *exc: object) -> None: ...

    def execute(
        self, command: Command, *, timeout_s: float, on_output: Callable[[bytes], None] | None = None
    ) -> Result:
        assert on_output is not None
        on_output(self._output)
        if isinstance(self._end, Exception):
            raise self._end
        return Result(command.argv, self._end, "", "")

    def shell(self) -> int:
        raise NotImplementedError

    def diagnosis(self) -> str:
        return ""


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes, int | Exception], Ring]:
    """A ring that has run in a machine with this output and end."""

    def make(output: bytes, end: int | Exception) -> Ring:
        monkeypatch.setattr(ring_module.Target, "machine", lambda self: FakeMachine(output, end))
        made = Ring(Target("namespace", "trixie"), ["a", "b"], [])
        made.run()
        return made

    return make


STARTED_A = record(started="a") + record(report={"nodeid": "a", "outcome": "failed"})
FINISHED_A = STARTED_A + record(finished="a")


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_records_are_found_in_output_however_it_is_cut(size: int) -> None:
    records: list[dict[str, Any]] = []
    parser = RecordParser(records.append)
    stream = b"t.py ." + record(n=1) + b".\n" + record(n=2) + record(text="a\nb\x1e") + b"end"
    for start in range(0, len(stream), size):
        parser.feed(stream[start : start + size])
    assert records == [{"n": 1}, {"n": 2}, {"text": "a\nb\x1e"}]
    assert parser.text() == "t.py ..\nend"


def test_a_record_cut_by_a_crash_does_not_count() -> None:
    records: list[dict[str, Any]] = []
    RecordParser(records.append).feed(
        record(n=1) + RECORD_START.encode() + b'{"finished": "b\nSegmentation fault\n'
    )
    assert records == [{"n": 1}]


def test_a_finished_test_keeps_its_result_when_the_run_dies_later(ring: Callable[..., Ring]) -> None:
    assert ring(FINISHED_A, MachineError("it died")).reports("a") == [{"nodeid": "a", "outcome": "failed"}]


def test_a_test_that_took_the_run_with_it_fails_with_the_output(ring: Callable[..., Ring]) -> None:
    with pytest.raises(MachineError, match=r"ended with -9\n(.|\n)*last words"):
        ring(STARTED_A + b"last words", -9).reports("a")


def test_a_test_after_a_crash_fails_and_names_the_culprit(ring: Callable[..., Ring]) -> None:
    with pytest.raises(MachineError, match="ended with -9, while a ran"):
        ring(STARTED_A, -9).reports("b")


def test_a_test_after_a_crash_of_several_workers_names_them_all(ring: Callable[..., Ring]) -> None:
    with pytest.raises(MachineError, match="ended with -9, while a, c ran"):
        ring(STARTED_A + record(started="c"), -9).reports("b")


def test_machines_share_whole_files_and_about_the_same_work() -> None:
    sizes = {"tests/systemd/test_a.py": 50, "tests/systemd/test_b.py": 40, "tests/systemd/test_c.py": 30}
    node_ids = [f"{file}::test_{n}" for file, size in sizes.items() for n in range(size)]
    first, second = shares(node_ids, 2)
    assert first == node_ids[:50]
    assert second == node_ids[50:]


def test_a_second_machine_is_not_started_for_a_few_tests() -> None:
    node_ids = ["tests/systemd/test_a.py::test_1", "tests/systemd/test_b.py::test_1"]
    assert shares(node_ids, 2) == [node_ids]


def test_a_test_that_pytest_left_out_fails_although_all_went_well(ring: Callable[..., Ring]) -> None:
    with pytest.raises(MachineError, match="ended with 0"):
        ring(FINISHED_A, 0).reports("b")


def test_a_machine_that_cannot_be_had_is_told_apart(ring: Callable[..., Ring]) -> None:
    with pytest.raises(Unavailable, match="no trixie namespace machine: no root"):
        ring(b"", Unavailable("no root")).reports("a")


def test_a_bug_in_the_frame_fails_the_test(ring: Callable[..., Ring]) -> None:
    with pytest.raises(MachineError, match="KeyError"):
        ring(b"", KeyError("oops")).reports("a")


@pytest.mark.parametrize(
    ("name", "suffix", "expected"),
    [("t", "", "t"), ("t", "bookworm", "t[bookworm]"), ("t[1]", "py3.13", "t[1-py3.13]")],
)
def test_a_variants_name_has_one_parameter_more(name: str, suffix: str, expected: str) -> None:
    assert suffixed(name, suffix) == expected


def test_a_reason_to_skip_is_told_once() -> None:  # W34
    skips = Skips()
    why = [("x.py", 1, "Skipped: no root"), ("x.py", 2, "Skipped: no root"), ("y.py", 3, "Skipped: no GPU")]
    reports = [pytest.TestReport("test", ("x.py", 0, ""), {}, "skipped", each, "setup") for each in why]
    for report in reports:
        skips.pytest_runtest_logreport(report)
    assert len({report.longrepr for report in reports}) == 2  # pytest has a line for each of these


def test_an_assertion_of_the_harness_shows_its_values() -> None:  # W34
    assert type(harness.__loader__).__name__ == "AssertionRewritingHook"


# -- the saved machine ---------------------------------------------------------------------------------------


@pytest.fixture
def no_qemu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "qemu", lambda: "true")


@pytest.mark.usefixtures("no_qemu")
def test_a_machine_is_saved_once_and_older_ones_are_dropped(tmp_path: Path) -> None:
    image = Image(SUITES["trixie"], tmp_path)
    for older in ("unused", "used"):
        (tmp_path / f"state-{older}").mkdir()
    drafts: list[Path] = []

    def make(draft: Path) -> None:
        drafts.append(draft)
        (draft / saved.MEMORY).touch()

    (tmp_path / "state-unused.lock").touch()
    with (tmp_path / "state-used.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        for _ in range(2):
            with saved.use(image, make) as state:
                assert (state / saved.MEMORY).exists()
    assert len(drafts) == 1
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"state-used", state.name}


@pytest.mark.usefixtures("no_qemu")
def test_a_machine_that_could_not_be_saved_leaves_nothing(tmp_path: Path) -> None:
    def make(draft: Path) -> None:
        (draft / saved.MEMORY).touch()
        raise MachineError("no space left")

    with pytest.raises(MachineError), saved.use(Image(SUITES["trixie"], tmp_path), make):
        pass
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


# -- the second try ------------------------------------------------------------------------------------------

RACES = """
import pytest
tries = []

@pytest.fixture
def made():
    tries.append("made")
    yield
    tries.append("unmade")

def test_fails_once(made):
    assert len(tries) == 3, f"only {tries}"

def test_fails_twice():
    assert False

def test_passes():
    assert tries == ["made", "unmade", "made", "unmade"]
"""


FAILS_ONCE = "tries = []\ndef {name}():\n    tries.append(1)\n    assert len(tries) > 1\n"


def test_a_failed_test_is_tried_again_with_fixtures_of_its_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(RACES)
    done = pytester.runpytest_inprocess(plugins=[SecondTry(), Unsteady()])
    done.assert_outcomes(passed=2, failed=1)
    done.stdout.fnmatch_lines(["*unsteady: *", "*:test_fails_once _*", "*AssertionError: only *made*"])
    done.stdout.no_fnmatch_line("*:test_fails_twice __*")


def test_many_unsteady_tests_fail_the_run(pytester: pytest.Pytester) -> None:
    names = [f"test_{n}" for n in range(MOST + 2)]
    pytester.makepyfile(**{name: FAILS_ONCE.format(name=name) for name in names})
    done = pytester.runpytest_inprocess(plugins=[SecondTry(), Unsteady()])
    done.assert_outcomes(passed=MOST, failed=2)


def test_pure_tests_have_one_try(pytester: pytest.Pytester) -> None:
    folder = pytester.mkpydir("tests") / "unit"
    folder.mkdir()
    (folder / "test_a.py").write_text(FAILS_ONCE.format(name="test_a"))
    pytester.runpytest_inprocess(plugins=[SecondTry(), Unsteady()]).assert_outcomes(failed=1)
