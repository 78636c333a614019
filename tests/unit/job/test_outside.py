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
        ("ssh host nvidia-smi", ("another machine",)),
        ("tmux new -d python train.py", ("a server", "slicer inside")),
        ("systemd-run --scope python", ("systemd",)),
        ("env -i PATH=/bin python train.py", ("env drops CUDA_VISIBLE_DEVICES", "keeps it")),
        ("env - python train.py", ("env drops",)),
        ("apptainer exec --nv --cleanenv a.sif python", ("apptainer drops", "--env CUDA_VISIBLE_DEVICES")),
        ("singularity run -C image.sif", ("singularity drops",)),
        ("docker-compose up", ("outside of this job", "compose file")),
        ("docker compose up", ("outside of this job",)),
        ("nohup nice sudo python train.py", ("sudo drops",)),
        ("srun python train.py", ("Slurm outside of this job",)),
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
        "podman run image",
        "podman-compose up",
        "env OMP_NUM_THREADS=4 python -i",
        "env -i CUDA_VISIBLE_DEVICES=0 python",
        "apptainer exec --nv image.sif perl -e 1",
        "apptainer exec --cleanenv --env CUDA_VISIBLE_DEVICES=0 image.sif python",
    ],
)
def test_who_keeps_it_hears_nothing(command: str) -> None:
    assert what_is_lost(tuple(command.split())) == ""
