"""A machine for tests of the configuration: the places that it comes from, below a temporary directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slicer.config.profiles import Config, Overrides, load
from slicer.model import Host, Profile

GIB = 2**30
HOST = Host(tuple(range(12)), 64 * GIB)


class Machine:
    """The places that configuration comes from, below a temporary directory."""

    def __init__(self, root: Path) -> None:
        self.etc = root / "etc" / "slicer"
        self.home = root / "home"
        (self.etc / "conf.d").mkdir(parents=True)
        self.user = self.home / ".config" / "slicer" / "config.toml"
        self.user.parent.mkdir(parents=True)
        self.environ = {"HOME": str(self.home)}
        self.host = HOST

    def system(self, text: str) -> Path:
        return self.write(self.etc / "config.toml", text)

    def write(self, path: Path, text: str) -> Path:
        path.write_text(text, encoding="utf-8")
        return path

    def load(self) -> Config:
        return load(self.environ, self.host, system_dir=str(self.etc))

    def profile(self, name: str | None = None, **overrides: object) -> Profile:
        return self.load().profile(name, Overrides(**overrides))  # type: ignore[arg-type]


def values(profile: Profile) -> dict[str, object]:
    return {name: made.value for name, made in profile.properties.items()}


def as_root(monkeypatch: pytest.MonkeyPatch, foreign: Path) -> None:
    """Make ``foreign`` another user's file in root's eyes, whoever runs the tests."""
    if os.geteuid() == 0:
        os.chown(foreign, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 0)
