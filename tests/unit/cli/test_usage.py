"""Who used how much, as it is shown. L5"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slicer.broker import accounts
from slicer.broker.accounts import AccountRow
from slicer.broker.protocol.messages import UsageRow
from slicer.cli import app, history, usage
from slicer.record import replace

ROWS = [
    UsageRow("0", 12, 1, 45_000.0, 24576 * 45_000.0, 600.0, 90.0),
    UsageRow("4242", 3, 0, 900.0, 2048 * 900.0, 0.0, 0.0),
]
JOB = AccountRow(
    "b 1 2", "15e6e2360898", 0, 0, "atrain", "train \x1b[31m--fast", "heavy", "GPU-a GPU-b", 900,
    "cpu=1 w=2", 1_700_000_000.0, 60.0, 0.2, 2.0, 48000, 3.5, 1 << 30, "exited", 1,
)  # fmt: skip


def test_each_row_and_their_sum() -> None:  # L5
    lines = [line.text for line in usage.table(ROWS, "user")]
    assert lines == [
        "USER  JOBS  RUNNING  GPU HOURS  VRAM GiB HOURS  CPU HOURS  WAITED",
        "root    12        1       12.5           300.0      0.167   1m30s",
        "4242     3        -        0.2             0.5          -       -",
        "all     15        1       12.8           300.5      0.167   1m30s",
    ]


def test_json_has_names_and_numbers() -> None:  # L5
    assert usage.row_json(ROWS[0], "user")["user"] == "root"
    assert usage.row_json(ROWS[0], "group")["gid"] == 0
    assert usage.row_json(UsageRow("heavy", 1, 0, 1.23456, 0.0, 0.0, 0.0), "profile") == {
        "profile": "heavy", "jobs": 1, "running": 0, "gpu_s": 1.235, "vram_mib_s": 0.0, "cpu_s": 0.0,
        "waited_s": 0.0,
    }  # fmt: skip


def test_a_job_of_somebody_is_shown_without_its_control_characters() -> None:  # L1, L5
    lines = [*history.row_table([JOB], JOB.granted_at), *history.row_details(JOB)]
    text = "\n".join(line.text for line in lines)
    assert "\x1b" not in text
    assert "exit 1" in text
    assert history.row_json(JOB)["slots"] == {"cpu": 1, "w": 2}
    assert history.row_json(JOB)["gpus"] == ["GPU-a", "GPU-b"]


def test_a_job_without_a_name_of_its_own_is_its_command() -> None:  # L5
    commands = ("/usr/bin/train a.toml", "python train.py", "")
    named = [replace(JOB, name="train", command=command) for command in commands]
    lines = history.row_table(named, JOB.granted_at)[1:]
    shown = [line.text.partition("200ms")[2].strip() for line in lines]
    assert shown == ["/usr/bin/train a.toml", "train: python train.py", "train"]


@pytest.mark.parametrize(
    ("uid", "command", "code", "said"),
    [
        (1000, ["usage"], 125, "there are no accounts without the broker"),
        (0, ["usage"], 125, "there are no accounts on this machine"),
        (0, ["history", "--all-users"], 125, "there are no accounts on this machine"),
        (1000, ["history", "--all-users"], 2, "only root may see the jobs of all users"),
        (0, ["usage", "--since", "x"], 2, "--since: "),
    ],
)
def test_without_a_broker_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    uid: int, command: list[str], code: int, said: str,
) -> None:  # fmt: skip  # L5
    monkeypatch.setenv("SLICER_BROKER", "off")
    monkeypatch.setattr("os.geteuid", lambda: uid)
    monkeypatch.setattr(accounts, "PATH", str(tmp_path / "usage.db"))
    assert app.main([*command]) == code
    assert said in capfd.readouterr().err


def test_json_of_nothing_is_a_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:  # L5
    from slicer.broker.server.accounts import Accounts

    Accounts(lambda: 1e6, directory=str(tmp_path), warn=lambda _: None).close()
    monkeypatch.setenv("SLICER_BROKER", "off")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(accounts, "PATH", str(tmp_path / "usage.db"))
    assert app.main(["usage", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"version": 1, "by": "user", "since": None, "rows": []}
    assert app.main(["history", "--all-users"]) == 0
    assert "No jobs yet." in capfd.readouterr().out
