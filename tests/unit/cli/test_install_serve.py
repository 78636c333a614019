"""`slicer install --serve NAME`: for which server, as whom, and how it goes away again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.program import Cli

pytest_plugins = ["tests.unit.program"]

UNITS = "usr/local/lib/systemd/system"
CONFIG = """\
[serve.ollama]
kind = "ollama"
command = ["ollama", "serve"]

[serve.chat]
kind = "openai"
listen = ["127.0.0.1:8000"]
upstream = "http://127.0.0.1:8001"
models = ["chat"]

[serve.code]
kind = "openai"
listen = ["127.0.0.1:8000"]
upstream = "http://127.0.0.1:8002"
models = ["code"]
"""


@pytest.fixture
def image(cli: Cli) -> Path:
    """What belongs to the machine: its configuration has three servers, two of them at one address."""
    root = cli.root / "host"
    (root / "etc/slicer").mkdir(parents=True)
    (root / "etc/slicer/config.toml").write_text(CONFIG)
    program = cli.root / "bin/slicer"
    program.parent.mkdir()
    program.touch(0o755)
    cli.environ["PATH"] = f"{program.parent}:{cli.environ['PATH']}"
    return root


def names(image: Path) -> list[str]:
    return sorted(path.name for path in image.rglob("slicer-serve-*"))


def test_a_server_comes_and_goes_alone(cli: Cli, image: Path) -> None:  # B6, K5
    socket = f"{image}/{UNITS}/slicer-serve-ollama.socket"
    out = cli.run("install", "--serve", "ollama", "--dry-run").stdout
    assert f"would install  {socket} " in out
    assert "would run  systemctl enable --now slicer-serve-ollama.socket" in out
    assert names(image) == []
    assert f"created  {socket} " in cli.run("install", "--serve", "ollama").stdout
    assert names(image) == ["slicer-serve-ollama.service", "slicer-serve-ollama.socket"]
    assert not (image / UNITS / "gpu.slice").exists()
    out = cli.run("install", "--serve", "ollama").stdout
    assert f"unchanged  {socket} " in out
    assert "systemctl stop" not in out
    out = cli.run("install", "--remove", "--serve", "ollama").stdout
    assert f"removed  {socket} " in out
    assert "systemctl disable --now slicer-serve-ollama.socket" in out
    assert names(image) == []


def test_another_installation_brings_it_up_to_date_and_removal_takes_it_away(cli: Cli, image: Path) -> None:
    cli.run("install", "--serve", "ollama", "--as", "nobody")
    config = image / "etc/slicer/config.toml"
    config.write_text(CONFIG.replace('kind = "ollama"\n', 'kind = "ollama"\nlisten = ["127.0.0.1:9999"]\n'))
    assert f"updated    {image}/{UNITS}/slicer-serve-ollama.socket " in cli.run("install").stdout
    assert "ListenStream=127.0.0.1:9999\n" in (image / UNITS / "slicer-serve-ollama.socket").read_text()
    assert "User=nobody\n" in (image / UNITS / "slicer-serve-ollama.service").read_text()
    config.write_text("")
    said = cli.run("install").stderr
    assert "slicer-serve-ollama.service stays as it is: unknown server 'ollama'" in said
    assert "slicer install --remove --serve ollama" in said
    cli.run("install", "--remove")
    assert names(image) == []


def test_servers_at_one_address_are_one_service(cli: Cli, image: Path) -> None:  # B6
    cli.run("install", "--serve", "chat")
    assert " serve chat code\n" in (image / UNITS / "slicer-serve-chat.service").read_text()
    said = cli.run("install", "--serve", "code", code=2).stderr
    assert "chat listens at the same address, and its unit also serves code" in said
    assert names(image) == ["slicer-serve-chat.service", "slicer-serve-chat.socket"]


def test_what_somebody_edited_stays(cli: Cli, image: Path) -> None:  # K5
    cli.run("install", "--serve", "ollama")
    service = image / UNITS / "slicer-serve-ollama.service"
    service.write_text(service.read_text() + "# mine\n")
    for removing in ((), ("--remove",)):
        assert "edited by somebody" in cli.run("install", *removing, "--serve", "ollama").stderr
    assert names(image) == ["slicer-serve-ollama.service"]
    cli.run("install", "--remove", "--force", "--serve", "ollama")
    assert names(image) == []


def test_for_a_user_alone(cli: Cli, image: Path) -> None:  # B6
    config = cli.root / "config/slicer/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(CONFIG)
    out = cli.run("install", "--user", "--serve", "ollama").stdout
    folder = cli.root / ".local/share/systemd/user"
    assert f"created  {folder}/slicer-serve-ollama.socket " in out
    assert "systemctl --user enable --now slicer-serve-ollama.socket" in out
    cli.run("install", "--user", "--remove", "--serve", "ollama", code=None)
    assert names(cli.root) == []


def test_a_server_that_the_service_would_not_find_is_refused(cli: Cli, image: Path) -> None:  # B6
    elsewhere = cli.root / "elsewhere.toml"
    elsewhere.write_text(CONFIG)
    cli.environ["SLICER_CONFIG"] = str(elsewhere)
    said = cli.run("install", "--user", "--serve", "ollama", code=125).stderr
    assert f"{elsewhere}:1: " in said or f"{elsewhere}:2: " in said
    assert "the service would not find [serve." in said
    assert f"describe it in {cli.root}/config/slicer/config.toml" in said


@pytest.mark.parametrize("words", [
    ("--as", "nobody"),
    ("--serve", "ollama", "--user", "--as", "nobody"),
    ("--serve", "ollama", "--broker"),
    ("--serve", "none"),
    ("--serve", "ollama", "--as", "a b"),
    ("--remove", "--serve", "ollama"),
])  # fmt: skip
def test_what_cannot_be_is_said_in_one_line(cli: Cli, image: Path, words: tuple[str, ...]) -> None:  # B6
    done = cli.run("install", *words, code=2)
    assert done.stderr.count("\n") == 1, done.stderr
    assert names(image) == []
