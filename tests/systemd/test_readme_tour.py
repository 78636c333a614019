"""README's four lines and its first day, pasted into a shell by a user of a machine with a real systemd."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import DEADLINE_S, until
from tests.systemd.helpers import systemctl
from tests.systemd.helpers.users import User

pytest_plugins = ["tests.systemd.helpers.fixtures"]
pytestmark = [pytest.mark.systemd, pytest.mark.core]

ROOT = Path(__file__).parents[2]
README, FIRST_DAY = ((ROOT / name).read_text() for name in ("README.md", "docs/first-day.md"))
# The programs of the first day's jobs.
PROGRAMS = {
    "train.py": "import os, time\nprint('epoch 1', flush=True)\ntime.sleep(float(os.getenv('TRAINS_S', 0)))",
    "eval.py": "print('evaluated')",
    "bin/python": '#!/bin/sh\nexec /usr/bin/python3 "$@"',
    "bin/jupyter": "#!/bin/sh\necho a notebook",
}
# They wait for something that does not come, so somebody has to end them.
ENDLESS = ("slicer logs -f train", "slicer wait train")
# No dockerd runs in the machines, and bookworm's has no docker at all.
DOCKER = 125 if shutil.which("docker") else 127
CODES = {
    "slicer doctor": (0, 1),  # the kernel of a test machine lacks some things
    "slicer run --gpus 1 -- docker run --rm image python train.py": (DOCKER,),
    "slicer run --gpus 1 --docker -- docker compose up": (DOCKER,),
}


def section(heading: str) -> str:
    return README.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def typed(text: str) -> list[str]:
    return re.findall(r"`(slicer [^`]+)`", text)


def paste(alice: User, lines: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    variables = [f"{name}={value}" for name, value in more.items()]
    path = f"PATH={folder}/bin:/usr/local/bin:/usr/bin:/bin"
    shell = [*alice.via, path, *variables, "bash", "-c", f"cd {folder}; set -o nounset\n{lines}"]
    return subprocess.run(shell, capture_output=True, text=True, timeout=4 * DEADLINE_S, check=False)


def board(folder: Path) -> str:
    path = folder / "slicer_logs" / "status.txt"
    return path.read_text() if path.exists() else ""


@pytest.fixture
def folder(alice: User) -> Iterator[Path]:
    made = alice.home / "first-day"
    (made / "bin").mkdir(parents=True)
    for name, text in PROGRAMS.items():
        (made / name).write_text(f"{text}\n")
        (made / name).chmod(0o755)
    for path in (made, *made.rglob("*")):
        shutil.chown(path, alice.name, alice.name)
    yield made
    shutil.rmtree(made)


def once(command: str) -> str:
    """The command without a terminal, which `slicer top` needs: see test_status_watch.py."""
    return "slicer status" if command == "slicer top" else command


def test_the_four_lines_work(alice: User, folder: Path) -> None:
    text = section("Install")
    lines = text.partition("```sh\n")[2].partition("```")[0]
    assert len(lines.splitlines()) == 4
    after = "\n".join(map(once, typed(text.rpartition("```")[2])))
    refused = 'slicer run --gpus 1 --no-wait -- true || echo "exit code $?"'
    done = paste(alice, f"{lines}\n{refused}\n{after}", folder)
    assert done.returncode == 0, done
    told = re.sub(r"\b[0-9a-f]{12}\b", "ID", f"{done.stdout}\n{done.stderr}")
    # As in README's picture …
    for shown in (
        r"^ID +train +running +GPU \d +alice ",
        r"^ID +eval +running +8G of GPU \d +alice ",
        r"^ID +sweep +2 GPUs +alice .* ~2h$",
        r"^GPUs: 0 of 2 free",
        # … of one that will not wait, of `stop`, of `logs`, and of `history`.
        r'^\{"error": "gpu-busy", ',
        r"^exit code 75$",
        r"^stopped ID +train",
        r"^both GPUs, at last$",
        r" stopped .* train: slicer simjob --vram 20G",
        r" ok .* sweep: echo",
    ):
        assert re.search(shown, told, re.MULTILINE), (shown, told)
    assert not systemctl.scopes(alice.systemctl)


def test_every_command_of_the_first_day_works(alice: User, folder: Path) -> None:
    table = FIRST_DAY.partition("## What to type\n")[2].strip().partition("\n\n")[0]
    rows = [line.split(" | ")[1] for line in table.splitlines() if "`slicer " in line]
    commands = [command for row in rows for command in typed(row)]
    assert len(commands) > 20
    for command in commands:
        command = once(command)
        is_long = {"TRAINS_S": "3600"} if "--name train" in command else {}
        line = f"timeout 1 {command}" if command in ENDLESS else command
        done = paste(alice, line, folder, SLICER_SIM="2x24G", **is_long)
        expected = (124,) if command in ENDLESS else CODES.get(command, (0,))
        assert done.returncode in expected, (command, done)
        if command.endswith(" --detach"):
            until(lambda: "has ended" in board(folder), "the queue has ended")
    logs = [path.read_text() for path in (folder / "slicer_logs").glob("job*.log")]
    assert logs == ["epoch 1\n", "epoch 1\n"], "the sweep's two jobs"
    assert (folder / "slicer_client.py").read_text().startswith('"""')
    assert not systemctl.scopes(alice.systemctl)
