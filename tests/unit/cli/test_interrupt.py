"""Ctrl-C at the worst moment: what was held back while waiting acts while a failure is being told."""

from __future__ import annotations

import signal

import pytest

from slicer.cli import run, say
from slicer.errors import BusyError, UsageError
from slicer.model import Busy


@pytest.mark.parametrize(
    ("failure", "teller"),
    [
        (BusyError(Busy("cpu", (), 0, (), "", slot="cpu"), waited_s=0.5), "busy_json"),
        (UsageError("wrong"), "error"),
    ],
    ids=["busy", "usage"],
)
def test_a_signal_while_a_failure_is_told_ends_slicer_quietly(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], failure: Exception, teller: str
) -> None:
    """A9: found by the soak as a traceback and exit code 1."""
    died_of: list[int] = []

    def died(signo: int) -> int:
        died_of.append(signo)
        return 128 + signo

    def interrupted(*_: object) -> None:
        raise run._Interrupted(signal.SIGINT)

    def act() -> int:
        raise failure

    monkeypatch.setattr(run, "_die_of", died)
    monkeypatch.setattr(say, teller, interrupted)
    options = {"help": False, "verbosity": 0}
    assert run.reported("run", options, act) == 130
    assert died_of == [signal.SIGINT]
    assert "Traceback" not in capfd.readouterr().err
