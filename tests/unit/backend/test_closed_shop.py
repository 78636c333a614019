"""A closed shop: what its drop-in denies, and whom it finds in its way (L4)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slicer.backend import closed_shop
from slicer.backend.install_units import apply, closed_plan, remove
from slicer.kernel import SYSROOT


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Below it lies what belongs to the machine."""
    monkeypatch.setenv(SYSROOT, str(tmp_path))
    return tmp_path


def test_every_driver_but_nvidias_is_allowed_also_one_that_is_loaded_later() -> None:  # L4
    lines = closed_shop.drop_in("user.slice").decode().splitlines()
    allowed = {line.removeprefix("DeviceAllow=") for line in lines if line.startswith("DeviceAllow=")}
    assert allowed == {"block-* rwm"} | {f"char-{major} rwm" for major in range(512) if major != 195}
    assert lines.index("[Slice]") < lines.index("DevicePolicy=strict")
    assert "[Service]" in closed_shop.drop_in("cron.service").decode()


def test_cron_is_closed_where_it_is_and_all_is_taken_back(machine: Path) -> None:  # L4
    unit = machine / "usr/lib/systemd/system/cron.service"
    unit.parent.mkdir(parents=True)
    unit.touch()
    folder = machine / "usr/local/lib/systemd/system"
    report = apply(closed_plan())
    assert [done.status for done in report.files] == ["created", "created"]
    assert [ran.exit_code for ran in report.commands] == [None, None]  # without systemd
    assert sorted(path.name for path in folder.iterdir()) == ["cron.service.d", "user.slice.d"]
    unit.unlink()
    remove(closed_plan(only_there=True))
    assert not [path for path in folder.rglob("*") if path.is_file()]
    assert closed_plan(only_there=True).actions == ()


def test_graphical_sessions_are_found_and_no_fifo_is_waited_for(machine: Path) -> None:  # L4
    folder = machine / "run/systemd/sessions"
    folder.mkdir(parents=True)
    (folder / "1").write_text("UID=0\nUSER=alice\nTYPE=tty\nCLASS=user\n")
    (folder / "2").write_text("UID=0\nUSER=alice\nTYPE=x11\nCLASS=user\n")
    (folder / "c1").write_text("UID=0\nUSER=gdm\nTYPE=wayland\nCLASS=greeter\n")
    os.mkfifo(folder / "2.ref")  # logind's own
    found = closed_shop.sessions()
    assert [(each.id, each.user, each.kind, each.is_greeter) for each in found] == [
        ("2", "alice", "x11", False), ("c1", "gdm", "wayland", True),
    ]  # fmt: skip
    assert closed_shop.display_manager() == ""
    link = machine / "etc/systemd/system/display-manager.service"
    link.parent.mkdir(parents=True)
    link.symlink_to("/usr/lib/systemd/system/gdm.service")
    assert closed_shop.display_manager() == "gdm.service"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--yes",), "only valid with --closed-shop"),
        (("--closed-shop", "--user"), "for all users of the machine"),
        (("--closed-shop", "--broker", "--remove"), "leave out one"),
        (("--closed-shop",), "add --yes"),
    ],
)
def test_it_is_not_closed_by_mistake(machine: Path, options: tuple[str, ...], said: str) -> None:  # L4
    line = [sys.executable, "-m", "slicer", "install", *options]
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done
    assert said in done.stderr
    assert not list(machine.iterdir())


def test_a_shop_that_an_edited_file_keeps_shut_is_not_called_open(machine: Path) -> None:  # W23
    line = [sys.executable, "-m", "slicer", "install", "--closed-shop"]

    def install(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*line, *options], capture_output=True, text=True, check=False)

    assert install("--yes").returncode == 0
    (edited,) = machine.rglob("user.slice.d/*.conf")
    edited.write_text(edited.read_text() + "# and one line more\n")
    refused = install("--remove")
    assert (refused.returncode, edited.exists()) == (125, True), refused
    assert f"edited by somebody and left alone: {edited} (--force removes)" in refused.stderr
    assert "the shop may still be closed" in refused.stderr
    assert "open: every user" not in refused.stdout
    assert install("--yes").returncode == 125  # whatever it says by now, it is not what closes the shop
    opened = install("--remove", "--force")
    assert (opened.returncode, edited.exists()) == (0, False), opened
    assert "open: every user" in opened.stdout
