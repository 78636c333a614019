"""``slicer routes``: which there are, whether they fit, what they did, and what past jobs suggest."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from slicer.cli import app, drawing
from slicer.cli.routes import loading
from slicer.cli.routes.suggest import figure_of
from slicer.errors import GpuError, NoGpu
from slicer.outcome import decisions, history
from slicer.outcome.decisions import DecisionRow
from slicer.record import replace
from slicer.route.past import table
from slicer.route.suggestion import suggest
from tests.unit import made_up
from tests.unit.cli.test_hostile import EVIL, harmless
from tests.unit.program import Cli
from tests.unit.route.past import HOUR, Past, route

pytest_plugins = ["tests.unit.program"]

CONFIG = """\
[routes.whisper]
probe = "duration"
threshold = "1h"
on_gpu_oom = "cpu"
memory_reserve = "1G"
[routes.whisper.gpu]
max_jobs = 2
vram = "10G"
memory = "100M"
[routes.whisper.cpu]
max_jobs = 1
memory = "200M"
on_busy = "wait"
"""
OTHER = """\
[routes.ocr]
probe = ["pixels", "size"]
[routes.ocr.to.small]
mode = "gpu"
up_to = ["8MP", "1G"]
vram = "4G"
max_jobs = 1
exit_code = 1
[routes.ocr.to.rest]
mode = "cpu"
on_busy = "other"
"""
TABLE = """\
ROUTE    MEASURES      TO           TAKES          RUN  AT ONCE   VRAM  MEMORY  PROFILE  IF BUSY
ocr      pixels, size  small (gpu)  up to 8MP, 1G    0        1   4.0G       -  gpu      fail, exit 1
                       rest (cpu)   any              -        -      -       -  heavy    other
whisper  duration      gpu          up to 1h         1        2  10.0G  100.0M  gpu      fail, exit 75
                       cpu          any              0        1      -  200.0M  heavy    wait
"""


@pytest.fixture
def routes(cli: Cli, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """A command line with a route, two GPUs and an ffprobe; in this process, which is quicker."""

    def run(*arguments: str, env: Mapping[str, str] | None = None, code: int | None = 0) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(os, "environ", {**cli.environ, **(env or {})})
            patch.chdir(cli.root)
            capfd.readouterr()
            done = subprocess.CompletedProcess(arguments, app.main(list(arguments)), *capfd.readouterr())
        assert code is None or done.returncode == code, done
        return done

    monkeypatch.setattr(cli, "run", run)
    configure(cli, CONFIG)
    programs = cli.root / "bin"
    programs.mkdir()
    (programs / "ffprobe").write_text("#!/bin/sh\n")
    (programs / "ffprobe").chmod(0o755)
    cli.environ.update(SLICER_SIM="2x24G", PATH=f"{programs}:{cli.environ['PATH']}")
    return cli


def configure(cli: Cli, text: str) -> None:
    (cli.root / "config.toml").write_text(text)
    cli.environ["SLICER_CONFIG"] = str(cli.root / "config.toml")


def database(cli: Cli) -> str:
    return str(cli.history)


def keep(cli: Cli, past: Past) -> None:
    """Write a past into the history, a minute a decision, until now."""
    start = time.time() - 60 * len(past.found)
    for each in past.found:
        row = replace(each.row, decided_at=start + each.row.decided_at)
        decisions.append(row, database(cli))
        if each.job:
            job = each.job
            outcome = made_up.outcome(
                job=row.job, started_at=row.decided_at, wall_s=job.wall_s, exit_code=job.exit_code,
                vram_peak_mib=job.vram_peak_mib, waited_s=row.waited_s,
            )  # fmt: skip
            history.append(outcome, database(cli))


def busy_day() -> Past:
    past = Past()
    past.line(40, slope=1.9)
    past.out_of_memory(3000.0, 7800)
    past.cpu(2 * HOUR, waited_s=3.0)
    past.blocked(3 * HOUR, input="a b.mp4")
    past.blocked(3 * HOUR, input="a b.mp4")
    past.add(None, result="probe-error", metrics=(), destination="", mode="", reason="no such stream")
    return past


# -- the list -----------------------------------------------------------------------------------------


def test_the_routes_and_where_they_send_their_jobs(routes: Cli) -> None:  # C2
    configure(routes, CONFIG + OTHER)
    del routes.environ["SLICER_SIM"]  # simulated GPUs have a ledger of their own
    routes.running("--slot", "whisper-gpu")
    assert routes.run("routes").stdout == TABLE
    found = {each["name"]: each for each in routes.json("routes")["routes"]}
    assert list(found) == ["ocr", "whisper"]
    gpu = found["whisper"]["destinations"][0]
    assert (gpu["up_to"], gpu["slot"], gpu["max_jobs"], gpu["running"]) == ([3600.0], "whisper-gpu", 2, 1)
    assert found["ocr"]["destinations"][1]["slot"] is None
    assert found["ocr"]["probes"][0]["kind"] == "pixels"


# -- check --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "found", "said"),
    [
        (NoGpu("no-library", "no driver", hint=""), (), ""),
        (GpuError("lost " + EVIL), None, "slicer: GPUs: lost"),
    ],
)
def test_no_driver_is_no_gpu_and_a_failure_is_not(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    failure: GpuError,
    found: tuple[()] | None,
    said: str,
) -> None:  # C7
    def fail() -> None:
        raise failure

    monkeypatch.setattr("slicer.cli.routes.loading.open_gpus", fail)
    assert loading.gpus() == found
    err = capfd.readouterr().err
    assert err.startswith(said)
    assert harmless(err)


# -- stats --------------------------------------------------------------------------------------------


def test_decisions_are_counted(routes: Cli) -> None:  # C6
    keep(routes, busy_day())
    lines = routes.run("routes", "stats").stdout.splitlines()
    titles = "ROUTE CALLS INPUTS GPU CPU FALLBACK BLOCKED TOO BIG ERRORS WAITED 95%"
    assert lines[0].split() == titles.split()
    assert lines[1].split() == ["whisper", "45", "44", "41", "1", "1", "2", "-", "1", "0s", "0s"]
    (found,) = routes.json("routes", "stats")["routes"]
    assert found["calls"] == {"calls": 45, "inputs": 44}
    assert found["blocked"] == {"calls": 2, "inputs": 1}
    assert found["retries"] == found["blocked_for_good"] == 1
    assert found["is_configured"] is True
    assert [each["name"] for each in found["destinations"]] == ["gpu", "cpu"]


def test_one_route_is_shown_by_its_destinations(routes: Cli) -> None:  # C6
    keep(routes, busy_day())
    said = routes.run("routes", "stats", "whisper").stdout
    rows = [line.split() for line in said.splitlines()]
    assert said.startswith("whisper: 45 calls, 44 inputs, 1 retry; ")
    assert ["gpu", "cpu"] in rows
    assert ["started", "41", "1"] in rows
    assert ["out", "of", "GPU", "memory", "1", "-"] in rows
    assert "blocked       2 calls, 1 input: 1 not run since" in said
    assert "probe errors  1 call, 1 input; the last: no such stream" in said


def test_a_hint_comes_with_its_reason_and_the_lines_to_write(routes: Cli) -> None:  # C6
    keep(routes, busy_day())
    said = routes.run("routes", "stats").stdout
    reason = "1 of 41 inputs on gpu ran out of GPU memory; the smallest measured 50m (the threshold is 1h)"
    assert f'\n\nwhisper: {reason}\n    [routes.whisper]\n    threshold = "49m"\n' in said
    (found,) = routes.json("routes", "stats")["routes"]
    assert found["hints"] == [
        {
            "id": "gpu-out-of-memory",
            "text": reason,
            "config": ["[routes.whisper]", 'threshold = "49m"'],
        }
    ]


def test_since_leaves_out_what_is_older(routes: Cli) -> None:  # C6
    keep(routes, busy_day())
    (found,) = routes.json("routes", "stats", "--since", "90s")["routes"]
    assert found["calls"]["calls"] == 1
    assert routes.run("routes", "stats", "--since", "1s").stdout == "No decisions in that time.\n"
    assert "--since: expected a duration" in routes.run("routes", "stats", "--since", "x", code=2).stderr


def test_a_route_that_the_configuration_lost_keeps_its_figures(routes: Cli) -> None:  # C6
    keep(routes, busy_day())
    configure(routes, OTHER)
    (found,) = routes.json("routes", "stats")["routes"]
    assert (found["route"], found["is_configured"], found["hints"]) == ("whisper", False, [])
    assert routes.run("routes", "stats", "whisper").stdout.startswith("whisper: 45 calls")
    assert routes.run("routes", "stats", "ocr").stdout == "No decisions yet.\n"


def test_a_history_of_another_hand_does_not_talk_to_the_terminal(routes: Cli) -> None:  # S11
    evil = DecisionRow(
        route=EVIL, decided_at=time.time(), kinds=(EVIL,), metrics=(1.0,), bounds=(None,), destination=EVIL,
        mode=EVIL, result="started", job=EVIL, after=EVIL, waited_s=-1e18, input=EVIL, command=(EVIL,),  # type: ignore[arg-type]
        reason=EVIL,
    )  # fmt: skip
    decisions.append(evil, database(routes))
    decisions.append(replace(evil, result="probe-error"), database(routes))
    decisions.append(replace(evil, result="no such word", metrics=(1e300, float("nan"))), database(routes))
    for line in (("stats",), ("stats", EVIL), ("stats", "--json"), ("suggest", EVIL), ("check", EVIL)):
        done = routes.run("routes", *line, code=None)
        assert done.returncode in (0, 2), done
        assert harmless(done.stdout + done.stderr)
        assert "evil" in done.stdout + done.stderr


# -- suggest ------------------------------------------------------------------------------------------


def test_a_threshold_is_proposed_with_what_it_rests_on(routes: Cli) -> None:  # C9
    past = Past()
    past.line(60)
    keep(routes, past)
    said = routes.run("routes", "suggest", "whisper", "--vram", "8G", "--spare", "20").stdout.splitlines()
    assert said[0] == "whisper, gpu: duration up to 37m (now 1h): up to there 95% of jobs stay below 6.4G"
    assert said[1].split(maxsplit=1) == ["memory", "8.0G for a job, less 20%: 6.4G"]
    assert said[2].split(maxsplit=1) == ["jobs", "60 successful jobs, of 1m to 1h"]
    assert said[-3:] == ["", "    [routes.whisper]", '    threshold = "37m"']
    (found,) = routes.json("routes", "suggest", "whisper")["suggestions"]
    assert (found["verdict"], found["threshold"], found["vram_mib"]) == ("threshold", 3600.0, 10240)
    assert len(found["points"]) == 60
    assert found["line"]["jobs"] == 60


def test_what_the_proposal_says_can_be_written_into_the_configuration(routes: Cli) -> None:  # C9
    past = Past()
    past.line(60)
    keep(routes, past)
    (found,) = routes.json("routes", "suggest", "whisper", "--vram", "6G")["suggestions"]
    heading, line = found["config"]
    assert heading == CONFIG.splitlines()[0]
    configure(routes, CONFIG.replace('threshold = "1h"', line))
    (now,) = routes.json("routes")["routes"]
    assert now["destinations"][0]["up_to"] == [found["threshold"]] != [3600.0]


# -- the plot -----------------------------------------------------------------------------------------


@pytest.fixture
def drawn(routes: Cli) -> Cli:
    """With a past worth a picture."""
    pytest.importorskip("matplotlib")
    keep(routes, busy_day())
    routes.environ["MPLCONFIGDIR"] = str(routes.root / "fonts")
    return routes


@pytest.mark.slow
def test_the_plot_is_a_picture(drawn: Cli) -> None:  # C9
    assert "wrote out.SVG" in drawn.run("routes", "suggest", "whisper", "--plot", "out.SVG").stdout
    assert ElementTree.parse(drawn.root / "out.SVG").getroot().tag.endswith("}svg")
    of = route()
    found = suggest(of, of.destinations[0], table(busy_day().found), probe=0, vram_mib=10240)
    drawing.write(figure_of("whisper", found), str(drawn.root / "out.png"))
    assert (drawn.root / "out.png").read_bytes().startswith(b"\x89PNG\r\n")


@pytest.mark.slow
def test_what_lies_in_the_current_directory_does_not_draw(drawn: Cli) -> None:  # S11
    """matplotlib reads its settings from there, and would wait for a FIFO."""
    os.mkfifo(drawn.root / "matplotlibrc")
    Cli.run(drawn, "routes", "suggest", "whisper", "--plot", "fifo.svg")
    (drawn.root / "matplotlibrc").unlink()
    (drawn.root / "matplotlibrc").write_text("text.usetex: True\naxes.facecolor: red\n")
    Cli.run(drawn, "routes", "suggest", "whisper", "--plot", "set.svg")
    assert (drawn.root / "fifo.svg").read_bytes() == (drawn.root / "set.svg").read_bytes()


@pytest.mark.slow
def test_a_plot_that_cannot_be_written_says_why(drawn: Cli) -> None:  # C9
    said = drawn.run("routes", "suggest", "whisper", "--plot", "none/out.svg", code=125).stderr
    assert "none/out.svg: the plot cannot be written: No such file or directory" in said
    (drawn.root / "there.svg").mkdir()
    said = drawn.run("routes", "suggest", "whisper", "--plot", "there.svg", code=125).stderr
    assert "there.svg: the plot cannot be written" in said


def test_without_matplotlib_it_says_what_to_install(routes: Cli) -> None:  # C9
    absent = routes.root / "absent"
    absent.mkdir()
    (absent / "matplotlib.py").write_text("raise ImportError('not installed')\n")
    path = {"PYTHONPATH": f"{absent}:{routes.environ['PYTHONPATH']}"}
    done = Cli.run(routes, "routes", "suggest", "whisper", "--plot", "out.svg", env=path, code=125)
    assert "a plot needs matplotlib (not installed)" in done.stderr
    assert "pip install matplotlib" in done.stderr
    assert not (routes.root / "out.svg").exists()


def test_the_list_does_not_load_what_only_the_plot_needs(routes: Cli) -> None:
    code = "import sys, slicer.cli.routes.suggest; print('matplotlib' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=routes.environ, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_names_of_routes_complete(routes: Cli) -> None:
    words = {"_SLICER_COMPLETE": "zsh_words", "_SLICER_WORDS": "slicer\nroutes\nstats\nw"}
    assert "whisper" in routes.run(env=words).stdout
    assert Path(database(routes)).exists() is False


def fields(value: object) -> set[str]:
    """The names of all fields of a document; those of ``replace``, ``sources`` and ``jobs`` are data."""
    if isinstance(value, list):
        return {name for each in value for name in fields(each)}
    if not isinstance(value, dict):
        return set()
    data = ("replace", "sources", "jobs")
    return {*value, *(name for key, each in value.items() if key not in data for name in fields(each))}


def test_every_field_of_the_json_is_documented(routes: Cli) -> None:  # X3
    past = busy_day()
    past.gpu(600.0, 25_000)
    keep(routes, past)
    configure(routes, CONFIG + OTHER)
    lines = (("routes",), ("routes", "check"), ("routes", "stats"), ("routes", "suggest", "whisper"))
    found = {name for line in lines for name in fields(routes.json(*line))}
    text = (Path(__file__).parents[3] / "docs" / "json.md").read_text()
    assert {"up_to", "suggested_bytes", "p95_s", "highest_above_mib"} <= found
    assert not {name for name in found if f"`{name}" not in text and f'"{name}"' not in text}
