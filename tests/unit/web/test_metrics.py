"""Metrics: names by Prometheus' conventions, no label that names a job, sums that only grow."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from slicer.ledger.halted import Halted
from slicer.model import GpuLoad
from slicer.outcome.totals import WAITS_S, Total
from slicer.record import replace
from tests.machines import host
from tests.machines.settings import ci
from tests.unit.cli import made_up_status as made_up
from tests.unit.cli.made_up_status import BACKUP, EVAL, SERVE, TRAIN, A

pytest.importorskip("prometheus_client")

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

from slicer.web import metrics

SHARED = replace(SERVE, profile="infer")
STATUS = replace(
    made_up.made(
        (TRAIN, BACKUP, SHARED), (EVAL,), made_up.snapshot(made_up.process(A, 1, 500)),
        load={A: GpuLoad(37, 61, 250, 700)},
    ),
    halted=(Halted(TRAIN.job, "stopped", None),),
)
TOTALS = (
    Total(0, "gpu", "succeeded", 3, 100.0, 7.0, 80.0, (1, 1, 2, 2, 3, 3, 3, 3)),
    Total(0, "gpu", "failed", 1, 50.0, 1.0, 1e6, (0,) * len(WAITS_S)),
    Total(54321, "evil\"\n\\", "unknown", 1, 0.0, 0.0, 0.0, (1,) * len(WAITS_S)),
)
DASHBOARD = Path(host.REPO, "docs", "grafana.json")


def written() -> str:
    return metrics.text(STATUS, TOTALS)[0].decode()


def values() -> dict[str, dict[tuple[str, ...], float]]:
    """The samples by name, with the values of their labels in the order of the labels' names."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in parse(written()):
        for sample in family.samples:
            key = tuple(sample.labels[name] for name in sorted(sample.labels))
            assert key not in found.setdefault(sample.name, {}), "one series twice"
            found[sample.name][key] = sample.value
    return found


def test_what_holds_now_is_told_by_user_and_profile() -> None:  # X8
    found = values()
    assert found["slicer_jobs_running"] == {("", "root"): 1, ("", "54321"): 1, ("infer", "root"): 1}
    assert found["slicer_jobs_waiting"] == {("", "root"): 1}
    assert found["slicer_longest_wait_seconds"] == {("", "root"): made_up.NOW_S - EVAL.arrived_s}
    assert found["slicer_jobs_halted"] == {("", "stopped", "root"): 1}
    assert found["slicer_gpu_leases"] == {("", "root"): 2, ("infer", "root"): 1}
    assert found["slicer_job_gpu_memory_declared_bytes"]["infer", "root"] == 30 << 30
    assert found["slicer_gpu_memory_used_bytes"] == {("0",): 500 << 20, ("1",): 0, ("2",): 0}
    assert found["slicer_gpu_memory_foreign_bytes"]["0",] == 500 << 20
    assert found["slicer_gpu_utilization_ratio"] == {("0",): 0.37}
    assert found["slicer_gpu_temperature_celsius"] == {("0",): 61}
    assert found["slicer_gpu_power_watts"] == {("0",): 250}
    assert found["slicer_slots"] == {("cpu",): 4}
    assert found["slicer_slots_held"] == {("", "cpu", "root"): 1, ("", "cpu", "54321"): 2}


def test_sums_over_ended_jobs_are_counters_and_a_histogram() -> None:  # X8
    found = values()
    assert found["slicer_jobs_ended_total"]["gpu", "failed", "root"] == 1
    assert found["slicer_job_gpu_seconds_total"]["gpu", "root"] == 150
    assert found["slicer_job_wait_seconds_count"]["gpu", "root"] == 4
    buckets = found["slicer_job_wait_seconds_bucket"]
    assert [buckets[str(float(each)), "gpu", "root"] for each in WAITS_S] == [1, 1, 2, 2, 3, 3, 3, 3]
    assert buckets["+Inf", "gpu", "root"] == 4


def test_no_label_names_a_job_and_none_ends_a_line() -> None:  # X8, U13
    text = written()
    for lease in (TRAIN, BACKUP, SHARED, EVAL):
        assert lease.job not in text
        assert not lease.name or f'"{lease.name}"' not in text
        assert not lease.command or lease.command not in text
    names = {name for family in parse(text) for sample in family.samples for name in sample.labels}
    assert names <= {"user", "profile", "result", "slot", "state", "gpu", "uuid", "name", "version", "le"}


def test_openmetrics_is_what_its_parser_reads() -> None:  # X8
    data, kind = metrics.text(STATUS, TOTALS, is_open=True)
    assert kind.startswith("application/openmetrics-text")
    assert {each.name for each in parse_open(data.decode())} >= {"slicer_jobs_ended", "slicer_gpu_leases"}


def test_promtool_has_nothing_to_say() -> None:  # X8
    if host.tool("promtool") is None:
        reason = "promtool is not installed (Debian's prometheus; `make test` installs it)"
        if ci():
            pytest.fail(reason)
        pytest.skip(reason)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=written(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_dashboard_asks_for_nothing_that_is_not_written() -> None:  # X8
    board = json.loads(DASHBOARD.read_text())
    assert {"title", "panels", "schemaVersion", "templating", "time", "uid"} <= board.keys()
    panels = board["panels"]
    assert len({each["id"] for each in panels}) == len(panels)
    for each in panels:
        place = each["gridPos"]
        assert place.keys() == {"x", "y", "w", "h"}
        assert place["x"] + place["w"] <= 24
        assert each["title"]
        assert each["type"] in ("timeseries", "stat", "bargauge", "table", "heatmap")
        assert each["datasource"]["uid"] == "${datasource}"
    asked = [target["expr"] for each in panels for target in each["targets"]]
    asked += [each["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    known = {sample.name for family in parse(written()) for sample in family.samples}
    named = set(re.findall(r"\bslicer_\w+", " ".join(asked)))
    assert named <= known, named - known
    assert len(named) > 10
