"""The whisper example by an ordinary user: with real scopes, and the real ffprobe of Debian 13."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import media
from tests.machines.host import REPO
from tests.patience import DEADLINE_S, until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.users import User

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
