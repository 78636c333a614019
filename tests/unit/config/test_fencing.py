"""What a profile says of the device fence, and which mistakes are noticed (X1)."""

from __future__ import annotations

import pytest

from slicer.errors import ConfigError
from tests.unit.config.test_sharing import made

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("auto", ())),
        ('fence = "off"', ("off", ())),
        ('fence = "on"\ndevices = ["/dev/nvidia-modeset"]', ("on", ("/dev/nvidia-modeset",))),
        (
            'devices = ["char-nvidia-nvswitch", "char-nvidia-nvswitch", "/dev/nvidia-caps/nvidia-cap1"]',
            ("auto", ("char-nvidia-nvswitch", "/dev/nvidia-caps/nvidia-cap1")),
        ),
        ('device_policy = "closed"\nfence = "auto"', ("auto", ())),
    ],
)
def test_what_is_said_is_taken(tmp_path: Path, text: str, expected: tuple[Any, ...]) -> None:  # X1, D2
    found = made(tmp_path, text)
    assert (found.fence, found.devices) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fence = true", 'expected "auto", "on" or "off".*did you mean on'),
        ('fence = "yes"', "expected"),
        ('fence = ["on"]', "expected"),
        ('fence = "on"\ndevice_allow = ["/dev/nvidia0 rw"]', "DeviceAllow of the profile replace"),
        ('devices = "/dev/nvidia-modeset"', "expected a list"),
        ("devices = [0]", "expected a list"),
        ('devices = ["/dev/kvm"]', "not one of NVIDIA's nodes"),
        ('devices = ["/dev/nvidia*"]', "cannot be a node"),
        ('devices = ["/dev/nvidia/../kvm"]', "cannot be a node"),
        ('device = ["/dev/nvidia0"]', "did you mean devices"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, text: str, message: str) -> None:  # X1, D2
    with pytest.raises(ConfigError) as caught:
        made(tmp_path, text)
    shown = f"{caught.value} {caught.value.hint}"
    assert "config.toml:" in str(caught.value.where)
    import re

    assert re.search(message, shown, re.DOTALL), shown
