"""README's tour, pasted into a shell by a user of a machine with a real systemd."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.patience import DEADLINE_S
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = [pytest.mark.systemd, pytest.mark.core]

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_every_line_of_the_tour_works(alice: User) -> None:
    tour = README.partition("```sh\n")[2].partition("```")[0]
    shell = [*alice.via, "PATH=/usr/local/bin:/usr/bin:/bin", "bash", "-c", f"cd; set -o nounset\n{tour}"]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=4 * DEADLINE_S, check=False)
    assert done.returncode == 0, done
    told = re.sub(r"\b[0-9a-f]{12}\b", "ID", f"{done.stdout}\n{done.stderr}")
    # As in what README prints of `slicer status` …
    for shown in (
        r"^ID +train +GPU \d +alice ",
        r"^ID +eval +8G of GPU \d +alice ",
        r"^ID +serve +8G of GPU \d +alice ",
        r"^ID +sweep +2 GPUs +alice ",
        r"^GPUs: 0 of 2 free",
        # … of one that will not wait, of `stop`, and of `history`.
        r'^\{"error": "gpu-busy", ',
        r"^exit code 75$",
        r"^both GPUs, at last$",
        r"^stopped ID +train",
        r" stopped .* train: slicer simjob --vram 20G",
        r" ok .* sweep: echo",
    ):
        assert re.search(shown, told, re.MULTILINE), (shown, told)
    assert not systemctl.scopes(alice.systemctl)
