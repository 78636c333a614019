"""``python -m bench.sharing``: table, JSON, files, and what it refuses before anything is started."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.sharing import __main__ as program
from bench.sharing import planning, report
from bench.sharing.model import ALONE, ALONE_LOCKED, UNMANAGED, Run
from slicer.record import replace
from tests.unit.bench.made_up import CALIBRATION, PARAMETERS, run, runs, sharing
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
| | P50 ms | P90 | P99 | MAX | /ALONE | /UNMGD | SERVED | WORK/S | ALONE | LEFT |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|
| alone | 1 | 1 | 1 | 1 | 1.00 | 0.33 | 100% | 2000 | 100% | 100% |
| alone, with lock | 1 | 1 | 1 | 1 | 1.00 | 0.33 | 100% | 2000 | 100% | 100% |
| unmanaged | 1 | 1 | 3 | 3.12 | 3.00 | 1.00 | 100% | 1500 | 75% | 83% |
| yield | 1 | 1 | 12.5 | 12.5 | 12.50 | 4.17 | 100% | 1500 | 75% | 83% |
| priority 10 | 1 | 1 | 1.2 | 1.25 | 1.20 | 0.40 | 100% | 1710 | 86% | 95% |
| each | - | - | - | - | - | - | - | - | - | - |

"""


def found(device: str = "NVIDIA X") -> report.Found:
    parameters = replace(PARAMETERS, modes=("yield", "priority", "each"))
    calibration = replace(CALIBRATION, device=device)
    return report.Found(parameters, calibration, planning.scenarios(parameters), tuple(RUNS), "2026-11-22")


def test_the_table_has_figures_ratios_and_a_verdict() -> None:  # D4
    text = report.text(found())
    assert TABLE in text
    assert "each: the batch job: the GPU is gone" in text
    assert "applied (no lock, because MPS is running): yield" in text
    assert text.endswith("the batch jobs do 114% of what they do unmanaged.")


def test_what_a_fake_driver_gave_is_marked_everywhere(tmp_path: Path) -> None:  # D4
    of = found("Fake GPU (no hardware)")
    assert "FAKE DRIVER: these figures are of no GPU. On a GPU this would mean: The lock" in report.text(of)
    assert json.loads(report.document(of))["is_fake"] is True
    pytest.importorskip("matplotlib")
    report.write_folder(tmp_path, of)
    assert "FAKE DRIVER" in (tmp_path / "sharing.svg").read_text()


def test_a_name_from_the_driver_is_made_visible() -> None:  # C10
    assert harmless(report.text(found(EVIL)))


KEYS = {
    "": "schema version is_fake is_complete slicer date parameters calibration scenarios verdict",
    "scenarios": "name runs latency batch errors troubles turns",
    "latency": "p50_ms p90_ms p99_ms max_ms served samples p99_of_each_ms of_alone of_unmanaged",
    "batch": "per_s per_s_of_each of_alone of_left",
    "verdict": "kind scenario text",
    "calibration": "device uuid memory_mib compute_capability cuda sm_count compute_ns memory_ns request_ms",
}


def test_json_has_the_fields_that_are_documented(tmp_path: Path) -> None:  # D4
    report.write_folder(tmp_path, found())
    data = json.loads((tmp_path / "report.json").read_text())
    row = data["scenarios"][4]
    seen = {**data, "": data, "scenarios": row, "latency": row["latency"], "batch": row["batch"]}
    assert {name: " ".join(seen[name]) for name in KEYS} == KEYS
    documented = (ROOT / "bench" / "README.md").read_text()
    assert all(f"`{word}" in documented for words in KEYS.values() for word in words.split())
    assert row["latency"]["p99_of_each_ms"] == [1.2, 1.25, 1.1]
    assert data["is_complete"] is False


def test_a_folder_gets_table_plot_and_every_sample(tmp_path: Path) -> None:  # D4
    report.write_folder(tmp_path, found())
    assert TABLE in (tmp_path / "table.txt").read_text()
    lines = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert len(lines) == len(RUNS)
    assert lines[4]["latency"]["responses_ms"][-1] == 3.0
    pytest.importorskip("matplotlib")
    ElementTree.parse(tmp_path / "sharing.svg")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--modes yeild", "no mode 'yeild'"),
        ("--duration x", "--duration"),
        ("--period 3s", "--period: a run has not one request"),
        ("--vram much", "expected a size"),
    ],
)
def test_what_cannot_be_measured_is_said_before_anything_is_started(
    capfd: pytest.CaptureFixture[str], options: str, said: str
) -> None:  # D4, K9
    try:
        code = program.main(options.split())
    except SystemExit as ended:
        code = ended.code  # type: ignore[assignment]
    assert code == 2
    assert said in capfd.readouterr().err


def test_simulated_gpus_are_refused(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:  # D4
    monkeypatch.setenv("SLICER_SIM", "1")
    assert program.main([]) == 2
    assert "simulated GPUs run no kernels" in capfd.readouterr().err
