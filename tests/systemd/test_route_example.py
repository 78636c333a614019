"""The whisper example by an ordinary user: with real scopes, and the real ffprobe of Debian 13."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import media
from tests.machines.host import REPO
from tests.patience import DEADLINE_S, until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.users import User, end_session

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = pytest.mark.systemd

EXAMPLE = REPO / "docs/examples/whisper"


@pytest.fixture
def recordings(alice: User) -> Iterator[Path]:
    """Three minutes-long ones, one of over an hour, and one that needs more GPU memory than there is."""
    media.need_tools()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        directory = Path(name)
        directory.chmod(0o777)
        for number in range(3):
            media.silence(directory / f"talk {number}.wav", 600 + number)
        media.silence(directory / "long.wav", 3601)
        media.silence(directory / "surround.wav", 3000, channels=6)
        yield directory


def test_a_runner_that_is_a_service_calls_the_wrapped_whisper(
    alice: User, recordings: Path
) -> None:  # C5, N8
    """Of a user who has no manager every call fails and says what helps; with that it captions them all."""
    programs = alice.home / "wrapped"
    shutil.copytree(EXAMPLE / "bin", programs)
    shutil.chown(programs, alice.name, alice.name)
    shutil.chown(programs / "whisper", alice.name, alice.name)
    environ = (
        f"PATH={programs}:/usr/local/bin:/usr/bin:/bin", f"SLICER_CONFIG={EXAMPLE}/slicer.toml",
        "SLICER_SIM=2x24G", f"WHISPER_LOG={recordings}/log", f"HOME={alice.home}",
    )  # fmt: skip
    service = (
        "systemd-run", "--quiet", "--wait", "--pipe", "--collect", "--unit=video-runner",
        f"--property=User={alice.name}", *(f"--setenv={each}" for each in environ),
        "python3", EXAMPLE / "runner.py", recordings, "--", "whisper",
    )  # fmt: skip
    wrap = (*alice.bare, *environ, "slicer", "wrap")
    cure = f"loginctl enable-linger {alice.name}"
    end_session(alice)
    try:
        assert cure in run(*wrap, "install", programs / "whisper", "--route", "whisper")
        failed = run(*service, code=1)
        assert (failed.count("exit 125"), cure in failed) == (5, True), failed
        run(*cure.split())
        assert "5 captioned" in run(*service)
        assert len(list(recordings.glob("*.srt"))) == 5
    finally:
        run(*wrap, "remove", "--all")
        shutil.rmtree(programs)


def run(*line: object, code: int = 0) -> str:
    """All that a command says."""
    words = [str(word) for word in line]
    done = subprocess.run(words, capture_output=True, text=True, timeout=4 * DEADLINE_S, check=False)
    assert done.returncode == code, done
    return done.stdout + done.stderr


def test_the_whisper_example_by_a_user(alice: User, recordings: Path) -> None:  # C1, C2, C3, C6, C8
    environ = (
        f"PATH={EXAMPLE}/bin:/usr/local/bin:/usr/bin:/bin", f"SLICER_CONFIG={EXAMPLE}/slicer.toml",
        "SLICER_SIM=2x24G", f"WHISPER_LOG={recordings}/log",
    )  # fmt: skip
    line = [*alice.via, *environ, "python3", EXAMPLE / "runner.py", recordings, "--workers", "4"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=4 * DEADLINE_S, check=False)
    assert done.returncode == 0, done
    captions = {path.stem: path.read_text() for path in recordings.glob("*.srt")}
    devices = {name: text.partition(" on ")[2].partition(")")[0] for name, text in captions.items()}
    on_the_gpu = dict.fromkeys(("talk 0", "talk 1", "talk 2"), "cuda")
    assert devices == {**on_the_gpu, "long": "cpu", "surround": "cpu"}
    until(lambda: not systemctl.scopes(alice.systemctl), "no scope of hers")
    told = systemctl.output("journalctl", "-q", "-o", "cat", "-t", "slicer", f"_UID={alice.uid}")
    assert "talk 0.wav" in told
