"""Other people's words on our terminal: names, commands, paths and files that talk to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slicer.cli import app, output, say, stop
from slicer.cli.job_register import KnownJob
from slicer.columns import Line
from slicer.errors import SlicerError
from slicer.model import Busy
from slicer.outcome.history import append
from slicer.record import replace
from tests.unit.cli.made_up_status import TRAIN
from tests.unit.outcome.test_outcome_file import OUTCOME
from tests.unit.program import Cli

pytest_plugins = ["tests.unit.program"]

# Sets the title, clears the screen, returns to the line's start, C1's CSI, and reverses the text's direction.
EVIL = "zz\x1b]0;title\x07\x1b[2J\r\x9b31m\u202eevil"
COMMAND = ("sh", "-c", "sleep 1000 #" + EVIL)


def harmless(text: str) -> bool:
    """Whether a terminal only shows it."""
    return all(c.isprintable() or c == "\n" for c in text)


def check(cli: Cli, *line: str, code: int | None = 0, says: str = "evil", **env: str) -> None:
    done = cli.run(*line, env=env, code=code)
    said = done.stdout + done.stderr
    assert harmless(said), said
    assert says in said


def test_a_running_and_a_waiting_job_do_not_talk_to_the_terminal(cli: Cli) -> None:  # S11
    lease = cli.running("-p", "heavy", "--name", EVIL, command=COMMAND)
    ticket = cli.waiting("-p", "heavy", "--name", EVIL)
    check(cli, "status")
    check(cli, "status", "--json")
    check(cli, "stop", EVIL, code=2, says="could be 2 jobs")
    check(cli, "stop", EVIL + "x", code=2, says="did you mean")
    check(cli, "run", "--backend", "plain", "-p", "heavy", "--no-wait", "--", "true", code=75)
    check(
        cli,
        "run",
        "--backend",
        "plain",
        "-p",
        "heavy",
        "--max-wait",
        "10ms",
        "--then",
        "fail",
        "true",
        code=75,
    )
    check(cli, "run", "--backend", "plain", "-p", "heavy", "--dry-run", "--name", EVIL, "--", *COMMAND)
    check(cli, "stop", ticket.job)
    check(cli, "stop", lease.job)
    check(cli, "history")
    check(cli, "history", lease.job)
    check(cli, "history", "--json")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (("stop", EVIL), 2), (("history", EVIL), 2), (("history", "--since", EVIL), 2), ((EVIL,), 2),
        (("status", "--" + EVIL), 2), (("run", "--" + EVIL), 2), (("run", "--gpus", EVIL, "true"), 2),
        (("run", "--set", EVIL, "true"), 2), (("run", "-p", EVIL, "true"), 2), (("run", EVIL), 127),
        (("run", "./" + EVIL), 127), (("run", "--outcome", f"/{EVIL}/x", "true"), 2),
        (("hold", "--" + EVIL), 2),
        (("profiles", "show", EVIL), 2), (("queue", EVIL), 2), (("queue", "suggest", EVIL), 2),
        (("queue", "--gpu", EVIL, "--sim", "1", "jobs.txt"), None),
        (("simjob", "--" + EVIL), 2),
    ],
)  # fmt: skip
def test_no_error_repeats_what_a_terminal_would_obey(
    cli: Cli, line: tuple[str, ...], code: int
) -> None:  # S11
    (cli.root / "jobs.txt").write_text("true\n")
    check(cli, *line, code=code)


def test_configuration_directories_and_jobs_files_do_not_talk_to_the_terminal(cli: Cli) -> None:  # S11
    escaped = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in EVIL)
    file = cli.root / "config.toml"
    file.write_text(f'[profiles.mine]\ndescription = "{escaped}"\nenv.X = "{escaped}"\n')
    for line in (["profiles"], ["profiles", "show", "mine"], ["run", "-p", "mine", "--dry-run", "true"]):
        check(cli, *line, SLICER_CONFIG=str(file))
    file.write_text(f'[profiles.mine]\n"{escaped}" = 1\n')
    check(cli, "profiles", code=125, SLICER_CONFIG=str(file))
    blocked = cli.root / EVIL.replace("/", "")
    blocked.write_text("")
    check(cli, "status", code=125, SLICER_STATE_DIR=str(blocked))
    check(cli, "profiles", "init", "--user", XDG_CONFIG_HOME=str(cli.root / ("d" + EVIL)))
    (cli.root / "jobs.txt").write_text(f"[name={EVIL}] true\n")
    check(cli, "queue", "--backend", "plain", "-p", "light", "jobs.txt", code=2, says="jobs.txt")
    (cli.root / "jobs.txt").write_text("true #" + EVIL.replace("\r", "") + "\n")
    check(cli, "queue", "--backend", "plain", "-p", "light", "jobs.txt")


def test_a_history_of_another_hand_does_not_talk_to_the_terminal(cli: Cli) -> None:  # S11
    """Every text of an outcome, as a file holds them that somebody else wrote."""
    texts = ("job", "name", "profile", "backend", "manager", "unit", "slice", "reason")
    made = replace(OUTCOME, started_at=time.time(), **dict.fromkeys(texts, EVIL))
    made = replace(made, command=COMMAND, gpus=(EVIL,), enforced=(EVIL,), not_enforced=(EVIL,))
    append(made, str(cli.history))
    check(cli, "history")
    check(cli, "history", EVIL)


@pytest.mark.parametrize("debug", ["", "1"])
@pytest.mark.parametrize("kind", [ValueError, SlicerError, OSError])
def test_an_exceptions_text_does_not_talk_to_the_terminal(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: Callable[[str], Exception],
    debug: str,
) -> None:  # S11
    monkeypatch.setenv("SLICER_DEBUG", debug)
    app.report(kind(EVIL))
    said = capfd.readouterr().err
    assert "evil" in said
    assert said.startswith("slicer: ") == (not debug)
    assert harmless(said), said


def test_a_forged_job_id_does_not_talk_to_the_terminal(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:  # S11
    """Ids are checked where they are read; this holds even so."""
    monkeypatch.setenv("SLICER_STATE_DIR", str(tmp_path / "state"))
    forged = replace(TRAIN, job=EVIL, name="")
    known = KnownJob(EVIL, EVIL, 1, EVIL, forged, None, None)
    told: Any = SimpleNamespace(ledger=object(), living=[], find=lambda *_, **__: known)
    monkeypatch.setattr(stop, "JobRegister", lambda: told)
    for act in ("tell_to_end", "await_end"):
        monkeypatch.setattr(stop, act, lambda *_: None)
    stop.command.callback(  # type: ignore[misc]
        jobs=("x",), quiet=False, as_json=False, said_signal=None, said_grace=None
    )
    for lease in (forged, replace(forged, unit=EVIL, command=EVIL, forced=1)):
        say.Messages(1).acquired(lease, 2.0)
        say.Messages(1).waiting(Busy("cpu", (lease,), 0, (), EVIL, slot="cpu"))
    said = capfd.readouterr()
    assert harmless(said.out + said.err)
    assert "stopped zz" in said.out


def test_whatever_is_shown_passes_the_filter(capfd: pytest.CaptureFixture[str]) -> None:  # S11
    """At the edge, so that no command can forget it."""
    output.show([Line(EVIL), Line("two\nlines")])
    assert harmless(capfd.readouterr().out)
    assert harmless(output.fitted(Line(EVIL), 200))
