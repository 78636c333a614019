"""Ctrl-C at the worst moment: what was held back while waiting acts while a failure is being told."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from slicer.cli import run, say
from slicer.errors import BusyError, UsageError
from slicer.model import Busy

pytestmark = pytest.mark.both_pythons


@pytest.mark.parametrize(
    ("failure", "teller"),
    [
        (BusyError(Busy("cpu", (), 0, (), "", slot="cpu"), waited_s=0.5), "json_line"),
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


_BOTH = """
import os, signal
from slicer.cli import run, say
from slicer.kernel.signals import block_interrupts, unblock_interrupts
block_interrupts()
for signo in (signal.SIGINT, signal.SIGTERM):
    os.kill(os.getpid(), signo)
options = {"help": False, "verbosity": 0}
run.reported("run", options, lambda: run.to_its_end(say.Messages(0), unblock_interrupts))
"""


def test_two_signals_at_once_end_slicer_quietly() -> None:
    """A9: found by the soak's shutdown, after a Ctrl-C, as a traceback and exit code 1."""
    done = subprocess.run((sys.executable, "-c", _BOTH), capture_output=True, text=True, check=False)
    assert done.returncode in (-signal.SIGINT, -signal.SIGTERM)
    assert "Traceback" not in done.stderr
