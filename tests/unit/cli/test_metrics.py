"""``slicer metrics``: what it prints, and the file that it writes where others may write, too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slicer.broker import accounts
from slicer.broker.server.accounts import Accounts
from slicer.cli import metrics
from slicer.cli.common import NoLibrary
from slicer.errors import SlicerError
from slicer.kernel import SYSROOT
from slicer.kernel.users import user_name
from tests.fake_nvml import FakeNvml
from tests.unit.broker.test_accounts import ended
from tests.unit.program import Cli

pytest_plugins = ["tests.unit.program", "tests.fake_nvml"]


def test_a_job_is_told_while_it_runs_and_after_it(cli: Cli, fake_nvml: FakeNvml) -> None:  # X8
    pytest.importorskip("prometheus_client")
    cli.environ |= fake_nvml.env
    cli.run("run", "--backend", "plain", "-q", "-p", "light", "--", "true")
    cli.running("--gpus", "1", "-p", "gpu", "--name", "train")
    found, who = cli.run("metrics").stdout, user_name(os.geteuid())
    assert f'slicer_jobs_running{{profile="gpu",user="{who}"}} 1.0' in found
    assert f'slicer_jobs_ended_total{{profile="light",result="succeeded",user="{who}"}} 1.0' in found
    assert "train" not in found
    assert cli.run("metrics", "--openmetrics").stdout.endswith("# EOF\n")


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:  # X8
    monkeypatch.setattr(metrics, "find_spec", lambda _: None)
    with pytest.raises(NoLibrary) as raised:
        metrics.need_prometheus()
    assert "apt install python3-prometheus-client" in raised.value.hint


@pytest.mark.skipif(os.geteuid() != 0, reason="the accounts are root's")
def test_root_counts_the_jobs_of_all_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # X8
    monkeypatch.setenv(SYSROOT, str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    book = Accounts(lambda: 1e6, directory=str(tmp_path) + accounts.DIRECTORY, warn=pytest.fail)
    for number, uid in enumerate((1000, 1000, 1001)):
        book.note(ended(f"{number:012x}", uid=uid))
    book.write()
    book.close()
    found = metrics.totals()
    assert [(each.uid, each.profile, each.result, each.jobs) for each in found] == [
        (1000, "heavy", "failed", 2), (1001, "heavy", "failed", 1),
    ]  # fmt: skip
    assert (found[0].gpu_s, found[0].cpu_s) == (pytest.approx(200.0), 100.0)


def test_accounts_that_cannot_be_read_cost_only_their_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:  # X8
    monkeypatch.setenv(SYSROOT, str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    path = Path(str(tmp_path) + accounts.PATH)
    path.parent.mkdir(parents=True)
    path.write_text("no database" * 100)
    assert metrics.totals() == []
    assert "without the sums over ended jobs" in capfd.readouterr().err


def test_the_file_is_replaced_in_one_step_and_no_link_is_followed(tmp_path: Path) -> None:  # X8
    victim, folder = tmp_path / "victim", tmp_path / "folder"
    victim.write_text("precious")
    folder.mkdir()
    (folder / metrics.FILE).symlink_to(victim)
    metrics.replace_file(str(folder), b"a 1\n")
    assert victim.read_text() == "precious"
    assert (folder / metrics.FILE).read_bytes() == b"a 1\n"
    assert not (folder / metrics.FILE).is_symlink()
    assert oct((folder / metrics.FILE).stat().st_mode & 0o777) == "0o644"
    assert os.listdir(folder) == [metrics.FILE]


def test_what_lies_at_the_temporary_name_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # X8
    victim = tmp_path / "victim"
    victim.write_text("precious")
    monkeypatch.setattr(os, "urandom", bytes)
    (tmp_path / f"{metrics.FILE}.00000000.tmp").symlink_to(victim)
    with pytest.raises(SlicerError, match="cannot be written"):
        metrics.replace_file(str(tmp_path), b"a 1\n")
    assert victim.read_text() == "precious"
