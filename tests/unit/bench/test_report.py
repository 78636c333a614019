"""``python -m bench.sharing``: table, JSON, files, and what it refuses before anything is started."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.sharing import command, measures, planning, report
from bench.sharing.model import ALONE, ALONE_LOCKED, UNMANAGED, Environment, Run
from bench.sharing.verdict import judge
from slicer.record import replace
from tests.unit.bench.made_up import CALIBRATION, ENVIRONMENT, PARAMETERS, run, runs, sharing
from tests.unit.cli.test_hostile import EVIL, harmless

ROOT = Path(__file__).parents[3]
RUNS = [
    *(run(name, 1.0, told=None if name == ALONE else sharing()) for name in (ALONE, ALONE_LOCKED)),
    *(run(name, done=4000) for name in (ALONE, ALONE_LOCKED)),
    *runs(UNMANAGED, 3.0, 3.125, 2.9, done=3000),
    *runs("yield", 12.5, 12.5, 12.5, done=3000, told=sharing("mps")),
    *runs("priority 10", 1.2, 1.25, 1.1, done=3420, told=sharing()),
    Run("each", None, (), error="the batch job: the GPU is gone"),
]
TABLE = """\
NVIDIA X (79.6G, driver 580.95.05, CUDA 13.0), slicer 1.2.3, 2026-11-22T18:00:00Z
Latency job: a request each 10 ms: 20 kernels of 50 us, 1 ms of GPU time.
1 batch job: compute kernels of 500 us, 32 in flight.
3 repetitions of 2 s; responses in ms.

SCENARIO           P50   P90   P99   MAX  /ALONE  /UNMGD  WORK/S  ALONE  LEFT
alone             1.00  1.00  1.00  1.00    1.00    0.33    2000   100%  100%
alone, with lock  1.00  1.00  1.00  1.00    1.00    0.33    2000   100%  100%
unmanaged         1.00  1.00  3.00  3.12    3.00    1.00    1500    75%   83%
yield             1.00  1.00  12.5  12.5   12.50    4.17    1500    75%   83%
priority 10       1.00  1.00  1.20  1.25    1.20    0.40    1710    86%   95%
each                 -     -     -     -       -       -       -      -     -

each: the batch job: the GPU is gone
The lock was not, or not wholly, applied (no lock, because MPS is running): yield
The lock helps here: P99 1.2 ms (1.2 times alone) under priority 10, 3 ms (3.0 times alone) unmanaged; the \
batch jobs do 114% of what they do unmanaged.
"""


def found(environment: Environment = ENVIRONMENT) -> report.Found:
    parameters = replace(PARAMETERS, modes=("yield", "priority", "each"))
    rows = measures.rows(parameters, CALIBRATION, planning.scenarios(parameters), RUNS)
    return report.Found(parameters, environment, CALIBRATION, rows, judge(rows), tuple(RUNS), is_whole=False)


def text(of: report.Found) -> str:
    return "".join(f"{line.text}\n" for line in report.lines(of))


def test_the_table_has_figures_ratios_and_a_verdict() -> None:  # D4
    assert text(found()) == TABLE


def test_a_job_that_falls_behind_shows_how_far() -> None:  # D4
    late = [*RUNS, *(run("each", 5.0, due=4, done=10) for _ in range(3))]
    rows = measures.rows(PARAMETERS, CALIBRATION, planning.scenarios(PARAMETERS), late)
    shown = text(replace(found(), rows=rows))
    assert "SERVED" in shown
    assert re.search(r"^each +5.00 .* 25% ", shown, re.M)


FAKE = replace(ENVIRONMENT, gpu="Fake GPU (no hardware)", driver="")


def test_what_a_fake_driver_gave_is_marked_everywhere(tmp_path: Path) -> None:  # D4
    of = found(FAKE)
    assert "FAKE DRIVER: these figures are of no GPU." in text(of)
    assert "On a GPU this would mean: The lock helps here" in text(of)
    assert report.as_json(of)["is_fake"] is True
    pytest.importorskip("matplotlib")
    report.write_plot(str(tmp_path / "x.svg"), of)
    assert "FAKE DRIVER" in (tmp_path / "x.svg").read_text()


def test_a_name_from_the_driver_is_made_visible() -> None:  # C10
    assert harmless(text(found(replace(ENVIRONMENT, gpu=EVIL))))


KEYS = {
    "": "schema is_fake is_complete environment parameters calibration scenarios verdict",
    "environment": "gpu uuid memory_mib compute_capability driver cuda slicer date others",
    "scenarios": "name runs latency batch errors troubles turns",
    "latency": "p50_ms p90_ms p99_ms max_ms served samples p99_of_each_ms of_alone of_unmanaged",
    "batch": "per_s per_s_of_each of_alone of_left",
    "verdict": "kind scenario text",
    "calibration": "device uuid memory_mib compute_capability cuda sm_count compute_ns memory_ns"
    " request_ms started_s",
}


def test_json_has_the_fields_that_are_documented() -> None:  # D4
    data = json.loads(json.dumps(report.as_json(found())))
    latency = data["scenarios"][4]["latency"]
    row = data["scenarios"][4]
    seen = {**data, "": data, "scenarios": row, "latency": latency, "batch": row["batch"]}
    assert {name: " ".join(seen[name]) for name in KEYS} == KEYS
    documented = (ROOT / "bench" / "README.md").read_text()
    assert all(f"`{word}" in documented for words in KEYS.values() for word in words.split())
    assert data["schema"] == "slicer.bench.sharing"
    assert latency["p99_of_each_ms"] == [1.2, 1.25, 1.1]
    assert data["is_complete"] is False


def test_a_folder_gets_table_json_plot_and_every_sample(tmp_path: Path) -> None:  # D4
    folder = tmp_path / "a" / "b"
    report.make_folder(str(folder))
    report.write_folder(str(folder), found())
    assert (folder / "table.txt").read_text() == TABLE
    assert json.loads((folder / "report.json").read_text())["version"] == 1
    lines = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    assert len(lines) == len(RUNS)
    assert lines[4]["latency"]["responses_ms"][-1] == 3.0
    pytest.importorskip("matplotlib")
    ElementTree.parse(folder / "sharing.svg")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--modes yeild", "--modes: expected yield, priority, each"),
        ("--duration 0", "expected a duration from 1us to 1h"),
        ("--duration 2h", "expected a duration from 1us to 1h"),
        ("--period 3s", "--period: a run has not one request"),
        ("--repeats 0", "0 is not in the range"),
        ("--vram much", "expected a size"),
        ("--plot x.gif", "expected a name that ends in .png or .svg"),
        ("--plot nowhere/x.svg", "there is no such directory"),
        ("--output /proc/x", "cannot be made"),
    ],
)
def test_what_cannot_be_measured_is_said_before_anything_is_started(
    capfd: pytest.CaptureFixture[str], options: str, said: str
) -> None:  # D4, K9
    assert command.main(options.split()) in (2, 125)
    error = capfd.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_simulated_gpus_are_refused(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:  # D4
    monkeypatch.setenv("SLICER_SIM", "1")
    assert command.main([]) == 2
    assert "simulated GPUs run no kernels" in capfd.readouterr().err
