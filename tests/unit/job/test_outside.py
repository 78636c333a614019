"""Commands that take their work out of the job: its GPUs are not what they see (W9)."""

from __future__ import annotations

import pytest

from slicer.job.outside import what_is_lost


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("sudo python train.py", ("CUDA_VISIBLE_DEVICES", "--preserve-env=")),
        ("/usr/bin/sudo -u bob python train.py", ("sudo drops",)),
        ("su - bob", ("su drops", "put slicer behind it")),
        ("docker run --gpus all image", ("outside of this job", "--gpus")),
        ("podman run image", ("--cgroups=split",)),
        ("ssh host nvidia-smi", ("another machine",)),
        ("tmux new -d python train.py", ("a server", "slicer inside")),
        ("systemd-run --scope python", ("systemd",)),
    ],
)
def test_what_gets_lost_is_said_with_the_way_out(command: str, words: tuple[str, ...]) -> None:
    said = what_is_lost(tuple(command.split()))
    assert said.isprintable()
    for word in words:
        assert word in said


@pytest.mark.parametrize(
    "command",
    [
        "python train.py",
        "./sudo.sh",
        "nohup python",
        "sudo --preserve-env=CUDA_VISIBLE_DEVICES python",
        "sudo -E python",
        "su bob -c python",
        "docker run -e CUDA_VISIBLE_DEVICES image",
        "podman run --cgroups=split image",
    ],
)
def test_who_keeps_it_hears_nothing(command: str) -> None:
    assert what_is_lost(tuple(command.split())) == ""
